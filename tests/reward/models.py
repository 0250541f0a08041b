"""Reward models that were never fitted."""

from pathlib import Path
from typing import Any

import torch

from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet


def save_unfitted(
    path: Path,
    frame_shape: tuple[int, int, int] = (84, 84, 3),
    num_actions: int = 5,
    *,
    members: int = 1,
    mean: float = 0.0,
    std: float = 1e-3,
    seed: int = 0,
    version: int | None = None,
    **network: Any,
) -> Path:
    """Writes one with random weights, for the moving dot unless told otherwise; its configuration is the seed."""
    torch.manual_seed(seed)
    networks = [RewardNet(frame_shape, num_actions, **network) for _ in range(members)]
    model = RewardModel([Member(network, mean, std) for network in networks], torch.device("cpu"))
    refit = None if version is None else {"version": version}
    save_reward_model(path, model, {"seed": seed}, {}, {}, refit)
    return path
