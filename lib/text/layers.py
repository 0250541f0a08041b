"""Log-probabilities of tokens, and the lower and upper layers of language models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lib.text.lora import adapted, fold

_AT_ONCE = 512  # tokens whose logits are in memory together: 100 MB for each 50,000 words of a vocabulary


def padded(rows: Sequence[Sequence[int]], device: torch.device, left: bool = False) -> torch.Tensor:
    """Rows of tokens as int64 `[B, T]`, zeros beyond their lengths (in front of them where `left`).

    Padding is recognised by lengths, never by its token, which may be one that ends answers.
    """
    width = max(map(len, rows))
    filled = [
        [0] * (width - len(row)) + list(row) if left else list(row) + [0] * (width - len(row)) for row in rows
    ]
    return torch.tensor(filled, dtype=torch.int64, device=device)


def token_log_probs(
    network: Any, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probability of each token of an answer, as the distribution has it that `sample` draws from.

    Returns:
      float32 `[N]`.
    """
    whole = torch.tensor([[*prompt, *tokens]], device=network.device)
    logits = network(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
    log_probs = F.log_softmax(logits.float() / temperature, -1)
    return log_probs.gather(1, whole[0, len(prompt) :, None])[:, 0]


def log_softmax_of(head: Any, states: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary, float32 `[N, V]`, of states `[N, D]` after the last norm."""
    logits: torch.Tensor = head(states.to(head.weight.dtype))
    return F.log_softmax(logits.float() / temperature, -1)


def log_probs_of(
    head: Any, states: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of tokens, by chunks: logits of all tokens are never in memory, in the backward pass neither.

    Args:
      head: makes logits of states.
      states: float `[N, D]`, after the last norm, at the places before the tokens.
      tokens: int64 `[N]`.
      temperature: divides the logits.

    Returns:
      float32 `[N]`.
    """

    def chunk(states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return log_softmax_of(head, states, temperature).gather(1, tokens[:, None])[:, 0]

    parts = zip(states.split(_AT_ONCE), tokens.split(_AT_ONCE), strict=True)
    return torch.cat([checkpoint(chunk, *part, use_reentrant=False) for part in parts])


# --- The lower and the upper layers -----------------------------------------------------------------------------


def upper_copy(base: Any, at: int, count: int) -> Any:
    """A copy of `count` layers from `at` on, and of the model's last norm. They take `inputs_embeds`."""
    layers: Any = copy.deepcopy(base.layers[at : at + count])
    fold(layers)
    for number, layer in enumerate(layers):
        layer.self_attn.layer_idx = number
    return _part(base, layers, at, at + count, copy.deepcopy(base.norm))


def branch(network: Any, at: int) -> Any:
    """A causal language model whose layers from `at` on, and last norm, are copies; all else it shares with the other.

    It samples with a cache as any whole model does.
    """
    base = network.model
    layers = [*base.layers[:at], *copy.deepcopy(base.layers[at:])]
    return _with(network, layers, copy.deepcopy(base.norm))


def with_adapters(network: Any, rank: int, seed: int = 0) -> Any:
    """A causal language model with adapters (`lib.text.lora.adapted`) on all layers; it shares all else with the other."""
    return _with(network, adapted(network.model.layers, rank, seed), network.model.norm)


def _with(network: Any, layers: Any, norm: nn.Module) -> Any:
    fresh = copy.copy(network)
    fresh._modules = dict(network._modules)
    fresh.model = _like(network.model, layers, 0, len(layers), norm)
    return fresh


def between(base: Any, start: int, stop: int) -> Any:
    """Some layers of a model, shared with it, without a norm. They take `inputs_embeds`, and no cache."""
    return _part(base, base.layers[start:stop], start, stop, nn.Identity())


def above(base: Any, at: int) -> Any:
    """The layers from `at` on and the last norm, shared with the model. They take `inputs_embeds`, and no cache."""
    return _part(base, base.layers[at:], at, len(base.layers), base.norm)


def _part(base: Any, layers: Any, start: int, stop: int, norm: nn.Module) -> Any:
    """Without the embedding of tokens."""
    part = _like(base, layers, start, stop, norm)
    del part._modules["embed_tokens"]
    return part


def _like(base: Any, layers: Any, start: int, stop: int, norm: nn.Module) -> Any:
    """A model like another one with other layers: those of its configuration from `start` to `stop`."""
    part = copy.copy(base)
    part._modules = dict(base._modules)
    part.layers, part.norm = nn.ModuleList(layers), norm
    part.config = copy.deepcopy(base.config)
    if getattr(base.config, "layer_types", None) is not None:
        part.config.layer_types = base.config.layer_types[start:stop]
    part.config.num_hidden_layers = len(layers)
    return part
