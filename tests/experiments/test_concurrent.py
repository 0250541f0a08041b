"""Rounds against concurrent: equally many labels and steps, every command as its script reads it, and the table by hand."""

from pathlib import Path
from typing import Any

import online
from experiments.concurrent import Comparison, ConcurrentConfig, shares, table
from lib import cli
from tests.experiments.paper import CONFIGS, Paper


def test_a_number_is_cut_evenly() -> None:
    assert shares(10, 3) == [3, 3, 4]
    assert all(sum(shares(total, parts)) == total for total in (1, 7, 300) for parts in (1, 2, 5))


def test_every_arm_has_as_many_labels_and_steps(tmp_path: Path) -> None:
    paper = Paper(tmp_path)
    sizes: dict[str, Any] = {"steps": 400_000, "labels": 400, "opening_labels": 100, "seeds": 1, "rounds": 3}
    config = ConcurrentConfig(out=tmp_path, preset="seaquest", model=tmp_path / "v 0.dat", **sizes)
    Comparison(config, paper).run()
    for arm, rounds in (("frozen", 1), ("rounds", 3)):
        labels = [paper.read[f"{arm}-0 labels {k}"].count for k in range(1, rounds + 1)]
        trainings = [paper.read[f"{arm}-0 {k}"] for k in range(1, rounds + 1)]
        assert sum(labels) == 400
        assert sum(training.steps for training in trainings) == 400_000
        assert (trainings[0].model, trainings[0].algo, trainings[0].lr) == (tmp_path / "v 0.dat", "ppo", 1e-4)
        assert [len(paper.read[f"{arm}-0 fit {k}"].dbs) for k in range(1, rounds + 1)] == [
            *range(1, rounds + 1)
        ]
        opening = paper.read[f"{arm}-0 0"]
        assert (opening.lr, opening.reward, opening.model) == (0, None, tmp_path / "v 0.dat")
    assert paper.read["rounds-0 labels 1"].count == 100
    assert paper.read["rounds-0 2"].model == tmp_path / "rounds-0" / "policy-1" / "latest.dat"
    assert paper.read["rounds-0 2"].reward == tmp_path / "rounds-0" / "reward-2.dat"
    together = paper.read["concurrent-0 all"]
    assert (together.labels, together.opening_labels, together.steps) == (400, 100, 400_000)
    read: list[Any] = [
        cli.parse(CONFIGS[script], flags) for script, *flags in online.commands(together).values()
    ]
    train, label, fit = read
    assert (train.model, train.algo, train.wait_for_labels) == (tmp_path / "v 0.dat", "ppo", 100)
    assert (train.watch_reward, train.reward) == (True, fit.out / "reward-online.dat")
    assert (fit.watch, fit.refit_every, fit.dbs) == (True, 100, [train.db_path])
    # Rounds and concurrent differ in little but when labels come: three models pay in each.
    assert train.kl == paper.read["rounds-0 2"].kl > 0
    assert train.kl_reference == paper.read["rounds-0 2"].kl_reference == tmp_path / "v 0.dat"
    assert fit.fresh_weights
    asked = [label, *(paper.read[f"rounds-0 labels {k}"] for k in (1, 2, 3))]
    assert {(each.strategy, each.random_share) for each in asked} == {("recent", 0.2)}
    assert (label.watch, label.teacher, label.db_path) == (True, "seaquest", train.db_path)
    assert paper.read["concurrent-0 measured"].model == together.out / "policy" / "latest.dat"


def test_the_table() -> None:
    rows = [
        {"arm": "rounds", "seed": 0, "scores": [80.0, 90.0], "labels": 400, "seconds": 90.0},
        {"arm": "rounds", "seed": 1, "scores": [86.0, 88.0], "labels": 400, "seconds": 150.0},
        {"arm": "concurrent", "seed": 0, "scores": [95.0, 95.0], "labels": 399, "seconds": 60.0},
    ]
    lines = table(ConcurrentConfig(), rows).splitlines()
    # Means 85 and 87: half their difference times 12.7, Student's t for one degree of freedom.
    assert "| in rounds | 2 | 86.0 ± 12.7 | 400 ± 0 | 2.0 ± 6.4 min |" in lines
    assert "| while it trains | 1 | 95.0 | 399 | 1.0 min |" in lines
    assert "| rounds | 0 | 85.0 ± 63.5 | 400 | 1m30s |" in lines
