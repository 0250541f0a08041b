"""The benchmark of strategies on clips whose score is their brightness: it runs, continues, and counts right."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.strategies import (
    BenchmarkConfig,
    draw_test,
    fit_members,
    labels_needed,
    main,
    measure,
    run,
    table,
)
from lib.cli import UserError
from lib.preferences.labels import LabelLog
from lib.preferences.segment_db import SegmentDB
from lib.reward.data import PreferenceData
from tests.reward.clips import clip, forked_db, save


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The brighter, the more points."""
    root = tmp_path_factory.mktemp("grey") / "grey"
    root.mkdir()
    for number in range(40):
        grey = number * 25 % 256
        save(root, number, clip(grey, scores=[grey / 5] * 5, seed=number))
    return root


@pytest.mark.slow
def test_a_benchmark_from_end_to_end(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(db.rglob("*"))
    flags = ["--db", str(db), "--seeds", "1", "--labels", "40", "--round", "20", "--ensemble", "2"]
    flags += ["--frame-stride", "5", "--epochs", "3", "--strategies", "random", "disagreement+diversity"]
    flags += ["--error-rate", "0"]
    flags += ["--out", str(tmp_path / "results")]
    main(flags)
    rows = [
        json.loads(line) for line in (tmp_path / "results" / "strategies-grey.json").read_text().splitlines()
    ]
    assert [(row["strategy"], row["seed"], len(row["accuracies"])) for row in rows] == [
        ("random", 0, 2),
        ("disagreement+diversity", 0, 2),
    ]
    assert rows[0]["accuracies"][0] == rows[1]["accuracies"][0], "the first labels are the same"
    assert all(0 <= value <= 1 for row in rows for value in row["accuracies"])
    written = (tmp_path / "results" / "strategies-grey.md").read_text()
    assert f"| random | 1 | {100 * rows[0]['accuracies'][0]:.1f} |" in written
    assert written in capsys.readouterr().out
    assert sorted(db.rglob("*")) == before, "the DB itself is not labelled"

    monkeypatch.setattr("benchmarks.strategies.run", lambda *_: pytest.fail("made again"))
    main(flags)


def test_while_nothing_can_be_fitted_pairs_are_random(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("the reward model pays the same for everything")

    monkeypatch.setattr("benchmarks.strategies.fit_members", fail)
    config = BenchmarkConfig(db=db, labels=30, round=10)
    assert run(config, SegmentDB(db), "disagreement", 0, tmp_path) == [0.5] * 3
    labels = LabelLog(tmp_path / "labels.json").read()
    assert [label.strategy for label in labels] == ["random"] * 30


def test_a_round_of_fewer_labels_than_asked_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    for number in range(8):  # the test takes two; the others make fifteen pairs
        save(tmp_path / "db", number, clip(30 * number, scores=[float(number)] * 5))
    config = BenchmarkConfig(db=tmp_path / "db", labels=16, round=16)
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"expected 16 more pairs .* after 0 labels, found 15; record more"):
        run(config, SegmentDB(config.db), "random", 0, tmp_path / "run")


def test_continuations_of_one_moment_are_not_both_fitted_and_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked_db(tmp_path, 12)
    sides: list[set[str]] = []

    def split(_: object, data: PreferenceData, train: np.ndarray, test: np.ndarray) -> SimpleNamespace:
        numbers = [label.sample1.rpartition("/")[2] for label in data.labels]
        sides.extend({numbers[at] for at in side.tolist()} for side in (train, test))
        return SimpleNamespace(model=None)

    monkeypatch.setattr("benchmarks.strategies.fit_quietly", split)
    fit_members(BenchmarkConfig(db=tmp_path), tmp_path, seed=0)
    train, test = sides
    assert test
    assert train.isdisjoint(test)


def test_the_test_shares_no_segment_and_puts_the_better_first(db: Path) -> None:
    segments = SegmentDB(db)
    test = draw_test(segments, "score", 50, seed=3)
    names = {name for pair in test.pairs for name in pair}
    assert len(test.pairs) == 50
    assert len(test.train) == 30
    assert not names & set(test.train)
    scores = {name: segments.load(name).sidecar.scores.sum() for name in names}  # type: ignore[union-attr]
    assert all(scores[better] > scores[worse] for better, worse in test.pairs)
    assert draw_test(segments, "score", 50, seed=3) == test
    assert draw_test(segments, "score", 50, seed=4) != test


def test_clips_that_are_all_alike_test_nothing(tmp_path: Path) -> None:
    for number in range(12):
        save(tmp_path, number, clip(9))
    with pytest.raises(UserError, match="expected clips that teacher score tells apart"):
        draw_test(SegmentDB(tmp_path), "score", 5, seed=0)


def test_labels_needed_are_those_of_the_first_round_that_is_good_enough() -> None:
    assert labels_needed([0.5, 0.71, 0.69, 0.8], 0.7, 50) == 100
    assert labels_needed([0.7], 0.7, 50) == 50
    assert labels_needed([0.5, 0.6], 0.7, 50) is None


def test_the_table() -> None:
    config = BenchmarkConfig(db=Path("db"), labels=100, round=50)
    runs = [
        {"strategy": "random", "seed": seed, "accuracies": list(accuracies)}
        for seed, accuracies in enumerate(np.array([[0.5, 0.7], [0.6, 0.8], [0.55, 0.6]]))
    ]
    text = table(config, runs)
    assert "`python -m benchmarks.strategies --db db --teacher score --error-rate 0.1 --labels 100 " in text
    row = text.splitlines()[-1]
    # Student's t for two degrees of freedom, 4.303: 4.303 · 5 ÷ √3 and 4.303 · 10 ÷ √3.
    assert row == "| random | 3 | 55.0 ± 12.4 | 70.0 ± 24.8 | 100 ± 0, in 2 of 3 runs |"


def test_labels_that_no_round_would_give_are_refused() -> None:
    with pytest.raises(UserError, match="--labels 120: expected a multiple of the 50 of --round"):
        BenchmarkConfig(db=Path("db"), labels=120, round=50)


def test_a_db_too_small(tmp_path: Path) -> None:
    save(tmp_path, 0, clip(9))
    with pytest.raises(UserError, match="expected enough clips for 300 labels, found 1"):
        measure(BenchmarkConfig(db=tmp_path, out=tmp_path / "out"))
