"""The teacher of Enduro, on real frames."""

import dataclasses

import numpy as np
import pytest

from experiments.odometer import driven
from lib.envs.make import make_world
from lib.preferences.segments import Segment, Sidecar
from lib.preferences.teachers import own_teacher

NOOP, ACCELERATE, BRAKE = 0, 1, 4


@pytest.fixture(scope="module")
def drives() -> dict[str, Segment]:
    """Full speed, its loss, and a crawl: clips of 50 steps after 50 others."""
    orders = {
        "full speed": [ACCELERATE] * 100,
        "lost": [ACCELERATE] * 75 + [BRAKE] * 25,
        "crawl": [NOOP] * 100,
    }
    world = make_world("EnduroNoFrameskip-v4", len(orders))
    shown, frames = world.reset(0), []
    for actions in np.array(list(orders.values())).T:
        frames.append(shown.frames.copy())
        world.send(actions)
        shown = world.recv()
    world.close()
    nothing = np.zeros(50, bool)
    sidecar = Sidecar(np.zeros(50, np.float32), nothing, nothing, "EnduroNoFrameskip-v4", 9, "", 0)
    return {
        name: Segment(np.stack([each[index] for each in frames[50:]]), np.array(actions[50:]), sidecar)
        for index, (name, actions) in enumerate(orders.items())
    }


def test_faster_is_better_before_any_car_is_passed(drives: dict[str, Segment]) -> None:
    full, lost, crawl = (driven(drives[name]) for name in ("full speed", "lost", "crawl"))
    assert full > 40
    assert full > lost > crawl > 5


def test_a_car_passed_counts_as_five_steps(drives: dict[str, Segment]) -> None:
    crawl = drives["crawl"]
    assert crawl.sidecar is not None
    passed = dataclasses.replace(crawl.sidecar, scores=np.eye(50, dtype=np.float32)[7])
    assert driven(dataclasses.replace(crawl, sidecar=passed)) == driven(crawl) + 5


def test_it_is_a_teacher_of_the_command_line(drives: dict[str, Segment]) -> None:
    teacher = own_teacher("experiments.odometer:driven")
    assert teacher.value(drives["crawl"]) == driven(drives["crawl"])
