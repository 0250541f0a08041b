"""What a policy's frozen network makes of observations, as inputs of a reward model."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from lib.checkpoints import check_weights, load_checkpoint
from lib.cli import UserError

_STRIDES = {"conv.0": 4, "conv.2": 2, "conv.4": 1}
_HIDDEN = ("policy.0", "value.0")  # or, where both heads share one layer, that layer
_SHARED = ("conv.7",)


class PolicyFeatures(nn.Module):
    """The hidden units of a policy of pictures: those of its policy head and of its value head, or the shared ones.

    A policy that was trained on the score has learned to see what the score hangs on. A small network on top of that
    needs far fewer labels than one that begins with pixels, and far less time: the features of a clip are computed once.
    The policy's weights stay as they are; they are stored with the reward model.

    Attributes:
      size: F, how many units.

    Args:
      state: weights of a `lib.agent.network.PolicyNet` of pictures.
      source: its file, for the message.

    Raises:
      UserError: they are of another kind of policy.
    """

    def __init__(self, state: dict[str, torch.Tensor], source: Path) -> None:
        super().__init__()
        hidden = _SHARED if "conv.7.weight" in state else _HIDDEN
        names = [f"{name}.{part}" for name in (*_STRIDES, *hidden) for part in ("weight", "bias")]
        shapes = [state[name].ndim for name in names if name in state]
        if shapes != [4, 1] * 3 + [2, 1] * len(hidden):
            raise UserError(f"{source}: expected a policy of pictures by a2c or ppo to take features of")
        for name in names:
            self.register_buffer(name.replace(".", "_"), state[name].float())
        self._hidden, self._names = hidden, names
        self.size = sum(len(state[f"{name}.bias"]) for name in hidden)

    @torch.no_grad()
    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Uint8 `[N, 4, 84, 84]` to float32 `[N, F]`."""
        x = observations.float() / 255
        for name, stride in _STRIDES.items():
            x = F.relu(F.conv2d(x, *self._layer(name), stride))
        x = x.flatten(1)
        return torch.cat([F.relu(F.linear(x, *self._layer(name))) for name in self._hidden], 1)

    def _layer(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        name = name.replace(".", "_")
        return self.get_buffer(f"{name}_weight"), self.get_buffer(f"{name}_bias")

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's weights that it stands on, by their names there."""
        return {name: self.get_buffer(name.replace(".", "_")) for name in self._names}


def policy_features(path: Path) -> PolicyFeatures:
    """The features of a policy checkpoint.

    Raises:
      UserError: there is no such policy, or it does not see pictures.
    """
    payload = load_checkpoint(path, "policy")
    return PolicyFeatures(check_weights(payload.get("state_dict"), str(path)), path)
