"""How many labels are due, by closed form, and the file by which the stages know."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.preferences.labels import RECHECK, Label, LabelLog
from lib.preferences.schedule import (
    PROGRESS,
    LabelCount,
    LabelPlan,
    ProgressReader,
    ProgressWriter,
    TrainingProgress,
    labels_due,
)


def test_a_constant_rate_is_a_straight_line() -> None:
    plan = LabelPlan(steps=1000, budget=500, opening=100)
    assert [labels_due(plan, steps) for steps in (0, 1, 250, 500, 999, 1000, 2000)] == [
        *(100, 100, 200, 300, 499, 500, 500)
    ]


def test_the_papers_rate_halves_by_its_halving() -> None:
    """With r = h / (t + h): r(0) = 1, r(h) = ½; ∫₀ʰ r = h ln 2, and ∫₀³ʰ r = 2 h ln 2, so that a third has half."""
    plan = LabelPlan(steps=15_000_000, budget=5500, opening=500, schedule="paper")
    assert labels_due(plan, 0) == 500
    assert labels_due(plan, 5_000_000) == 500 + 5000 // 2
    assert labels_due(plan, 15_000_000) == 5500
    long = LabelPlan(steps=50_000_000, budget=5500, opening=500, schedule="paper")
    for steps in (1e6, 7e6, 31e6):
        assert labels_due(long, steps) == math.floor(500 + 5000 * math.log1p(steps / 5e6) / math.log(11))


@pytest.mark.parametrize("schedule", ["constant", "paper"])
def test_due_is_the_integral_of_the_rate(schedule: str) -> None:
    """Against a sum over the rate, in small steps."""
    plan = LabelPlan(steps=100_000, budget=10_000, opening=1000, schedule=schedule, halving=20_000)
    t = np.arange(100_000) + 0.5
    rate = np.ones_like(t) if schedule == "constant" else 20_000 / (t + 20_000)
    share = np.cumsum(rate) / rate.sum()
    for steps in (1, 500, 12_345, 70_000, 99_999):
        assert labels_due(plan, steps) == pytest.approx(1000 + 9000 * share[steps - 1], abs=1)


def test_what_is_due_never_falls_and_ends_at_the_budget() -> None:
    for schedule in ("constant", "paper"):
        plan = LabelPlan(steps=777, budget=101, opening=7, schedule=schedule, halving=100.0)
        due = [labels_due(plan, steps) for steps in range(778)]
        assert due == sorted(due)
        assert (due[0], due[-1]) == (7, 101)


def test_an_opening_beyond_the_budget_is_the_budget() -> None:
    assert labels_due(LabelPlan(steps=10, budget=5, opening=20), 0) == 5


def test_what_is_written_is_read(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path / "db")
    assert reader.read() is None  # no DB yet
    (tmp_path / "db").mkdir()
    assert reader.read() is None
    time = [0.0]
    writer = ProgressWriter(tmp_path / "db", lambda: time[0])
    progress = TrainingProgress(LabelPlan(1000, 50, 10), 0, "opening", "x")
    writer.write(progress)
    assert reader.read() == progress
    assert json.loads((tmp_path / "db" / PROGRESS).read_text())["due"] == 10
    # Steps alone are written once a second; anything else at once.
    training = TrainingProgress(LabelPlan(1000, 50, 10), 5, "training", "x", 3)
    writer.write(training)
    assert reader.read() == training
    later = TrainingProgress(LabelPlan(1000, 50, 10), 500, "training", "x", 3)
    writer.write(later)
    assert reader.read() == training
    time[0] = 1.0
    writer.write(later)
    assert reader.read() == later
    assert later.due == 30


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "sparse"])
def test_a_file_that_never_ends_says_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / PROGRESS
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(written())
        path.symlink_to("elsewhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(written())
        os.truncate(path, 1 << 40)
    assert ProgressReader(tmp_path).read() is None


def written(**changes: Any) -> bytes:
    plan = {"steps": 10, "budget": 5, "opening": 1, "schedule": "paper", "halving": 5.0}
    content = {
        "format": "progress",
        "version": 1,
        "plan": plan,
        "steps": 3,
        "phase": "training",
        "policy": "x",
        "reward_version": None,
    }
    content["plan"] = plan | changes.pop("plan", {})
    return json.dumps(content | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        written()[:-20],
        written(version=2),
        written(plan={"deadline": 0}),
    ],
)
def test_a_file_of_anything_else_says_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / PROGRESS).write_bytes(written())
    assert ProgressReader(tmp_path).read() is not None
    (tmp_path / PROGRESS).write_bytes(data)
    assert ProgressReader(tmp_path).read() is None


def test_labels_that_a_fit_can_use_are_counted(tmp_path: Path) -> None:
    count = LabelCount(tmp_path / "db")
    assert count.read() == 0
    (tmp_path / "db").mkdir()
    log = LabelLog(tmp_path / "db" / "labels.json")
    for pair, said in enumerate((1, 0, None, 2)):
        log.append(Label(f"00/{pair}.dat", f"01/{pair}.dat", said))
    assert count.read() == 3
    log.append(Label("01/3.dat", "00/3.dat", 2, cancelled=True))
    assert count.read() == 2
    log.append(Label("00/0.dat", "01/0.dat", 2))  # changed, not added
    assert count.read() == 2


def test_labels_that_cannot_be_read_keep_their_count_and_say_why(tmp_path: Path) -> None:
    path, count = tmp_path / "labels.json", LabelCount(tmp_path)
    LabelLog(path).append(Label("00/0.dat", "01/0.dat", 1))
    assert (count.read(), count.problem) == (1, "")
    path.rename(tmp_path / "elsewhere")
    path.mkdir()
    for _ in range(2):  # the second time nothing about the file has changed
        assert count.read() == 1
        assert count.problem == f"{path}: expected a file of labels, found a folder or device"
    path.rmdir()
    (tmp_path / "elsewhere").rename(path)
    assert (count.read(), count.problem) == (1, "")


def test_rechecks_of_other_peoples_labels_are_no_further_ones(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.json")
    log.append(Label("00/1.dat", "00/2.dat", 1, annotator="ada"))
    log.append(Label("00/1.dat", "00/2.dat", 2, annotator="bob", strategy=RECHECK))
    assert LabelCount(tmp_path).read() == 1


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"budget": "many"}, {"opening": None}, {"opening": 1.5}])
def test_a_plan_that_no_number_follows_from_is_a_broken_file(tmp_path: Path, wrong: dict[str, Any]) -> None:
    ProgressWriter(tmp_path).write(TrainingProgress(LabelPlan(100, 50, 2), 10, "training"))
    content = json.loads((tmp_path / PROGRESS).read_text())
    content["plan"] |= wrong
    (tmp_path / PROGRESS).write_text(json.dumps(content))
    assert ProgressReader(tmp_path).read() is None
