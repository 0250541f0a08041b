"""A reward model in a file that is replaced: what is taken, what is not, and what pays meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lib.envs.make import make_world
from lib.envs.world import World
from lib.reward.checkpoints import save_reward_model
from lib.reward.live import LiveReward
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet

CPU = torch.device("cpu")


def constant(paid: float, shape: tuple[int, int, int] = (84, 84, 3)) -> Member:
    network = RewardNet(shape, 5)
    torch.nn.init.zeros_(network.out[-1].weight)  # type: ignore[arg-type]
    return Member(network, -paid, 1.0)


def publish(path: Path, version: int, paid: float = 0.0, shape: tuple[int, int, int] = (84, 84, 3)) -> None:
    """A reward model that pays the same for everything, as `03_reward_train.py --watch` would publish it."""
    model = RewardModel([constant(paid, shape)], CPU)
    save_reward_model(path, model, {}, {"labels": 10 * version}, {}, {"version": version})


@pytest.fixture
def world() -> Iterator[World]:
    made = make_world("MovingDot-v0", 1, 1)
    yield made
    made.close()


def live_reward(root: Path, world: World, pessimism: float = 0.0) -> LiveReward:
    path = root / "reward.dat"
    return LiveReward(
        path, pessimism=pessimism, check=lambda model: model.check(world.spec, path, world.env_id)
    )


def paid(live: LiveReward) -> float:
    frames = torch.zeros(1, 84, 84, 3, dtype=torch.uint8)
    return float(live.pay(frames, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4, 84, 84)))


def test_each_model_is_taken_once_and_pays_from_then_on(tmp_path: Path, world: World) -> None:
    live = live_reward(tmp_path, world)
    assert not live.refresh()
    assert (live.model, live.problem, paid(live)) == (None, "", 0.0)
    publish(live.path, 1, paid=2.0)
    assert live.refresh()
    assert not live.refresh()
    assert (live.version, paid(live)) == (1, 2.0)
    publish(live.path, 2, paid=3.0)
    assert paid(live) == 2.0
    assert live.refresh()
    assert (live.version, paid(live)) == (2, 3.0)
    live.path.unlink()
    assert not live.refresh()
    assert paid(live) == 3.0


def test_a_process_that_reads_one_model_more_still_draws_as_the_others_do(
    tmp_path: Path, world: World
) -> None:
    live = live_reward(tmp_path, world)
    publish(live.path, 1)
    before = torch.get_rng_state()
    assert live.refresh()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_ensemble_pays_by_the_pessimism_of_the_run(tmp_path: Path, world: World) -> None:
    """Its members say 2 and 4: 3, and 1 off it; over the segments of its fit they were ½ off."""
    live = live_reward(tmp_path, world, pessimism=4.0)
    model = RewardModel([constant(2.0), constant(4.0)], CPU, disagreement=0.5)
    save_reward_model(live.path, model, {}, {}, {})
    assert live.refresh()
    assert paid(live) == 3 - 4 * (1 - 0.5)


def half(path: Path) -> None:
    publish(path, 2)
    path.write_bytes(path.read_bytes()[:-1000])


def of_another_game(path: Path) -> None:
    publish(path, 2, shape=(210, 160, 3))


def not_finite(path: Path) -> None:
    publish(path, 2)
    content = torch.load(path, weights_only=True)
    content["members"][0]["mean"] = float("nan")
    torch.save(content, path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BROKEN: list[Callable[[Path], object]] = [
    half,
    of_another_game,
    not_finite,
    folder,
    lambda path: path.write_bytes(b""),
    lambda path: torch.save({"kind": "policy", "format_version": 1}, path),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_model_is_named_and_the_old_one_stays(
    tmp_path: Path, world: World, broken: Callable[[Path], object]
) -> None:
    live = live_reward(tmp_path, world)
    publish(live.path, 1, paid=2.0)
    assert live.refresh()
    broken(live.path)
    assert not live.refresh()
    assert (live.version, paid(live)) == (1, 2.0)
    assert str(live.path) in live.problem
    if live.path.is_dir():
        live.path.rmdir()
    publish(live.path, 3, paid=4.0)
    assert live.refresh()
    assert (live.version, paid(live), live.problem) == (3, 4.0, "")
