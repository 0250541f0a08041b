"""The rounds: who is asked about what, every command as its script reads it, and the table by hand."""

import json
import os
import signal
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import rounds
from experiments.pipeline import TimeUp
from experiments.rounds import RoundsConfig, learn_from_comparisons, shares, table
from lib.agent.config import TrainConfig
from lib.preferences.labels import Label, LabelLog
from lib.runs import STATE
from tests.experiments.paper import Paper


def test_old_and_new_clips_are_asked_about() -> None:
    assert shares(100, 1) == [100]
    assert shares(100, 2) == [50, 50]
    assert shares(100, 3) == [25, 25, 50]
    assert shares(7, 3) == [1, 2, 4]
    assert all(sum(shares(labels, round)) == labels for labels in (2, 13, 100) for round in range(1, 6))


def test_every_stage_in_its_order(tmp_path: Path) -> None:
    out = tmp_path / "with space"
    out.mkdir()
    config = RoundsConfig(out=out, seed=7, rounds=2, labels=10, dev="cuda:1")
    paper = Paper(out)
    learn_from_comparisons(config, paper)
    assert list(paper.read) == [
        *("v0", "measures-v0", "videos-v0"),
        *("labels-1-v0", "r1", "v1", "measures-v1", "videos-v1"),
        *("labels-2-v0", "labels-2-v1", "r2", "v2", "measures-v2", "videos-v2"),
    ]
    v0, v2, r2 = paper.read["v0"], paper.read["v2"], paper.read["r2"]
    assert (v0.reward, v0.model, v0.steps, v0.seed, v0.dev) == (None, None, 600_000, 7, "cuda:1")
    assert v0.record_prob == pytest.approx(1000 / 600_000, rel=1e-2)
    assert (v2.model, v2.reward) == (out / "v1" / "latest.dat", r2.out / "reward-r2.dat")
    assert (v2.finetune, v2.algo, v2.teacher, v2.steps) == (True, "ppo", "seaquest", 200_000)
    assert v2.kl > 0
    assert r2.dbs == [out / "db" / "v0", out / "db" / "v1"] == [v0.db_path, paper.read["v1"].db_path]
    assert r2.ensemble == 3
    labels = paper.read["labels-2-v1"]
    assert (labels.teacher, labels.count, labels.error_rate) == ("seaquest", 5, 0.1)
    assert paper.read["labels-2-v0"].count == 5
    judged = paper.read["measures-v2"]
    assert (judged.model, judged.reward) == (out / "v2" / "latest.dat", v2.reward)
    assert judged.reference == out / "v0" / "latest.dat"
    # Each path is removed by one stage only.
    removed = [path for paths in paper.made.values() for path in paths]
    assert len(set(removed)) == len(removed)
    assert out / "db" / "v1" in removed


def test_labels_are_given_once(tmp_path: Path) -> None:
    """An attempt that was stopped has given three of ten."""
    db = tmp_path / "db" / "v0"
    db.mkdir(parents=True)
    log = LabelLog(db / "labels.json")
    for pair, said in enumerate((1, 0, 2, None)):  # None, cannot tell, is no answer
        log.append(Label(f"{pair}/a.dat", f"{pair}/b.dat", said))
    paper = Paper(tmp_path)
    paper.label("labels", "", db, "seaquest", labels=10, error_rate=0.1, seed=0)
    assert paper.read["labels"].count == 7
    paper.label("none are missing", "", db, "seaquest", labels=10, error_rate=0.1, seed=0)
    assert list(paper.read) == ["labels"]


def test_the_gpu_preset_is_the_originals_budget() -> None:
    config = RoundsConfig(preset="gpu")
    assert (config.v0_steps, config.steps, config.rounds, config.labels) == (12_000_000, 2_000_000, 3, 100)
    assert RoundsConfig(preset="gpu", steps=5).steps == 5
    assert config.games >= 20
    assert config.lives == 10


def test_the_cpu_preset_fits_into_an_hour() -> None:
    """At the speeds of two quiet cores: steps a second of training, finetuning and evaluating; seconds of the rest."""
    config = RoundsConfig()
    assert config.games >= 20
    longest, start = 3_000, 10  # steps of the longest game, which the others wait for; seconds of a script
    evaluation = config.eval_games * longest / 1300
    assert TrainConfig(name="v0", **config.train_v0).num_envs == 16  # two fifths slower than 64
    training = config.v0_steps / 900 + rounds._V0_EVALUATIONS * evaluation
    finetune = config.steps / 1200 + (1 + config.steps // config.eval_every) * evaluation
    fits = 4 * 60 * sum(range(1, config.rounds + 1)) / 3
    watching = (config.games + config.lives) * longest / 1300 + 20
    seconds = training + fits + config.rounds * (finetune + 20) + (1 + config.rounds) * watching + 24 * start
    assert seconds < 3600


def measured(scores: list[float], lives: list[float], **measures: list[float]) -> dict[str, Any]:
    return {
        "lives": {"scores": lives, "steps": [10 * int(score) for score in lives]},
        "games": {"score": scores, "steps": [2000, 2000], **measures},
    }


def test_the_table() -> None:
    config = RoundsConfig(v0_steps=1000, steps=500, rounds=1, games=2, lives=3)
    page = table(
        config,
        [
            measured([100, 300], [40, 460, 20], refuels=[0, 1], rescues=[0, 0], kl=[0, 0]),
            measured(
                [1000, 1000], [80, 1840, 20], refuels=[3, 3], rescues=[0, 0], kl=[0.1, 0.1], learned=[7, 7]
            ),
        ],
        [0, 97],
        125,
    )
    lines = page.splitlines()
    assert "1,000 steps on the score, then 1 × 500" in lines[0]
    assert "10% errors" in lines[0]
    assert "2m05s in all" in lines[0]
    header, rule, v0, v1 = lines[2:6]
    assert header.count("|") == rule.count("|") == v0.count("|") == v1.count("|")
    # Student's t for one degree of freedom is 12.7; the standard error of 100 and 300 is 100.
    assert v0.startswith(
        "| v0 | 0 | 460 in 4,600 steps | 460 in 580 steps | 200 ± 1271 | 2000 ± 0 | 0.50 ± 6.35 |"
    )
    assert v0.endswith("| – | – |")
    assert v1.startswith("| v1 | 97 | 1,840 in 18,400 steps | 900 in 1,120 steps | 1000 ± 0 |")
    assert v1.endswith("| 7.0 ± 0.0 | 0.100 ± 0.000 |")
    assert "1,840 and 1,820" in page
    assert "1000 ± 0 and 1,721" in page
    assert "v0 and v1: 0.50 ± 6.35 and 3.00 ± 0.00" in page


def test_another_game_is_not_held_against_the_original() -> None:
    config = RoundsConfig(env="MovingDot-v0", rounds=1)
    page = table(config, [measured([50], [1], kl=[0]), measured([60], [1], kl=[0])], [0, 100], 1)
    assert "original" not in page
    assert "1,721" not in page


@pytest.mark.slow(20)
def test_a_small_experiment_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rounds"
    flags = ["--out", str(out), "-e", "MovingDot-v0", "--teacher", "score", "--rounds", "1", "--labels", "20"]
    flags += ["--v0-steps", "1000", "--steps", "600", "--segments", "60", "--train-v0", "num_envs=8"]
    flags += ["--eval-every", "300", "--eval-games", "2", "--games", "2", "--lives", "2"]
    flags += ["--fit", "epochs=1", "--finetune", "num_envs=8", "kl=0.1"]
    runs = out / "runs" / "v0"

    def alarm() -> None:
        """Rings once v0 has a state, a quarter of its steps from the start: its ten minutes are over then."""
        while not any(runs.glob(f"*/{STATE}")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGALRM)

    threading.Thread(target=alarm, daemon=True).start()
    with pytest.raises(TimeUp) as ended:
        rounds.main([*flags, "--max-minutes", "10"])
    assert ended.value.code == 75
    assert "time is up" in capsys.readouterr().out
    rounds.main(flags)
    first = capsys.readouterr().out
    assert (out / "rounds.md").read_text() in first
    assert "| v1 | 10 |" in first  # its five clips make no more pairs
    ET.parse(out / "rounds.svg")
    assert {path.name for path in (out / "videos").rglob("*.mp4")} == {"game-01.mp4"}
    attempts = (out / "stages.jsonl").read_text()
    cut, resumed, *others = map(json.loads, attempts.splitlines())
    assert [(stage["stage"], stage["how"]) for stage in (cut, resumed)] == [("v0", "time up"), ("v0", "done")]
    (run,) = runs.iterdir()
    assert resumed["command"] == ["01_a2c.py", "--dev", "cpu", "--resume", str(run)]
    assert torch.load(out / "v0" / "latest.dat", weights_only=True)["steps"] == 1000
    assert len(others) == 7
    assert {stage["how"] for stage in others} == {"done"}
    # Once more, and nothing is left to do.
    rounds.main([*flags, "--max-minutes", "1"])
    assert (out / "stages.jsonl").read_text() == attempts
