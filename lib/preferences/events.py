"""Events in games that are worth a clip: a game's own events, lost lives, large scores, novel observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lib.envs.make import Counter

LOST_LIFE, LARGE_SCORE, NOVELTY = "lost-life", "large-score", "novelty"

_RARE = 0.99  # quantile
_LAST, _LEAST = 1000, 100  # values that the quantile is of
_MEMORY = 512  # observations


def kinds_of(counter: Counter | None) -> list[str]:
    """The events that a counter counts: its names without the plural's s."""
    return [] if counter is None else [name.removesuffix("s") for name in counter.counts()]


class Events:
    """Notices events in E environments.

    A lost life is a terminal. A large score is above the 99th percentile of the last thousand |scores| that are not 0. An
    observation is novel where its distance to the nearest of 512 earlier ones, drawn at random, is above the 99th
    percentile of the last thousand distances; each number counts in its own standard deviations (the distance to the
    nearest neighbours as novelty: Lehman & Stanley 2011, "Abandoning Objectives").

    Args:
      kinds: which events to notice. Of several in one step, the one that comes first here counts.
      num_envs: E.
      counter: of E games, for the kinds in `kinds_of(counter)`.

    Attributes:
      num_envs: E.
    """

    def __init__(self, kinds: Sequence[str], num_envs: int, counter: Counter | None = None) -> None:
        self.num_envs = num_envs
        self._kinds, self._counter = list(kinds), counter
        self._counts = {} if counter is None else counter.counts()
        self._large = _Rare()
        self._novelty = _Novelty()

    def shown(self, frames: np.ndarray, observations: np.ndarray | None) -> list[str]:
        """The events that the newest frames show, one for each environment or "".

        Args:
          frames: uint8 `[E, H, W, 3]`.
          observations: float32 `[E, D]`; None for pictures, which are never novel.
        """
        found: dict[str, np.ndarray] = {}
        if self._counter is not None:
            self._counter.push(frames)
            before, self._counts = self._counts, self._counter.counts()
            found = {name.removesuffix("s"): counts > before[name] for name, counts in self._counts.items()}
        if observations is not None and NOVELTY in self._kinds:
            found[NOVELTY] = self._novelty.find(observations)
        return self._first(found)

    def happened(self, score: np.ndarray, terminal: np.ndarray) -> list[str]:
        """The events in the outcome of the newest actions, likewise.

        Args:
          score: float32 `[E]`.
          terminal: bool `[E]`.
        """
        return self._first({LOST_LIFE: terminal, LARGE_SCORE: self._large.find(np.abs(score), score != 0)})

    def _first(self, found: dict[str, np.ndarray]) -> list[str]:
        kinds = [kind for kind in self._kinds if kind in found]
        return [next((kind for kind in kinds if found[kind][env]), "") for env in range(self.num_envs)]


class _Rare:
    """Finds values above the 99th percentile of the last thousand."""

    def __init__(self) -> None:
        self._last = np.empty(_LAST)
        self._count = 0

    def find(self, values: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Which of N values are rare, bool `[N]`; only those in `among`, bool `[N]`, count."""
        rare = np.zeros(len(values), bool)
        if among.any():
            if self._count >= _LEAST:
                rare = among & (values > np.quantile(self._last[: self._count], _RARE))
            for value in values[among]:
                self._last[self._count % _LAST] = value
                self._count += 1
        return rare


class _Novelty:
    """Finds observations far from a random sample of all earlier ones."""

    def __init__(self) -> None:
        self._memory = np.empty((0, 0))
        self._count = 0
        self._far = _Rare()
        self._rng = np.random.default_rng(0)

    def find(self, observations: np.ndarray) -> np.ndarray:
        """Which of float32 `[N, D]` are novel, bool `[N]`."""
        novel = np.zeros(len(observations), bool)
        if self._count >= _MEMORY:
            scale = self._memory.std(0) + 1e-6
            distances = [np.square((self._memory - row) / scale).sum(1).min() for row in observations]
            novel = self._far.find(np.sqrt(distances), ~novel)
        if not self._count:
            self._memory = np.empty((_MEMORY, observations.shape[1]))
        for row in observations:  # reservoir sampling
            place = self._count if self._count < _MEMORY else int(self._rng.integers(self._count + 1))
            if place < _MEMORY:
                self._memory[place] = row
            self._count += 1
        return novel
