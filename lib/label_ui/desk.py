"""The labelling page without HTTP: one database and everybody who labels it through this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lib.label_ui.assign import Assigner
from lib.label_ui.db import LabelledDB
from lib.label_ui.model_view import ModelView
from lib.label_ui.ratings import Ratings
from lib.label_ui.stats import Statistics
from lib.label_ui.votes import Votes
from lib.preferences.queries import Leases, Strategy


class Desk:
    """Puts the parts together. Their public methods may be called from any thread; see :class:`LabelledDB`.

    Args:
      root: The DB's folder.
      make_strategies: Makes what may choose pairs, by name; see :class:`Assigner`.
      strategy: Name of the strategy that chooses pairs unless a page asks for another.
      ratings: What a reward model pays for the segments; None without a model.
      repeat_rate: Share of queries that are repeat checks, 0 to 1.
      goal: Number of labels to reach in the DB, None without.
      seed: Of the choice of pairs and sides; None for a fresh one.
      clock: Seconds, monotonic; leases are measured with it.
      now: Unix seconds; labels are dated with it.

    Raises:
      UserError: root is no folder.

    Attributes:
      model: The reward model's view, None without a model.
    """

    def __init__(
        self,
        root: Path,
        *,
        make_strategies: Callable[[], Mapping[str, Strategy]] = dict,
        strategy: str = "random",
        ratings: Ratings | None = None,
        repeat_rate: float = 0.05,
        goal: int | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        rng = np.random.default_rng(seed)
        leases = Leases(clock=clock)
        self.db = LabelledDB(root, clock, now)
        self.stats = Statistics(self.db, goal)
        self.model = None if ratings is None else ModelView(self.db, ratings)
        self.votes = Votes(self.db, leases, self.stats, rng)
        self.assign = Assigner(
            self.db,
            leases,
            self.stats,
            self.model,
            make=make_strategies,
            strategy=strategy,
            repeat_rate=repeat_rate,
            rng=rng,
        )

    def show(self, ratings: Ratings) -> None:
        """Replaces the reward model's view by that of another model."""
        self.model = self.assign.model = ModelView(self.db, ratings)
