"""The convolutions that policies begin with if they see pictures."""

import torch
from torch import nn
from torch.nn import functional as F

from lib.envs.observation import STACK


class Convolutions(nn.Sequential):
    """Features of pictures, uint8 `[N, 4, 84, 84]` to `[N, F]`.

    Conv 32@8/4, 64@4/2, 64@3/1 (Mnih et al. 2015, F 3136), or the small ones, 16@8/4, 32@4/2, with a quarter of the
    arithmetic (Mnih et al. 2013 and 2016, F 2592).

    Args:
      kind: of network, "separate", "shared" or "small" (`lib.agent.network.PolicyNet`). The first hidden layer of a
        "shared" one belongs to them (F 512).

    Attributes:
      features: F.
      units: of the hidden layers that policies have above them.
    """

    def __init__(self, kind: str) -> None:
        small = kind == "small"
        channels = (16, 32) if small else (32, 64)
        super().__init__(
            nn.Conv2d(STACK, channels[0], kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(*channels, kernel_size=4, stride=2),
        )
        if not small:
            self.extend([nn.ReLU(), nn.Conv2d(64, 64, kernel_size=3, stride=1)])
        # The last rectifier comes behind the flattening, where its gradient lies in memory as its output does; before it,
        # the two differ, and the rectifier takes as long as a convolution.
        self.extend([nn.Flatten(), nn.ReLU()])
        self.features, self.units = (32 * 9 * 9, 256) if small else (64 * 7 * 7, 512)
        if kind == "shared":
            self.extend([nn.Linear(self.features, self.units), nn.ReLU()])
            self.features = self.units

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        kind = observations.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        # On a CPU, blocks are the faster way in bf16, and the slower one in float32.
        blocks = kind == "cpu" and dtype == torch.bfloat16
        return self.by_blocks(observations, dtype) if blocks else self.by_strides(observations, dtype)

    def by_strides(self, observations: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The layers over observations / 255, the weights divided: in bf16 pixels are whole, their 255th parts are not."""
        first, *others = self
        assert isinstance(first, nn.Conv2d)
        layout = torch.channels_last if observations.device.type == "cpu" else torch.preserve_format
        pixels = observations.to(dtype, memory_format=layout)
        return _through(others, F.conv2d(pixels, first.weight / 255, first.bias, first.stride))

    def by_blocks(self, observations: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The layers over observations / 255, with strides taken out of the convolutions.

        A convolution of stride s over blocks of s·s pixels is one of stride 1 over their values as channels. In bf16
        on a CPU its backward pass is faster, several times so where other work shares the cores.
        """
        first, _, second, *others = self
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        pixels = _blocks_of_bytes(observations).to(dtype).permute(0, 3, 1, 2)
        x = F.relu(F.conv2d(pixels, F.pixel_unshuffle(first.weight / 255, 4), first.bias))
        weight = second.weight.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 3, 5, 1, 2, 4)
        return _through(others, F.conv2d(_blocks(x, 2), weight.flatten(1, 3), second.bias))


def _through(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


def kind_of_pictures(state: dict[str, torch.Tensor], name: str = "conv") -> str:
    """The kind of the convolutions of this name in a state_dict; "separate" if there are none."""
    if f"{name}.7.weight" in state:
        return "shared"
    first = state.get(f"{name}.0.weight")
    return "small" if first is not None and first.shape[:1] == (16,) else "separate"


def _blocks_of_bytes(observations: torch.Tensor) -> torch.Tensor:
    """Blocks of 4×4 pixels as channels: uint8 `[N, C, H, W]` to `[N, H/4, W/4, 16·C]`, as `F.pixel_unshuffle` has it.

    The four bytes of a row travel as one number, which is much faster.
    """
    n, channels, height, width = observations.shape
    rows = observations.contiguous().view(torch.int32).view(n, channels, height // 4, 4, width // 4)
    blocks = rows.permute(0, 2, 4, 1, 3).contiguous()
    return blocks.view(n, height // 4, width // 4, channels * 4).view(torch.uint8)  # of no pictures, too


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """Blocks of pixels as channels, row, column, channel: `[N, C, H, W]`, channels last in memory, to `[N, s·s·C, H/s, W/s]`."""
    last = x.permute(0, 2, 3, 1).unflatten(2, (-1, size)).unflatten(1, (-1, size))
    return last.transpose(2, 3).flatten(3).permute(0, 3, 1, 2)
