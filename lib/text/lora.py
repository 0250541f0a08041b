"""LoRA: low-rank changes of frozen linear layers (Hu et al. 2021, arXiv 2106.09685).

Forty lines in place of peft, which renames every module of a model, and brings accelerate and psutil.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class LoRALinear(nn.Module):
    """W x + B A x for a frozen W (equation 3). B begins at 0, so that the sum begins as W x, bit for bit.

    The scale α/r is 1: what α would do, the learning rate does (section 4.1).

    Args:
      frozen: the layer of W, which stays part of the model.
      rank: r.
      generator: draws A, on the CPU.
    """

    def __init__(self, frozen: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.frozen = frozen
        # float32 whatever W is, for Adam.
        bound = 1 / math.sqrt(frozen.in_features)
        a = torch.empty(rank, frozen.in_features).uniform_(-bound, bound, generator=generator)
        self.a = nn.Parameter(a.to(frozen.weight.device))
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank, device=frozen.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float `[…, in]` → `[…, out]`."""
        change = F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))
        return torch.as_tensor(self.frozen(x) + change)

    @torch.no_grad()
    def folded(self) -> nn.Linear:
        """W + B A as one layer."""
        whole = copy.deepcopy(self.frozen)
        whole.weight.copy_(self.frozen.weight + self.b @ self.a)
        return whole


def adapters(part: nn.Module) -> dict[str, nn.Parameter]:
    """All A and B of a model or a part of one, by name."""
    return {
        f"{at}.{name}": weight
        for at, layer in part.named_modules()
        if isinstance(layer, LoRALinear)
        for name, weight in (("a", layer.a), ("b", layer.b))
    }


def adapted(layers: nn.ModuleList, rank: int, seed: int) -> nn.ModuleList:
    """A copy of layers whose linear ones have adapters; it shares all other weights.

    Adapters that the layers have already, of the same rank, are copied.

    Args:
      layers: of a language model.
      rank: of the adapters.
      seed: of new ones.
    """
    generator = torch.Generator().manual_seed(seed)
    own = {id(weight) for weight in adapters(layers).values()}
    shared = {id(weight): weight for weight in layers.parameters() if id(weight) not in own}
    fresh = copy.deepcopy(layers, memo=dict[int, Any](shared))
    for name, layer in list(fresh.named_modules()):
        if isinstance(layer, nn.Linear) and not name.endswith(".frozen"):
            fresh.set_submodule(name, LoRALinear(layer, rank, generator))
    return fresh


def fold(part: nn.Module) -> None:
    """Puts one linear layer in the place of each that has an adapter."""
    for name, layer in list(part.named_modules()):
        if isinstance(layer, LoRALinear):
            part.set_submodule(name, layer.folded())


def adapter_size(layers: nn.ModuleList, rank: int) -> int:
    """How many weights adapters of layers have, whether or not they are there yet."""
    linear = (layer for layer in layers.modules() if isinstance(layer, nn.Linear))
    return sum(rank * (layer.in_features + layer.out_features) for layer in linear)
