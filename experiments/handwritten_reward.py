"""01_a2c.py on Seaquest, paid by a handwritten rule for what refuelling takes, instead of a reward model.

If no agent learns to refuel on this, no labels can teach it to. Takes the flags of 01_a2c.py; the score is added:

    .venv/bin/python -m experiments.handwritten_reward -n NAME -m MODEL --score-weight 0.5 …
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ale_py import Action

from lib import cli
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.cli import flag
from lib.devices import resolve_device
from lib.envs.seaquest import TOP, divers, oxygen, submarine_depth
from lib.envs.spec import Spec
from lib.reward.model import RewardModel
from lib.runs import parse_resumable
from lib.training.train import Trained, train

_NUM_ACTIONS = 18
_UP = np.array([Action(number).name.startswith("UP") for number in range(_NUM_ACTIONS)])
_FULL = 0.9  # oxygen
_OUT_OF_SIGHT = -1.0


def refuelling(frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """What a step is worth to somebody who wants the submarine to refuel.

    The sum of: ½ (oxygen − ½); 0.15 with a diver on board; below half of the oxygen with a diver, 0.5 for an action
    that goes up and −0.3 for any other; at the top, −0.5 with a full bar, and below half −0.3 for an action that does
    not go up. −1 in place of all that where no submarine is in sight.

    Args:
      frames: uint8 `[B, 210, 160, 3]`, RGB.
      actions: int `[B]`, of the full set of 18.

    Returns:
      float32 `[B]`.
    """
    left, depth, diver, up = oxygen(frames), submarine_depth(frames), divers(frames) > 0, _UP[actions]
    low, top = left < 0.5, depth < TOP
    paid = 0.5 * (left - 0.5) + 0.15 * diver
    paid += (low & diver) * np.where(up, 0.5, -0.3)
    paid -= 0.5 * (top & (left >= _FULL)) + 0.3 * (top & low & ~up)
    return np.where(np.isnan(left) | np.isnan(depth), _OUT_OF_SIGHT, paid).astype(np.float32)


class HandwrittenReward(RewardModel):
    """A reward model of one member, which pays `refuelling` as it is: nothing is standardised.

    Args:
      device: where frames and actions lie.
    """

    def __init__(self, device: torch.device) -> None:
        self.members, self.origin, self.input = [], {}, "frame"
        self.spec = Spec(_NUM_ACTIONS, frame_shape=(210, 160, 3))
        self.disagreement = self._pessimism = 0.0
        self._device, self._bf16 = device, False

    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """`refuelling` of frames and actions, float32 `[1, N]`."""
        paid = refuelling(inputs.cpu().numpy(), actions.cpu().numpy())
        return torch.from_numpy(paid).to(self._device).unsqueeze(0)


@dataclass(frozen=True)
class HandwrittenConfig(TrainConfig):
    """A training run paid by the handwritten rule."""

    reward: Path | None = flag(
        "-r",
        default=Path("experiments/handwritten_reward.py"),
        metavar="RULE",
        help="name under which the run's files record the reward; no model is loaded",
    )


def train_on_handwritten_reward(config: HandwrittenConfig) -> Trained:
    """`lib.training.train.train`, paid by the handwritten rule."""
    return train(config, reward=HandwrittenReward(resolve_device(config.dev)))


def main(argv: Sequence[str] | None = None) -> None:
    train_on_handwritten_reward(
        parse_resumable(HandwrittenConfig, MAY_DIFFER, argv, description=(__doc__ or "").splitlines()[0])
    )


if __name__ == "__main__":
    cli.run(main)
