"""Rates clips by a reward model, for the strategies and the page: returns by each member, rewards step by step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lib.envs.observation import STACK
from lib.envs.spec import PICTURE_SHAPE
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.reward.model import RewardModel

_STEPS_AT_ONCE = 128  # bounds memory: a long segment goes through the networks in parts of this many steps
_CURVES = 5000  # kept at once
_LOOKS = 10  # segments tried, until one can be read, to see whether the model fits this DB


class ModelRater:
    """Returns and learned rewards of the segments of one DB; see lib.preferences.rated_pairs.ClipRater.

    Every segment is rated once. Methods may be called from any thread; each waits for one segment at most.

    Args:
      model: the reward model.
      db: where the segments are.

    Raises:
      UserError: the model was fitted for another environment than the DB's segments are of.
    """

    def __init__(self, model: RewardModel, db: SegmentDB) -> None:
        self._model = model
        self._db = db
        self._returns: dict[str, np.ndarray] = {}  # float64 [M]; NaN for a segment that cannot be rated
        self._curves: dict[str, np.ndarray] = {}  # float32 [T]
        self._lock = threading.Lock()
        for name in db.names[:_LOOKS]:
            try:
                segment = db.load(name)
            except SegmentError:
                continue
            env_id = segment.sidecar.env_id if segment.sidecar else str(db.root)
            model.check(model.spec_of(segment), Path("--reward"), env_id)
            break

    def returns(self, names: Sequence[str]) -> np.ndarray:
        """R̂ = Σₜ r̂(oₜ, aₜ) as each member was fitted, before standardisation: P(first is better) = σ(R̂₁ − R̂₂).

        Args:
          names: K segments.

        Returns:
          float64 [M, K]; NaN for segments that cannot be read or are from another environment.
        """
        rated = np.empty((len(self._model.members), len(names)))
        for column, name in enumerate(names):
            with self._lock:
                if name not in self._returns:
                    try:
                        self._rate(name)
                    except SegmentError:
                        self._returns[name] = np.full(len(rated), np.nan)
                rated[:, column] = self._returns[name]
        return rated

    def curve(self, name: str) -> np.ndarray:
        """The learned reward of each step, standardised, as paid.

        Returns:
          float32 [T], read-only.

        Raises:
          SegmentError: the segment cannot be read or is from another environment.
        """
        with self._lock:
            if name not in self._curves:
                self._rate(name)
            return self._curves[name]

    def _rate(self, name: str) -> None:
        """Fills in a segment's returns and its curve; raises SegmentError."""
        model, segment = self._model, self._db.load(name)
        if model.spec.difference(model.spec_of(segment)) is not None:
            raise SegmentError(f"{name}: not from the reward model's environment")
        # An observation spans the steps before it as well, so these are included.
        before = STACK - 1 if model.spec.observation_shape == PICTURE_SHAPE else 0
        parts = []
        for start in range(0, len(segment.actions), _STEPS_AT_ONCE):
            first, stop = max(0, start - before), start + _STEPS_AT_ONCE
            seen = None if segment.observations is None else segment.observations[first:stop]
            each = model.each_along(segment.frames[first:stop], segment.actions[first:stop], seen)
            parts.append(each[:, start - first :])
        standardised = np.concatenate(parts, axis=1)
        self._returns[name] = model.unstandardised(standardised).sum(axis=1)
        curve = model.combine(torch.from_numpy(standardised)).numpy()
        curve.flags.writeable = False
        if len(self._curves) >= _CURVES:
            del self._curves[next(iter(self._curves))]
        self._curves[name] = curve
