"""Answers drawn from a language model: many at once, token by token, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lib.cli import UserError
from lib.preferences.answers import Answer
from lib.preferences.prompts import Prompt
from lib.text.language import LanguageModel
from lib.text.layers import log_softmax_of, padded


@dataclass(frozen=True)
class Drawn:
    """The tokens of one answer."""

    tokens: np.ndarray
    """int64 `[N]`, with the token that ended it, if one did."""
    log_probs: np.ndarray
    """float32 `[N]`, of each, under the distribution that it was drawn from."""
    finished: bool


def as_answer(
    model: LanguageModel, prompt: Prompt, prompt_tokens: Sequence[int], drawn: Drawn, **known: Any
) -> Answer:
    """A model's draw as an answer; `known` are further fields."""
    return Answer(
        prompt=prompt,
        text=model.decode(drawn.tokens[:-1] if drawn.finished else drawn.tokens),
        finished=drawn.finished,
        prompt_tokens=np.array(prompt_tokens, np.int64),
        tokens=drawn.tokens,
        log_probs=drawn.log_probs,
        tokenizer=model.vocabulary,
        **known,
    )


def answer(
    model: LanguageModel,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    chances: np.ndarray,
    temperature: float = 1.0,
    batch_size: int = 32,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Answer] | None:
    """`sample`, for any number of prompts, each with its text and tokens, `batch_size` at once; None if stopped."""
    found: list[Answer] = []
    for at in range(0, len(prompts), batch_size):
        batch = prompts[at : at + batch_size]
        tokens = [tokens for _, tokens in batch]
        drawn = sample(model, tokens, chances[at : at + batch_size], temperature, should_stop)
        if drawn is None:
            return None
        found += [as_answer(model, *prompt, one) for prompt, one in zip(batch, drawn, strict=True)]
    return found


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    chances: np.ndarray,
    temperature: float = 1.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Drawn] | None:
    """One answer to each of B prompts.

    Every answer has its own random numbers, so that it does not depend on the others in its batch.

    Args:
      model: draws them.
      prompts: tokens of each prompt.
      chances: float64 `[B, N]` in 0 … 1: what decides each token, by the inverse of the distribution function. N is the
        longest that an answer may get.
      temperature: divides the logits.
      should_stop: asked before every token.

    Returns:
      B answers; None if stopped.
    """
    from transformers import DynamicCache

    device, network = model.device, model.network
    unlike = list(dict.fromkeys(map(tuple, prompts)))  # a prompt of several answers is read once
    tokens = padded(unlike, device, left=True)
    lengths = torch.tensor([len(prompt) for prompt in unlike], device=device)
    mask = torch.arange(tokens.shape[1], device=device) >= tokens.shape[1] - lengths[:, None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ends = torch.tensor(sorted(model.ends), device=device)
    uniform = torch.from_numpy(chances).to(device)
    cache = DynamicCache(config=network.config)
    rows = torch.arange(len(prompts), device=device)  # answers that have not ended
    drawn: list[list[int]] = [[] for _ in prompts]
    log_probs: list[list[float]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    for step in range(chances.shape[1]):
        if should_stop():
            return None
        # Not network(…, logits_to_keep=1), whose product with a slice copies the head once for each answer.
        states = network.model(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        if step == 0:
            of = torch.tensor([unlike.index(tuple(prompt)) for prompt in prompts], device=device)
            states, mask, positions = states[of], mask[of], positions[of]
            cache.batch_select_indices(of)
        log_p = log_softmax_of(network.lm_head, states, temperature)
        chosen = _chosen(log_p, uniform[rows, step])
        said = log_p.gather(1, chosen[:, None])[:, 0]
        if not said.isfinite().all():
            raise UserError(
                "expected a language model whose weights are numbers, got others: copy the model again or, if it is being "
                "finetuned, take a smaller --lr"
            )
        ended = torch.isin(chosen, ends)
        columns = (rows, chosen, said, ended)
        for row, token, log_prob, end in zip(*(column.tolist() for column in columns), strict=True):
            drawn[row].append(token)
            log_probs[row].append(log_prob)
            finished[row] = end
        left = (~ended).nonzero()[:, 0]
        if not len(left):
            break
        if len(left) < len(rows):  # the others continue without those that have ended
            rows, chosen, mask, positions = rows[left], chosen[left], mask[left], positions[left]
            cache.batch_select_indices(left)
        tokens, positions = chosen[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return [
        Drawn(np.array(drawn[row], np.int64), np.array(log_probs[row], np.float32), finished[row])
        for row in range(len(prompts))
    ]


def _chosen(log_p: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The token of each row at which the distribution function passes a uniform number.

    Args:
      log_p: float32 `[B, V]`.
      uniform: float64 `[B]`.

    Returns:
      int64 `[B]`, never a token of probability 0.
    """
    reached = log_p.double().exp().cumsum(1)
    found = torch.searchsorted(reached, (uniform * reached[:, -1])[:, None], right=True)[:, 0]
    return found.clamp(max=log_p.shape[1] - 1)  # where there is no number, there is no such token
