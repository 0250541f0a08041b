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


def test_it_reads_how_far_the_last_digit_rolls() -> None:
    rng = np.random.default_rng(0)
    strip, rows = rng.integers(0, 256, (400, 8, 3), np.uint8), rng.integers(0, 6, 49)
    frames = np.zeros((50, 210, 160, 3), np.uint8)
    for frame, top in zip(frames, 300 - np.cumsum([0, *rows]), strict=True):
        frame[164:173, 96:104] = strip[top : top + 9]
    assert driven(Segment(frames, np.zeros(50, np.int64), None)) == rows.sum()


def test_faster_is_better_before_any_car_is_passed(drives: dict[str, Segment]) -> None:
    full, lost, crawl = (driven(drives[name]) for name in ("full speed", "lost", "crawl"))
    assert full > 120  # 4 rows a step at most
    assert full > lost + 20 > crawl + 40


def test_a_car_passed_counts_as_ten_rows(drives: dict[str, Segment]) -> None:
    crawl = drives["crawl"]
    assert crawl.sidecar is not None
    passed = dataclasses.replace(crawl.sidecar, scores=np.eye(50, dtype=np.float32)[7])
    assert driven(dataclasses.replace(crawl, sidecar=passed)) == driven(crawl) + 10


def test_it_is_a_teacher_of_the_command_line(drives: dict[str, Segment]) -> None:
    teacher = own_teacher("experiments.odometer:driven")
    assert teacher.value(drives["crawl"]) == driven(drives["crawl"])
