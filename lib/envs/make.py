"""From an environment's id to its world, probes and counter."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from lib.envs import control, moving_dot, seaquest
from lib.envs.atari import AtariWorld, atari_settings, time_limit
from lib.envs.gym_world import GymWorld
from lib.envs.world import Step, World

Probe = Callable[[Step], np.ndarray]
"""Reads one number for each of B environments off a step, float32 `[B]`; NaN if there is nothing to read."""


class Scale(NamedTuple):
    """A probe, and the intervals that a table divides its values into."""

    name: str
    read: Probe
    edges: tuple[float, ...] = ()
    """Where an interval ends and the next begins, rising; () for quartiles of the values at hand."""
    names: tuple[str, ...] = ()
    """Of the intervals; () for their ends."""


class Choice(NamedTuple):
    """A situation in which the choice of action matters."""

    name: str
    applies: Callable[[Step], np.ndarray]
    """bool `[B]`"""
    action: str
    """Prefix of the names of the actions that it calls for."""


class Counter(Protocol):
    """Counts events in B games that take several frames to see."""

    def push(self, frames: np.ndarray) -> None:
        """Take in the next frame of every game, uint8 `[B, H, W, 3]`."""
        ...

    def counts(self) -> dict[str, np.ndarray]:
        """The counts so far by name, float64 `[B]`."""
        ...


def make_world(env_id: str, num_envs: int, num_threads: int = 0) -> World:
    """A batch of environments.

    Args:
      env_id: an Atari id (`SeaquestNoFrameskip-v4`, `ALE/Seaquest-v5`; `EnduroFairWeatherNoFrameskip-v4` is cut off
        before the weather changes), or that of any Gymnasium environment with a picture and discrete or bounded actions
        (`MovingDot-v0`, `package.module:Name-v0`).
      num_envs: B.
      num_threads: emulator threads; 0 takes one per core.

    Raises:
      UserError: there is no such environment, or it cannot be used; the message says why.
    """
    if atari_settings(env_id) is not None:
        return AtariWorld(env_id, num_envs, time_limit(env_id), num_threads)
    return GymWorld(env_id, num_envs)


def probes(env_id: str) -> dict[str, Probe]:
    """An environment's probes, by name."""
    if "Seaquest" in env_id:
        return {
            "depth": _of_seaquest(seaquest.submarine_depth),
            "midwater": _of_seaquest(seaquest.submarine_midwater),
            "surface": _of_seaquest(seaquest.at_surface),
            "oxygen": _of_seaquest(seaquest.oxygen),
        }
    if "MovingDot" in env_id:
        return {"distance": lambda step: moving_dot.distance_from_middle(np.asarray(step.frames))}
    if "CartPole" in env_id:
        return {"position": _of_observations(control.cart_position, 4)}
    if "Hopper" in env_id:
        return {"spin": _of_observations(control.backward_spin, 11)}
    return {}


def situation(env_id: str) -> dict[str, Probe]:
    """The probes in which two moments must agree to be comparable, by name; empty if nothing is known."""
    if "Seaquest" in env_id:
        return {"air": _of_seaquest(seaquest.air_below), "diver": _of_seaquest(seaquest.diver_aboard)}
    return probes(env_id)


def scales(env_id: str) -> list[Scale]:
    """At most three scales that distinguish an environment's situations; by default those of its first two probes."""
    if "Seaquest" in env_id:
        return [
            Scale(
                "oxygen",
                _of_seaquest(seaquest.oxygen),
                (0.25, 0.5, 0.9),
                ("below ¼", "¼ to ½", "½ to 0.9", "full"),
            ),
            Scale(
                "height",
                _of_seaquest(seaquest.submarine_depth),
                (seaquest.TOP, 0.6),
                ("top", "mid-water", "deep"),
            ),
            Scale("diver", _of_seaquest(seaquest.divers), (0.5,), ("no diver", "a diver")),
        ]
    return [Scale(name, probe) for name, probe in list(probes(env_id).items())[:2]]


def choice(env_id: str) -> Choice | None:
    """The situation in which this environment calls for one kind of action, None if none is known."""
    if "Seaquest" in env_id:
        return Choice("low on oxygen with a diver on board", _should_climb, "UP")
    return None


def _should_climb(step: Step) -> np.ndarray:
    reads = (seaquest.oxygen, seaquest.divers, seaquest.submarine_depth)
    oxygen, divers, depth = (_of_seaquest(read)(step) for read in reads)
    should: np.ndarray = (oxygen < 0.5) & (divers > 0) & ~np.isnan(depth)
    return should


def _of_seaquest(read: Callable[[np.ndarray], np.ndarray]) -> Probe:
    """Reads nothing off pictures that the game does not draw, such as those that a wrapper scaled."""

    def probe(step: Step) -> np.ndarray:
        frames = np.asarray(step.frames)
        return read(frames) if frames.shape[1:] == seaquest.FRAME_SHAPE else _nothing(step)

    return probe


def _of_observations(read: Callable[[np.ndarray], np.ndarray], least: int) -> Probe:
    """Reads nothing off observations of fewer numbers than `least`, which are not the environment's own."""

    def probe(step: Step) -> np.ndarray:
        seen = step.observations
        return _nothing(step) if seen is None or seen.shape[1] < least else read(seen)

    return probe


def _nothing(step: Step) -> np.ndarray:
    return np.full(len(step.score), np.nan, np.float32)


def counter(env_id: str, num_envs: int) -> Counter | None:
    """A new counter of this environment's events, None if it has none."""
    return seaquest.SurfaceCounter(num_envs) if "Seaquest" in env_id else None
