"""The memory that a finetune of a language model needs, estimated before it starts."""

from __future__ import annotations

from pathlib import Path

import torch

from lib.cli import UserError
from lib.reporting import format_count
from lib.text.config import TextConfig
from lib.text.language import LanguageModel
from lib.text.layers import above
from lib.text.lora import adapter_size
from lib.text.reward import TextRewardModel


def tell_memory(
    config: TextConfig, language: LanguageModel, reward: TextRewardModel, at: int, longest: int
) -> str:
    """A finetune's memory, in words: an estimate from shapes alone.

    Args:
      longest: tokens of the longest prompt.

    Raises:
      UserError: it is more than is free.
    """
    base, shape = language.network.model, language.network.config
    size = next(base.parameters()).element_size()
    trained = adapter_size(base.layers, config.lora) if config.lora else _count(above(base, at))
    trained += _count(reward.members[0].network) if config.algo == "ppo" else 0
    tokens = longest + config.tokens
    width, inner, words = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    layers = max(len(base.layers) - at, reward.shape.upper)
    head = getattr(shape, "head_dim", None) or width // shape.num_attention_heads
    keys = 2 * head * shape.num_key_value_heads
    # Of a layer, autograd keeps about twelve tensors of its width and four of its inner width for each token.
    learning = config.micro_batch * tokens * layers * 4 * (12 * width + 4 * inner) + 3 * 4 * 512 * words
    sampling = config.batch_size * (tokens * len(base.layers) * keys * size + 20 * words)
    needs = {
        # Weight, gradient and two moments in float32; beside bf16, what samples and the reference as well.
        "training": trained * (16 + (size + 4 if size < 4 else 0)),
        "activations": max(learning, sampling) + 2 * config.rollout * tokens * width * size,
    }
    held = sum(map(_count, (language.network, *(member.network for member in reward.members)))) * size
    if reward.language is not language:
        held += _count(reward.language.network) * size
    free, gb = _free(language.device), 1e9
    said = (
        f"memory: {held / gb:.1f} GB of weights, {needs['training'] / gb:.1f} GB for the {format_count(trained)} trained "
        f"ones (weights, gradients, Adam), about {needs['activations'] / gb:.1f} GB of activations; "
        f"{free / gb:.1f} GB are free"
    )
    if sum(needs.values()) > free:
        raise UserError(
            f"{said}, which is too little: take fewer layers (--unfrozen) or --lora, a smaller "
            "--micro-batch, --batch-size or --rollout, shorter --tokens, or a smaller model"
        )
    return said


def _count(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _free(device: torch.device) -> float:
    """Bytes of memory that are free on a device."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    return float("inf")
