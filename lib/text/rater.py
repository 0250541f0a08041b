"""Answers rated by a reward model for text, for the strategies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lib.cli import UserError
from lib.preferences.answers import load_answer
from lib.preferences.segment_db import SegmentDB
from lib.text.reward import TextRewardModel, frozen_states


class TextRater:
    """r̂ of the answers of one DB; see lib.preferences.rated_pairs.ClipRater. Every answer is rated once.

    Args:
      model: the reward model.
      db: where the answers are.
    """

    def __init__(self, model: TextRewardModel, db: SegmentDB) -> None:
        self._model, self._db = model, db
        self._rated: dict[str, np.ndarray] = {}

    def returns(self, names: Sequence[str]) -> np.ndarray:
        """r̂ as each member was fitted, before standardisation: P(first is better) = σ(r̂₁ − r̂₂).

        Args:
          names: K answers.

        Returns:
          float64 `[M, K]`; NaN for answers that cannot be read.
        """
        for name in names:
            if name not in self._rated:
                self._rated[name] = self._rate(name)
        columns = [self._rated[name] for name in names]
        return np.stack(columns, 1) if columns else np.empty((len(self._model.members), 0))

    def _rate(self, name: str) -> np.ndarray:
        model = self._model
        try:
            states = frozen_states(model.language, model.shape, [load_answer(self._db, name)])
        except UserError:
            return np.full(len(model.members), np.nan)
        return model.unstandardised(model.each(states))[:, 0]
