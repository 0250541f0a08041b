"""Refitting the reward model while labels come in: `03_reward_train.py --watch`.

Each model starts from the weights of the last one, or with --fresh-weights from new ones, and replaces it in
OUT/reward-NAME.dat by an atomic rename; versions count up. That file is the whole state: after a kill at any
moment the same command continues from the last model.
"""

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.checkpoints import check_weights, load_checkpoint
from lib.cli import UserError
from lib.devices import resolve_device
from lib.files import remove_stale
from lib.interrupt import Interrupt, Stopped
from lib.preferences.schedule import LEAST_LABELS, LabelCount, ProgressReader, labels_due
from lib.reporting import Charts, Progress
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.data import Labelled, Pairs, check_enough
from lib.reward.fit import check_writable, fit_model
from lib.reward.member import Material
from lib.reward.split import Unit, grown_split, split_by_segment
from lib.runs import Timer, check_name, locked, make_run_dir, write_config

_POLL_SECONDS = 0.5
_RETRY_MINUTES = 1.0


@dataclasses.dataclass
class _Published:
    """The facts about the last model that the next refit needs."""

    version: int = 0
    """0: there is no model yet."""
    labels: int = 0
    """The number of labels, whether or not all could be fitted on."""
    weights: Sequence[dict[str, torch.Tensor]] = ()
    """Of its members."""
    trained: frozenset[Unit] = frozenset()
    """The units that any version was fitted to."""
    held: frozenset[Unit] = frozenset()
    """The units that any version was evaluated on."""


def labels_wanted(version: int, before: int, refit_every: int, opening: int | None) -> int:
    """The number of labels that the next fit waits for.

    Args:
      version: of the last model; 0 for none.
      before: labels that there were when it was fitted.
      refit_every: new labels for each refit.
      opening: labels that the opening of a training run asks for; None without such a run.

    Returns:
      For the first fit those of the opening, or else `refit_every`, but at least ten.
    """
    if version:
        return before + refit_every
    return max(LEAST_LABELS, refit_every if opening is None else opening)


def keep_refitting(config: FitConfig, kind: type[Material[Any, Any]] = Clips) -> None:
    """Fits, waits for labels, refits, and so on until interrupted.

    DBs and labels may still be missing at the start. A fit that fails (too few labels to hold some out, a full disk) is
    reported in one line, and tried again when the next labels are in; while there is no model, also each minute, because a
    training that waits for the first one asks for no further labels.

    Raises:
      UserError: the flags are wrong; says what to do.
    """
    resolve_device(config.dev)  # refused now, rather than at the first fit
    check_name(config.name)
    path = config.reward_path
    check_writable(path)
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress())
        run_dir = make_run_dir(config.runs, "reward", config.name)
        stack.enter_context(locked(run_dir))
        write_config(run_dir, dataclasses.asdict(config))
        charts = stack.enter_context(Charts(run_dir))
        interrupt = stack.enter_context(Interrupt())
        remove_stale(path.parent)
        before = _last(config, progress)
        progress.line(
            f"watching the labels of {', '.join(map(str, config.dbs))}; "
            + (
                f"starting from version {before.version} in {path}"
                if before.version
                else f"models go to {path}"
            )
            + f"; curves in {run_dir}"
        )
        for db in config.dbs:
            if not db.exists():
                progress.line(f"{db.absolute()} is not there yet; waiting for it")
        counts = [LabelCount(db) for db in config.dbs]
        trainings = [ProgressReader(db) for db in config.dbs]
        tried, retry = 0, Timer(_RETRY_MINUTES)  # labels of the last attempt, if it failed
        while not interrupt.asked:
            labels = sum(count.read() for count in counts)
            openings = [labels_due(found.plan, 0) for training in trainings if (found := training.read())]
            wanted = labels_wanted(
                before.version, before.labels, config.refit_every, sum(openings) if openings else None
            )
            if tried:
                wanted = max(wanted, tried + config.refit_every)
            if labels < wanted and (before.version or not tried or not retry.due()):
                unread = "".join(f"; {count.problem}" for count in counts if count.problem)
                progress.update(f"version {before.version}: {labels} labels, refitting at {wanted}{unread}")
                time.sleep(_POLL_SECONDS)
                continue
            try:
                before, tried = _refit(config, kind, before, counts, charts, progress, interrupt), 0
            except Stopped:
                progress.line("dropped the unfinished fit")
            except (OSError, UserError) as error:
                tried = labels
                retry.restart()
                progress.line(
                    f"no new model: {error}; trying again at {max(wanted, tried + config.refit_every)} labels"
                    + ("" if before.version else " or in a minute")
                )
        progress.line(
            f"stopped by request, version {before.version} is in {path}; the same command continues from it"
            if before.version
            else "stopped by request before there was a model"
        )


def _last(config: FitConfig, progress: Progress) -> _Published:
    """The content of the model's file; a new start if there is no file, or none of --watch."""
    path = config.reward_path
    if not path.exists():
        return _Published()
    try:
        content = load_checkpoint(path, "reward")
        refit = content.get("refit")
        for member in content["members"]:
            check_weights(member["state_dict"], str(path))
        if type(content.get("version")) is not int or not isinstance(refit, dict):
            raise UserError(f"{path}: not a model of --watch")
        return _Published(
            content["version"],
            int(refit["labels"]),
            [member["state_dict"] for member in content["members"]],
            # Older files spell a DB as the command line did.
            *(
                frozenset((db and str(Path(db).resolve()), str(name)) for db, name in refit[side])
                for side in ("trained", "held")
            ),
        )
    except (UserError, KeyError, TypeError, ValueError) as error:
        progress.line(f"beginning with new weights: {error}")
        return _Published()


def _refit(
    config: FitConfig,
    kind: type[Material[Any, Any]],
    before: _Published,
    counts: Sequence[LabelCount],
    charts: Charts,
    progress: Progress,
    interrupt: Interrupt,
) -> _Published:
    """Fits a model to the labels that there are now, and publishes it.

    Args:
      counts: of each DB. One without labels is left out; one whose labels cannot be read is not, or the model would
        lack what an earlier one was fitted to.

    Raises:
      UserError, OSError: the fit failed.
      Stopped: interrupted.
    """
    version, labels = before.version + 1, sum(count.read() for count in counts)
    material = kind(
        dataclasses.replace(
            config,
            dbs=[db for db, count in zip(config.dbs, counts, strict=True) if count.read() or count.problem],
            seed=config.seed + before.version,  # another order, and new weights where it begins anew
        )
    )
    data = material.data
    for problem in data.problems:
        progress.line(f"left out: {problem}")
    check_enough(data.pairs)
    pairs, names = material.units()
    before = _without_strangers(before, config.dbs, progress)
    train, test = _split(config, data, pairs, names, before, progress)
    start = () if config.fresh_weights else _fitting(before.weights, material)
    begins, new = "", config.ensemble - len(start)
    if not new:
        material.config = dataclasses.replace(material.config, epochs=config.refit_epochs)
        begins = f", starting from version {before.version}"
    elif before.weights and not config.fresh_weights:
        begins = ", beginning with new weights" + (f" in {new} of {config.ensemble} members" if start else "")
    progress.line(
        f"version {version}: {len(pairs)} labels, {len(train)} to fit, {len(test)} held out{begins}"
    )
    fitted = fit_model(
        *(material, train, test, Charts(None), progress),
        should_stop=lambda: interrupt.asked,
        start=start,
    )
    if interrupt.asked:  # maybe before its last epoch
        raise Stopped
    if _last(config, progress).version > before.version:
        raise UserError(
            f"another --watch has written version {version} to {config.reward_path} meanwhile; stop one of them"
        )
    trained = before.trained | _units(pairs.subset(train), names)
    held = before.held | _units(pairs.subset(test), names)
    refit = {"labels": labels, "trained": sorted(trained), "held": sorted(held)}
    material.save(
        config.reward_path,
        fitted.model,
        dataclasses.asdict(config),
        material.parents(),
        fitted.results(),
        {"version": version, "refit": refit},
    )
    best = fitted.best
    charts.scalars(
        {"labels": len(pairs), "loss/held_out": best.loss, "accuracy/held_out": best.accuracy}, version
    )
    charts.flush()
    progress.line(f"version {version}: held-out {best}; saved {config.reward_path}")
    weights = [member.network.state_dict() for member in fitted.model.members]
    return _Published(version, labels, weights, trained, held)


def _fitting(
    weights: Sequence[dict[str, torch.Tensor]], material: Material[Any, Any]
) -> Sequence[dict[str, torch.Tensor]]:
    """The weights that members can begin with; none if flags have changed the form of the network."""
    nothing = np.empty(0, int)
    fit = weights and material.begin(nothing, nothing, 0).begin_from(weights[0])
    return weights[: material.config.ensemble] if fit else ()


def _units(pairs: Pairs, names: list[Unit]) -> frozenset[Unit]:
    """The units of some pairs."""
    return frozenset(names[i] for i in {*pairs.first.tolist(), *pairs.second.tolist()})


def _split(
    config: FitConfig,
    data: Labelled,
    pairs: Pairs,
    names: list[Unit],
    before: _Published,
    progress: Progress,
) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out pairs; no unit ever changes sides."""
    trained, held = (
        np.array([name in side for name in names], bool) for side in (before.trained, before.held)
    )
    eligible = data.at_random & ~trained[pairs.first] & ~trained[pairs.second]
    if not eligible.any():  # training waits for a model of these few
        progress.line("no pair drawn at random can be held out: judging by pairs that a strategy chose")
        eligible = np.ones(len(pairs), bool)
    if not before.version:
        return split_by_segment(pairs, config.held_out, config.seed, eligible, data.db_of)
    return grown_split(pairs, config.held_out, config.seed + before.version, eligible, trained, held)


def _without_strangers(before: _Published, dbs: Sequence[Path], progress: Progress) -> _Published:
    """The last model's facts; without its weights where it was fitted to a DB that is not among these.

    It may have moved, and then nothing tells which of its clips were held out.
    """
    here = {"", *(str(db.resolve()) for db in dbs)}  # "": answers are known by their prompts alone
    gone = sorted({db for db, _ in before.trained | before.held} - here)
    if not gone:
        return before
    progress.line(
        f"beginning with new weights: version {before.version} knows clips of {', '.join(gone)}, which is no DB of this fit"
    )
    return dataclasses.replace(
        before,
        weights=(),
        trained=frozenset(unit for unit in before.trained if unit[0] not in gone),
        held=frozenset(unit for unit in before.held if unit[0] not in gone),
    )
