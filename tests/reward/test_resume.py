"""Fits that were stopped or killed go on as if they had not been."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.cli import UserError
from lib.preferences.labels import LabelLog
from lib.reward import clips as clips_module
from lib.reward import epoch as epoch_module
from lib.reward.config import FitConfig
from lib.reward.epoch import HeldOut, pair_loss, train_epoch
from lib.reward.fit import Fit, fit
from tests.reward.clips import add_labels, clip, grey_db, save


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return grey_db(tmp_path / "db", segments=30, labels=50)


def config(db: Path, out: Path, **flags: Any) -> FitConfig:
    given: dict[str, Any] = {
        **{"name": "grey", "out": out, "runs": out / "runs", "bf16": False, "ensemble": 2, "epochs": 2},
        **{"frame_stride": 2, "l2": 0.01, "dropout": 0.2, "batch_size": 8, "checkpoint_minutes": 0.0},
    }
    return FitConfig(dbs=[db], **(given | flags))


class Killed(Exception):
    """Stands for SIGKILL: nothing of ours catches it."""


def at_call(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """Has something happen when a loss is asked for the number-th time."""
    calls = 0

    def spied(config: FitConfig) -> Any:
        loss_of = pair_loss(config)

        def loss(*arguments: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == number:
                do()
            return loss_of(*arguments)

        return loss

    for module in (epoch_module, clips_module):
        monkeypatch.setattr(module, "pair_loss", spied)


def kill() -> None:
    raise Killed


def run_in(out: Path) -> Path:
    (run,) = (out / "runs").iterdir()
    return run


def end_of(fitted: Fit) -> list[torch.Tensor]:
    """All numbers that a fit comes to."""
    content = torch.load(fitted.path, weights_only=True)
    numbers = [*(torch.tensor(value) for value in fitted.best.figures().values())]
    for member in content["members"]:
        numbers += [*member["state_dict"].values(), torch.tensor([member["mean"], member["std"]])]
    return numbers


def same(one: Fit, other: Fit) -> bool:
    pairs = list(zip(end_of(one), end_of(other), strict=True))
    return one.history == other.history and all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def whole(db: Path, tmp_path: Path) -> Fit:
    return fit(config(db, tmp_path / "whole"))


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """The same, on a copy of the DB, for tests that only compare with it."""
    root = tmp_path_factory.mktemp("untouched")
    return fit(config(grey_db(root / "db", segments=30, labels=50), root / "whole"))


# An epoch asks for 5 losses or so to fit and for 2 to judge: these are in the midst of fitting and of judging, in the
# first epoch and later ones, of either member.
@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 7, 10, 17, 24])
def test_a_killed_fit_comes_to_the_same(
    number: int, db: Path, tmp_path: Path, untouched: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "killed"
    with monkeypatch.context() as patched:
        at_call(patched, number, kill)
        with pytest.raises(Killed):
            fit(config(db, out))
    assert not (out / "reward-grey.dat").exists()
    assert same(fit(config(db, out, resume=run_in(out))), untouched)


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 10, 18])
def test_an_interrupted_fit_comes_to_the_same(
    number: int,
    db: Path,
    tmp_path: Path,
    untouched: Fit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        at_call(patched, number, lambda: signal.raise_signal(signal.SIGTERM))
        stopped = fit(config(db, out, checkpoint_minutes=60))
    assert len(stopped.model.members) == 1
    assert len(stopped.history) < len(untouched.history)
    assert f"continue with --resume {run_in(out)}\n" in capsys.readouterr().out
    assert same(fit(config(db, out, resume=run_in(out))), untouched)


def test_labels_that_came_since_are_not_taken_in(
    db: Path,
    tmp_path: Path,
    whole: Fit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "killed"
    with monkeypatch.context() as patched:
        at_call(patched, 10, kill)
        with pytest.raises(Killed):
            fit(config(db, out))
    first = LabelLog(db / "labels.json").read()[0]
    name = save(db, 100, clip(90, seed=100))
    add_labels(db, [(name, first.sample1, 1), (first.sample2, name, 2)])
    changed_mind = {1: 2, 2: 1, 0: 1}[first.label or 0]
    add_labels(db, [(first.sample1, first.sample2, changed_mind)])  # and so last in the file
    gone_on = fit(config(db, out, resume=run_in(out)))
    assert f"left out: {db}: 2 labels are newer than the fit" in capsys.readouterr().out
    assert same(gone_on, whole)
    assert torch.load(gone_on.path, weights_only=True)["parents"] == {
        "dbs": whole.data.parents,
        "labels": len(whole.data.pairs),
    }


def test_labels_that_are_gone_are_said(db: Path, whole: Fit) -> None:
    (db / whole.data.labels[0].sample1).unlink()
    again = dataclasses.replace(whole.config, resume=whole.run_dir)
    with pytest.raises(UserError, match=r"of the \d+ labels that the fit began with are gone; begin a new"):
        fit(again)


def _without_lines(state: dict[str, Any]) -> None:
    del state["lines"]


def _of_another_finished_member(state: dict[str, Any]) -> None:
    state["members"][0]["state_dict"]["former.weight"] = torch.zeros(1)


def _of_another_member(state: dict[str, Any]) -> None:
    state["member"]["network"]["former.weight"] = torch.zeros(1)
    state["members"].pop()


@pytest.mark.parametrize("edit", [_without_lines, _of_another_finished_member, _of_another_member])
def test_a_state_of_an_older_version_is_refused(whole: Fit, edit: Callable[[dict[str, Any]], None]) -> None:
    path = whole.run_dir / "state.dat"
    state = torch.load(path, weights_only=True)
    edit(state)
    torch.save(state, path)
    with pytest.raises(UserError, match=r"--resume .*: its state is from an older version"):
        fit(dataclasses.replace(whole.config, resume=whole.run_dir))


def test_curves_are_not_doubled(
    db: Path, tmp_path: Path, untouched: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "killed"
    with monkeypatch.context() as patched:
        at_call(patched, 24, kill)
        with pytest.raises(Killed):
            fit(config(db, out))
    gone_on = fit(config(db, out, resume=run_in(out)))
    ours, theirs = (EventAccumulator(str(each.run_dir)).Reload() for each in (gone_on, untouched))
    assert ours.Tags()["scalars"] == theirs.Tags()["scalars"]
    for tag in theirs.Tags()["scalars"]:
        points = [(event.step, event.value) for event in ours.Scalars(tag)]
        assert points == [(event.step, event.value) for event in theirs.Scalars(tag)]
        assert [step for step, _ in points] == [1, 2]


def test_a_fit_that_is_done_says_so_again(whole: Fit, tmp_path: Path) -> None:
    again = fit(dataclasses.replace(whole.config, resume=whole.run_dir, out=tmp_path / "again"))
    assert again.path != whole.path
    assert same(again, whole)


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([0.5, float("nan")], "epoch 2: the loss is not finite; keeping epoch 1"),
        ([0.5, 1e7], r"epoch 2: the loss exploded to 1e\+07; keeping epoch 1"),
    ],
)
def test_a_broken_loss_is_named_and_the_state_before_it_kept(
    losses: list[float],
    says: str,
    db: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained, left = train_epoch, list(losses)

    def broken(network: torch.nn.Module, *rest: Any) -> float:
        trained(network, *rest)
        loss = left.pop(0)
        if loss != 0.5:
            with torch.no_grad():
                next(network.parameters()).fill_(float("nan"))
        return loss

    monkeypatch.setattr(clips_module, "train_epoch", broken)
    out = tmp_path / "broken"
    fit(config(db, out, ensemble=1, epochs=5, dropout=0.0))
    said = capsys.readouterr().out
    assert says.replace("\\", "") in said
    state = torch.load(run_in(out) / "state.dat", weights_only=True)
    assert all(bool(weight.isfinite().all()) for weight in state["member"]["network"].values())


def test_a_fit_that_breaks_at_once_names_what_broke(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clips_module, "evaluate_pairs", lambda *_: HeldOut(float("inf"), 0, 1))
    with pytest.raises(UserError, match="the fit broke: the held-out loss is not finite; try a"):
        fit(config(db, tmp_path / "broken"))
