"""Games of practice begin at moments of other games, end with a life or a limit, and the others are as ever."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import practice
from experiments.practice import PractisingAtari
from lib.agent.checkpoints import load_policy
from lib.agent.network import PolicyNet
from lib.cli import UserError
from lib.envs.forking import ForkingAtari
from lib.envs.world import Step, World

SEAQUEST = "SeaquestNoFrameskip-v4"
DOWN = 5


def played(world: World, steps: int) -> list[Step]:
    """The first frames and what diving leads to."""
    made = [copied(world.reset(1))]
    for _ in range(steps):
        world.send(np.full(world.num_envs, DOWN))
        made.append(copied(world.recv()))
    return made


def copied(step: Step) -> Step:
    return Step(*(np.array(field) for field in step[:5]))


class Calls:
    """Calls for practice at one step of one environment."""

    def __init__(self, env: int, step: int) -> None:
        self._env, self._step, self._made = env, step, -1

    def __call__(self, step: Step) -> np.ndarray:
        self._made += 1
        return (np.arange(len(step.score)) == self._env) & (self._made == self._step)


def test_practice_begins_at_the_moment_again_and_again() -> None:
    steps = played(PractisingAtari(SEAQUEST, 3, 1, 20, Calls(1, 30)), 75)
    moment = steps[30].frames[1]
    # The step limit is over when the first moment comes, so practice begins at once.
    assert [t for t, step in enumerate(steps) if step.truncated[0]] == [31, 52, 73]
    begins = [t for t, step in enumerate(steps) if step.reset[0]]
    assert begins == [0, 32, 53, 74]
    for begin in begins[1:3]:
        for later in range(20):
            assert np.array_equal(steps[begin + later].frames[0], steps[30 + later].frames[1])
    assert not np.array_equal(steps[31].frames[0], moment)


def test_a_lost_life_ends_practice_and_no_other_game() -> None:
    world = PractisingAtari(SEAQUEST, 2, 1, 10_000, Calls(1, 10))
    steps = played(world, 500)
    lost = [[t for t, step in enumerate(steps) if step.terminal[env]] for env in range(2)]
    resets = [[t for t, step in enumerate(steps) if step.reset[env]] for env in range(2)]
    assert lost[0]
    assert lost[1]
    assert resets == [[0, *(t + 1 for t in lost[0] if t < 500)], [0]]
    alone = played(ForkingAtari(SEAQUEST, 2), 500)
    for step, as_ever in zip(steps, alone, strict=True):
        assert np.array_equal(step.frames[1], as_ever.frames[1])
        assert step.terminal[1] == as_ever.terminal[1]


def test_where_nothing_is_known_it_says_so() -> None:
    with pytest.raises(UserError, match="expected Seaquest"):
        practice.train_with_practice(practice.PracticeConfig(name="x", env="PongNoFrameskip-v4"))


@pytest.mark.slow
def test_a_run_practises(tmp_path: Path) -> None:
    torch.save(PolicyNet(18).state_dict(), tmp_path / "v0.dat")
    saved = tmp_path / "save"
    argv = ["-n", "x", "-m", str(tmp_path / "v0.dat"), "--save", str(saved), "--runs", str(tmp_path / "runs")]
    argv += [
        "-e",
        "SeaquestNoFrameskip-v4",
        "--steps",
        "60",
        "--num-envs",
        "4",
        "--eval-games",
        "1",
        "--eval-every",
        "1M",
    ]
    practice.main(argv)
    assert load_policy(saved / "latest.dat")[1]["steps"] == 60
