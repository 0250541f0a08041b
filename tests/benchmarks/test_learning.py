"""The verdict on learning, and the way to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learning
from lib.cli import UserError


def test_ours_may_be_lower_within_the_interval_of_the_plain_loop() -> None:
    # Mean 200, standard deviation 100: the interval is ± 4.303 · 100 / √3 = 248.
    theirs = [100.0, 200.0, 300.0]
    assert learning.verdict([0.0, 0.0, 0.0], theirs, "").met is True
    assert learning.verdict([-49.0, -49.0, -49.0], theirs, "").met is False
    row = learning.verdict([300.0, 200.0, 400.0], theirs, "")
    assert (row.ours, row.theirs, row.ratio) == (300.0, 200.0, 1.5)
    assert "plain 200.0 ± 248.4" in row.note
    assert "300, 200, 400 and 100, 200, 300" in row.note


@pytest.mark.slow
def test_runs_are_paired_by_seed_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def score(config: learning.LearningConfig, seed: int, changes: dict[str, Any], folder: Path) -> float:
        assert folder.is_dir()
        asked.append((seed, changes))
        return 100.0 + seed + (5.0 if changes else 0.0)

    monkeypatch.setattr(learning, "final_score", score)
    learning.main(["--seeds", "2", "--steps", "1k", "--theirs", "num-envs=64", "--out", str(tmp_path)])
    plain = {"num_envs": 64}
    assert asked == [(0, {}), (0, plain), (1, {}), (1, plain)]
    content = json.loads(next(tmp_path.glob("*-learning.json")).read_text())
    assert content["rows"][0]["ours"] == 100.5
    assert content["rows"][0]["theirs"] == 105.5
    assert "| 100 points | 106 points |" in capsys.readouterr().out


def test_a_run_is_trained_and_judged(tmp_path: Path) -> None:
    config = learning.LearningConfig(steps=200, games=2)
    changes = {"env": "MovingDot-v0", "num_envs": 2, "bf16": False}
    score = learning.final_score(config, 0, changes, tmp_path)
    assert 0 < score < 100
    (kept,) = tmp_path.glob("*/config.json")
    settings = json.loads(kept.read_text())["config"]
    assert settings["bf16"] is False
    assert settings["steps"] == 200


def test_what_the_title_says_is_what_was_trained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="steps: it is set for ours and theirs alike; leave it out"):
        learning.final_score(learning.LearningConfig(), 0, {"steps": 1000}, tmp_path)


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.dat: .* no such file"):
        learning.final_score(learning.LearningConfig(), 0, {"model": Path("none.dat")}, tmp_path)


def test_nothing_is_compared_with_itself() -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        learning.main(["--ours", "bf16=no", "num-envs=16"])
    with pytest.raises(UserError, match="nothing to compare"):
        learning.main(["--ours", "bf16=no", "--theirs", "bf16=no", "lr=7e-4"])  # the default rate
