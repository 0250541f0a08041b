"""A small world of dict observations and continuous actions whose best behaviour is known: a point that should go to its goal."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 48
GOALS = np.array([[-0.5, 0.0], [0.5, 0.5], [0.5, -0.5]], np.float32)
LOW, HIGH = np.array([[-0.2], [0.0]], np.float32), np.array([[0.2], [10.0]], np.float32)
"""Bounds of an action [2, 1]: a move to the right, and 5 + 25 moves up."""


class Reach(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Sees where it is and which of three goals is meant; scores minus the distance to it. 60 steps."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space: spaces.Space[Any] = spaces.Dict(
        {"at": spaces.Box(-1, 1, (2,), np.float64), "goal": spaces.Discrete(3)}
    )
    action_space: spaces.Space[Any] = spaces.Box(LOW, HIGH, dtype=np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.drawn = 0
        self.taken = np.zeros((2, 1), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._goal = self.np_random.uniform(-1, 1, 2), int(self.np_random.integers(3))
        self._steps = 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.taken = action.copy()
        right, up = float(action[0, 0]), float(action[1, 0] - 5) / 25
        self._at = np.clip(self._at + np.array([right, up]), -1, 1)
        self._steps += 1
        score = -float(np.abs(self._at - GOALS[self._goal]).sum())
        return self._seen(), score, False, self._steps >= 60, {}

    def render(self) -> np.ndarray:
        self.drawn += 1
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        for place, channel in ((self._at, 0), (GOALS[self._goal], 1)):
            column, row = ((place * [1, -1] + 1) / 2 * (SIZE - 5)).astype(int)
            picture[row : row + 5, column : column + 5, channel] = 255
        return picture

    def _seen(self) -> dict[str, Any]:
        return {"at": self._at.copy(), "goal": np.int64(self._goal)}


gymnasium.register(id="Reach-v0", entry_point="tests.envs.reach:Reach")
