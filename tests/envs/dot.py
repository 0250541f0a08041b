"""The best behaviour in `lib.envs.moving_dot`."""

import numpy as np

from lib.envs.moving_dot import ACTIONS, SIZE, SPEED


def expert_action(position: np.ndarray) -> np.ndarray:
    """The best action: towards the middle along the longer of the two ways, noop once there.

    Every move towards the middle earns the same, so any order of them is as good as this one.

    Args:
      position: float [..., 2], the dot's centre as `dot_position` gives it.

    Returns:
      int64 [...], indices into `ACTIONS`.
    """
    offset = np.rint((np.asarray(position, np.float64) - (SIZE - 1) / 2) / SPEED)
    x, y = offset[..., 0], offset[..., 1]
    sideways = np.where(x > 0, ACTIONS.index("LEFT"), ACTIONS.index("RIGHT"))
    upright = np.where(y > 0, ACTIONS.index("UP"), ACTIONS.index("DOWN"))
    towards = np.where(np.abs(x) >= np.abs(y), sideways, upright)
    return np.where((x == 0) & (y == 0), ACTIONS.index("NOOP"), towards).astype(np.int64)
