"""CartPole and Hopper: what a person would read off their observations, and a hopper that is allowed to fall.

MuJoCo's Hopper ends as soon as it leans by 0.2 rad, so it can learn nothing but to hop. Importing this module registers
`HopperFlip-v0`, which lasts 500 steps (4 s) however it lies; it needs requirements-mujoco.txt.
"""

from typing import Any

import gymnasium
import numpy as np

TRACK = 2.4
"""Of CartPole: how far from the middle the cart may go, in its own units."""

_ANGLE, _SPIN = 1, 7
"""Of the torso, in Hopper's observation: rad and rad/s. Positive leans forwards, to where it hops."""


def cart_position(observations: np.ndarray) -> np.ndarray:
    """Where CartPole's cart is: float32 [..., 4] to [...], −2.4 at the left end of the track to 2.4 at the right."""
    return observations[..., 0]


def backward_spin(observations: np.ndarray) -> np.ndarray:
    """How fast Hopper's torso turns backwards: float32 [..., 11] to [...], in rad/s, clipped to ±10 by the environment."""
    return -observations[..., _SPIN]


def backward_turns(observations: np.ndarray) -> float:
    """How far Hopper's torso turned backwards: float32 [T, 11] of consecutive steps to turns, below 0 for forwards."""
    return float(observations[0, _ANGLE] - observations[-1, _ANGLE]) / (2 * np.pi)


def hopper_flip(**options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    """A hopper that is allowed to fall.

    It is drawn without shadows and smoothed edges, five times as fast without a GPU; halving the picture smoothes it.
    """
    from gymnasium.envs.mujoco.hopper_v5 import HopperEnv  # without MuJoCo it raises

    env = HopperEnv(terminate_when_unhealthy=False, **options)
    env.model.vis.quality.shadowsize = env.model.vis.quality.offsamples = 0
    return env


gymnasium.register(id="HopperFlip-v0", entry_point=hopper_flip, max_episode_steps=500)
