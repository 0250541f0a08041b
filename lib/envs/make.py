"""From an environment's id to a world, and to the probes that can read its pictures."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from lib.envs import control, moving_dot, seaquest
from lib.envs.atari import AtariWorld, atari_spec, time_limit
from lib.envs.gym_world import GymWorld
from lib.envs.world import World

Probe = Callable[[np.ndarray], np.ndarray]
"""Frames uint8 `[B, H, W, 3]`, or vector observations float32 `[B, D]` (`gauges`), to one float32 `[B]` number each; NaN
where there is nothing to read."""


class Counter(Protocol):
    """Counts events in B games that no single frame shows."""

    def push(self, frames: np.ndarray) -> None:
        """Takes in the next frame of every game, uint8 `[B, H, W, 3]`."""
        ...

    def counts(self) -> dict[str, np.ndarray]:
        """The counts so far by name, float64 `[B]`."""
        ...


def make_world(env_id: str, num_envs: int, num_threads: int = 0) -> World:
    """A batch of environments.

    Args:
      env_id: an Atari id (`SeaquestNoFrameskip-v4`, `ALE/Seaquest-v5`; `EnduroFairWeatherNoFrameskip-v4` is cut off
        before the weather changes) or that of any Gymnasium environment
        with a picture and discrete or bounded actions (`MovingDot-v0`, `package.module:Name-v0`).
      num_envs: B.
      num_threads: emulator threads; 0 takes one per core.

    Raises:
      UserError: no such environment, or one that cannot serve; says why.
    """
    if atari_spec(env_id) is not None:
        return AtariWorld(env_id, num_envs, time_limit(env_id), num_threads)
    return GymWorld(env_id, num_envs)


def probes(env_id: str) -> dict[str, Probe]:
    """Measures of behaviour that can be read off this environment's frames, by name."""
    if "Seaquest" in env_id:
        return {
            "depth": seaquest.submarine_depth,
            "midwater": seaquest.submarine_midwater,
            "surface": seaquest.at_surface,
            "oxygen": seaquest.oxygen,
        }
    if "MovingDot" in env_id:
        return {"distance": moving_dot.distance_from_middle}
    return {}


def gauges(env_id: str) -> dict[str, Probe]:
    """Measures of behaviour that can be read off this environment's vector observations, float32 `[B, D]`, by name."""
    if "CartPole" in env_id:
        return {"position": control.cart_position}
    if "Hopper" in env_id:
        return {"spin": control.backward_spin}
    return {}


def counter(env_id: str, num_envs: int) -> Counter | None:
    """A fresh count of what this environment's games are about, None where frames tell nothing of the kind."""
    return seaquest.SurfaceCounter(num_envs) if "Seaquest" in env_id else None
