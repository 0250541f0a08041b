"""Processes that learn together: what they add up and decide, and that they learn what one process learns."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent.actor_critic import ActorCritic, _minibatches
from lib.agent.config import TrainConfig
from lib.agent.kl import KLPenalty
from lib.agent.network import PolicyNet
from lib.agent.rollout import Rollout
from lib.envs.make import make_world
from lib.learner import ALONE, Alone
from lib.training.ranks import joined
from tests.scripts import warm

CPU = torch.device("cpu")
STEPS, ENVS = 6, 5


def in_ranks(folder: Path, work: Callable[..., Any], *args: Any, size: int = 2) -> list[Any]:
    """What a function of this module returns in each of some processes that torchrun might have started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        warm.Process(target=_rank, args=(folder, port, rank, size, work, args)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()  # of use only where it takes longer
        process.join()
    assert [process.exitcode for process in processes] == [0] * size
    return [torch.load(folder / f"{rank}.dat", weights_only=False) for rank in range(size)]


def _rank(
    folder: Path, port: int, rank: int, size: int, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    names = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    with joined("cpu") as ranks:
        torch.save(work(ranks, *args), folder / f"{rank}.dat")


def says(ranks: Alone) -> tuple[Any, ...]:
    rank = ranks.rank
    mixed = [torch.tensor(rank + 1), torch.full((2, 2), rank + 0.5, dtype=torch.float64), torch.ones(())]
    decisions = [ranks.together(decision) for decision in (rank == 1, False, True)]
    return ranks.everyone(10 * rank), decisions, ranks.total(mixed), list(ranks.share(5))


def test_sums_and_decisions_are_of_all(tmp_path: Path) -> None:
    for rank, (numbers, decisions, sums, share) in enumerate(in_ranks(tmp_path, says)):
        assert numbers == [0, 10]
        assert decisions == [True, False, True]
        expected = [torch.tensor(3), torch.full((2, 2), 2.0, dtype=torch.float64), torch.tensor(2.0)]
        for found, right in zip(sums, expected, strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=0)  # types and shapes too
        assert share == [[0, 1], [2, 3, 4]][rank]


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as ranks:
        assert ranks is ALONE
    tensors = [torch.ones(2)]
    assert ranks.total(tensors) is tensors
    assert (ranks.everyone(7), ranks.together(True), ranks.together(False)) == ([7], True, False)
    assert ranks.share(5) == range(5)


class Of(Alone):
    """One of several processes with so many environments each, as far as minibatches ask."""

    def __init__(self, rank: int, envs: list[int]) -> None:
        self.rank, self.size, self._envs = rank, len(envs), envs

    def everyone(self, number: int) -> list[int]:
        assert number == self._envs[self.rank]
        return self._envs


def test_minibatches_of_all_ranks_are_those_of_one_process() -> None:
    """Step t of environment b is row t·B + b, of B environments of one process or of a rank."""
    torch.manual_seed(3)
    expected = [{divmod(int(row), ENVS) for row in rows} for rows in _minibatches(STEPS, ENVS, 4, CPU)]  # type: ignore[union-attr]
    shares, found = [2, 0, 3], [set[tuple[int, int]]() for _ in expected]
    for rank, envs in enumerate(shares):
        torch.manual_seed(3)
        for rows, pairs in zip(_minibatches(STEPS, envs, 4, CPU, Of(rank, shares)), found, strict=True):
            for row in rows:  # type: ignore[union-attr]
                step, env = divmod(int(row), envs)
                pairs.add((step, env + sum(shares[:rank])))
    assert found == expected


CASES: dict[str, dict[str, Any]] = {
    "a2c": {"lr": 1e-2},
    "ppo": {"algo": "ppo", "lr": 1e-3, "target_kl": 0.02},
    "a2c kl": {"model": Path("m"), "reward": Path("r"), "kl": 0.5, "kl_target": 0.01, "kl_horizon": 30},
    "ppo kl": {"algo": "ppo", "model": Path("m"), "reward": Path("r"), "kl": 0.5, "critic_warmup": 1},
}


def learns(ranks: Alone, case: str, env: str) -> dict[str, Any]:
    """What a rank's share of six made-up rollouts teaches; the shares are of 2 and 3 environments."""
    config = TrainConfig(name="x", env=env, rollout=STEPS, num_envs=ENVS, lr_decay_steps=1000, **CASES[case])
    share = ranks.share(ENVS)
    world = make_world(env, len(share))
    torch.manual_seed(5)
    network, reference = (
        PolicyNet(world.spec.num_actions, world.spec.continuous, world.spec.observation_size)
        for _ in range(2)
    )
    penalty = KLPenalty(reference, config.kl, config.kl_target, config.kl_horizon) if config.kl else None
    learner = ActorCritic(network, world, config, CPU, False, 0, penalty=penalty, ranks=ranks)
    generator = torch.Generator().manual_seed(7)
    said = []
    for _ in range(6):
        played = rollout(network, generator, share, config.reward is not None)
        said.append({name: float(value) for name, value in learner.learn(played).items()})
        learner.updates += 1
    world.close()
    return {"network": network.state_dict(), "said": said}


def rollout(network: PolicyNet, generator: torch.Generator, share: range, learned: bool) -> Rollout:
    """Noise of which a third is invalid, more of it in the first environments than in the last."""
    shape, ours = (STEPS, ENVS), slice(share.start, share.stop)
    observations = 3 + 2 * torch.randn(*shape, network.observation_size or 0, generator=generator)
    if network.continuous:
        actions = torch.randn(*shape, network.num_actions, generator=generator)
    else:
        actions = torch.randint(network.num_actions, shape, generator=generator)
    paid, score, chance = torch.randn(3, *shape, generator=generator)
    chance = chance.sigmoid().numpy()
    off = np.linspace(0.6, 0.1, ENVS)
    seen, last = observations[:, ours], 3 + torch.randn(ENVS, observations.shape[-1], generator=generator)
    with torch.no_grad():
        features = network.features(seen)
        dist_params = network.dist_params(features)
        values = torch.cat([network.values(features), network.values(network.features(last[ours]))[None]])
    return Rollout(
        observations=seen,
        actions=actions[:, ours],
        dist_params=dist_params,
        values=values,
        learned=paid[:, ours] if learned else None,
        score=score.numpy()[:, ours],
        terminal=(chance > 0.7)[:, ours],
        truncated=(chance < 0.2)[:, ours],
        valid=(chance > off)[:, ours],
        held=np.zeros(shape, bool)[:, ours],
    )


ENV_IDS = "CartPole-v1", "Pendulum-v1"


def learns_all(ranks: Alone) -> dict[tuple[str, str], dict[str, Any]]:
    return {(case, env): learns(ranks, case, env) for case in CASES for env in ENV_IDS}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All cases in each of two ranks, which are started once."""
    return in_ranks(tmp_path_factory.mktemp("learned"), learns_all)


@pytest.mark.slow
@pytest.mark.parametrize("env", ENV_IDS)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_learns(case: str, env: str, learned: list[Any]) -> None:
    """Weights, the normaliser's statistics and all that is charted."""
    one = learns(ALONE, case, env)
    first, second = (of_rank[case, env] for of_rank in learned)
    for name, right in one["network"].items():
        torch.testing.assert_close(first["network"][name], right, rtol=1e-6, atol=1e-6)
        assert torch.equal(first["network"][name], second["network"][name]), name
    assert len({len(said) for said in (one["said"], first["said"], second["said"])}) == 1
    for said in (first["said"], second["said"]):
        for now, right in zip(said, one["said"], strict=True):
            assert now == pytest.approx(right, rel=1e-4, abs=1e-5)
