"""A reward model's ratings of a DB's segments, computed in the background while somebody looks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from lib.preferences.labels import Label
from lib.preferences.rated_pairs import ClipRater, sigmoid
from lib.preferences.segment_db import SegmentDB

_LOOK_SECONDS = 10.0
"""Rating stops this long after the last look, because it takes a core from labelling."""

_REST_SECONDS = 0.005
"""Pause between two segments, so that a request for a curve gets its turn with the model."""


@runtime_checkable
class StepRater(ClipRater, Protocol):
    """Rates clips and each step of one (lib.reward.rater.ModelRater)."""

    def curve(self, name: str) -> np.ndarray:
        """The learned reward of each step, float32 [T], standardised. Raises SegmentError."""
        ...


def load_rater(reward: Path, db_path: Path, dev: str) -> ClipRater:
    """The reward model of a checkpoint, as a rater of the clips of a DB (a `StepRater`) or of its answers.

    Args:
      reward: Checkpoint of 03_reward_train.py.
      db_path: The DB.
      dev: Device of the networks, as flags name it.

    Raises:
      UserError: there is no such reward model, device or DB, or the model was fitted to other frames or actions.
    """
    from lib.devices import resolve_device
    from lib.preferences.answers import holds_answers
    from lib.reward.checkpoints import load_reward_model
    from lib.reward.rater import ModelRater  # which imports torch: pages without a model need not wait for it

    _leave_a_core()
    db, device = SegmentDB(db_path), resolve_device(dev)
    if holds_answers(db):
        from lib.text.rater import TextRater
        from lib.text.reward import load_text_reward

        return TextRater(load_text_reward(reward, device), db)
    return ModelRater(load_reward_model(reward, device), db)


def _leave_a_core() -> None:
    """Leaves a core to labelling while the reward model works in the background."""
    import torch

    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) - 1)))


class Ratings:
    """A model's ratings of segments, each asked for once and kept as a few numbers. Thread-safe.

    Args:
      rater: The model.
      name: The model's name on the page.
      clock: Seconds, monotonic.
    """

    def __init__(
        self, rater: StepRater, name: str = "reward model", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._rater = rater
        self._clock = clock
        self._totals: dict[str, float] = {}
        self._returns: dict[str, np.ndarray] = {}
        self._waiting: list[str] = []
        self._current: str | None = None
        self._until = -np.inf
        self._started = False
        self._changed = threading.Condition()

    def look(self, names: Iterable[str]) -> dict[str, float]:
        """The known ratings of these segments; the others are rated in the background, in this order.

        Returns:
          Total learned reward by name, standardised; NaN for a segment that cannot be rated. Only of segments
          that have had their turn.
        """
        names = list(names)
        with self._changed:
            known = {*self._totals, self._current}
            self._waiting = [name for name in reversed(names) if name not in known]
            self._until = self._clock() + _LOOK_SECONDS
            if self._waiting and not self._started:
                self._started = True
                threading.Thread(target=self._run, name="rate segments", daemon=True).start()
            self._changed.notify_all()
            return {name: self._totals[name] for name in names if name in self._totals}

    def probability(self, label: Label) -> float | None:
        """How likely the model finds a decided label on rated segments: σ of the difference of returns, averaged over members.

        Returns:
          In 0 … 1; None for segments that cannot be rated.
        """
        one, two = self._returns[label.sample1], self._returns[label.sample2]
        margin = one - two if label.label == 1 else two - one
        chance = float(np.mean(sigmoid(margin)))
        return None if np.isnan(chance) else chance

    def curve(self, name: str) -> np.ndarray:
        """The learned reward of each step, float32 `[T]`, standardised.

        Raises:
          SegmentError: the segment cannot be read or rated.
        """
        return self._rater.curve(name)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting and self._clock() < self._until)
                self._current = name = self._waiting.pop()
            returns, total = np.array([np.nan]), float("nan")
            # Whether a segment is broken or a GPU out of memory: the others are rated all the same.
            with contextlib.suppress(Exception):
                returns, total = self._rater.returns([name])[:, 0], float(self.curve(name).sum())
            with self._changed:
                self._returns[name] = returns
                self._totals[name] = total
                self._current = None
            time.sleep(_REST_SECONDS)
