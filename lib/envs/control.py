"""CartPole and Hopper: what a person would read off their observations, and a hopper that is allowed to fall.

MuJoCo's Hopper ends as soon as it leans by 0.2 rad, so it can learn nothing but to hop. Importing this module registers
`HopperFlip-v0`, which lasts 500 steps (4 s) however it lies; it needs requirements-mujoco.txt.
"""

from typing import Any

import gymnasium
import numpy as np

from lib.envs.lines import DrawnAsLines

TRACK = 2.4
"""Of CartPole: how far from the middle the cart may go, in its own units."""

_ANGLE, _SPIN = 1, 7
"""Of the torso, in Hopper's observation: rad and rad/s. Positive leans forwards, to where it hops."""
_MOTORS = slice(8, 11)
"""How fast its three joints turn, in rad/s."""


def cart_position(observations: np.ndarray) -> np.ndarray:
    """Where CartPole's cart is: float32 [..., 4] to [...], −2.4 at the left end of the track to 2.4 at the right."""
    return observations[..., 0]


def backward_spin(observations: np.ndarray) -> np.ndarray:
    """How fast Hopper's torso turns backwards: float32 [..., 11 or 12] to [...], in rad/s."""
    return -observations[..., _SPIN]


def backward_turns(observations: np.ndarray) -> float:
    """How far Hopper's torso turned backwards: float32 [T, 11] of consecutive steps to turns, below 0 for forwards.

    12 columns are `HopperFlip-v0`'s, which have the sine of the angle in its place and the cosine at the end.
    """
    angle = observations[:, _ANGLE]
    if observations.shape[1] == 12:
        angle = np.arctan2(angle, observations[:, -1])
    angle = np.unwrap(angle)
    return float(angle[0] - angle[-1]) / (2 * np.pi)


def backflip(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The published measure of a backflip, which pays for height as well: −ω (1 + 0.3 z + 0.1 Σ aᵢ q̇ᵢ − 0.05 ẋ).

    Source: the code beside OpenAI's "Learning from Human Preferences" (2017), with which its authors compared. Their Hopper
    clips ω to ±10 rad/s.

    Args:
      observations: float32 `[..., 11 or 12]`.
      actions: float32 `[..., 3]` within ±1, chosen on them.

    Returns:
      float32 `[...]`.
    """
    height, speed = observations[..., 0], observations[..., 5]
    power = (actions * observations[..., _MOTORS]).sum(-1)
    return backward_spin(observations).clip(-10, 10) * (1 + 0.3 * height + 0.1 * power - 0.05 * speed)


def hopper_flip(**options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    """A hopper that is allowed to fall.

    It shows its torso's angle as a sine, in the angle's place, and a cosine, at the end: MuJoCo counts the turns, and a policy
    would have to learn each anew; within ±π the angle would jump just where a hopper lies on its back. It shows its spin as it
    is: clipped to ±10 rad/s, rocking slowly back and quickly forth looks like turning backwards. It is drawn as lines.
    """
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv  # without MuJoCo it raises

    class HopperFlip(DrawnAsLines, HopperEnv):
        def _get_obs(self) -> np.ndarray:
            observation: np.ndarray = super()._get_obs()
            angle = observation[_ANGLE]
            observation[_ANGLE] = np.sin(angle)
            observation[_SPIN] = self.data.qvel[2]
            return np.append(observation, np.cos(angle))

    env = HopperFlip(terminate_when_unhealthy=False, **options)
    env.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (12,), np.float64)
    return env


gymnasium.register(id="HopperFlip-v0", entry_point=hopper_flip, max_episode_steps=500)
