"""What a GPU asks of the code between two logs: all of it on one device, and nobody waits for it.

PyTorch's meta device knows shapes and no numbers. Whatever reads a number raises there, as does whatever mixes devices, so
these tests need no GPU; tests/test_gpu.py has those that do.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.agent.actor_critic import update
from lib.agent.config import TrainConfig
from lib.agent.kl import KLPenalty
from lib.agent.network import PolicyNet
from lib.agent.rollout import Collector, Rollout
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.agent.worlds import Row, ScriptedWorld

META = torch.device("meta")
STEPS, ENVS, ACTIONS = 4, 3, 5


class NoGenerator:
    """There is none of the meta device, so draws take the default one."""

    def __init__(self, device: torch.device) -> None:
        assert device == META

    def manual_seed(self, seed: int) -> None:
        return None


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Lets the meta device pass for a GPU; the shapes of all that is copied from it."""
    copied: list[torch.Size] = []

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.device == META
        copied.append(tensor.shape)
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(torch, "Generator", NoGenerator)
    monkeypatch.setattr(torch, "autocast", lambda *args, **flags: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.float32)
    return copied


def reward_model(members: int = 1, pessimism: float = 0.0) -> RewardModel:
    networks = [RewardNet((84, 84, 3), ACTIONS) for _ in range(members)]
    return RewardModel([Member(network, 0.5, 2.0) for network in networks], META, pessimism=pessimism)


def played(network: PolicyNet, reward: RewardModel | None = None, **flags: Any) -> Rollout:
    world = ScriptedWorld([[Row(step) for step in range(STEPS + 1)]] * ENVS, ACTIONS)
    return Collector(world, STEPS, META, seed=0, bf16=False, reward=reward).collect(network, **flags)


@pytest.mark.slow
def test_nothing_but_the_actions_of_each_step_is_copied(copies: list[torch.Size]) -> None:
    rollout = played(PolicyNet(ACTIONS, kind="small").to(META), reward_model(members=2, pessimism=1.0))
    assert copies == [(ENVS,)] * STEPS
    assert rollout.learned is not None
    on_device = (rollout.observations, rollout.actions, rollout.dist_params, rollout.values, rollout.learned)
    assert {tensor.device for tensor in on_device} == {META}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"reward": Path("r.dat"), "score_weight": 1.0},
        {"reward": Path("r.dat"), "freeze_convs": True},
        {"algo": "ppo", "minibatches": 2},
        {"algo": "ppo", "freeze_convs": True, "value_clip_range": 0.2},
    ],
)
def test_no_update_waits_for_the_device(copies: list[torch.Size], flags: dict[str, Any]) -> None:
    network, reference = (PolicyNet(ACTIONS, kind="small").to(META) for _ in range(2))
    penalty = KLPenalty(reference, 0.0, 0.1, 1000)
    penalty.coef = torch.empty((), device=META)  # a number would be copied there
    optimizer = torch.optim.Adam(network.parameters())
    config = TrainConfig(name="x", **flags)
    network.body.requires_grad_(not config.freeze_convs)
    reward = None if config.reward is None else reward_model()
    rollout = played(network, reward, keep_graph=config.one_pass, keep_features=config.freeze_convs)
    copies.clear()
    parts = update(network, optimizer, rollout, config, bf16=False, penalty=penalty)
    penalty.adapt(parts["kl_ref"], STEPS * ENVS)
    assert copies == []
    assert {part.device for part in parts.values()} == {META}


def test_a_read_would_be_noticed(copies: list[torch.Size]) -> None:
    weight = torch.ones(3, device=META)
    for read in (lambda: weight.sum().item(), lambda: bool(weight.any()), lambda: weight[weight > 0]):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read()
    with pytest.raises(RuntimeError):
        weight + torch.ones(3)
