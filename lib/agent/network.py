"""The policy network: Mnih et al.'s convolutions under separate policy and value heads."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from lib.cli import UserError

MAX_ACTIONS = 1024
"""Of a policy; that of lib.preferences.segments, where actions come from."""


class PolicyNet(nn.Module):
    """conv 32@8/4, 64@4/2, 64@3/1, then a 512-unit head each for the policy and the value.

    Parameter names are those of the original experiment, whose checkpoints load as they are.
    """

    def __init__(self, num_actions: int, in_channels: int = 4) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.conv = nn.Sequential(
            nn.Conv2d(in_channels, 32, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        features = 64 * 7 * 7
        self.policy = nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, num_actions))
        self.value = nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 1))
        self._initialise()

    def _initialise(self) -> None:
        """Orthogonal weights; a nearly uniform first policy (Andrychowicz et al. 2021, arXiv 2006.05990)."""
        gains = {"policy.2.weight": 0.01, "value.2.weight": 1.0}
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, gain=gains.get(name, math.sqrt(2)))

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values.

        Args:
          observations: uint8 `[N, 4, 84, 84]`.

        Returns:
          float32 logits `[N, A]` and float32 values `[N]`.
        """
        dtype = torch.get_autocast_dtype(observations.device.type)
        dtype = dtype if torch.is_autocast_enabled(observations.device.type) else torch.float32
        if observations.device.type == "cpu":
            features = self._features_cpu(observations, dtype)
        else:
            features = self.conv(observations.to(dtype) / 255)
        return self.policy(features).float(), self.value(features).squeeze(-1).float()

    def _features_cpu(self, observations: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`self.conv(observations / 255)` with strides taken out of the convolutions.

        A convolution of stride s over blocks of s·s pixels is one of stride 1 over their values as channels. On a CPU
        the way back through it is faster, several times so where other work shares the cores.
        """
        first, _, second, _, third, _, _ = self.conv
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        pixels = _blocks_of_bytes(observations).to(dtype).permute(0, 3, 1, 2)
        x = F.relu(F.conv2d(pixels, F.pixel_unshuffle(first.weight / 255, 4), first.bias))
        weight = second.weight.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 3, 5, 1, 2, 4)
        x = F.relu(F.conv2d(_blocks(x, 2), weight.flatten(1, 3), second.bias))
        return F.relu(third(x)).flatten(1)


def _blocks_of_bytes(observations: torch.Tensor) -> torch.Tensor:
    """Blocks of 4×4 pixels as channels: uint8 `[N, C, H, W]` to `[N, H/4, W/4, 16·C]`, as `F.pixel_unshuffle` has it.

    The four bytes of a row travel as one number, which is much faster.
    """
    n, channels, height, width = observations.shape
    rows = observations.contiguous().view(torch.int32).view(n, channels, height // 4, 4, width // 4)
    return rows.permute(0, 2, 4, 1, 3).contiguous().view(torch.uint8).flatten(3)


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """Blocks of pixels as channels, row, column, channel: `[N, C, H, W]`, channels last in memory, to `[N, s·s·C, H/s, W/s]`."""
    last = x.permute(0, 2, 3, 1).unflatten(2, (-1, size)).unflatten(1, (-1, size))
    return last.transpose(2, 3).flatten(3).permute(0, 3, 1, 2)


def policy_from_state(state: dict[str, torch.Tensor], source: str) -> PolicyNet:
    """A policy with the weights of a state_dict, ours or the original's.

    Args:
      state: the weights; the number of actions is read from them.
      source: file they came from, for messages.

    Raises:
      UserError: the weights are of another network; says what differs.
    """
    head = state.get("policy.2.weight")
    if head is None or head.ndim != 2:
        raise UserError(
            f"{source}: expected the weights of a policy (conv.*, policy.*, value.*), "
            f"got {', '.join(sorted(state)[:3]) or 'none'}…; is it a reward model?"
        )
    if not 1 <= head.shape[0] <= MAX_ACTIONS:
        raise UserError(f"{source}: expected a policy of 1 to {MAX_ACTIONS} actions, got {head.shape[0]}")
    network = PolicyNet(head.shape[0])
    expected = network.state_dict()
    for name, value in expected.items():
        if name not in state:
            raise UserError(f"{source}: expected a weight {name}, which is missing")
        if state[name].shape != value.shape:
            raise UserError(
                f"{source}: expected {name} of shape {tuple(value.shape)}, got {tuple(state[name].shape)}"
            )
    unknown = sorted(set(state) - set(expected))
    if unknown:
        raise UserError(f"{source}: weights of another network: {', '.join(unknown[:3])} have no place here")
    network.load_state_dict(state)
    return network
