"""Environments whose picture tells their number and their step, so that whatever is put beside a wrong one shows."""

from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

Kind = Literal["picture", "vector", "dict"]
SIZE = 44

_SPACES: dict[Kind, spaces.Space[Any]] = {
    "picture": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
    "vector": spaces.Box(0, 255, (2,), np.float32),
    "dict": spaces.Dict(
        {"pov": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8), "compass": spaces.Box(0, 1, (1,), np.float32)}
    ),
}


def picture_of(number: int, count: int) -> np.ndarray:
    """uint8 [44, 44, 3]: red is the environment's number, green and blue are the steps of its game so far."""
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    picture[..., 0], picture[..., 1], picture[..., 2] = number, count, count
    return picture


class Counting(gymnasium.Env[Any, Any]):
    """Scores 100 × its number + the step's count from 1, and ends after `ends` steps, odd games by truncation.

    Its 20th step loses the first of three lives.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self, number: int = 0, ends: int = 7, kind: Kind = "picture", render_mode: str | None = None
    ) -> None:
        self.observation_space = _SPACES[kind]
        self.action_space = spaces.Discrete(5, start=2)
        self.render_mode = render_mode
        self.renders = 0
        self._number, self._ends, self._kind = number, ends, kind
        self._games = self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._games += 1
        self._count = 0
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(np.int64(action))
        self._count += 1
        over, odd = self._count == self._ends, self._games % 2 == 1
        return (
            self._observe(),
            100.0 * self._number + self._count,
            over and not odd,
            over and odd,
            self._info(),
        )

    def _info(self) -> dict[str, int]:
        return {"lives": 3 - (self._count >= 20)}

    def render(self) -> np.ndarray:
        self.renders += 1
        return picture_of(self._number, self._count)

    def _observe(self) -> Any:
        picture = picture_of(self._number, self._count)
        if self._kind == "picture":
            return picture
        if self._kind == "vector":
            return np.array([self._number, self._count], np.float32)
        return {"pov": picture, "compass": np.ones(1, np.float32)}


def counting(number: int, ends: int, kind: Kind = "picture") -> Callable[[], Counting]:
    return lambda: Counting(number, ends, kind, None if kind == "dict" else "rgb_array")


def vector(ends: list[int], mode: AutoresetMode, kind: Kind = "picture") -> SyncVectorEnv:
    return SyncVectorEnv([counting(i, n, kind) for i, n in enumerate(ends)], autoreset_mode=mode)


class Reads:
    """Pays 100 × the number + the count that the picture shows, and a hundredth of the action from 0."""

    def __init__(self) -> None:
        self.calls = 0

    def rewards(self, frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
        self.calls += 1
        assert frames.dtype == np.uint8
        assert actions.dtype == np.int64
        assert frames.shape == (len(actions), SIZE, SIZE, 3)
        return (100.0 * frames[:, 0, 0, 0] + frames[:, 0, 0, 1] + actions / 100).astype(np.float32)
