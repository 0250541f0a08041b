"""Features from a policy's frozen network, as inputs of a reward model."""

from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from lib.checkpoints import check_weights, load_checkpoint
from lib.cli import UserError
from lib.convolutions import Convolutions, kind_of_pictures


class Features(Protocol):
    """Features of a clip's observations, computed once before the fit.

    Attributes:
      size: F, how many numbers.
    """

    size: int

    def __call__(self, observations: torch.Tensor) -> torch.Tensor:
        """Uint8 `[N, 4, 84, 84]` to float32 `[N, F]`."""
        ...


class PolicyBody(nn.Module):
    """The frozen body of a policy of pictures: all that its heads see.

    Attributes:
      size: F, how many features.

    Args:
      state: weights of a `lib.agent.network.PolicyNet` of pictures.
      source: its file, for the message.

    Raises:
      UserError: the weights are not of such a policy.
    """

    def __init__(self, state: dict[str, torch.Tensor], source: Path) -> None:
        super().__init__()
        kind = kind_of_pictures(state)
        self.conv = Convolutions(kind)
        self.size = self.conv.features
        self._shared = kind == "shared"
        self._load(state, source)

    def _load(self, state: dict[str, torch.Tensor], source: Path) -> None:
        try:
            self.load_state_dict({name: state[name] for name in self.state_dict()})
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"{source}: expected a policy that sees pictures, from a2c or ppo, to take features from"
            ) from error

    @torch.no_grad()
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Uint8 `[N, 4, 84, 84]` to float32 `[N, F]`."""
        features: torch.Tensor = self.conv(observations)
        return features.float()


class PolicyFeatures(PolicyBody):
    """The hidden units of a policy of pictures: those of its policy head and of its value head, or the shared ones.

    A policy that was trained on the score has learned to see what the score depends on. A small network on top of that
    needs far fewer labels than one that begins with pixels, and far less time: the features of a clip are computed once.
    The policy's weights do not change; they are stored with the reward model.
    """

    def __init__(self, state: dict[str, torch.Tensor], source: Path) -> None:
        super().__init__(state, source)
        if not self._shared:
            inputs, units = self.size, self.conv.units
            self.policy, self.value = (nn.Sequential(nn.Linear(inputs, units), nn.ReLU()) for _ in range(2))
            self.size = 2 * units
            self._load(state, source)

    @torch.no_grad()
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Uint8 `[N, 4, 84, 84]` to float32 `[N, F]`."""
        x = self.conv(observations)
        return (x if self._shared else torch.cat([self.policy(x), self.value(x)], 1)).float()


def policy_features(path: Path) -> PolicyFeatures:
    """The features of a policy checkpoint.

    Raises:
      UserError: there is no such policy, or it does not see pictures.
    """
    payload = load_checkpoint(path, "policy")
    return PolicyFeatures(check_weights(payload.get("state_dict"), str(path)), path)
