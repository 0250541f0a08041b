"""A tiny world of pixels whose best behaviour is known: keep a dot in the middle of the picture.

The task of mrahtz's reproduction of Christiano et al. 2017 (arXiv 1706.03741). Nothing in the picture tells where
the dot should be, so the behaviour has to come from the reward, or from preferences. Importing this module
registers `MovingDot-v0`; `gymnasium.make("lib.envs.moving_dot:MovingDot-v0")` does so itself.
"""

from typing import Any

import gymnasium
import numpy as np

SIZE = 84
"""Height and width of the picture in pixels."""
DOT = 12
"""Side of the white square that is the dot, in pixels."""
SPEED = 4
"""Pixels the dot moves in a step."""
LIMIT = 100
"""Steps of an episode: two clips fit, and the middle is at most 18 of them away."""
ACTIONS = ("NOOP", "UP", "RIGHT", "DOWN", "LEFT")

_MOVES = ((0, 0), (0, -1), (1, 0), (0, 1), (-1, 0))  # x to the right, y down, as in the picture


def dot_position(frames: np.ndarray) -> np.ndarray:
    """Where the dot is, read off the pixels.

    Args:
      frames: uint8 [..., H, W, 3], pictures with a bright dot on black.

    Returns:
      float32 [..., 2]: x and y of the dot's centre in pixels, 0 at the centre of the left or upper pixel. NaN where
      the picture is all black.
    """
    light = frames[..., 1]
    columns = light.sum(axis=-2, dtype=np.float64)
    rows = light.sum(axis=-1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        x = columns @ np.arange(columns.shape[-1]) / columns.sum(axis=-1)
        y = rows @ np.arange(rows.shape[-1]) / rows.sum(axis=-1)
    return np.stack([x, y], axis=-1).astype(np.float32)


def distance_from_middle(frames: np.ndarray) -> np.ndarray:
    """How far the dot is from the middle, read off the pixels.

    Args:
      frames: uint8 [..., H, W, 3], pictures with a bright dot on black.

    Returns:
      float32 [...]: pixels sideways plus pixels up or down. NaN where there is no dot.
    """
    height, width = frames.shape[-3:-1]
    middle = np.array([(width - 1) / 2, (height - 1) / 2], np.float32)
    return np.abs(dot_position(frames) - middle).sum(axis=-1)


def best_score(
    distance: float, steps: int = LIMIT, size: int = SIZE, dot: int = DOT, speed: int = SPEED
) -> float:
    """The highest score that `steps` steps can bring, in closed form.

    With d = distance / speed moves to go, the dot comes one move closer a step and then stays:
    Σₜ 1 − max(d − t, 0) / (moves from a corner), t = 1 … steps.

    Args:
      distance: pixels from the start to the middle, as `distance_from_middle` gives them.
      steps: steps of the episode, or of the part of it that counts.
      size: height and width of the picture in pixels.
      dot: side of the dot in pixels.
      speed: pixels a move.

    Returns:
      The undiscounted sum of the scores.
    """
    away = round(distance / speed)
    closing = min(away, steps)
    return steps - (closing * away - closing * (closing + 1) / 2) / (2 * _reach(size, dot, speed))


def mean_best_score(steps: int = LIMIT, size: int = SIZE, dot: int = DOT, speed: int = SPEED) -> float:
    """`best_score` on average over all places where an episode may begin."""
    reach = _reach(size, dot, speed)
    away = np.abs(np.arange(-reach, reach + 1))
    distances = speed * (away[:, None] + away)
    return float(np.mean([best_score(distance, steps, size, dot, speed) for distance in distances.ravel()]))


class MovingDotEnv(gymnasium.Env[np.ndarray, np.int64]):
    """A white dot on black, moved by noop, up, right, down, left (`ACTIONS`).

    The dot starts anywhere on the grid of places that whole moves from the middle reach, and stops at the picture's
    edge. The score of a step is 1 − (moves from the middle after it) / (moves from a corner): 1 in the middle, 0 in
    a corner. An episode never terminates; after `limit` steps it is truncated. The observation is the picture, uint8
    [size, size, 3]; `render()` gives the same one. `info["position"]` holds the dot's centre, float32 [2].

    Args:
      size: height and width of the picture in pixels.
      dot: side of the dot in pixels; size − dot must be even, so that it can stand exactly in the middle.
      speed: pixels the dot moves in a step.
      limit: steps of an episode; clips are 50 steps long and never cross a reset, so 50 to 200 serve best.
      render_mode: None or "rgb_array".

    Raises:
      ValueError: the dot cannot stand in the middle or cannot move, or `limit` is less than 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (as in Env)

    def __init__(
        self,
        size: int = SIZE,
        dot: int = DOT,
        speed: int = SPEED,
        limit: int = LIMIT,
        render_mode: str | None = None,
    ) -> None:
        if (size - dot) % 2 or not 1 <= dot < size:
            raise ValueError(
                f"dot must be 1 to {size - 2} pixels, and {size} minus dot must be even, so that the dot "
                f"fits in the middle; got {dot}"
            )
        if not 1 <= speed <= (size - dot) // 2:
            raise ValueError(f"speed must be 1 to {(size - dot) // 2} pixels a step here, got {speed}")
        if limit < 1:
            raise ValueError(f"limit must be at least 1 step, got {limit}")
        self.size, self.dot, self.speed, self.limit = size, dot, speed, limit
        self.reach = _reach(size, dot, speed)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        # The place is counted in moves from the middle: x, y in -reach … reach.
        self._x = 0
        self._y = 0
        self._steps = 0

    def get_action_meanings(self) -> list[str]:
        """The actions' names, as Atari environments give them."""
        return list(ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the dot somewhere, each place as likely as any other. See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        self._x, self._y = (
            int(place) for place in self.np_random.integers(-self.reach, self.reach + 1, size=2)
        )
        self._steps = 0
        return self._picture(), self._info()

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the dot. See `gymnasium.Env.step`."""
        x, y = _MOVES[action]
        self._x = min(max(self._x + x, -self.reach), self.reach)
        self._y = min(max(self._y + y, -self.reach), self.reach)
        self._steps += 1
        score = 1 - (abs(self._x) + abs(self._y)) / (2 * self.reach)
        return self._picture(), score, False, self._steps >= self.limit, self._info()

    def render(self) -> np.ndarray | None:
        """The picture, uint8 [size, size, 3]; None without a render mode."""
        return None if self.render_mode is None else self._picture()

    def _picture(self) -> np.ndarray:
        picture = np.zeros((self.size, self.size, 3), np.uint8)
        left, top = self._corner()
        picture[top : top + self.dot, left : left + self.dot] = 255
        return picture

    def _corner(self) -> tuple[int, int]:
        middle = (self.size - self.dot) // 2
        return middle + self._x * self.speed, middle + self._y * self.speed

    def _info(self) -> dict[str, Any]:
        left, top = self._corner()
        centre = (self.dot - 1) / 2
        return {"position": np.array((left + centre, top + centre), np.float32)}


def _reach(size: int, dot: int, speed: int) -> int:
    """Moves from the middle to an edge."""
    return (size - dot) // 2 // speed


gymnasium.register(id="MovingDot-v0", entry_point="lib.envs.moving_dot:MovingDotEnv")
