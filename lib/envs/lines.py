"""MuJoCo's robots that live in a plane, drawn as lines: without a GPU, MuJoCo itself takes 165 ms a frame, this 1 ms.

Importing this module registers `HalfCheetahLines-v5` and `Walker2dLines-v5`, which are `HalfCheetah-v5` and
`Walker2d-v5` in all but their picture. They need requirements-mujoco.txt.
"""

from typing import Any

import cv2
import gymnasium
import numpy as np

_SIDE, _SCALE, _HIGHEST = 240, 96.0, 2.2
"""Of the picture: pixels a side, pixels a metre, metres from the floor to its top."""
_COLOURS = (
    *((190, 60, 40), (220, 140, 40), (60, 130, 90), (50, 70, 170)),
    *((130, 60, 150), (30, 150, 170), (150, 130, 30), (200, 90, 140)),
)
"""Of the limbs in the model's order, which begins with the torso."""


class DrawnAsLines:
    """Before a class of `gymnasium.envs.mujoco` among the bases: draws its capsules from the side."""

    data: Any
    model: Any

    def render(self) -> np.ndarray:
        data, model = self.data, self.model
        limbs = range(1, model.ngeom)  # geom 0 is the floor
        ends = [
            data.geom_xpos[limb] + side * model.geom_size[limb, 1] * data.geom_xmat[limb, 2::3]
            for limb in limbs
            for side in (-1, 1)
        ]
        return draw_limbs(np.array(ends)[:, ::2].reshape(-1, 2, 2), model.geom_size[1:, 0])


def draw_limbs(limbs: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """A robot from the side, on a floor with a stripe every half metre. The camera follows its torso.

    Args:
      limbs: float `[N, 2, 2]`: of each limb, the torso first, the x and z of both ends, in metres; `N` ≤ 8.
      radii: float `[N]`, in metres.

    Returns:
      uint8 `[240, 240, 3]`.
    """
    picture = np.full((_SIDE, _SIDE, 3), 235, np.uint8)
    middle = limbs[0, :, 0].mean()
    floor = round(_HIGHEST * _SCALE)
    for stripe in range(int(np.floor(2 * middle)) - 4, int(np.floor(2 * middle)) + 5):
        left = round((stripe / 2 - middle) * _SCALE + _SIDE / 2)
        grey = 120 if stripe % 2 else 170
        cv2.rectangle(picture, (left, floor), (left + round(_SCALE / 2), _SIDE), (grey,) * 3, -1)
    pixels = (limbs - (middle, 0)) * (_SCALE, -_SCALE) + (_SIDE / 2, floor)
    for (start, end), radius, colour in zip(pixels.round().astype(int), radii, _COLOURS, strict=False):
        cv2.line(picture, start.tolist(), end.tolist(), colour, round(2 * radius * _SCALE), cv2.LINE_AA)
    return picture


def half_cheetah(**options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv  # without MuJoCo it raises

    class HalfCheetahLines(DrawnAsLines, HalfCheetahEnv):
        pass

    return HalfCheetahLines(**options)


def walker(**options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

    class Walker2dLines(DrawnAsLines, Walker2dEnv):
        pass

    return Walker2dLines(**options)


gymnasium.register(id="HalfCheetahLines-v5", entry_point=half_cheetah, max_episode_steps=1000)
gymnasium.register(id="Walker2dLines-v5", entry_point=walker, max_episode_steps=1000)
