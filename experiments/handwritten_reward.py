"""01_a2c.py on Seaquest, paid by a handwritten rule instead of a reward model: for refuelling, or for hunting in several lanes.

What no agent learns on this, no labels can teach it. Takes the flags of 01_a2c.py; the score is added:

    .venv/bin/python -m experiments.handwritten_reward -n NAME -m MODEL --score-weight 0.5 …
    … --rule lanes --score-weight 1 --hold-prob 0.01 --learn-held        # without --learn-held no second lane was found
"""

from collections.abc import Callable, Sequence
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
from lib.training.train import train

_NUM_ACTIONS = 18
_UP = np.array([Action(number).name.startswith("UP") for number in range(_NUM_ACTIONS)])
_FULL = 0.9  # oxygen
_OUT_OF_SIGHT = -1.0
_POINTS = slice(7, 20)  # rows of the picture
_ANOTHER_LANE = 0.15  # of depth; lanes are a quarter apart


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


class SeveralLanes:
    """Pays 1 for a hit at another depth than the last one of the same life: for hunting in more than one lane.

    A hit is a change of the points in the picture while a submarine is below the top. The picture shows it, and is paid for it,
    one step late. It remembers games, so it has to see all of their steps; another number of games begins anew.
    """

    def __init__(self) -> None:
        self._points = np.empty((0, 0))
        self._lane = np.empty(0)  # depth of the last hit; NaN: none in this life

    def __call__(self, frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """What the newest step of every game is worth; takes and returns what `refuelling` does."""
        depth, points = submarine_depth(frames), frames[:, _POINTS].reshape(len(frames), -1)
        if len(points) != len(self._points):
            self._points, self._lane = points, np.full(len(points), np.nan)
        hit = (points != self._points).any(1) & (depth >= TOP)
        paid = hit & (np.abs(depth - self._lane) > _ANOTHER_LANE)
        self._lane = np.where(np.isnan(depth), np.nan, np.where(hit, depth, self._lane))
        self._points = points.copy()
        return paid.astype(np.float32)


RULES: dict[str, Callable[[], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "refuel": lambda: refuelling,
    "lanes": SeveralLanes,
}


class HandwrittenReward(RewardModel):
    """A reward model of one member, which pays by a rule as it is: nothing is standardised.

    Args:
      device: where frames and actions lie.
      rule: in `RULES`.
    """

    def __init__(self, device: torch.device, rule: str) -> None:
        self.members, self.origin, self.input = [], {}, "frame"
        self.spec = Spec(_NUM_ACTIONS, frame_shape=(210, 160, 3))
        self.disagreement = self._pessimism = 0.0
        self._device, self._bf16 = device, False
        self._rule = RULES[rule]()

    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """What the rule pays for frames and actions, float32 `[1, N]`."""
        paid = self._rule(inputs.cpu().numpy(), actions.cpu().numpy())
        return torch.from_numpy(paid).to(self._device).unsqueeze(0)


@dataclass(frozen=True)
class HandwrittenConfig(TrainConfig):
    """A training run paid by a handwritten rule."""

    rule: str = flag(default="refuel", choices=tuple(RULES), help="what is paid for")

    reward: Path | None = flag(
        "-r",
        default=Path("experiments/handwritten_reward.py"),
        metavar="RULE",
        help="name under which the run's files record the reward; no model is loaded",
    )


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(HandwrittenConfig, MAY_DIFFER, argv, description=(__doc__ or "").splitlines()[0])
    train(config, reward=HandwrittenReward(resolve_device(config.dev), config.rule))


if __name__ == "__main__":
    cli.run(main)
