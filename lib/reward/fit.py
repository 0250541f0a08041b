"""Fitting a reward model to labels."""

import contextlib
import dataclasses
import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, overload

import numpy as np
import torch

from lib.cli import UserError, as_flag
from lib.devices import own_threads, random_state, resolve_device, set_random_state
from lib.files import remove_stale
from lib.interrupt import Interrupt, Stopped
from lib.learner import ALONE, Alone
from lib.memory import keep_freed_memory
from lib.reporting import Charts, Progress, format_duration
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.data import PreferenceData, check_enough
from lib.reward.epoch import HeldOut
from lib.reward.member import Data, Material, MemberFit, Model
from lib.reward.model import Member, RewardModel
from lib.reward.split import split_by_segment
from lib.runs import Timer, check_name, load_state, locked, make_run_dir, save_state, write_config

_STAGE = "03_reward_train.py"
_OLDER = "--resume {}: its state is from an older version, which this one cannot continue; begin a new fit"
_EXPLODED = 1e6  # a guess costs 0.69; a loss of pairs gets here only by unbounded weights


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
    counts: bool = True
    """Whether there had been enough updates for it to be the best."""
    chosen: float = math.nan
    """Mean R̂ of the better ones of the held-out pairs."""
    rejected: float = math.nan
    """Of the worse ones."""


@dataclasses.dataclass(frozen=True)
class Fitted(Generic[Model]):
    """What `fit_model` returns."""

    model: Model
    best: HeldOut
    """The model's loss and accuracy on the held-out pairs."""
    each: list[HeldOut]
    """Each member's."""
    history: list[Epoch]

    def results(self) -> dict[str, Any]:
        """Held-out figures of the model and of each member, as the checkpoint keeps them."""
        return {**self.best.figures(), "members": [member.figures() for member in self.each]}


@dataclasses.dataclass(frozen=True)
class AnyFit(Generic[Model, Data]):
    """A reward model, its data and its curves."""

    config: FitConfig
    """The material's, which may differ from the flags."""
    path: Path
    """The checkpoint."""
    run_dir: Path
    """Its TensorBoard curves."""
    model: Model
    data: Data
    train: np.ndarray
    """int64: positions in `data.pairs` of the training pairs."""
    test: np.ndarray
    """int64: of the held-out pairs, which share no clip, or prompt, with them."""
    history: list[Epoch]
    best: HeldOut
    """The model's loss and accuracy on `test`."""
    stopped: bool = False
    """Whether Ctrl-C ended it early; `--resume` continues it."""


Fit = AnyFit[RewardModel, PreferenceData]
"""Of clips."""


@overload
def fit(config: FitConfig, ranks: Alone = ALONE) -> Fit: ...
@overload
def fit(
    config: FitConfig,
    ranks: Alone,
    kind: Callable[[FitConfig, Sequence[int] | None], Material[Model, Data]],
    file: str = ...,
    resumable: bool = ...,
) -> AnyFit[Model, Data]: ...
def fit(
    config: FitConfig,
    ranks: Alone = ALONE,
    kind: Callable[[FitConfig, Sequence[int] | None], Any] = Clips,
    file: str = "reward-{}.dat",
    resumable: bool = True,
) -> AnyFit[Any, Any]:
    """Fits a reward model as the configuration says and writes its checkpoint, or resumes a fit.

    A resumed fit uses the labels and the split that it began with and continues after the last epoch in its state. On
    the CPU it reaches the same weights as an uninterrupted one, bit for bit.

    Each of several processes fits its share of the members, and reaches the weights of a single process. The
    first one writes, charts and prints. No state is saved.

    Args:
      config: the flags.
      ranks: the processes that fit together.
      kind: what to fit to.
      file: where the model of a name goes, in `--out`.
      resumable: whether the script has a `--resume`, so that states are saved.

    Raises:
      UserError: the flags, the DBs or the labels are wrong; says what to do.
    """
    keep_freed_memory()
    saves_states, first = resumable and ranks.size == 1, ranks.rank == 0
    threads = own_threads(0)
    if threads:
        torch.set_num_threads(threads)
    device = resolve_device(config.dev)
    path = config.out / file.format(check_name(config.name))
    check_writable(path)  # now, rather than when all the work is done
    if config.policy is not None and path.resolve() == config.policy.resolve():
        raise UserError(
            f"-n {config.name}: {path} is the policy of --policy, which the fit would replace; take another name"
        )
    with contextlib.ExitStack() as stack:
        # The caller's own random draws are not disturbed.
        stack.callback(set_random_state, random_state(device), device)
        progress = stack.enter_context(Progress(quiet=not first))
        state = None
        if config.resume is not None:
            stack.enter_context(locked(config.resume))
            state = _load_state(config.resume)
            if state is None:
                progress.line("the run ended before its first state: the fit starts over")
        material = kind(config, None if state is None else state["lines"])
        data = material.data
        for problem in data.problems:
            progress.line(f"left out: {problem}")
        if state is not None and len(data.pairs) != state["labels"]:
            raise UserError(
                f"--resume {config.resume}: {state['labels'] - len(data.pairs)} of the {state['labels']} labels that the "
                "fit began with are gone; begin a new fit"
            )
        check_enough(data.pairs)
        train, test = split_by_segment(
            material.units()[0], config.held_out, config.seed, data.at_random, data.db_of
        )
        kept_config = dataclasses.asdict(config) | {"resume": None}
        run_dir = config.resume
        if first:
            if run_dir is None:
                run_dir = make_run_dir(config.runs, "reward", config.name)
                stack.enter_context(locked(run_dir))
            write_config(run_dir, kept_config, resumed=config.resume is not None)
            remove_stale(path.parent)
        run_dir = Path(ranks.gather(str(run_dir))[0])
        torn = len(data.pairs) - len(train) - len(test)
        progress.line(
            f"{len(data.pairs)} labels on {material}: {len(train)} to fit, {len(test)} held out"
            + (f", {torn} left out because they share clips with held-out ones" if torn else "")
            + f"; curves in {run_dir}"
        )
        # A resumed fit draws all its points again: its members share one axis, so no single step divides old from new.
        charts = stack.enter_context(Charts(run_dir if first else None, None if config.resume is None else 0))
        clock, last = Timer(config.checkpoint_minutes), dict[str, Any]()

        def save() -> None:
            began = {"lines": data.lines, "labels": len(data.pairs)}
            save_state(run_dir, _STAGE, began | last, kept_config, material.parents())
            clock.restart()

        def keep(epoch_end: dict[str, Any]) -> None:
            last.update(epoch_end)
            if saves_states and clock.due():
                save()

        with Interrupt() as interrupt:

            def should_stop() -> bool:  # not before there is an epoch to keep
                return interrupt.asked and (bool(last) or state is not None)

            fitted = fit_model(
                *(material, train, test, charts, progress),
                should_stop=should_stop,
                keep=keep,
                state=state,
                ranks=ranks,
            )
        if saves_states and last:
            save()
        if saves_states and interrupt.asked:
            progress.line(f"continue with --resume {run_dir}")
        if first:
            material.save(path, fitted.model, kept_config, material.parents(), fitted.results(), None)
        progress.line(f"held-out {fitted.best}; saved {path}")
    return AnyFit(
        *(material.config, path, run_dir, fitted.model, data, train, test),
        *(fitted.history, fitted.best, interrupt.asked),
    )


def check_alone(config: FitConfig, ranks: Alone) -> None:
    """Refuses flags that several processes cannot handle.

    Raises:
      UserError: names it.
    """
    if ranks.size == 1:
        return
    for name in ("resume", "watch", "audit_reward"):
        if getattr(config, name):
            raise UserError(f"{as_flag(name)} takes one process: leave out torchrun")
    if config.ensemble < ranks.size:
        raise UserError(
            f"--ensemble {config.ensemble}: expected one member or more for each of the {ranks.size} processes of torchrun"
        )


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


def _load_state(run_dir: Path) -> dict[str, Any] | None:
    """The state of a run, None if there is none yet.

    Raises:
      UserError: the file cannot be read, or is of another stage or an older version.
    """
    state = load_state(run_dir, _STAGE)
    if state is not None and "lines" not in state:
        raise UserError(_OLDER.format(run_dir))
    return state


@contextlib.contextmanager
def _of_this_version(run_dir: Path | None) -> Iterator[None]:
    """Says which run's state it is whose weights fit no network of this version."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(_OLDER.format(run_dir)) from error


def fit_model(
    material: Material[Model, Data],
    train: np.ndarray,
    test: np.ndarray,
    charts: Charts,
    progress: Progress,
    should_stop: Callable[[], bool] = lambda: False,
    start: Sequence[dict[str, torch.Tensor]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
    state: dict[str, Any] | None = None,
    ranks: Alone = ALONE,
) -> Fitted[Model]:
    """Fits the members of a reward model one after the other; several processes fit their shares in parallel.

    A member that `stops_early` is fitted until its held-out loss stops falling, and keeps the weights of its best epoch;
    any other makes all epochs and keeps its last. All members are evaluated on the same held-out pairs.

    Args:
      material: what to fit to, and how.
      train: int64, positions in `material.data.pairs` of the pairs to fit to.
      test: int64, of the held-out pairs.
      charts: gets the curves.
      progress: gets a line each epoch.
      should_stop: asked before every update. Once true, the first member keeps its best epoch so far; any other
        unfinished member is dropped, because it would count as much as the others.
      start: weights that the first members begin with, if they are of the same form of network; any more begin with
        their own.
      keep: gets the state after every epoch, to save.
      state: such a state, to continue from.
      ranks: the processes that fit together; there is neither `start` nor `state` where these are several.

    Raises:
      Stopped: `should_stop` was true before the first epoch was over.
      UserError: the fit cannot succeed; says why.
    """
    config = material.config
    members: list[Member] = []
    held_out: list[HeldOut] = []
    history: list[Epoch] = []
    if state is not None:
        with _of_this_version(config.resume):
            members = [_again(material, kept) for kept in state["members"]]
        held_out = [HeldOut(**figures) for figures in state["held_out"]]
        history = [Epoch(**figures) for figures in state["history"]]
        for epoch in history:
            _chart(charts, config, epoch)
        progress.line(f"resuming after epoch {history[-1].epoch} of member {history[-1].member + 1}")
    numbers = []  # of the members that are fitted here
    for number in range(len(members) + ranks.rank, config.ensemble, ranks.size):
        member = material.begin(train, test, number)
        if state is not None and number == len(state["members"]):
            with _of_this_version(config.resume):
                member.load_state(state["member"])
        elif number < len(start):
            member.begin_from(start[number])
        who = f"member {number + 1} of {config.ensemble}, " if config.ensemble > 1 else ""
        began, first = time.perf_counter(), member.epoch
        for epoch in _epochs(member, number, should_stop, progress, who):
            history.append(epoch)
            _chart(charts, config, epoch)
            seconds = (time.perf_counter() - began) / (member.epoch - first)
            progress.line(who + _epoch_line(epoch, member, seconds))
            keep(
                {
                    "members": [each.saved() for each in members],
                    "held_out": list(held_out),
                    "history": list(history),
                    "member": member.state(),
                }
            )
        if should_stop() and number > 0:
            progress.line(f"stopped by request; keeping the members fitted so far, {number}")
            break
        if member.best is None:
            raise Stopped
        if should_stop():
            which = f" of member {number + 1} alone" if config.ensemble > 1 else ""
            progress.line(f"stopped by request; keeping epoch {member.best_epoch}{which}")
        member.network.load_state_dict(member.best_state)
        member.network.eval()
        held_out.append(member.best if config.frame_stride == 1 else member.held_out())
        members.append(Member(member.network, *member.statistics()))
        numbers.append(number)
        if should_stop():
            break
    if ranks.size > 1:
        for each in members:
            each.network.cpu()
        here = zip(numbers, (each.saved() for each in members), held_out, strict=True)
        all_fitted = sorted(itertools.chain(*ranks.gather(list(here))), key=lambda each: each[0])
        members = [_again(material, kept) for _, kept, _ in all_fitted]
        held_out = [result for *_, result in all_fitted]
        history = sorted(itertools.chain(*ranks.gather(history)), key=lambda epoch: epoch.member)
        for epoch in history:
            if epoch.member not in numbers:  # the others are charted already
                _chart(charts, config, epoch)
    model, best = material.model(members, held_out, test)
    return Fitted(model, best, held_out, history)


def _epochs(
    member: MemberFit, number: int, should_stop: Callable[[], bool], progress: Progress, who: str
) -> Iterator[Epoch]:
    """Makes the epochs that a member has left, until it is stopped or its loss breaks; raises UserError if the first one does."""
    while member.epochs_left() and not should_stop():
        train_loss = member.train_epoch(should_stop)
        if train_loss is None:
            return
        result, l2 = member.held_out(quick=True), member.l2
        broken = _broken(train_loss, result.loss)
        if broken is not None:
            if member.best is None:
                raise UserError(f"the fit broke: {broken}; try a smaller --lr")
            progress.line(f"{who}epoch {member.epoch + 1}: {broken}; keeping epoch {member.best_epoch}")
            return
        member.end_epoch(train_loss, result)
        yield Epoch(
            *(number, member.epoch, train_loss, result.loss, result.accuracy, l2, member.counts),
            chosen=result.chosen,
            rejected=result.rejected,
        )


def _again(material: Material[Any, Any], saved: dict[str, Any]) -> Member:
    """A member that was fitted earlier or by another process, as `Member.saved` gave it."""
    network = material.begin(np.empty(0, int), np.empty(0, int), 0).network
    network.load_state_dict(saved["state_dict"])
    return Member(network.eval(), saved["mean"], saved["std"])


def _chart(charts: Charts, config: FitConfig, epoch: Epoch) -> None:
    """Draws one epoch of one member."""
    member = f"_{epoch.member + 1}" if config.ensemble > 1 else ""
    points = {
        f"loss/train{member}": epoch.train_loss,
        f"loss/held_out{member}": epoch.held_out_loss,
        f"accuracy/held_out{member}": epoch.held_out_accuracy,
        f"rewards/chosen{member}": epoch.chosen,  # as TRL calls them
        f"rewards/rejected{member}": epoch.rejected,
    }
    charts.scalars(points | ({f"l2{member}": epoch.l2} if config.l2 else {}), epoch.epoch)


def _broken(train_loss: float, held_out_loss: float) -> str | None:
    """Which loss is unusable, and why."""
    for name, loss in (("loss", train_loss), ("held-out loss", held_out_loss)):
        if not np.isfinite(loss):
            return f"the {name} is not finite"
        if loss > _EXPLODED:
            return f"the {name} exploded to {loss:.3g}"
    return None


def _epoch_line(epoch: Epoch, member: MemberFit, seconds: float) -> str:
    """The line printed after an epoch; a star marks the best so far of a member that keeps its best."""
    best = member.stops_early and epoch.counts and member.best_epoch == epoch.epoch
    left = f"{'at least ' if member.stops_early else ''}{format_duration(member.epochs_left() * seconds)}"
    accuracy = "" if np.isnan(epoch.held_out_accuracy) else f", accuracy {epoch.held_out_accuracy:.1%}"
    return (
        f"epoch {epoch.epoch}: loss {epoch.train_loss:.3f}, held out {epoch.held_out_loss:.3f}"
        f"{accuracy}{' *' if best else ''}  "
        f"({format_duration(seconds)} each, {left} to go)"
    )
