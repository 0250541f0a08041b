"""The reward model of text: upper layers of a language model, and a scalar head on an answer's last token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.checkpoints import check_weights, load_checkpoint, save_checkpoint
from lib.cli import UserError
from lib.preferences.answers import Answer, word_count
from lib.provenance import lineage
from lib.reward.model import Member
from lib.text.language import LanguageModel, cut, load_language_model, padded

POOLINGS = ("last", "mean")
"""What the head sees: the state at an answer's last token, or the mean over the answer's tokens."""
_AT_ONCE = 16  # answers that go through the frozen layers together


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
    """What the frozen layers make of one answer."""

    states: torch.Tensor
    """`[T, D]`, one for each token of prompt and answer."""
    start: int
    """Of the answer's first token."""


class TextRewardNet(nn.Module):
    """r̂ of answers: layers of a language model on states of the frozen ones below, its last norm, and a linear head.

    Padding follows the answers, and layers are causal, so an answer's number does not depend on what stands beside it.

    Args:
      base: the `model` of a `LanguageModel.network`; its weights are copied.
      shape: which layers.
    """

    def __init__(self, base: Any, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = cut(base, shape.at, shape.upper)[1].float().requires_grad_(True)
        self.head = nn.Linear(base.config.hidden_size, 1)
        nn.init.normal_(self.head.weight, std=1e-3)  # differences begin near 0, as in lib.reward.network
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Sequence[States]) -> torch.Tensor:
        """r̂, float32 `[B]`, before standardisation; differences are log-odds."""
        device = self.head.weight.device
        lengths = torch.tensor([len(one.states) for one in batch], device=device)
        states = nn.utils.rnn.pad_sequence([one.states for one in batch], batch_first=True).to(device)
        if self.shape.upper:
            states = self.layers(inputs_embeds=states.float(), use_cache=False).last_hidden_state
        else:
            states = self.layers.norm(states.float())
        places = torch.arange(states.shape[1], device=device)
        if self.shape.pooling == "mean":
            starts = torch.tensor([one.start for one in batch], device=device)
            inside = (places >= starts[:, None]) & (places < lengths[:, None])
            seen = (states * inside[:, :, None]).sum(1) / inside.sum(1, keepdim=True)
        else:
            seen = states[torch.arange(len(batch), device=device), lengths - 1]
        out: torch.Tensor = self.head(seen.float())
        return out[:, 0].float()


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
      origin: where the model comes from, see `lib.runs.lineage`.
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
        mean, std = np.array([(member.mean, member.std) for member in self.members]).T
        return each * std[:, None] + mean[:, None]

    def paid(self, each: np.ndarray, words: np.ndarray) -> np.ndarray:
        """What is paid, float64 `[N]`, for members' rewards float64 `[M, N]` of answers of so many words, `[N]`."""
        return np.asarray(each.mean(0) - self.slope * (words - self.words))

    def rate(self, answers: Sequence[Answer]) -> np.ndarray:
        """What is paid for answers, float64 `[N]`."""
        each = self.each(frozen_states(self.language, self.shape, answers))
        return self.paid(each, np.array([word_count(answer.text) for answer in answers]))


@torch.no_grad()
def frozen_states(language: LanguageModel, shape: Shape, answers: Sequence[Answer]) -> list[States]:
    """What the frozen layers make of answers, in the model's arithmetic, on the CPU.

    Tokens are those that were drawn; text of another vocabulary, or without tokens, is encoded anew.

    Raises:
      UserError: a token is not of the model's vocabulary.
    """
    lower, _ = cut(language.network.model, shape.at, 0)
    tokens = [_tokens(language, answer) for answer in answers]
    order = sorted(range(len(answers)), key=lambda index: sum(map(len, tokens[index])))
    found: dict[int, States] = {}
    for at in range(0, len(order), _AT_ONCE):
        batch = order[at : at + _AT_ONCE]
        rows = [[*tokens[index][0], *tokens[index][1]] for index in batch]
        states = lower(input_ids=padded(rows, language.device), use_cache=False).last_hidden_state.cpu()
        for index, row, state in zip(batch, rows, states, strict=True):
            found[index] = States(state[: len(row)].clone(), len(tokens[index][0]))
    return [found[index] for index in range(len(answers))]


def _tokens(language: LanguageModel, answer: Answer) -> tuple[list[int], list[int]]:
    """Of the prompt and of the answer, one of each at least."""
    if answer.tokenizer == language.vocabulary and len(answer.tokens) and len(answer.prompt_tokens):
        prompt, tokens = answer.prompt_tokens.tolist(), answer.tokens.tolist()
    else:
        prompt = language.encode(answer.prompt)
        tokens = language.encode_answer(answer.text, answer.finished) or [min(language.ends)]
    highest = max(*prompt, *tokens)
    if highest >= language.network.config.vocab_size:
        raise UserError(
            f"an answer to {answer.prompt[:60]!r} has the token {highest}; {language.folder} knows "
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
        "members": [
            {"state_dict": member.network.state_dict(), "mean": member.mean, "std": member.std}
            for member in model.members
        ],
        "results": results,
        **(refit or {}),
    }
    save_checkpoint(path, "reward", payload, config, parents)


def load_text_reward(
    path: Path, device: torch.device, bf16: bool = False, folder: Path | None = None
) -> TextRewardModel:
    """Reads a reward checkpoint of text.

    Args:
      path: the file.
      device: where it computes.
      bf16: whether the frozen layers compute in bf16.
      folder: of the language model that it was fitted on; None: where that was then.

    Raises:
      UserError: the file is no such model, or the language model is another one.
    """
    payload = load_checkpoint(path, "reward")
    if payload.get("input") != "text":
        raise UserError(f"{path}: expected a reward model of text, got one of frames or observations")
    try:
        base, members = payload["base"], payload["members"]
        shape = Shape(**payload["shape"])
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
    except (KeyError, TypeError, ValueError, AttributeError):
        right = False
    if not right:
        raise UserError(f"{path}: expected a reward checkpoint of ours, parts of it are none; fit it again")
    for member in members:
        check_weights(member.get("state_dict"), str(path))
    folder = folder or Path(str(base["folder"]))
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
