"""03_reward_train.py on answers: fitting a reward model for text to labels."""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.cli import UserError, as_flag
from lib.devices import resolve_bf16, resolve_device
from lib.preferences.answers import Answer, load_answer, prompt_of, word_count
from lib.preferences.prompts import Prompt, prompt_key
from lib.preferences.segment_db import SegmentDB
from lib.reward.config import FitConfig
from lib.reward.data import Labelled, Pairs, read_labels
from lib.reward.epoch import HeldOut, checked_statistics, fit_pairs, judged, pair_loss
from lib.reward.fit import AnyFit
from lib.reward.member import Material, MemberFit, Model
from lib.reward.model import Member
from lib.reward.split import Unit, by_unit
from lib.text.language import LanguageModel, load_language_model
from lib.text.reward import (
    Shape,
    States,
    TextRewardModel,
    TextRewardNet,
    save_text_reward,
    spoken,
    trunk_states,
)

_LAYERS_LR = 0.1  # of --lr: fitted layers know much already, the head nothing
_PAIRS_AT_ONCE = 8  # bounds memory, as in lib.reward.epoch


class AnswerStore:
    """The answers of a fit, each once.

    Attributes:
      answers: the answers.
      sources: of each, its DB and its name there.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.sources: list[tuple[SegmentDB, str]] = []

    def load(self, db: SegmentDB, name: str) -> Answer:
        """Reads an answer; raises SegmentError."""
        return load_answer(db, name)

    def add(self, db: SegmentDB, name: str, answer: Answer) -> int:
        """Adds an answer and returns its index."""
        self.answers.append(answer)
        self.sources.append((db, name))
        return len(self.answers) - 1

    def policy(self, index: int) -> str:
        """The language model that gave an answer."""
        return self.answers[index].policy

    def prompts(self) -> np.ndarray:
        """int64 `[N]`: a number for each answer's prompt; the same in two DBs is one prompt."""
        numbers: dict[Prompt, int] = {}
        return np.array(
            [numbers.setdefault(answer.prompt, len(numbers)) for answer in self.answers], np.int64
        )

    def words(self) -> np.ndarray:
        """float64 `[N]`: of each answer."""
        return np.array([word_count(answer.text) for answer in self.answers], float)


@dataclass(frozen=True, kw_only=True)
class TextData(Labelled):
    """Everything a fit on answers reads from one or more DBs."""

    store: AnswerStore
    language: LanguageModel
    shape: Shape

    @functools.cached_property
    def spoken(self) -> list[tuple[list[int], list[int]]]:
        """The tokens of each answer's prompt, and its own."""
        return [spoken(self.language, answer) for answer in self.store.answers]

    @functools.cached_property
    def states(self) -> list[States]:
        """The frozen layers' output for each answer."""
        at = self.shape.at
        return trunk_states(self.language.network.model, [at], self.spoken)[at]


TextFit = AnyFit[TextRewardModel, TextData]


def length_slope(values: np.ndarray, words: np.ndarray, prompts: np.ndarray) -> float:
    """The rise of values per word among answers to the same prompt: least squares within prompts.

    Args:
      values: float `[N]`.
      words: float `[N]`.
      prompts: int64 `[N]`, from 0.

    Returns:
      The slope per word; 0 where no prompt has answers of different lengths.
    """
    dv, dw = (_within(column, prompts) for column in (values, words))
    return float(dv @ dw / (dw @ dw)) if dw.any() else 0.0


def length_correlation(values: np.ndarray, words: np.ndarray, prompts: np.ndarray) -> float:
    """The correlation of values with lengths among answers to the same prompt, −1 to 1; NaN where one is constant."""
    dv, dw = (_within(column, prompts) for column in (values, words))
    norm = float(np.sqrt((dv @ dv) * (dw @ dw)))
    return float(dv @ dw) / norm if norm > 0 else float("nan")


def _within(values: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Deviations from the mean over answers to the same prompt."""
    means = np.bincount(prompts, values) / np.bincount(prompts)
    return np.asarray(values - means[prompts])


class OnAnswers(Material[Model, TextData]):
    """The answers of a fit, for any network; arguments and errors as for `Material`, `chat` as for a language model."""

    def __init__(
        self, config: FitConfig, lines: Sequence[int] | None = None, chat: bool | None = None
    ) -> None:
        _check_flags(config)
        self.config, self.device = config, resolve_device(config.dev)
        self.bf16 = resolve_bf16(config.bf16, self.device)
        store = AnswerStore()
        found = read_labels(config.dbs, store, config.weights(), config.only, lines, prompt_of)
        language = load_language_model(_folder(config, store), self.device, self.bf16, chat)
        if chat is None:
            language = _as_asked(language, store.answers)
        self.data = TextData(**vars(found), store=store, language=language, shape=_shape(config, language))
        most = language.network.config.max_position_embeddings
        long = sum(len(prompt) + len(answer) > most for prompt, answer in self.data.spoken)
        if long:
            self.data.problems.append(
                f"{long} of {len(store.answers)} answers are with their prompts longer than the {most} tokens that "
                f"{language.folder} was made for (max_position_embeddings): what is fitted to them is worth little"
            )

    @property
    def states(self) -> Sequence[States]:
        """The network's input for each answer."""
        return self.data.states

    @abstractmethod
    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A new network, which takes states to r̂, float32 `[B]`, and its optimiser."""

    def __str__(self) -> str:
        store, shape = self.data.store, self.data.shape
        fitted = (
            f"layers {shape.at + 1} to {shape.at + shape.upper}"
            if shape.upper
            else f"a head on layer {shape.at}"
        )
        return (
            f"{len(store.answers)} answers to {len({answer.prompt for answer in store.answers})} prompts, {fitted} of "
            f"{self.data.language.folder}"
        )

    def units(self) -> tuple[Pairs, list[Unit]]:
        return by_unit(
            self.data.pairs, [("", prompt_key(answer.prompt)) for answer in self.data.store.answers]
        )

    def begin(self, train: np.ndarray, test: np.ndarray, number: int) -> AnswerMember:
        return AnswerMember(self, train, test, number)

    def parents(self) -> dict[str, Any]:
        return {**super().parents(), "language": str(self.data.language.folder)}


class Answers(OnAnswers[TextRewardModel]):
    """For a reward model."""

    save = staticmethod(save_text_reward)

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        data, lr = self.data, self.config.lr
        network = TextRewardNet(data.language.network.model, data.shape).to(self.device)
        head = {"params": network.head.parameters(), "weight_decay": self.config.l2}
        layers = {"params": network.layers.parameters(), "lr": _LAYERS_LR * lr}
        return network, torch.optim.Adam([head, layers], lr=lr)

    def model(
        self, members: Sequence[Member], held_out: Sequence[HeldOut], test: np.ndarray
    ) -> tuple[TextRewardModel, HeldOut]:
        data = self.data
        model, words, best = TextRewardModel(data.language, members), data.store.words(), held_out[0]
        if len(members) > 1 or self.config.length_control:
            each = model.each(data.states)
            if self.config.length_control:
                slope = length_slope(each.mean(0), words, data.store.prompts())
                model = TextRewardModel(data.language, members, slope, float(words.mean()))
            # Differences of what is paid are log-odds in the members' units.
            unit = float(np.mean([member.std for member in members]))
            best = _judged(self.config, unit * model.paid(each, words), data.pairs.subset(test))
        return model, best


class AnswerMember(MemberFit):
    """A member that is fitted to answers."""

    def __init__(self, answers: OnAnswers[Any], train: np.ndarray, test: np.ndarray, number: int) -> None:
        super().__init__(answers, train, test, number)
        self._states, self._bf16 = answers.states, answers.bf16
        self.network, self.optimizer = answers.make()

    def train_epoch(self, should_stop: Callable[[], bool]) -> float | None:
        self.network.train()
        return fit_pairs(
            self._returns,
            self.optimizer,
            self.pairs,
            self._config,
            self.rng,
            self._device,
            at_once=_PAIRS_AT_ONCE,
            should_stop=should_stop,
        )

    def _returns(self, part: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        both = [self._states[index] for index in np.concatenate([part.first, part.second])]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            rated = self.network(both)
        return rated[: len(part)], rated[len(part) :]

    def held_out(self, quick: bool = False) -> HeldOut:
        rated = self._rated(np.unique([self.test.first, self.test.second]))
        return _judged(self._config, rated, self.test)

    def statistics(self) -> tuple[float, float]:
        outputs = self._rated(np.arange(len(self._states)))
        return checked_statistics(float(outputs.mean()), float(outputs.std()))

    @torch.no_grad()
    def _rated(self, indices: np.ndarray) -> np.ndarray:
        """r̂ of some answers, float64 `[N]`, NaN for the others."""
        self.network.eval()
        found = np.full(len(self._states), np.nan)
        by_length = sorted(indices.tolist(), key=lambda index: len(self._states[index].states))
        for at in range(0, len(by_length), 2 * _PAIRS_AT_ONCE):
            part = by_length[at : at + 2 * _PAIRS_AT_ONCE]
            found[part] = self.network([self._states[index] for index in part]).double().cpu().numpy()
        return found


def _check_flags(config: FitConfig) -> None:
    of_frames = ("input", "half_frames", "mask", "shift", "noise", "dropout", "features", "num_actions")
    for name in (*of_frames, "steps", "survived", "audit"):
        if getattr(config, name):
            raise UserError(
                f"{as_flag(name)} applies to clips, but {config.dbs[0]} holds answers; leave it out"
            )


def _folder(config: FitConfig, store: AnswerStore) -> Path:
    """The language model of `-m`, or the one that gave the answers."""
    if config.model is not None:
        return config.model
    # One folder may be spelt in two ways.
    policies = {str(Path(answer.policy).resolve()) if answer.policy else "" for answer in store.answers}
    if len(policies) != 1 or "" in policies:
        raise UserError(
            "expected -m FOLDER, the language model whose layers are fitted: the answers are "
            + ("imported, which names none" if "" in policies else f"from {len(policies)} models")
        )
    return Path(store.answers[0].policy)


def _as_asked(language: LanguageModel, answers: Sequence[Answer]) -> LanguageModel:
    """The language model without its chat template, where it gave its answers to bare prompts."""
    if not language.chat:
        return language
    bare = dataclasses.replace(language, chat=False)
    own = [
        answer for answer in answers if answer.tokenizer == language.vocabulary and len(answer.prompt_tokens)
    ]
    if own and all(
        isinstance(answer.prompt, str) and answer.prompt_tokens.tolist() == bare.encode(answer.prompt)
        for answer in own
    ):
        return bare
    return language


def _shape(config: FitConfig, language: LanguageModel) -> Shape:
    count = len(language.network.model.layers)
    at = round(count * 2 / 3) if config.cut is None else config.cut
    if at < -count:
        raise UserError(
            f'--cut {at}, or --unfrozen {-at}: {language.folder} has {count} layers; take fewer, or "all"'
        )
    at = count + at if at < 0 else at
    upper = min(config.upper, count - at)
    if at > count:
        raise UserError(f"--cut {at}: {language.folder} has {count} layers")
    return Shape(at, upper, config.pooling)


def _judged(config: FitConfig, rated: np.ndarray, pairs: Pairs) -> HeldOut:
    """Loss and accuracy of r̂, float64 `[N]`, on some pairs."""
    return1, return2 = (torch.from_numpy(rated[each]) for each in (pairs.first, pairs.second))
    return judged(return1, return2, pairs, pair_loss(config))
