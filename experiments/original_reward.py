"""01_a2c.py with the original experiment's reward: the sign of a sliding z-score.

For the ablation only; lib deliberately has neither. Takes the flags of 01_a2c.py.

    .venv/bin/python -m experiments.original_reward -n NAME -m MODEL -r REWARD --finetune …
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch

from lib import cli
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.cli import UserError
from lib.devices import resolve_bf16, resolve_device
from lib.reward.checkpoints import load_reward_model
from lib.reward.model import RewardModel
from lib.runs import parse_resumable
from lib.training.parts import Trained
from lib.training.train import train

WINDOW = 100
"""Steps of one environment that a reward is compared with, itself among them."""


class SlidingSign:
    """sign(z) of each environment's rewards, z = (r − mean) / deviation over its last 100, which run on across games.

    The deviation is never negative, so the sign is that of r − mean. Where all are equal z is 0 / 0 and broke the
    original; here it is 0. That a steadily good state is worth nothing is the recipe's own.
    """

    def __init__(self) -> None:
        self._window: torch.Tensor | None = None
        self._seen = 0

    def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
        """The next step of every environment.

        Args:
          rewards: float32 `[B]`.

        Returns:
          float32 `[B]`: −1, 0 or 1.
        """
        if self._window is None:
            # In float64 the mean of equal numbers is that number, and its difference from them exactly 0.
            self._window = torch.zeros(WINDOW, len(rewards), dtype=torch.float64, device=rewards.device)
        self._window[self._seen % WINDOW] = rewards.double()
        self._seen += 1
        mean = self._window[: self._seen].mean(0)
        return (rewards.double() - mean).sign().float()


class OriginalReward(RewardModel):
    """A reward model that pays as the original did. What an evaluation calls the learned return stays the model's own."""

    @functools.cached_property
    def _sliding_sign(self) -> SlidingSign:
        return SlidingSign()

    def pay(
        self, frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The next step of every environment, as `SlidingSign` takes them: to be called once a step, in order."""
        return self._sliding_sign(super().pay(frames, actions, observations))


def load_original_reward(
    path: Path, device: torch.device | None = None, bf16: bool = False, pessimism: float = 0.0
) -> RewardModel:
    """`load_reward_model`, paying as the original did."""
    model = load_reward_model(path, device, bf16, pessimism)
    return OriginalReward(
        model.members,
        device or torch.device("cpu"),
        bf16,
        model.origin,
        pessimism,
        model.disagreement,
        model.features,
    )


def train_on_original_reward(config: TrainConfig) -> Trained:
    """`lib.training.train.train`, paid as the original did."""
    if config.reward is None:
        raise UserError("expected a reward model: add -r FILE")
    device = resolve_device(config.dev)
    bf16 = resolve_bf16(config.bf16, device)
    return train(config, reward=load_original_reward(config.reward, device, bf16, config.pessimism))


def main(argv: Sequence[str] | None = None) -> None:
    train_on_original_reward(
        parse_resumable(TrainConfig, MAY_DIFFER, argv, description=(__doc__ or "").splitlines()[0])
    )


if __name__ == "__main__":
    cli.run(main)
