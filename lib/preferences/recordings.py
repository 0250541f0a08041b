"""Unfinished segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.envs.world import Step
from lib.preferences.events import Events
from lib.preferences.segments import RANDOM, SEGMENT_LENGTH

_FEWEST_AFTER, _MOST_AFTER = 10, 14  # steps of a clip after its event
_ROWS = SEGMENT_LENGTH + 1  # the newest may turn out to be a reset's


@dataclass(slots=True)
class Recording:
    """An unfinished segment; its first `length` rows are filled."""

    step: int
    policy: str
    frames: np.ndarray  # uint8 [T, H, W, 3]
    actions: np.ndarray  # int64 [T] or float32 [T, A]
    observations: np.ndarray | None  # float32 [T, D]
    scores: np.ndarray  # float32 [T]
    terminal: np.ndarray  # bool [T]
    length: int = 0
    reason: str = RANDOM


class EventClips:
    """Keeps the last 50 steps of the first E environments, and cuts out clips around events.

    A clip ends 10 to 14 steps after its event, or with the game if that is earlier. No two share a step, so an event
    that comes before the clip of another has ended is not recorded, nor is one within the first steps of a game.

    Args:
      events: what to look for in E environments.
      prob: chance that an event is recorded.
      seed: of these choices.

    Attributes:
      num_envs: E.
      rng: draws which events are recorded, and where their clips end.
    """

    def __init__(self, events: Events, prob: float, seed: list[int]) -> None:
        self.num_envs = events.num_envs
        self.rng = np.random.default_rng(seed)
        self._events, self._prob = events, prob
        self._frames = self._actions = np.empty(0)
        self._observations: np.ndarray | None = None
        self._scores = np.empty((self.num_envs, _ROWS), np.float32)
        self._terminal = np.empty((self.num_envs, _ROWS), bool)
        self._row = 0  # that comes next, in all environments
        self._length = np.zeros(self.num_envs, np.int64)  # steps that a clip may hold
        self._ends = np.zeros(self.num_envs, np.int64)  # the length at which one ends; 0: no event
        self._reasons = [""] * self.num_envs

    def before(self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None) -> None:
        """Notes the frames and observations for the next actions; see `SegmentRecorder.before`."""
        if self._frames.ndim == 1:
            self._frames = np.empty((self.num_envs, _ROWS, *frames.shape[1:]), np.uint8)
            self._actions = np.empty((self.num_envs, _ROWS, *actions.shape[1:]), actions.dtype)
            if observations is not None:
                self._observations = np.empty((self.num_envs, _ROWS, *observations.shape[1:]), np.float32)
        row, seen = self._row, None
        for env in range(self.num_envs):  # a slice would have every frame of a lazy world drawn
            self._frames[env, row] = frames[env]
        self._actions[:, row] = actions[: self.num_envs]
        if self._observations is not None and observations is not None:
            self._observations[:, row] = seen = observations[: self.num_envs]
        self._note(self._events.shown(self._frames[:, row], seen))

    def after(self, step: Step, taken: np.ndarray) -> list[tuple[int, Recording, bool]]:
        """Notes the outcome.

        Args:
          step: of B environments.
          taken: bool `[B]`, whose step belongs to another segment.

        Returns:
          Of each finished clip the environment, the recording and whether the game ended with it. Of `step` and
          `policy` the recording knows nothing.
        """
        reset, taken = step.reset[: self.num_envs], taken[: self.num_envs]
        # A step late, as only this one says whether the game was over.
        finished = self._cut_out(reset | (self._length >= self._ends), reset)
        self._scores[:, self._row] = step.score[: self.num_envs]
        self._terminal[:, self._row] = step.terminal[: self.num_envs]
        self._row = (self._row + 1) % _ROWS
        self._length += 1
        self._drop(reset | taken)
        happened = self._events.happened(step.score[: self.num_envs], step.terminal[: self.num_envs])
        self._note([kind if counts else "" for kind, counts in zip(happened, ~reset, strict=True)])
        self._ends[taken] = 0
        return finished

    def cut(self, games: np.ndarray) -> list[tuple[int, Recording, bool]]:
        """These games, bool `[B]`, are over; returns what `after` does."""
        over = games[: self.num_envs]
        finished = self._cut_out(over, over)
        self._drop(over)
        return finished

    def forget(self) -> None:
        """Starts over: no earlier step is part of any clip."""
        self._drop(np.ones(self.num_envs, bool))

    def _note(self, kinds: list[str]) -> None:
        for env, kind in enumerate(kinds):
            if kind and not self._ends[env] and self.rng.random() < self._prob:
                lag = int(self.rng.integers(_FEWEST_AFTER, _MOST_AFTER + 1))
                self._ends[env], self._reasons[env] = self._length[env] + lag + 1, kind

    def _drop(self, envs: np.ndarray) -> None:
        self._length[envs] = self._ends[envs] = 0

    def _cut_out(self, where: np.ndarray, over: np.ndarray) -> list[tuple[int, Recording, bool]]:
        """The last 50 complete steps of the environments whose event clip is to end now."""
        finished = []
        rows = (self._row + np.arange(-SEGMENT_LENGTH, 0)) % _ROWS
        for env in map(int, np.flatnonzero(where & (self._ends > 0))):
            if self._length[env] >= SEGMENT_LENGTH:
                observations = None if self._observations is None else self._observations[env, rows]
                columns = self._frames[env, rows], self._actions[env, rows], observations
                outcome = self._scores[env, rows], self._terminal[env, rows]
                recording = Recording(0, "", *columns, *outcome, SEGMENT_LENGTH, self._reasons[env])
                finished.append((env, recording, bool(over[env] and outcome[1][-1])))
                self._length[env] = 0
            self._ends[env] = 0
        return finished
