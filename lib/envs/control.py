"""CartPole and Hopper: what a person would read off their observations, and a hopper that is allowed to fall.

MuJoCo's Hopper ends as soon as it leans by 0.2 rad, so it can learn nothing but to hop. Importing this module registers
`HopperFlip-v0`, which lasts 500 steps (4 s) however it lies; it needs requirements-mujoco.txt.
"""

from typing import Any

import cv2
import gymnasium
import numpy as np

TRACK = 2.4
"""Of CartPole: how far from the middle the cart may go, in its own units."""

_ANGLE, _SPIN = 1, 7
"""Of the torso, in Hopper's observation: rad and rad/s. Positive leans forwards, to where it hops."""

_SIDE, _SCALE, _HIGHEST = 240, 96.0, 2.2
"""Of the hopper's picture: pixels a side, pixels a metre, metres from the floor to its top."""
_COLOURS = ((190, 60, 40), (220, 140, 40), (60, 130, 90), (50, 70, 170))
"""Of torso, thigh, leg and foot."""


def cart_position(observations: np.ndarray) -> np.ndarray:
    """Where CartPole's cart is: float32 [..., 4] to [...], −2.4 at the left end of the track to 2.4 at the right."""
    return observations[..., 0]


def backward_spin(observations: np.ndarray) -> np.ndarray:
    """How fast Hopper's torso turns backwards: float32 [..., 11] to [...], in rad/s, clipped to ±10 by the environment."""
    return -observations[..., _SPIN]


def backward_turns(observations: np.ndarray) -> float:
    """How far Hopper's torso turned backwards: float32 [T, 11] of consecutive steps to turns, below 0 for forwards."""
    angle = np.unwrap(observations[:, _ANGLE])
    return float(angle[0] - angle[-1]) / (2 * np.pi)


def backflip(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The published measure of a backflip, which pays for height as well: −ω (1 + 0.3 z + 0.1 Σ aᵢ q̇ᵢ − 0.05 ẋ).

    Source: the code beside OpenAI's "Learning from Human Preferences" (2017), with which its authors compared.

    Args:
      observations: float32 `[..., 11]`.
      actions: float32 `[..., 3]` within ±1, chosen on them.

    Returns:
      float32 `[...]`.
    """
    height, speed = observations[..., 0], observations[..., 5]
    power = (actions * observations[..., _SPIN + 1 :]).sum(-1)
    return backward_spin(observations) * (1 + 0.3 * height + 0.1 * power - 0.05 * speed)


def hopper_flip(**options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    """A hopper that is allowed to fall.

    The angle of its torso is shown within ±π: MuJoCo counts the turns, and a policy would have to learn each anew. It is
    drawn as lines: without a GPU, MuJoCo takes 165 ms a frame.
    """
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv  # without MuJoCo it raises

    class HopperFlip(HopperEnv):
        def _get_obs(self) -> np.ndarray:
            observation: np.ndarray = super()._get_obs()
            observation[_ANGLE] = (observation[_ANGLE] + np.pi) % (2 * np.pi) - np.pi
            return observation

        def render(self) -> np.ndarray:
            data, model = self.data, self.model
            limbs = range(1, model.ngeom)  # geom 0 is the floor
            ends = [
                data.geom_xpos[limb] + side * model.geom_size[limb, 1] * data.geom_xmat[limb, 2::3]
                for limb in limbs
                for side in (-1, 1)
            ]
            return draw_hopper(np.array(ends)[:, ::2].reshape(-1, 2, 2), model.geom_size[1:, 0])

    return HopperFlip(terminate_when_unhealthy=False, **options)


def draw_hopper(limbs: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """The hopper from the side, on a floor with a stripe every half metre. The camera follows its torso.

    Args:
      limbs: float `[4, 2, 2]`: of torso, thigh, leg and foot the x and z of both ends, in metres.
      radii: float `[4]`, in metres.

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
    for (start, end), radius, colour in zip(pixels.round().astype(int), radii, _COLOURS, strict=True):
        cv2.line(picture, start.tolist(), end.tolist(), colour, round(2 * radius * _SCALE), cv2.LINE_AA)
    return picture


gymnasium.register(id="HopperFlip-v0", entry_point=hopper_flip, max_episode_steps=500)
