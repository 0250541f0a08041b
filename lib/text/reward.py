"""The reward model for text: a scalar head on a language model's states of an answer, and upper layers if asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.checkpoints import check_weights, load_checkpoint, save_checkpoint
from lib.cli import UserError
from lib.preferences.answers import Answer, word_count
from lib.preferences.prompts import last
from lib.provenance import lineage
from lib.reward.model import Member, unstandardised
from lib.text.language import LanguageModel, load_language_model
from lib.text.layers import between, padded, upper_copy

POOLINGS = ("last", "mean")
"""What the head sees: the state at an answer's last token, or the mean over the answer's tokens."""
_AT_ONCE = 16  # answers that are rated together
_TOKENS = 2048  # that go through the frozen layers together


@dataclass(frozen=True)
class Shape:
    """Which layers of a language model a reward model consists of."""

    at: int
    """Frozen layers, below the cut."""
    upper: int
    """Fitted layers above it."""
    pooling: str = "last"
    """One of `POOLINGS`."""


@dataclass(frozen=True)
class States:
    """The frozen layers' output for one answer."""

    states: torch.Tensor
    """`[T, D]`, one for each token of prompt and answer."""
    start: int
    """Of the answer's first token."""


def above_states(layers: Any, batch: Sequence[States]) -> torch.Tensor:
    """The output of upper layers and their norm for the states of B answers: `[B, T, D]`, padded behind each.

    Args:
      layers: of `lib.text.layers.upper_copy` or `above`.
      batch: the answers.
    """
    states = nn.utils.rnn.pad_sequence([one.states for one in batch], batch_first=True).to(layers.norm.weight)
    return torch.as_tensor(layers(inputs_embeds=states, use_cache=False).last_hidden_state)


def before_tokens(states: torch.Tensor, batch: Sequence[States]) -> torch.Tensor:
    """Of states `[B, T, D]` those before each token of the answers, one answer after the other: `[N, D]`."""
    return torch.cat(
        [row[one.start - 1 : len(one.states) - 1] for row, one in zip(states, batch, strict=True)]
    )


class TextRewardNet(nn.Module):
    """r̂ of answers: layers of a language model on states of the frozen ones below, its last norm, and a linear head.

    Padding follows the answers, and layers are causal, so an answer's value does not depend on the others in its batch.

    Args:
      base: the `model` of a `LanguageModel.network`; its weights are copied.
      shape: which layers.
    """

    def __init__(self, base: Any, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = upper_copy(base, shape.at, shape.upper).float().requires_grad_(True)
        self.head = nn.Linear(base.config.hidden_size, 1)
        nn.init.normal_(self.head.weight, std=1e-3)  # differences begin near 0, as in lib.reward.network
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Sequence[States]) -> torch.Tensor:
        """r̂, float32 `[B]`, before standardisation; differences are log-odds."""
        device = self.head.weight.device
        lengths = torch.tensor([len(one.states) for one in batch], device=device)
        states = self._above(batch)
        places = torch.arange(states.shape[1], device=device)
        if self.shape.pooling == "mean":
            starts = torch.tensor([one.start for one in batch], device=device)
            inside = (places >= starts[:, None]) & (places < lengths[:, None])
            seen = (states * inside[:, :, None]).sum(1) / inside.sum(1, keepdim=True)
        else:
            seen = states[torch.arange(len(batch), device=device), lengths - 1]
        out: torch.Tensor = self.head(seen.float())
        return out[:, 0].float()

    def before_tokens(self, batch: Sequence[States]) -> torch.Tensor:
        """The head at the state before each token of the answers, one answer after the other: float32 `[N]`."""
        out: torch.Tensor = self.head(before_tokens(self._above(batch), batch))
        return out[:, 0].float()

    def _above(self, batch: Sequence[States]) -> torch.Tensor:
        """float32 `[B, T, D]`, what the layers make of the states; anything behind an answer's last."""
        return above_states(self.layers, batch)


TextMember = Member[TextRewardNet]


class TextRewardModel:
    """The learned reward of an answer: r̂ standardised, averaged over the members of an ensemble.

    With `--length-control` the part that an answer's length explains is taken out of what is paid:

        paid = z̄ − b (words − w̄),  b = Σ (z̄ − z̄_p)(words − w_p) / Σ (words − w_p)²

    with sums over the answers of the fit, z̄_p and w_p the means over those to the same prompt, and w̄ the mean of all.

    Attributes:
      language: the language model whose layers it uses.
      shape: which.
      members: the fitted networks, at least one.
      slope: b per word; 0 pays for length as the labels do.
      words: w̄.
      origin: where the model comes from, see `lib.provenance.lineage`.
    """

    def __init__(
        self,
        language: LanguageModel,
        members: Sequence[TextMember],
        slope: float = 0.0,
        words: float = 0.0,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self.language, self.members, self.shape = language, list(members), members[0].network.shape
        self.slope, self.words, self.origin = slope, words, origin or {}

    @torch.no_grad()
    def each(self, states: Sequence[States]) -> np.ndarray:
        """Each member's standardised reward, float64 `[M, N]`."""
        found = np.empty((len(self.members), len(states)))
        for at in range(0, len(states), _AT_ONCE):
            batch = states[at : at + _AT_ONCE]
            for row, member in enumerate(self.members):
                rated = member.network(batch).double().cpu().numpy()
                found[row, at : at + len(batch)] = (rated - member.mean) / member.std
        return found

    def unstandardised(self, each: np.ndarray) -> np.ndarray:
        """r̂ₘ, whose differences are log-odds, of standardised rewards; both float64 `[M, N]`."""
        return unstandardised(self.members, each)

    def paid(self, each: np.ndarray, words: np.ndarray) -> np.ndarray:
        """What is paid, float64 `[N]`, for members' rewards float64 `[M, N]` of answers of so many words, `[N]`."""
        return np.asarray(each.mean(0) - self.slope * (words - self.words))

    def pay(self, answers: Sequence[Answer], states: Sequence[States]) -> np.ndarray:
        """What is paid for answers, float64 `[N]`, given the frozen layers' states."""
        return self.paid(self.each(states), np.array([word_count(answer.text) for answer in answers]))

    def rate(self, answers: Sequence[Answer]) -> np.ndarray:
        """What is paid for answers, float64 `[N]`."""
        return self.pay(answers, frozen_states(self.language, self.shape, answers))


def frozen_states(language: LanguageModel, shape: Shape, answers: Sequence[Answer]) -> list[States]:
    """The frozen layers' output for answers, in the model's arithmetic, on the CPU.

    Tokens are those that were drawn; text of another vocabulary, or without tokens, is encoded anew.

    Raises:
      UserError: a token is not of the model's vocabulary.
    """
    tokens = [spoken(language, answer) for answer in answers]
    return trunk_states(language.network.model, [shape.at], tokens)[shape.at]


@torch.no_grad()
def trunk_states(
    base: Any, cuts: Iterable[int], answers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> dict[int, list[States]]:
    """The lower layers' output for answers, in the model's arithmetic, on the CPU. Every layer runs once.

    Args:
      base: the network of a `LanguageModel`'s `model` attribute.
      cuts: how many layers are below each cut.
      answers: tokens of prompt and answer, one of each at least.

    Returns:
      By cut, the states of each answer.
    """
    stops = sorted(set(cuts))
    parts = [between(base, start, stop) for start, stop in pairwise([0, *stops])]
    order = sorted(range(len(answers)), key=lambda index: sum(map(len, answers[index])))
    found: dict[int, dict[int, States]] = {stop: {} for stop in stops}
    longest = sum(map(len, answers[order[-1]])) if order else 1
    at_once = max(1, _TOKENS // longest)
    for at in range(0, len(order), at_once):
        batch = order[at : at + at_once]
        rows = [[*answers[index][0], *answers[index][1]] for index in batch]
        states = base.embed_tokens(padded(rows, base.embed_tokens.weight.device))
        for stop, part in zip(stops, parts, strict=True):
            states = part(inputs_embeds=states, use_cache=False).last_hidden_state
            kept = states.cpu()
            for index, row, state in zip(batch, rows, kept, strict=True):
                found[stop][index] = States(state[: len(row)].clone(), len(answers[index][0]))
    return {stop: [found[stop][index] for index in range(len(answers))] for stop in stops}


def spoken(language: LanguageModel, answer: Answer) -> tuple[list[int], list[int]]:
    """The tokens of the prompt and of the answer, at least one of each.

    Raises:
      UserError: the language model does not know one of them.
    """
    if answer.tokenizer == language.vocabulary and len(answer.tokens) and len(answer.prompt_tokens):
        prompt, tokens = answer.prompt_tokens.tolist(), answer.tokens.tolist()
    else:
        prompt = language.encode(answer.prompt)
        tokens = language.encode_answer(answer.text, answer.finished) or [language.end]
    highest = max(*prompt, *tokens)
    if highest >= language.network.config.vocab_size:
        raise UserError(
            f"an answer to {last(answer.prompt)[:60]!r} has the token {highest}; {language.folder} knows "
            f"{language.network.config.vocab_size}"
        )
    return prompt, tokens


# --- Files ------------------------------------------------------------------------------------------------------


def save_text_reward(
    path: Path,
    model: TextRewardModel,
    config: Any,
    parents: dict[str, Any],
    results: dict[str, Any],
    refit: dict[str, Any] | None = None,
) -> None:
    """Writes a reward checkpoint. It holds the fitted layers; the frozen ones stay in the language model's folder."""
    payload = {
        "input": "text",
        "base": {
            "folder": str(model.language.folder),
            "weights": model.language.weights,
            "chat": model.language.chat,
        },
        "shape": dataclasses.asdict(model.shape),
        "slope": model.slope,
        "words": model.words,
        "members": [member.saved() for member in model.members],
        "results": results,
        **(refit or {}),
    }
    save_checkpoint(path, "reward", payload, config, parents)


def load_text_reward(
    path: Path,
    device: torch.device,
    bf16: bool = False,
    loaded: LanguageModel | None = None,
) -> TextRewardModel:
    """Reads a reward checkpoint of text.

    Args:
      path: the file.
      device: where it computes.
      bf16: whether the frozen layers compute in bf16.
      loaded: a language model in memory, which is used where it is the one that it was fitted on.

    Raises:
      UserError: the file is no such model, or the language model is another one.
    """
    payload = load_checkpoint(path, "reward")
    if payload.get("input") != "text":
        raise UserError(f"{path}: expected a reward model for text, got one for frames or observations")
    try:
        base, members = payload["base"], payload["members"]
        folder, shape = Path(str(base["folder"])), Shape(**payload["shape"])
        wanted, chat = str(base["weights"]), bool(base["chat"])
        numbers = [float(payload["slope"]), float(payload["words"])]
        statistics = [(float(member["mean"]), float(member["std"])) for member in members]
        right = (
            1 <= len(members) <= 100
            and type(shape.at) is int
            and type(shape.upper) is int
            and min(shape.at, shape.upper) >= 0
            and shape.pooling in POOLINGS
            and bool(np.isfinite([*numbers, *(x for pair in statistics for x in pair)]).all())
            and all(std > 0 for _, std in statistics)
        )
    except Exception:  # a damaged file fails in any way
        right = False
    if not right:
        raise UserError(
            f"{path}: expected a reward checkpoint of this project, but parts of it are invalid; fit it again"
        )
    for member in members:
        check_weights(member.get("state_dict"), str(path))
    if loaded is not None and loaded.weights == wanted:
        language = loaded
        if language.chat != chat:
            raise UserError(
                f"{path}: was fitted on prompts {'in' if chat else 'without'} the chat template; "
                f"{'leave out' if chat else 'add'} --no-chat"
            )
    else:
        language = load_language_model(folder, device, bf16, chat)
    if language.weights != wanted:
        raise UserError(
            f"{path}: was fitted on a language model of weights {wanted[:16]}, {folder} has {language.weights}; "
            f"fit it again"
        )
    if shape.at + shape.upper > len(language.network.model.layers):
        raise UserError(f"{path}: has {shape.at + shape.upper} layers, more than {folder}; fit it again")
    made = []
    for member, (mean, std) in zip(members, statistics, strict=True):
        network = TextRewardNet(language.network.model, shape).to(device)
        try:
            network.load_state_dict(member["state_dict"])
        except RuntimeError as error:
            raise UserError(
                f"{path}: expected upper layers of {folder}: {' '.join(str(error).split())[:200]}"
            ) from None
        made.append(TextMember(network.eval().requires_grad_(False), mean, std))
    return TextRewardModel(language, made, numbers[0], numbers[1], lineage(payload))
