"""The linear layers that policies and values have above what they see."""

import itertools

import torch
from torch import nn


class Output(nn.Linear):
    """A head's last layer. Computes in float32, also under autocast: of numbers above 512 bf16 keeps every fourth only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def mlp(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers from each size to the next, the activation between them; the last is an `Output`."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers, Output(sizes[-2], sizes[-1]))
