"""A few updates lead to the weights that they led to before the loop, the learner and the files were taken apart.

data/weights.json holds what commit fa09dbc learned with these very flags, bf16 off and one thread: of each parameter the
sum and the sum of magnitudes. A change that is meant to change learning writes it anew.

Processors round differently, by 5e-6 of a sum of magnitudes after so few passes; a learning rate that is off by 1 %
shows as 1e-2.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lib.agent.config import TrainConfig
from lib.agent.network import PolicyNet
from lib.reward import network as network_module
from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.training.train import train
from tests.training.evaluations import one_game

LEARNED: dict[str, dict[str, list[float]]] = json.loads(
    (Path(__file__).parent / "data" / "weights.json").read_text()
)
PPO: dict[str, Any] = {"algo": "ppo", "rollout": 8, "epochs": 2, "steps": 4 * 8 * 3}
CASES: dict[str, dict[str, Any]] = {
    "a2c seaquest": {"steps": 4 * 5 * 6},
    "ppo seaquest": {**PPO, "target_kl": 0.5},
    "ppo cartpole": {"env": "CartPole-v1", "algo": "ppo", "steps": 4 * 32 * 6},
    "ppo pendulum": {"env": "Pendulum-v1", "algo": "ppo", "steps": 4 * 32 * 8},
    "finetune kl": {"steps": 4 * 5 * 6, "finetune": True, "kl": 0.5, "kl_target": 0.01, "kl_horizon": 100},
    "finetune ppo warmup": {
        **PPO,
        "kl": 1.0,
        "critic_warmup": 1,
        "lr": 1e-4,
        "pessimism": 0.5,
        "score_weight": 0.1,
        "freeze_convs": True,
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A policy and a reward model for the finetunes."""
    root = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        # As reward networks began when the numbers were recorded, with as many random draws wherever one is made.
        patch.setattr(network_module, "_joining", lambda features, actions: nn.Linear(features + actions, 64))
        torch.manual_seed(7)
        networks = [RewardNet((210, 160, 3), 18).eval() for _ in range(2)]
        members = [Member(network, 0.1, 0.5 + number) for number, network in enumerate(networks)]
        save_reward_model(root / "reward.dat", RewardModel(members, torch.device("cpu")), {}, {}, {})
        torch.manual_seed(3)
        torch.save(PolicyNet(18).state_dict(), root / "policy.dat")
        yield {"model": root / "policy.dat", "reward": root / "reward.dat"}


OF_PICTURES = [pytest.param(case, marks=pytest.mark.slow) for case in CASES if "env" not in CASES[case]]


@pytest.mark.parametrize("case", ["ppo cartpole", "ppo pendulum", *OF_PICTURES])
def test_the_same_weights(case: str, files: dict[str, Path], tmp_path: Path) -> None:
    flags = CASES[case] | (files if "finetune" in case else {})
    small: dict[str, Any] = {"num_envs": 4, "eval_games": 1, "bf16": False, "threads": 1, "seed": 11}
    config = TrainConfig(name="x", save=tmp_path / "save", runs=tmp_path / "runs", **(small | flags))
    path = train(config, evaluate=one_game).checkpoint
    assert path is not None
    weights = torch.load(path, weights_only=True)["state_dict"]
    assert weights.keys() == LEARNED[case].keys()
    for name, (total, magnitude) in LEARNED[case].items():
        now = weights[name].double()
        found = (now.sum().item(), now.abs().sum().item())
        assert found == pytest.approx((total, magnitude), rel=0, abs=1e-4 * magnitude), name
