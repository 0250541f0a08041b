"""Refits while labels come in: when, from what, judged by what, and what a kill or a broken file costs."""

import dataclasses
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lib.cli import UserError
from lib.preferences.labels import LabelLog
from lib.preferences.schedule import LabelPlan, ProgressWriter, TrainingProgress
from lib.reward import fit, refit
from lib.reward.checkpoints import load_reward_model
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.data import Pairs
from lib.reward.refit import labels_wanted
from lib.reward.split import grown_split
from tests.reward.clips import add_labels, grey_db
from tests.scripts import Forked

ROOT = Path(__file__).parents[2]


def test_the_first_fit_is_at_the_openings_labels_and_refits_follow() -> None:
    assert labels_wanted(0, 0, 50, opening=500) == 500
    assert labels_wanted(0, 0, 50, opening=None) == 50
    assert labels_wanted(0, 0, 3, opening=None) == 10
    assert labels_wanted(0, 0, 3, opening=0) == 10
    assert labels_wanted(4, 620, 50, opening=500) == 670


def some_pairs(*ends: tuple[int, int]) -> Pairs:
    first, second = np.array(ends).T
    return Pairs(first, second, np.ones(len(ends), np.float32), np.ones(len(ends), np.float32))


def flags(count: int, *which: int) -> np.ndarray:
    return np.isin(np.arange(count), which)


def test_no_segment_ever_changes_its_side() -> None:
    """Pairs 0 and 1 were trained on, pair 2 was held out; 3 joins trained, 4 joins held, 5 tears, 6 and 7 are new."""
    pairs = some_pairs((0, 1), (1, 2), (3, 4), (2, 5), (4, 6), (0, 3), (7, 8), (9, 10))
    train, test = grown_split(pairs, 0.25, 0, np.ones(8, bool), flags(11, 0, 1, 2), flags(11, 3, 4))
    assert len(test) == 2  # a quarter
    assert 2 in test
    assert set(test) <= {2, 4, 6, 7}
    assert {0, 1, 3} <= set(train)
    assert 5 not in {*train, *test}
    # What asks about clips of its own choice judges nobody; with half of them wanted, all that may be are held out.
    eligible = flags(8, 2, 7)
    train, test = grown_split(pairs, 0.5, 0, eligible, flags(11, 0, 1, 2), flags(11, 3, 4))
    assert test.tolist() == [2, 7]
    assert train.tolist() == [0, 1, 3, 6]


def test_growing_splits_never_judge_by_what_was_trained_on() -> None:
    rng = np.random.default_rng(0)
    ends = [tuple(rng.choice(40 + number // 4, 2, replace=False)) for number in range(400)]
    trained, held = np.zeros(200, bool), np.zeros(200, bool)
    for count in range(40, 401, 20):
        pairs = some_pairs(*ends[:count])
        train, test = grown_split(pairs, 0.2, count, np.ones(count, bool), trained, held)
        on_train, on_test = (np.union1d(pairs.first[rows], pairs.second[rows]) for rows in (train, test))
        assert not held[on_train].any()
        assert not trained[on_test].any()
        trained[on_train], held[on_test] = True, True
        assert not (trained & held).any()
    assert len(test) >= 8


def test_a_side_without_pairs_is_said() -> None:
    with pytest.raises(UserError, match="none of the 2 labels is left to judge by"):
        grown_split(some_pairs((0, 1), (1, 2)), 0.5, 0, np.zeros(2, bool), flags(3), flags(3))


def config(root: Path, **further: Any) -> FitConfig:
    small: dict[str, Any] = {
        **{"dbs": [root / "db"], "name": "x", "out": root / "rewards", "runs": root / "runs", "bf16": False},
        **{"epochs": 2, "refit_epochs": 1, "frame_stride": 2, "refit_every": 10, "watch": True},
    }
    return FitConfig(**(small | further))


def drive(monkeypatch: pytest.MonkeyPatch, *happens: Callable[[], object]) -> None:
    """Watches; whenever there is nothing to do the next thing happens, and at last Ctrl-C."""
    left = [*happens, lambda: signal.raise_signal(signal.SIGINT)]
    # The watch's alone: whoever waits for a process sleeps too.
    monkeypatch.setattr(refit, "time", SimpleNamespace(sleep=lambda seconds: left.pop(0)()))


def more(db: Path, of: Path, count: int) -> Callable[[], None]:
    """So many labels more, out of those of another DB with the same segments."""

    def add() -> None:
        have = len(LabelLog(db / "labels.json").read())
        add_labels(
            db,
            (
                (label.sample1, label.sample2, label.label)
                for label in LabelLog(of / "labels.json").read()[have : have + count]
            ),
        )

    return add


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_db(tmp_path_factory.mktemp("grey") / "db", segments=40, labels=80)


def unlabelled(grey: Path, db: Path) -> Path:
    """Copies a DB without its labels; returns the copy."""
    shutil.copytree(grey, db, ignore=shutil.ignore_patterns("labels.json"))
    return db


def published(root: Path) -> dict[str, Any]:
    return torch.load(root / "rewards" / "reward-x.dat", weights_only=True)


@pytest.mark.slow
def test_it_waits_for_a_db_and_for_labels_and_refits_as_they_come(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = tmp_path / "db"
    seen: list[dict[str, Any]] = []

    def look() -> None:
        seen.append(published(tmp_path))

    def training_says() -> None:
        ProgressWriter(db).write(TrainingProgress(LabelPlan(100, 90, 30), 0, "opening"))

    drive(
        monkeypatch,
        lambda: unlabelled(grey, db),
        training_says,
        more(db, grey, 20),  # which would be enough, but for the opening
        lambda: time.monotonic(),
        more(db, grey, 12),
        look,
        more(db, grey, 9),
        look,
        more(db, grey, 1),
        look,
    )
    refit.keep_refitting(config(tmp_path))
    assert [(model["version"], model["parents"]["labels"]) for model in seen] == [(1, 32), (1, 32), (2, 42)]
    assert all(model["members"][0]["std"] > 0 for model in seen)
    first, second = (
        {side: set(model["refit"][side]) for side in ("trained", "held")} for model in (seen[0], seen[2])
    )
    assert first["trained"] <= second["trained"]
    assert first["held"] <= second["held"]
    assert not second["trained"] & second["held"]
    said = capsys.readouterr().out
    assert f"{db} is not there yet; waiting for it" in said
    assert "version 2: 42 labels" in said
    assert "starting from version 1" in said
    assert "stopped by request, version 2 is in" in said
    (run,) = (tmp_path / "runs").iterdir()
    assert list(run.glob("events*"))


def test_a_refit_begins_with_the_weights_before_it(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learning rate of nothing it also ends with them, whatever the seed; so it does after a new start."""
    db = unlabelled(grey, tmp_path / "db")
    drive(monkeypatch, more(db, grey, 30))
    refit.keep_refitting(config(tmp_path, ensemble=2))
    before = published(tmp_path)["members"]
    drive(monkeypatch, more(db, grey, 10), more(db, grey, 10))
    refit.keep_refitting(config(tmp_path, ensemble=3, lr=0.0, seed=9))
    after = published(tmp_path)
    assert after["version"] == 3
    assert len(after["members"]) == 3

    def weights(member: dict[str, Any]) -> torch.Tensor:
        return torch.cat([v.flatten() for k, v in member["state_dict"].items() if k.endswith("0.weight")])

    assert torch.equal(weights(before[0]), weights(after["members"][0]))
    assert torch.equal(weights(before[1]), weights(after["members"][1]))
    assert load_reward_model(tmp_path / "rewards" / "reward-x.dat").origin["version"] == 3


def noted_fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each fit from now on, its epochs and how many members begin with earlier weights."""
    started: list[tuple[int, int]] = []

    def fit_model(material: Any, *args: Any, **options: Any) -> Any:
        started.append((material.config.epochs, len(options["start"])))
        return fit.fit_model(material, *args, **options)

    monkeypatch.setattr(refit, "fit_model", fit_model)
    return started


def test_what_was_once_trained_on_or_held_out_stays_so_though_its_labels_are_taken_back(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    first: dict[str, Any] = {}

    def take_back() -> None:
        first.update(published(tmp_path)["refit"])
        held, log = {name for _, name in first["held"]}, LabelLog(db / "labels.json")
        for number, label in enumerate(log.read()):
            if number < 8 or held & {*label.pair}:
                log.append(dataclasses.replace(label, cancelled=True))

    def label_others() -> None:
        lines = LabelLog(grey / "labels.json").read()[40:70]
        add_labels(db, ((line.sample1, line.sample2, line.label) for line in lines))

    drive(monkeypatch, more(db, grey, 40), take_back, label_others)
    refit.keep_refitting(config(tmp_path))
    assert published(tmp_path)["version"] == 2
    for side in ("trained", "held"):
        assert set(first[side]) <= set(published(tmp_path)["refit"][side]), side


def test_of_two_that_write_one_model_the_second_says_so(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = unlabelled(grey, tmp_path / "db")

    def other() -> None:  # another process fits the 30 labels first
        monkeypatch.setattr(refit, "_last", lambda *_: refit._Published(version=2))

    drive(monkeypatch, more(db, grey, 20), other, more(db, grey, 10), lambda: None)
    refit.keep_refitting(config(tmp_path))
    said = capsys.readouterr().out
    assert "another --watch has written version 2 to" in said
    assert published(tmp_path)["version"] == 1


def test_a_refit_may_begin_with_new_weights(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    started = noted_fits(monkeypatch)
    drive(monkeypatch, more(db, grey, 30), more(db, grey, 10))
    refit.keep_refitting(config(tmp_path, fresh_weights=True))
    assert started == [(2, 0), (2, 0)]
    assert published(tmp_path)["version"] == 2
    assert "starting from version" not in capsys.readouterr().out


def test_weights_of_another_form_are_followed_by_new_ones_and_as_many_epochs_as_at_first(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    started = noted_fits(monkeypatch)
    seen = {"input": "observation"}
    for changed in ({}, seen, seen | {"ensemble": 2}, seen | {"ensemble": 2}):
        drive(monkeypatch, more(db, grey, 12))
        refit.keep_refitting(config(tmp_path, **changed))
    assert started == [(2, 0), (2, 0), (2, 1), (1, 2)]
    said = [line for line in capsys.readouterr().out.splitlines() if "held out" in line and "labels," in line]
    assert [line.partition(" held out")[2] for line in said] == [
        "",
        ", beginning with new weights",
        ", beginning with new weights in 1 of 2 members",
        ", starting from version 3",
    ]


def test_a_fit_that_comes_to_nothing_costs_itself_only(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    names = sorted(str(path.relative_to(db)) for path in db.glob("*/*.dat"))
    again = [(names[0], names[1], 1)]
    for person in range(12):
        add_labels(db, again, annotator=f"person {person}")  # one pair cannot be on both sides
    drive(monkeypatch, lambda: None, more(db, grey, 10), more(db, grey, 60))
    refit.keep_refitting(config(tmp_path))
    said = capsys.readouterr().out
    assert "no new model: 12 labels are too few to fit on some and judge by others" in said
    assert "trying again at 22 labels" in said
    assert published(tmp_path)["version"] >= 1


def test_a_first_fit_that_failed_is_tried_again_without_further_labels(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training that waits for the first model asks for the labels of its opening alone."""
    db = unlabelled(grey, tmp_path / "db")
    ProgressWriter(db).write(TrainingProgress(LabelPlan(100, budget=80, opening=20), 0, "waiting"))
    full = [OSError(28, "No space left on device")]

    def save(*args: Any) -> None:
        if full:
            raise full.pop()
        Clips.save(*args)

    monkeypatch.setattr(refit, "_RETRY_MINUTES", 0.0)
    drive(monkeypatch, more(db, grey, 20))
    refit.keep_refitting(
        config(tmp_path, refit_every=50), type("FullDisk", (Clips,), {"save": staticmethod(save)})
    )
    assert "No space left on device; trying again at 70 labels or in a minute" in capsys.readouterr().out
    assert published(tmp_path)["version"] == 1


def test_labels_that_are_not_fitted_on_bring_no_refit(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them are somebody else's: what counts is how many came, at the fit as after a new start."""
    db = unlabelled(grey, tmp_path / "db")
    for number, label in enumerate(LabelLog(grey / "labels.json").read()[:60]):
        add_labels(db, [(label.sample1, label.sample2, label.label)], annotator=("ada", "bob")[number % 2])
    idle = [lambda: None] * 3
    drive(monkeypatch, *idle)
    refit.keep_refitting(config(tmp_path, only=["ada"]))
    drive(monkeypatch, *idle)
    refit.keep_refitting(config(tmp_path, only=["ada"]))
    assert published(tmp_path)["version"] == 1
    assert published(tmp_path)["parents"]["labels"] <= 30


def test_a_handful_of_labels_brings_no_model(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are twenty, and none but three of them are fitted on."""
    db = unlabelled(grey, tmp_path / "db")
    for number, label in enumerate(LabelLog(grey / "labels.json").read()[:20]):
        add_labels(
            db, [(label.sample1, label.sample2, label.label)], annotator="ada" if number < 3 else "bob"
        )
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path, only=["ada"]))
    assert "no new model: expected at least 10 labels to fit on, found 3" in capsys.readouterr().out
    assert not (tmp_path / "rewards" / "reward-x.dat").exists()


def test_a_db_is_known_again_however_its_path_is_spelt(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    more(db, grey, 40)()
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path))
    before = published(tmp_path)["refit"]
    more(db, grey, 40)()
    drive(monkeypatch)
    (tmp_path / "link").symlink_to(db)
    refit.keep_refitting(config(tmp_path, dbs=[tmp_path / "link"]))
    after = published(tmp_path)
    assert after["version"] == 2
    names = {side: {name for _, name in after["refit"][side]} for side in ("trained", "held")}
    assert names["trained"].isdisjoint(names["held"])
    assert {name for _, name in before["trained"]} <= names["trained"]


def test_what_was_fitted_to_a_db_stays_fitted_to_it_in_another_folder(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    more(db, grey, 40)()
    monkeypatch.chdir(tmp_path)
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path, dbs=[Path("db")]))
    more(db, grey, 40)()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path, dbs=[Path("../db")]))
    after = published(tmp_path)["refit"]
    assert {db for side in ("trained", "held") for db, _ in after[side]} == {str(tmp_path / "db")}
    assert set(map(tuple, after["trained"])).isdisjoint(map(tuple, after["held"]))


def test_a_db_that_moved_is_fitted_to_with_new_weights(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of its clips were held out is not known, and judging by the others would flatter."""
    db = unlabelled(grey, tmp_path / "db")
    more(db, grey, 40)()
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path))
    moved = db.rename(tmp_path / "moved")
    more(moved, grey, 40)()
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path, dbs=[moved]))
    said = capsys.readouterr().out
    assert f"beginning with new weights: version 1 knows clips of {db}, which is no DB of this fit" in said
    assert "held out, starting from version" not in said
    after = published(tmp_path)["refit"]
    assert {db for side in ("trained", "held") for db, _ in after[side]} == {str(moved)}


def test_models_are_judged_by_chosen_pairs_where_there_are_no_others(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    lines = LabelLog(grey / "labels.json").read()

    def add(count: int, strategy: str) -> Callable[[], None]:
        def append() -> None:
            for label in lines[:count]:
                LabelLog(db / "labels.json").append(dataclasses.replace(label, strategy=strategy))
            del lines[:count]

        return append

    names = {name for label in lines[:20] for name in label.pair}
    # First the pairs of known clips, which cannot be held out.
    lines[20:] = sorted(lines[20:], key=lambda label: sum(name not in names for name in label.pair))
    drive(monkeypatch, add(20, "recent"), add(10, "recent"), add(12, "random"))
    refit.keep_refitting(config(tmp_path))
    said = "no pair drawn at random can be held out: judging by pairs that a strategy chose"
    assert capsys.readouterr().out.count(said) == 3
    assert published(tmp_path)["version"] == 3


def test_labels_that_cannot_be_read_are_named_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "db" / "labels.json").mkdir(parents=True)
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path))
    assert "0 labels, refitting at 10; " in capsys.readouterr().out


def test_no_model_leaves_out_a_db_whose_labels_cannot_be_read_for_a_while(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = unlabelled(grey, tmp_path / "db"), unlabelled(grey, tmp_path / "two")
    more(two, grey, 30)()
    labels, away = two / "labels.json", tmp_path / "away"
    labels.rename(away)
    labels.mkdir()

    def mend() -> None:
        labels.rmdir()
        away.rename(labels)

    drive(monkeypatch, more(one, grey, 10), mend, more(one, grey, 10))
    refit.keep_refitting(config(tmp_path, dbs=[one, two]))
    assert "no new model: " in capsys.readouterr().out
    assert published(tmp_path)["version"] == 2
    assert published(tmp_path)["refit"]["labels"] == 50


def test_an_opening_never_asks_for_more_than_all_labels(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = unlabelled(grey, tmp_path / "db")
    ProgressWriter(db).write(TrainingProgress(LabelPlan(100, budget=20, opening=500), 0, "opening"))
    drive(monkeypatch, more(db, grey, 20))
    refit.keep_refitting(config(tmp_path))
    assert published(tmp_path)["version"] == 1


def test_a_broken_model_in_place_is_followed_by_a_new_beginning(
    tmp_path: Path, grey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(grey, tmp_path / "db")
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "reward-x.dat").write_bytes(b"PK half")
    drive(monkeypatch)
    refit.keep_refitting(config(tmp_path))
    assert "beginning with new weights: " in capsys.readouterr().out
    assert published(tmp_path)["version"] == 1


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_from_the_last_whole_model(tmp_path: Path, grey: Path) -> None:
    """Through the command line, by SIGKILL, several times: versions count up and each file is whole."""
    db = unlabelled(grey, tmp_path / "db")
    more(db, grey, 20)()
    command = [
        *(str(ROOT / "03_reward_train.py"), "-n", "x", "-o", "rewards", "db", "--watch"),
        *("--refit-every", "10", "--epochs", "3", "--refit-epochs", "3", "--frame-stride", "2"),
    ]
    versions = []
    for wanted in (1, 2, 3):
        process = Forked(command, {}, tmp_path)
        try:
            for line in process.stdout:
                if line.startswith(f"version {wanted}:") and "saved" in line:
                    more(db, grey, 20)()  # the next refit begins, and is killed in its midst
                if line.startswith(f"version {wanted + 1}:"):
                    break
            if wanted == 3:
                process.send_signal(signal.SIGTERM)
                said = process.communicate(timeout=600)[0]
                assert process.wait() == 0
                assert "dropped the unfinished fit" in said
                assert "version 3 is in rewards/reward-x.dat" in said
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        versions.append(published(tmp_path)["version"])
    assert versions == [1, 2, 3]


def test_flags_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave out --resume and --audit"):
        config(tmp_path, resume=tmp_path)
    with pytest.raises(UserError, match="--fresh-weights expects refits: add --watch"):
        config(tmp_path, watch=False, fresh_weights=True)
