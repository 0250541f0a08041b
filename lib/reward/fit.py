"""Fitting a reward model to labels."""

import contextlib
import copy
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lib.cli import UserError
from lib.devices import random_state, resolve_bf16, resolve_device, set_random_state
from lib.files import remove_stale
from lib.interrupt import Interrupt, Stopped
from lib.memory import keep_freed_memory
from lib.reporting import Charts, Progress, format_duration
from lib.reward.checkpoints import save_reward_model
from lib.reward.config import FitConfig
from lib.reward.data import Pairs, PreferenceData, check_enough, load_preferences
from lib.reward.loss import original_loss, preference_accuracy, preference_loss
from lib.reward.masks import Mask, masks_for
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.split import split_by_segment
from lib.reward.store import SegmentStore
from lib.runs import Every, check_name, load_state, locked, make_run_dir, save_state, write_config

_STAGE = "03_reward_train.py"
_PAIRS_AT_ONCE = 8  # bounds memory: a batch goes through the network in parts of this many pairs
_L2_STEP = 0.5  # by which share the weight of the ℓ2 regularisation is raised or lowered
_EXPLODED = 1e6  # a guess costs 0.69; no loss of pairs gets here but by weights without bounds

PairLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of returns R₁, R₂ and preferences μ, float `[N]` each: the loss of each pair, float `[N]`."""
StepRewards = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""r̂, float32 `[N]`, of inputs (frames uint8 `[N, H, W, 3]`, or observations uint8 `[N, 4, 84, 84]` or float32 `[N, D]`)
and actions (int64 `[N]`, or float32 `[N, A]`): a `RewardNet`, or an ensemble of them."""


def pair_loss(config: FitConfig) -> PairLoss:
    """The loss that the flags ask for."""
    if config.loss == "original":
        return original_loss
    return functools.partial(preference_loss, error_rate=config.error_rate)


def segment_returns(
    rewards: StepRewards,
    segments: SegmentStore,
    indices: np.ndarray,
    device: torch.device,
    stride: int,
    offset: int,
) -> torch.Tensor:
    """R̂ = Σₜ r̂(oₜ, aₜ) of some segments, estimated from every `stride`-th step.

    Args:
      rewards: r̂.
      segments: where the frames lie.
      indices: int64 `[K]`, which segments.
      device: where to compute.
      stride: 1 sums every step; n sums every n-th (at least one) and multiplies by the share left out.
      offset: first step, below stride.

    Returns:
      float32 `[K]`.
    """
    inputs, actions, owners, scales = [], [], [], []
    for owner, index in enumerate(indices):
        length = segments.length(int(index))
        every = min(stride, length)
        some_inputs, some_actions = segments.inputs(int(index), every, offset % every)
        inputs.append(some_inputs)
        actions.append(some_actions)
        owners.append(np.full(len(some_actions), owner))
        scales.append(length / len(some_actions))
    all_rewards = rewards(
        *(torch.from_numpy(np.concatenate(parts)).to(device) for parts in (inputs, actions))
    )
    owner_of = torch.from_numpy(np.concatenate(owners)).to(device)
    sums = torch.zeros(len(indices), device=device).index_add(0, owner_of, all_rewards)
    return sums * torch.tensor(scales, device=device)


def _both_returns(
    rewards: StepRewards,
    segments: SegmentStore,
    pairs: Pairs,
    device: torch.device,
    bf16: bool,
    stride: int = 1,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    both = np.concatenate([pairs.first, pairs.second])
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        returns = segment_returns(rewards, segments, both, device, stride, offset)
    return returns[: len(pairs)], returns[len(pairs) :]


def adapted_l2(l2: float, train_loss: float, held_out_loss: float) -> float:
    """The weight λ of ℓ2 regularisation (½ λ Σ θ² beside the loss) for the next epoch.

    Raised to 1.5 λ where the held-out loss is more than 1.5 times the training loss, lowered to 0.5 λ where it is less
    than 1.1 times that, as Christiano et al. adapt theirs (section 2.2.3). 0 stays 0.

    Args:
      l2: λ, at least 0.
      train_loss: mean loss over the training pairs, without the regularisation.
      held_out_loss: mean loss over the held-out pairs.
    """
    if held_out_loss > 1.5 * train_loss:
        return l2 * (1 + _L2_STEP)
    if held_out_loss < 1.1 * train_loss:
        return l2 * (1 - _L2_STEP)
    return l2


@dataclasses.dataclass
class Pass:
    """An epoch under way."""

    order: np.ndarray | None = None
    """int64 `[N]`: the training pairs in the order they are taken; None before the first."""
    at: int = 0
    """How many of them were taken."""
    total: torch.Tensor | None = None
    """float32 `[]`: the sum of their losses."""


def train_epoch(
    network: RewardNet,
    optimizer: torch.optim.Optimizer,
    segments: SegmentStore,
    pairs: Pairs,
    config: FitConfig,
    rng: np.random.Generator,
    bf16: bool,
    passed: Pass | None = None,
    tick: Callable[[], None] | None = None,
) -> float:
    """One pass over the training pairs in random order.

    Args:
      network, optimizer: what is fitted.
      segments: where the frames lie.
      pairs: the training pairs.
      config: how.
      rng: of the order and of the steps that are taken.
      bf16: whether the network computes in bf16.
      passed: how far an earlier call got; it is moved along.
      tick: called after every update. What it raises ends the pass, and `passed` says where.

    Returns:
      The mean loss.
    """
    network.train()
    device = next(network.parameters()).device
    loss_of = pair_loss(config)
    passed = passed or Pass()
    if passed.order is None or passed.total is None:
        passed.order, passed.total = rng.permutation(len(pairs)), torch.zeros((), device=device)
    order, total = passed.order, passed.total
    for start in range(passed.at, len(order), config.batch_size):
        batch = order[start : start + config.batch_size]
        optimizer.zero_grad(set_to_none=True)
        for at in range(0, len(batch), _PAIRS_AT_ONCE):
            part = pairs.subset(batch[at : at + _PAIRS_AT_ONCE])
            offset = int(rng.integers(config.frame_stride))
            return1, return2 = _both_returns(
                network, segments, part, device, bf16, config.frame_stride, offset
            )
            preference1 = torch.from_numpy(part.preference1).to(device)
            loss = (loss_of(return1, return2, preference1) * torch.from_numpy(part.weight).to(device)).sum()
            (loss / float(pairs.weight[batch].sum())).backward()
            total += loss.detach()
        optimizer.step()
        passed.at = start + len(batch)
        if tick is not None:
            tick()
    return float(total) / float(pairs.weight.sum())


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One pass over the training pairs of one member."""

    member: int
    epoch: int
    train_loss: float
    held_out_loss: float
    held_out_accuracy: float
    l2: float = 0.0
    """Weight of the ℓ2 regularisation."""


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """How a reward model does on pairs it was not fitted on."""

    loss: float
    correct: int
    decided: int
    """Pairs that are no tie: those that accuracy is about."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.decided if self.decided else float("nan")

    def figures(self) -> dict[str, float]:
        """As the checkpoint keeps them."""
        return {
            "held_out_loss": self.loss,
            "held_out_correct": self.correct,
            "held_out_decided": self.decided,
        }


@torch.no_grad()
def evaluate_pairs(
    rewards: StepRewards,
    segments: SegmentStore,
    pairs: Pairs,
    loss_of: PairLoss,
    device: torch.device,
    bf16: bool,
    stride: int = 1,
) -> HeldOut:
    """Loss and accuracy over every `stride`-th step of some pairs; a network is to be in evaluation mode."""
    loss, correct, decided = 0.0, 0, 0
    for at in range(0, len(pairs), _PAIRS_AT_ONCE):
        part = pairs.subset(np.arange(at, min(at + _PAIRS_AT_ONCE, len(pairs))))
        preference1 = torch.from_numpy(part.preference1).to(device)
        return1, return2 = _both_returns(rewards, segments, part, device, bf16, stride, stride // 2)
        loss += float((loss_of(return1, return2, preference1).cpu() * torch.from_numpy(part.weight)).sum())
        hits = preference_accuracy(return1, return2, preference1)
        correct, decided = correct + int(hits.sum()), decided + len(hits)
    return HeldOut(loss / float(pairs.weight.sum()), correct, decided)


def evaluate_ensemble(
    model: RewardModel, segments: SegmentStore, pairs: Pairs, loss_of: PairLoss, device: torch.device
) -> HeldOut:
    """Loss and accuracy of what an ensemble pays: the average of its members' standardised rewards.

    Standardised rewards have lost the unit in which differences of returns are log-odds. The loss is taken in the
    mean of the members' units (their standard deviations), so that it can be compared with theirs.
    """
    unit = float(np.mean([member.std for member in model.members]))
    return evaluate_pairs(
        lambda inputs, actions: unit * model.combine(model.each(inputs, actions)),
        segments,
        pairs,
        loss_of,
        device,
        bf16=False,  # the model sees to that itself
    )


def _steps(segments: SegmentStore, stride: int, device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Inputs and actions of every `stride`-th step of every segment, each from another first step, in batches."""
    for start in range(0, len(segments), stride):
        part = range(start, min(start + stride, len(segments)))
        seen = [segments.inputs(index, stride, index % min(stride, segments.length(index))) for index in part]
        yield [torch.from_numpy(np.concatenate(arrays)).to(device) for arrays in zip(*seen, strict=True)]


def mean_disagreement(
    model: RewardModel, segments: SegmentStore, device: torch.device, stride: int = 1
) -> float:
    """How far the members of an ensemble are apart, on average over every `stride`-th step of every segment.

    Returns:
      The mean of their standard deviation, in units of the standardised reward.
    """
    apart = [
        model.each(inputs, actions).std(0, correction=0)
        for inputs, actions in _steps(segments, stride, device)
    ]
    return float(torch.cat(apart).mean())


@torch.no_grad()
def output_statistics(
    network: RewardNet, segments: SegmentStore, bf16: bool, stride: int = 1
) -> tuple[float, float]:
    """Mean and standard deviation of r̂ over every `stride`-th step of every segment, each from another first step.

    Raises:
      UserError: r̂ does not depend on what it sees, so it cannot teach anything.
    """
    network.eval()
    device = next(network.parameters()).device
    outputs = []
    for inputs, actions in _steps(segments, stride, device):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            outputs.append(network(inputs, actions))
    rewards = torch.cat(outputs).double()
    mean, std = float(rewards.mean()), float(rewards.std())
    if not std > 1e-6 * max(1.0, abs(mean)):
        raise UserError(
            "the reward model pays the same for everything; label more pairs, with fewer ties among them"
        )
    return mean, std


@dataclasses.dataclass(frozen=True)
class Fit:
    """A reward model and all that is known of how it came about."""

    config: FitConfig
    path: Path
    """The checkpoint."""
    run_dir: Path
    """Its TensorBoard curves."""
    model: RewardModel
    data: PreferenceData
    train: np.ndarray
    """int64: positions in `data.pairs` of the pairs it was fitted to."""
    test: np.ndarray
    """int64: of those it was judged by, which share no segment with them."""
    history: list[Epoch]
    best: HeldOut
    """How the model that was kept does on `test`."""
    stopped: bool = False
    """Whether Ctrl-C ended it early; `--resume` continues it."""


def fit(config: FitConfig) -> Fit:
    """Fits a reward model as the configuration says and writes its checkpoint, or goes on with a fit.

    A fit goes on as if it had never ended: with the labels and the split that it began with, at the batch of pairs it
    had reached, its random generators where they were. On the CPU what comes of it is the same, bit for bit.

    Raises:
      UserError: something about the flags, the DBs or the labels that the user can mend.
    """
    keep_freed_memory()
    device = resolve_device(config.dev)
    bf16 = resolve_bf16(config.bf16, device)
    path = config.out / f"reward-{check_name(config.name)}.dat"
    check_writable(path)  # now, rather than when all the work is done
    with contextlib.ExitStack() as stack:
        # Whoever calls this has draws of their own.
        stack.callback(set_random_state, random_state(device), device)
        progress = stack.enter_context(Progress())
        state = None
        if config.resume is not None:
            stack.enter_context(locked(config.resume))
            state = load_state(config.resume, _STAGE)
        data = load_preferences(
            config.dbs, config.memory_mb, config.num_actions, config.weights(), config.only, config.input
        )
        for problem in data.problems:
            progress.line(f"left out: {problem}")
        if config.resume is not None and state is None:
            progress.line("it ended before its first state: all begins anew")
        if state is not None:
            found = len(data.pairs)
            data = _began_with(config, data, state)
            train, test = state["train"].numpy(), state["test"].numpy()
            if found > len(data.pairs):
                progress.line(
                    f"{found - len(data.pairs)} labels came since the fit began and are not taken in"
                )
        else:
            check_enough(data.pairs)
            train, test = split_by_segment(
                data.pairs, config.held_out, config.seed, data.at_random, data.db_of
            )
        _masks(config, data.segments)  # before anything is written
        if config.resume is None:
            run_dir = make_run_dir(config.runs, "reward", config.name)
            stack.enter_context(locked(run_dir))
        else:
            run_dir = config.resume
        kept_config = dataclasses.asdict(config) | {"resume": None}
        write_config(run_dir, kept_config, resumed=config.resume is not None)
        remove_stale(path.parent)
        torn = len(data.pairs) - len(train) - len(test)
        progress.line(
            f"{len(data.pairs)} labels on {len(data.segments)} segments of {data.segments.env_id or 'an unnamed game'}: "
            f"{len(train)} to fit, {len(test)} held out"
            + (f", {torn} left aside because they share clips with both" if torn else "")
            + f"; curves in {run_dir}"
        )
        # All points of a resumed fit are drawn again: those of its members share one axis, so that none can be taken
        # for the first that is lost.
        charts = stack.enter_context(Charts(run_dir, None if config.resume is None else 0))
        with Interrupt() as interrupt:
            keeper = _Keeper(run_dir, config, kept_config, data, train, test, interrupt)
            fitted = fit_model(
                config, data, train, test, device, bf16, charts, progress, interrupt, keeper, state
            )
            if interrupt.asked:
                progress.line(f"go on with --resume {run_dir}")
        best = fitted.best
        parents = {"dbs": data.parents, "labels": len(data.pairs)}
        results = {**best.figures(), "members": [member.figures() for member in fitted.judged]}
        save_reward_model(path, fitted.model, kept_config, parents, results)
        progress.line(
            f"held-out accuracy {best.accuracy:.1%} ({best.correct} of {best.decided} decided pairs), "
            f"loss {best.loss:.3f}; saved {path}"
        )
    return Fit(config, path, run_dir, fitted.model, data, train, test, fitted.history, best, interrupt.asked)


_LabelKey = tuple[int, str, str, str | None, str | None, int | None]


def _label_keys(data: PreferenceData) -> list[_LabelKey]:
    """What tells each label of a fit from all others: its DB, samples and labeller, and what it says."""
    return [
        (int(db), label.sample1, label.sample2, label.annotator, label.teacher, label.label)
        for db, label in zip(data.db_of, data.labels, strict=True)
    ]


def _began_with(config: FitConfig, data: PreferenceData, state: dict[str, Any]) -> PreferenceData:
    """The labels that a fit began with, in their order then, out of those that there are now.

    Raises:
      UserError: one of them is gone, or says something else.
    """
    at = {key: position for position, key in enumerate(_label_keys(data))}
    positions = [at.get(tuple(key)) for key in state["labels"]]
    gone = positions.count(None)
    if gone:
        db, *samples = next(
            key[:3] for key, position in zip(state["labels"], positions, strict=True) if position is None
        )
        raise UserError(
            f"--resume {config.resume}: {gone} of the {len(positions)} labels that the fit began with are gone or "
            f"changed, such as {config.dbs[db]}'s on {' and '.join(samples)}; begin a new fit"
        )
    if positions == list(range(len(data.pairs))):
        return data
    # Segments in the order in which they came then: what a fit comes to depends on it.
    rows = np.array(positions, np.int64)
    segments = SegmentStore(config.memory_mb, config.input)
    index: dict[tuple[int, str], int] = {}
    ends: tuple[list[int], list[int]] = ([], [])
    for row in map(int, rows):
        label = data.labels[row]
        ends_now = int(data.pairs.first[row]), int(data.pairs.second[row])
        held_at = dict(zip((label.sample1, label.sample2), ends_now, strict=True))
        for name in label.pair:
            key = (int(data.db_of[row]), name)
            if key not in index:
                db = data.segments.source(held_at[name])[0]
                index[key] = segments.add(db, name, db.load(name))
        for column, name in zip(ends, (label.sample1, label.sample2), strict=True):
            column.append(index[int(data.db_of[row]), name])
    if config.num_actions:
        segments.set_num_actions(config.num_actions)
    first, second = (np.array(column, np.int64) for column in ends)
    pairs = data.pairs.subset(rows)
    return PreferenceData(
        segments,
        Pairs(first, second, pairs.preference1, pairs.weight),
        [data.labels[row] for row in rows],
        data.db_of[rows],
        data.problems,
        state["parents"]["dbs"],
        None if data.at_random is None else data.at_random[rows],
    )


class Keeper(Protocol):
    """What a fit calls between its steps."""

    def keep(self, state: dict[str, Any]) -> None:
        """A member is done, or the end was asked for: this is the state."""
        ...

    def tick(self, state: Callable[[], dict[str, Any]], may_stop: bool) -> None:
        """After every update; raises Stopped to end with what there is, where there is anything (`may_stop`)."""
        ...


class _Keeper:
    """Writes the state of a fit: when it is time, when a member is done, and when the end is asked for."""

    def __init__(
        self,
        run_dir: Path,
        config: FitConfig,
        kept_config: dict[str, Any],
        data: PreferenceData,
        train: np.ndarray,
        test: np.ndarray,
        interrupt: Interrupt,
    ) -> None:
        self._run_dir, self._config, self._interrupt = run_dir, kept_config, interrupt
        self._parents = {"dbs": data.parents, "labels": len(data.pairs)}
        self._split = {
            "labels": _label_keys(data),
            "train": train,
            "test": test,
        }
        self._clock = Every(config.checkpoint_minutes)
        self._asked = False

    def keep(self, state: dict[str, Any]) -> None:
        """Writes a state, unless its weights are beyond use: the one before is better then."""
        network = state["member"]["network"]
        if not all(bool(weight.isfinite().all()) for weight in network.values()):
            return
        save_state(self._run_dir, _STAGE, {**self._split, **state}, self._config, self._parents)
        self._clock.restart()

    def tick(self, state: Callable[[], dict[str, Any]], may_stop: bool) -> None:
        """Writes the state where that is due.

        Raises:
          Stopped: the end was asked for, and there is something to end with.
        """
        asked = self._interrupt.asked and not self._asked
        if asked or self._clock.due():
            self.keep(state())
        self._asked |= asked
        if self._interrupt.asked and may_stop:
            raise Stopped


def check_writable(path: Path) -> None:
    """Refuses a place where no checkpoint can be written, without leaving anything there.

    Raises:
      UserError: its folder can neither be written to nor be made, or a folder has its name.
    """
    folder = path.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"-o {path.parent}: expected a folder to write to: {error.strerror}") from error
    if path.is_dir():
        raise UserError(f"{path}: expected to write the reward model here, found a folder; take another -n")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What comes of fitting, before anything is written."""

    model: RewardModel
    best: HeldOut
    """How the model does on the held-out pairs."""
    judged: list[HeldOut]
    """How each of its members does."""
    history: list[Epoch]


def fit_model(
    config: FitConfig,
    data: PreferenceData,
    train: np.ndarray,
    test: np.ndarray,
    device: torch.device,
    bf16: bool,
    charts: Charts,
    progress: Progress,
    interrupt: Interrupt,
    keeper: Keeper | None = None,
    state: dict[str, Any] | None = None,
    start: Sequence[Member] = (),
) -> Fitted:
    """Fits the members of a reward model, one after the other.

    Args:
      config: how.
      data: the labels and their segments.
      train: int64, positions in `data.pairs` of those to fit to.
      test: int64, of those to judge by.
      device: of the networks.
      bf16: whether they compute in bf16.
      charts: gets the curves.
      progress: gets a line each epoch.
      interrupt: once asked, the member at hand ends with its best epoch so far.
      keeper: writes the states that the fit can be gone on from, where there shall be any.
      state: one of these, to go on from.
      start: members whose weights those of this fit begin with; further ones begin with their own.

    Raises:
      UserError: the fit cannot come to anything; says why.
    """
    masks = _masks(config, data.segments)
    task = _FitTask(config, data, masks, train, test, device, bf16, charts, progress, interrupt, keeper)
    done = _Done()
    if state is not None:
        done.take(state, task)
        for epoch in done.history:
            _chart(charts, config, epoch)
        last = done.history[-1] if done.history else None
        progress.line(
            f"going on after {f'epoch {last.epoch} of member {last.member + 1}' if last else 'nothing yet'}"
        )
    begun = None if state is None else state["member"]  # goes on; those after it begin anew
    for number in range(len(done.members), config.ensemble):
        weights = start[number].network.state_dict() if number < len(start) else None
        try:
            network, best = _fit_member(task, number, done, begun, weights)
        except Stopped:  # one half fitted would have as large a say as the others
            progress.line(f"stopped by request; keeping the members fitted so far, {len(done.members)}")
            break
        begun = None
        statistics = output_statistics(network, data.segments, bf16, config.frame_stride)
        done.members.append(Member(network, *statistics))
        done.judged.append(best)
        if interrupt.asked:
            break
    model = RewardModel(done.members, device, bf16)
    if len(done.members) > 1:
        disagreement = mean_disagreement(model, data.segments, device, config.frame_stride)
        model = RewardModel(done.members, device, bf16, disagreement=disagreement)
        test_pairs = data.pairs.subset(test)
        best = evaluate_ensemble(model, data.segments, test_pairs, pair_loss(config), device)
    else:
        best = done.judged[0]
    return Fitted(model, best, done.judged, done.history)


@dataclasses.dataclass(frozen=True)
class _FitTask:
    """What all members of a fit have in common; the fields are those of `fit_model`."""

    config: FitConfig
    data: PreferenceData
    masks: tuple[Mask, ...]
    """What is hidden from the networks."""
    train: np.ndarray
    test: np.ndarray
    device: torch.device
    bf16: bool
    charts: Charts
    progress: Progress
    interrupt: Interrupt
    keeper: Keeper | None


@dataclasses.dataclass
class _Done:
    """What a fit has come to: the members that are done, and all epochs so far."""

    members: list[Member] = dataclasses.field(default_factory=list)
    judged: list[HeldOut] = dataclasses.field(default_factory=list)
    history: list[Epoch] = dataclasses.field(default_factory=list)
    """Those of the member at hand included."""

    def content(self) -> dict[str, Any]:
        """For a state to keep."""
        return {
            "members": [
                {"state_dict": member.network.state_dict(), "mean": member.mean, "std": member.std}
                for member in self.members
            ],
            "judged": self.judged,
            "history": self.history,
        }

    def take(self, state: dict[str, Any], task: _FitTask) -> None:
        """Goes on from `content`, as a state kept it."""
        self.judged = [HeldOut(**figures) for figures in state["judged"]]
        self.history = [Epoch(**figures) for figures in state["history"]]
        for kept in state["members"]:
            network = _new_network(task)
            network.load_state_dict(kept["state_dict"])
            self.members.append(Member(network.eval(), kept["mean"], kept["std"]))


@dataclasses.dataclass
class _MemberState:
    """Where the fit of one member is."""

    network: RewardNet
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    """Of the order of the pairs and of the steps that are taken."""
    l2: float
    best_state: dict[str, torch.Tensor]
    """Weights of the best epoch."""
    epoch: int = 0
    """How many are over."""
    best: HeldOut | None = None
    """How the best one did; None before the first is over."""
    best_epoch: int = 0
    passed: Pass = dataclasses.field(default_factory=Pass)

    def content(self, device: torch.device) -> dict[str, Any]:
        """For a state to keep, with where PyTorch's generators are."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "l2": self.l2,
            "epoch": self.epoch,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_state": self.best_state,
            "passed": self.passed,
            "rng": self.rng.bit_generator.state,
            "random": random_state(device),
        }

    def take(self, begun: dict[str, Any], device: torch.device) -> None:
        """Goes on from `content`, as a state kept it."""
        self.network.load_state_dict(begun["network"])
        self.optimizer.load_state_dict(begun["optimizer"])
        self.l2, self.epoch = begun["l2"], begun["epoch"]
        self.best = None if begun["best"] is None else HeldOut(**begun["best"])
        self.best_epoch, self.best_state = begun["best_epoch"], begun["best_state"]
        if begun["passed"]["order"] is not None:
            order, at, total = (begun["passed"][key] for key in ("order", "at", "total"))
            self.passed = Pass(order.numpy(), at, total.to(device))
        self.rng.bit_generator.state = begun["rng"]
        set_random_state(begun["random"], device)

    def end_epoch(self, config: FitConfig, train_loss: float, result: HeldOut) -> None:
        """Counts an epoch that is over, keeps its weights if it is the best, and adapts ℓ2 for the next."""
        self.epoch, self.passed = self.epoch + 1, Pass()
        if config.l2:
            self.l2 = adapted_l2(self.l2, train_loss, result.loss)
            self.optimizer.param_groups[0]["weight_decay"] = self.l2
        if self.best is None or result.loss < self.best.loss:
            self.best, self.best_epoch = result, self.epoch
            self.best_state = copy.deepcopy(self.network.state_dict())


def _masks(config: FitConfig, segments: SegmentStore) -> tuple[Mask, ...]:
    """What is hidden from the network.

    Raises:
      UserError: a mask does not fit the frames, or there are no pixels to hide or to move.
    """
    for name, given in (("--mask", bool(config.mask)), ("--shift", config.shift > 0)):
        if given and segments.spec.observation_size is not None:
            raise UserError(
                f"{name} is about pixels, but the model sees vectors of {segments.spec.observation_size} numbers; "
                f"add --input frame"
            )
    return masks_for(config.mask, segments.frame_shape, segments.env_id)


def _new_network(task: _FitTask) -> RewardNet:
    config, segments = task.config, task.data.segments
    spec = segments.spec
    network = RewardNet(
        segments.frame_shape,
        spec.num_actions,
        config.dropout,
        task.masks,
        config.shift,
        config.noise,
        segments.input or "frame",
        spec.continuous,
        spec.observation_size,
    )
    if spec.observation_size is not None:
        mean, std = segments.observation_statistics()
        network.mean.copy_(torch.from_numpy(mean))
        network.std.copy_(torch.from_numpy(std))
    return network.to(task.device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def _chart(charts: Charts, config: FitConfig, epoch: Epoch) -> None:
    """Draws one epoch of one member."""
    member = f"_{epoch.member + 1}" if config.ensemble > 1 else ""
    points = {
        f"loss/train{member}": epoch.train_loss,
        f"loss/held_out{member}": epoch.held_out_loss,
        f"accuracy/held_out{member}": epoch.held_out_accuracy,
    }
    charts.scalars(points | ({f"l2{member}": epoch.l2} if config.l2 else {}), epoch.epoch)


def _broken(train_loss: float, held_out_loss: float) -> str | None:
    """Which loss is beyond use, and how."""
    for name, loss in (("loss", train_loss), ("held-out loss", held_out_loss)):
        if not np.isfinite(loss):
            return f"the {name} is no finite number"
        if loss > _EXPLODED:
            return f"the {name} exploded to {loss:.3g}"
    return None


def _begin_member(
    task: _FitTask, number: int, weights: dict[str, torch.Tensor] | None
) -> tuple[_MemberState, Pairs]:
    """A member before its first update, and the pairs that it is fitted to.

    Each member of an ensemble begins with its own weights, unless some are given, and is fitted to as many pairs as
    there are, drawn with replacement (Christiano et al., section 2.2.3).
    """
    config, train = task.config, task.train
    seed = config.seed + 1000 * number  # a thousand apart, so that fits with seeds 0, 1, 2, … share no member
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    if config.ensemble > 1:
        train = rng.choice(train, len(train))
    network = _new_network(task)
    if weights is not None:
        network.load_state_dict(weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.lr, weight_decay=config.l2)
    best_state = copy.deepcopy(network.state_dict())
    return _MemberState(network, optimizer, rng, config.l2, best_state), task.data.pairs.subset(train)


def _fit_member(
    task: _FitTask,
    number: int,
    done: _Done,
    begun: dict[str, Any] | None,
    weights: dict[str, torch.Tensor] | None,
) -> tuple[RewardNet, HeldOut]:
    """Epochs until the held-out loss stops falling; the network of the best one and how it did.

    All members are judged by the same held-out pairs.

    Args:
      task: the fit.
      number: of the member, from 0.
      done: gets the epochs.
      begun: what a state kept of this member, to go on from.
      weights: to begin with; the member's own when None.

    Raises:
      Stopped: the end was asked for, and there are members without this one.
      UserError: the first epoch came to nothing.
    """
    config, segments = task.config, task.data.segments
    member, train_pairs = _begin_member(task, number, weights)
    if begun is not None:
        member.take(begun, task.device)
    test_pairs = task.data.pairs.subset(task.test)
    loss_of = pair_loss(config)
    who = f"member {number + 1} of {config.ensemble}, " if config.ensemble > 1 else ""

    def state() -> dict[str, Any]:
        return {**done.content(), "member": member.content(task.device)}

    def tick() -> None:
        if task.keeper is not None:
            task.keeper.tick(state, may_stop=member.best is not None or number > 0)

    def watched_loss(return1: torch.Tensor, return2: torch.Tensor, preference1: torch.Tensor) -> torch.Tensor:
        """The loss; judging asks for it every few pairs, and may be stopped there."""
        tick()
        return loss_of(return1, return2, preference1)

    began, first = time.perf_counter(), member.epoch
    while _goes_on(member, config) and not (task.interrupt.asked and member.best):
        network, optimizer, rng = member.network, member.optimizer, member.rng
        try:
            train_loss = train_epoch(
                network, optimizer, segments, train_pairs, config, rng, task.bf16, member.passed, tick
            )
            network.eval()
            # Of as many steps as it is fitted on: every step would take longer than the epoch.
            result = evaluate_pairs(
                network, segments, test_pairs, watched_loss, task.device, task.bf16, config.frame_stride
            )
        except Stopped:
            if member.best is None:
                raise
            break
        broken = _broken(train_loss, result.loss)
        if broken is not None:
            if member.best is None:
                raise UserError(f"the fit broke: {broken}; try a smaller --lr")
            task.progress.line(f"{who}epoch {member.epoch + 1}: {broken}; keeping epoch {member.best_epoch}")
            break
        l2 = member.l2
        member.end_epoch(config, train_loss, result)
        done.history.append(Epoch(number, member.epoch, train_loss, result.loss, result.accuracy, l2))
        _chart(task.charts, config, done.history[-1])
        seconds = (time.perf_counter() - began) / (member.epoch - first)
        task.progress.line(who + _epoch_line(member, config, done.history[-1], seconds))
    else:
        if task.keeper is not None:
            task.keeper.keep(state())
    return _best_of(task, number, member, test_pairs)


def _goes_on(member: _MemberState, config: FitConfig) -> bool:
    """Whether there are epochs left, and the best one is not too long ago."""
    return member.epoch < config.epochs and member.epoch - member.best_epoch < config.patience


def _epoch_line(member: _MemberState, config: FitConfig, epoch: Epoch, seconds: float) -> str:
    """What is said of an epoch that is over."""
    left = min(config.epochs - member.epoch, config.patience - (member.epoch - member.best_epoch))
    return (
        f"epoch {epoch.epoch}: loss {epoch.train_loss:.3f}, held out {epoch.held_out_loss:.3f}, "
        f"accuracy {epoch.held_out_accuracy:.1%}{' *' if member.best_epoch == epoch.epoch else ''}  "
        f"({format_duration(seconds)} each, at least {format_duration(left * seconds)} to go)"
    )


def _best_of(
    task: _FitTask, number: int, member: _MemberState, test_pairs: Pairs
) -> tuple[RewardNet, HeldOut]:
    """The network of the best epoch and how it did, by every step of the held-out pairs.

    Raises:
      Stopped: the end was asked for, and there are members without this one.
    """
    config, network, best = task.config, member.network, member.best
    assert best is not None
    if task.interrupt.asked and number == 0:
        task.progress.line(f"stopped by request; keeping the best so far, epoch {member.best_epoch}")
    network.load_state_dict(member.best_state)
    network.eval()
    if config.frame_stride > 1:
        best = evaluate_pairs(
            network, task.data.segments, test_pairs, pair_loss(config), task.device, task.bf16
        )
    if task.interrupt.asked and number > 0:
        raise Stopped
    return network, best
