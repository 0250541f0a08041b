"""The table of how good reward models get, from fits recorded earlier."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import Task, _table, fit_defaults, read_rows
from lib.cli import UserError
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import make_teacher
from lib.reward.config import FitConfig


def test_fits_of_a_recipe_that_is_no_more_come_last() -> None:
    rows = [
        {"recipe": name, "labels": 50, "accuracy": accuracy}
        for name, accuracy in (("gone", 0.5), ("original", 0.6), ("ours", 0.7))
    ]
    assert [line.split(" | ") for line in _table(rows).splitlines()[2:]] == [
        ["| ours", "70.0 % (1) |"],
        ["| original", "60.0 % (1) |"],
        ["| gone", "50.0 % (1) |"],
    ]


def test_fits_on_another_db_or_with_other_settings_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "score.jsonl"
    path.write_text('{"recipe": "ours", "db": "a", "test_pairs": 5}\n{"recipe": "ours"}\n')
    assert len(read_rows(path, {"db": "a"})) == 1
    assert read_rows(path, {"db": "b"}) == []
    assert read_rows(path, {"db": "a", "test_pairs": 6}) == []


def test_fits_by_other_defaults_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one mean would be of two recipes."""
    path = tmp_path / "score.jsonl"
    path.write_text(json.dumps({"recipe": "ours", **fit_defaults()}) + "\n")
    assert len(read_rows(path, fit_defaults())) == 1
    monkeypatch.setattr("benchmarks.quality.FitConfig", partial(FitConfig, lr=1e-9))
    assert read_rows(path, fit_defaults()) == []


def test_clips_that_are_all_alike_test_nothing(tmp_path: Path) -> None:
    names = [f"{number}.dat" for number in range(8)]
    with pytest.raises(UserError, match="expected clips that the teacher tells apart, found none to test on"):
        Task(SegmentDB(tmp_path), names, np.zeros(8), seed=0, test_pairs=10)


def test_more_labels_than_pairs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    names = [f"{number}.dat" for number in range(8)]
    task = Task(SegmentDB(tmp_path / "db"), names, np.arange(8.0), seed=0, test_pairs=10)
    teacher = make_teacher("score", 0.0)
    assert len(task.labels(15, teacher, 0.0)) == 15
    with pytest.raises(UserError, match="expected 16 pairs that the teacher can tell, found 15"):
        task.labels(16, teacher, 0.0)
