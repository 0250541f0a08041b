"""03_reward_train.py on answers: fitting a reward model of text to labels."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lib.cli import UserError
from lib.devices import random_state, resolve_bf16, resolve_device, set_random_state
from lib.interrupt import Interrupt, Stopped
from lib.memory import keep_freed_memory
from lib.preferences.answers import Answer, load_answer, prompt_of, word_count
from lib.preferences.segment_db import SegmentDB
from lib.reporting import Charts, Progress, format_duration
from lib.reward.config import FitConfig
from lib.reward.data import Labelled, Pairs, check_enough, read_labels
from lib.reward.epoch import HeldOut, pair_loss
from lib.reward.fit import Epoch, check_writable
from lib.reward.loss import preference_accuracy
from lib.reward.member import adapted_l2
from lib.reward.split import split_by_segment
from lib.runs import check_name, locked, make_run_dir, write_config
from lib.text.language import LanguageModel, load_language_model
from lib.text.reward import (
    Shape,
    States,
    TextMember,
    TextRewardModel,
    TextRewardNet,
    frozen_states,
    save_text_reward,
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

    def take(self, db: SegmentDB, name: str) -> int:
        """Reads an answer and returns its index. Raises SegmentError."""
        self.answers.append(load_answer(db, name))
        self.sources.append((db, name))
        return len(self.answers) - 1

    def policy(self, index: int) -> str:
        """The language model that gave an answer."""
        return self.answers[index].policy

    def prompts(self) -> np.ndarray:
        """int64 `[N]`: a number for each answer's prompt; the same text in two DBs is one prompt."""
        numbers: dict[str, int] = {}
        return np.array(
            [numbers.setdefault(answer.prompt, len(numbers)) for answer in self.answers], np.int64
        )

    def words(self) -> np.ndarray:
        """float64 `[N]`: of each answer."""
        return np.array([word_count(answer.text) for answer in self.answers], float)


@dataclass(frozen=True)
class TextFit:
    """A reward model of text, its data and its figures."""

    config: FitConfig
    path: Path
    """The checkpoint."""
    run_dir: Path
    model: TextRewardModel
    store: AnswerStore
    data: Labelled
    train: np.ndarray
    """int64: positions in `data.pairs` of the training pairs."""
    test: np.ndarray
    """int64: of the held-out pairs, of other prompts."""
    each: np.ndarray
    """float64 `[M, N]`: what each member makes of each answer, standardised."""
    history: list[Epoch]
    best: HeldOut


def split_by_prompt(
    pairs: Pairs,
    prompts: np.ndarray,
    held_out: float,
    seed: int,
    eligible: np.ndarray | None = None,
    db_of: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """As `split_by_segment`, but holds out whole prompts.

    Args:
      prompts: int64 `[S]`, the prompt of each answer.
    """
    whole = dataclasses.replace(pairs, first=prompts[pairs.first], second=prompts[pairs.second])
    return split_by_segment(whole, held_out, seed, eligible, db_of)


def length_slope(values: np.ndarray, words: np.ndarray, prompts: np.ndarray) -> float:
    """By how much values rise with a word more, among answers to the same prompt: least squares within prompts.

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
    means = np.bincount(prompts, values) / np.maximum(np.bincount(prompts), 1)
    return np.asarray(values - means[prompts])


def fit_text(config: FitConfig) -> TextFit:
    """Fits a reward model of text as the configuration says and writes its checkpoint.

    Raises:
      UserError: something about the flags, the DBs or the labels that the user can mend.
    """
    _check_flags(config)
    keep_freed_memory()
    device = resolve_device(config.dev)
    path = config.out / f"reward-{check_name(config.name)}.dat"
    check_writable(path)
    store = AnswerStore()
    data = read_labels(config.dbs, store, config.weights(), config.only, group_of=prompt_of)
    check_enough(data.pairs)
    train, test = split_by_prompt(
        data.pairs, store.prompts(), config.held_out, config.seed, data.at_random, data.db_of
    )
    language = load_language_model(_folder(config, store), device, resolve_bf16(config.bf16, device))
    shape = _shape(config, language)
    before = random_state(device)  # the caller's own random draws are not disturbed
    run_dir = make_run_dir(config.runs, "reward", config.name)
    try:
        with locked(run_dir), Progress() as progress, Charts(run_dir) as charts, Interrupt() as interrupt:
            kept_config = dataclasses.asdict(config)
            write_config(run_dir, kept_config)
            for problem in data.problems:
                progress.line(f"left out: {problem}")
            progress.line(
                f"{len(data.pairs)} labels on {len(store.answers)} answers to {store.prompts().max() + 1} prompts: "
                f"{len(train)} to fit, {len(test)} held out, no prompt on both sides; layers {shape.at + 1} to "
                f"{shape.at + shape.upper} of {language.folder}; curves in {run_dir}"
            )
            states = frozen_states(language, shape, store.answers)
            fitter = _Fitter(config, language, shape, states, data.pairs, device, charts, progress)
            members = [
                member
                for number in range(config.ensemble)
                if (member := fitter.member(number, train, test, lambda: interrupt.asked)) is not None
            ]
            if interrupt.asked:
                progress.line(f"stopped by request; keeping the members fitted so far, {len(members)}")
            model = TextRewardModel(language, members)
            each = model.each(states)
            if config.length_control:
                slope = length_slope(each.mean(0), store.words(), store.prompts())
                model = TextRewardModel(language, members, slope, float(store.words().mean()))
            best = _held_out(config, model.unstandardised(each), data.pairs.subset(test))
            parents = {"dbs": data.parents, "labels": len(data.pairs), "language": str(language.folder)}
            save_text_reward(path, model, kept_config, parents, best.figures())
            progress.line(
                f"held-out accuracy {best.accuracy:.1%} ({best.correct} of {best.decided} decided pairs), "
                f"loss {best.loss:.3f}; saved {path}"
            )
    finally:
        set_random_state(before, device)
    return TextFit(config, path, run_dir, model, store, data, train, test, each, fitter.history, best)


def _check_flags(config: FitConfig) -> None:
    for name, given in (
        ("--watch", config.watch),
        ("--resume", config.resume),
        ("--audit", config.audit),
        ("--mask", config.mask),
        ("--input", config.input),
        ("--snippets", config.snippets),
    ):
        if given:
            raise UserError(f"{name} is about clips, and {config.dbs[0]} holds answers; leave it out")


def _folder(config: FitConfig, store: AnswerStore) -> Path:
    """The language model of `-m`, or the one that gave the answers."""
    if config.model is not None:
        return config.model
    policies = {answer.policy for answer in store.answers}
    if len(policies) != 1 or "" in policies:
        raise UserError(
            f"expected -m FOLDER, the language model to fit layers of: the answers are of {len(policies)} models"
        )
    return Path(policies.pop())


def _shape(config: FitConfig, language: LanguageModel) -> Shape:
    count = len(language.network.model.layers)
    at = round(count * 2 / 3) if config.cut is None else config.cut
    upper = min(config.upper, count - at)
    if at > count:
        raise UserError(f"--cut {at}: {language.folder} has {count} layers")
    return Shape(at, upper, config.pooling)


def _held_out(config: FitConfig, rated: np.ndarray, pairs: Pairs) -> HeldOut:
    """Loss and accuracy of the mean over members of r̂, float64 `[M, N]`, on some pairs."""
    mean = torch.from_numpy(rated.mean(0))
    preference1 = torch.from_numpy(pairs.preference1).double()
    return1, return2 = mean[pairs.first], mean[pairs.second]
    loss = pair_loss(config)(return1, return2, preference1) * torch.from_numpy(pairs.weight)
    hits = preference_accuracy(return1, return2, preference1)
    return HeldOut(float(loss.sum() / pairs.weight.sum()), int(hits.sum()), len(hits))


class _Fitter:
    """Fits members one after the other, as lib.reward.fit does those of clips."""

    def __init__(
        self,
        config: FitConfig,
        language: LanguageModel,
        shape: Shape,
        states: Sequence[States],
        pairs: Pairs,
        device: torch.device,
        charts: Charts,
        progress: Progress,
    ) -> None:
        self._config, self._language, self._shape, self._states = config, language, shape, states
        self._pairs, self._device, self._charts, self._progress = pairs, device, charts, progress
        self._bf16 = resolve_bf16(config.bf16, device)
        self.history: list[Epoch] = []

    def member(
        self, number: int, train: np.ndarray, test: np.ndarray, should_stop: Callable[[], bool]
    ) -> TextMember | None:
        """Fits until the held-out loss stops falling, and keeps the best epoch's weights.

        Returns:
          The member; None if it was stopped and is not the first.

        Raises:
          Stopped: the first was stopped before its first epoch was over.
        """
        config = self._config
        if number and should_stop():
            return None
        seed = config.seed + 1000 * number
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        if config.ensemble > 1:
            train = rng.choice(train, len(train))
        network = TextRewardNet(self._language.network.model, self._shape).to(self._device)
        optimizer = torch.optim.Adam(
            [
                {"params": network.head.parameters(), "weight_decay": config.l2},
                {"params": network.layers.parameters(), "lr": _LAYERS_LR * config.lr},
            ],
            lr=config.lr,
        )
        fitted, held = self._pairs.subset(train), self._pairs.subset(test)
        best: HeldOut | None = None
        best_epoch, best_state = 0, {}
        for epoch in range(1, config.epochs + 1):
            began = time.perf_counter()
            train_loss = self._epoch(network, optimizer, fitted, rng, should_stop)
            if train_loss is None:
                break
            rated = self._rated(network, np.unique([held.first, held.second]))
            result = _held_out(config, rated, held)
            if not np.isfinite([train_loss, result.loss]).all():
                raise UserError("the fit broke: a loss is no finite number; try a smaller --lr")
            head = optimizer.param_groups[0]
            self.history.append(
                Epoch(number, epoch, train_loss, result.loss, result.accuracy, head["weight_decay"])
            )
            head["weight_decay"] = adapted_l2(head["weight_decay"], train_loss, result.loss)
            if best is None or result.loss < best.loss:
                best, best_epoch, best_state = result, epoch, copy.deepcopy(network.state_dict())
            suffix = f"_{number + 1}" if config.ensemble > 1 else ""
            self._charts.scalars(
                {
                    f"loss/train{suffix}": train_loss,
                    f"loss/held_out{suffix}": result.loss,
                    f"accuracy/held_out{suffix}": result.accuracy,
                },
                epoch,
            )
            who = f"member {number + 1} of {config.ensemble}, " if config.ensemble > 1 else ""
            self._progress.line(
                f"{who}epoch {epoch}: loss {train_loss:.3f}, held out {result.loss:.3f}, accuracy "
                f"{result.accuracy:.1%}{' *' if best_epoch == epoch else ''}  "
                f"({format_duration(time.perf_counter() - began)})"
            )
            if epoch - best_epoch >= config.patience:
                break
        if best is None:
            if number:
                return None
            raise Stopped
        network.load_state_dict(best_state)
        outputs = self._rated(network, np.arange(len(self._states)))[0]
        std = float(outputs.std())
        if not std > 1e-6:
            raise UserError(
                "the reward model pays the same for everything; label more pairs, with fewer ties among them"
            )
        return TextMember(network.eval().requires_grad_(False), float(outputs.mean()), std)

    def _epoch(
        self,
        network: TextRewardNet,
        optimizer: torch.optim.Optimizer,
        pairs: Pairs,
        rng: np.random.Generator,
        should_stop: Callable[[], bool],
    ) -> float | None:
        """One pass over the training pairs in random order; the mean loss, None if stopped."""
        network.train()
        order, total, loss_of = rng.permutation(len(pairs)), 0.0, pair_loss(self._config)
        for start in range(0, len(order), self._config.batch_size):
            if should_stop():
                return None
            batch = order[start : start + self._config.batch_size]
            optimizer.zero_grad(set_to_none=True)
            for at in range(0, len(batch), _PAIRS_AT_ONCE):
                part = pairs.subset(batch[at : at + _PAIRS_AT_ONCE])
                both = [self._states[index] for index in np.concatenate([part.first, part.second])]
                with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                    rated = network(both)
                losses = loss_of(
                    rated[: len(part)],
                    rated[len(part) :],
                    torch.from_numpy(part.preference1).to(self._device),
                )
                loss = (losses * torch.from_numpy(part.weight).to(self._device)).sum()
                (loss / float(pairs.weight[batch].sum())).backward()
                total += float(loss.detach())
            optimizer.step()
        return total / float(pairs.weight.sum())

    @torch.no_grad()
    def _rated(self, network: TextRewardNet, indices: np.ndarray) -> np.ndarray:
        """r̂ of some answers, float64 `[1, N]`, NaN for the others."""
        network.eval()
        found = np.full((1, len(self._states)), np.nan)
        by_length = sorted(indices.tolist(), key=lambda index: len(self._states[index].states))
        for at in range(0, len(by_length), 2 * _PAIRS_AT_ONCE):
            part = by_length[at : at + 2 * _PAIRS_AT_ONCE]
            found[0, part] = network([self._states[index] for index in part]).double().cpu().numpy()
        return found
