"""The ablation: every command as its script reads it, what a run came to by hand, and the table."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import ORIGINAL
from experiments import ablation
from experiments.ablation import ARMS, Ablation, AblationConfig, summary, table
from experiments.curves import Curve
from experiments.pipeline import TIME_IS_UP, Pipeline
from lib.cli import UserError
from lib.preferences.labels import Label, LabelLog
from lib.reporting import Charts
from tests.experiments.paper import Paper


def curve(*values: float) -> Curve:
    return Curve(np.arange(len(values)) * 100, np.array(values, float))


def test_best_and_end_are_means_of_three_evaluations() -> None:
    found = summary({"score": curve(300, 300, 600, 0, 90, 30), "kl": curve(0, 0.1, 0.4), "lr": curve(1)})
    assert found == {
        **{"start": 300, "highest": 600, "last": 30},
        **{"best": 400, "end": 40, "kept": 0.1},  # of 300, 300, 600 and of 0, 90, 30
        "kl": 0.4,
    }


def test_who_only_loses_has_lost() -> None:
    found = summary({"score": curve(90, 60, 30, 0, 0, 0)})
    assert (found["best"], found["end"], found["kept"]) == (60, 0, 0)
    assert summary({"score": curve(8, 4)})["kept"] == 1  # fewer than three: all there are
    assert summary({"score": curve(0, 0, 0)})["kept"] is None


@pytest.fixture
def config(tmp_path: Path) -> AblationConfig:
    db = tmp_path / "given" / "db"
    (db / "00").mkdir(parents=True)
    (db / "00" / "00000001.dat").write_text("a segment")
    LabelLog(db / "labels.json").append(Label("00/00000001.dat", "00/00000002.dat", 1))
    (tmp_path / "given" / "v0.dat").touch()
    (tmp_path / "out").mkdir()
    return AblationConfig(
        out=tmp_path / "out", v0=tmp_path / "given" / "v0.dat", db=db, seeds=2, labels=20, steps=1000
    )


def test_every_stage_of_every_recipe(config: AblationConfig) -> None:
    paper = Paper(config.out)
    Ablation(config, paper).run()
    assert [name for name in paper.read if name.endswith("-0")] == [
        *("reward-original-0", "original-0", "reward-single-0", "standardised-0", "kl-0"),
        *("reward-ensemble-0", "ensemble-0", "ppo-0", "no-kl-0"),
    ]
    assert (config.out / "db" / "00" / "00000001.dat").read_text() == "a segment"
    assert paper.read["labels"].count == 20  # the labels that the DB came with count for nothing
    read = paper.read
    assert (read["reward-original-0"].loss, read["reward-single-0"].loss) == ("original", "bradley-terry")
    assert [read[f"reward-{name}-1"].ensemble for name in ("original", "single", "ensemble")] == [1, 1, 3]
    runs = {arm: read[f"{arm}-1"] for arm in ARMS}
    assert {run.model for run in runs.values()} == {config.v0}
    assert {(run.steps, run.seed, run.finetune) for run in runs.values()} == {(1000, 1, True)}
    assert {arm: run.kl > 0 for arm, run in runs.items()} == {
        **{"original": False, "standardised": False, "kl": True, "ensemble": True, "ppo": True},
        "no-kl": False,
    }
    assert {arm: (run.algo, run.lr) for arm, run in runs.items() if arm in ("ensemble", "ppo")} == {
        "ensemble": ("a2c", 3e-4),
        "ppo": ("ppo", 1e-4),
    }
    assert runs["standardised"].reward == runs["kl"].reward
    assert runs["ensemble"].reward == runs["ppo"].reward


def test_the_policy_and_its_clips_go_together() -> None:
    with pytest.raises(UserError, match="--v0 and --db go together"):
        AblationConfig(v0=Path("v0.dat"))


def finish(out: Path, *stages: str, how: str = "done") -> None:
    with (out / "stages.jsonl").open("a") as file:
        for stage in stages:
            file.write(json.dumps({"stage": stage, "how": how, "seconds": 5, "command": []}) + "\n")


def evaluated(out: Path, scores: dict[str, float]) -> None:
    for name, score in scores.items():
        with Charts(out / "runs" / name) as charts:
            charts.scalars({"test_reward": score, "test_kl": 0.5}, 0)


def test_results_of_finished_runs_are_collected(config: AblationConfig) -> None:
    finish(config.out, "original-0", "kl-1")
    finish(config.out, "kl-0", how="time up")
    evaluated(config.out, {"original-0": 10.0, "kl-0": 20.0, "kl-1": 30.0})
    experiment = Ablation(config, Pipeline(config.out))
    rows = experiment.collect()
    assert [(row["arm"], row["seed"], row["best"]) for row in rows] == [("original", 0, 10), ("kl", 1, 30)]
    assert [json.loads(line) for line in (config.out / "results.jsonl").open()] == rows
    assert experiment.collect() == rows


@pytest.mark.parametrize("wrong", [{"db": Path("nowhere")}, {"v0": Path("nowhere.dat")}])
def test_a_mistyped_path_does_not_settle_the_experiment(
    config: AblationConfig, wrong: dict[str, Path]
) -> None:
    given = {"v0": config.v0, "db": config.db, **wrong}
    with pytest.raises(UserError, match="nowhere"):
        ablation.main(
            ["--out", str(config.out / "new"), *(f"--{name}={path}" for name, path in given.items())]
        )
    assert not (config.out / "new").exists()


def test_the_command_says_what_is_done_and_goes_on_with_more_seeds(
    config: AblationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every stage of the first seed has ended before, and for the second there is no time."""
    out = config.out
    flags = ["--out", str(out), "--v0", str(config.v0), "--db", str(config.db), "--arms", "original", "kl"]
    assert ablation.main([*flags, "--seeds", "1", "--max-minutes", "0"]) == TIME_IS_UP
    capsys.readouterr()
    LabelLog(out / "db" / "labels.json").append(
        Label("00/00000000.dat", "00/00000001.dat", 1, teacher="seaquest")
    )
    finish(out, "labels", "reward-original-0", "original-0", "reward-single-0", "kl-0")
    evaluated(out, {"original-0": 10.0, "kl-0": 20.0})
    assert ablation.main([*flags, "--seeds", "1"]) == 0
    page = (out / "ablation.md").read_text()
    assert page in capsys.readouterr().out
    assert f"| {ARMS['kl'].title} | 1 | 20 | 20 | 20 |" in page
    assert page.startswith("200,000 steps of finetuning on 1 labels")  # as many as there are
    assert "25s in all" in page
    assert ">kl</text>" in (out / "ablation.svg").read_text()
    assert ablation.main([*flags, "--seeds", "2", "--max-minutes", "0"]) == TIME_IS_UP
    said = capsys.readouterr().out
    assert "time is up" in said
    assert page in said
    with pytest.raises(UserError, match=r"--labels: .* was begun with 300, got 20"):
        ablation.main([*flags, "--labels", "20"])


def test_the_table_and_the_chart(config: AblationConfig) -> None:
    rows = [
        {"arm": "original", "seed": 0, "start": 100.0, "best": 200.0, "end": 50.0, "kept": 0.25, "kl": 1.0},
        {"arm": "kl", "seed": 0, "start": 100.0, "best": 100.0, "end": 100.0, "kept": 1.0, "kl": 0.1},
        {"arm": "kl", "seed": 1, "start": 100.0, "best": 100.0, "end": 80.0, "kept": 0.8, "kl": 0.1},
    ]
    page = table(config, rows, 60)
    # Student's t for one degree of freedom is 12.7; the standard error of 1 and 0.8 is 0.1.
    assert f"| {ARMS['kl'].title} | 2 | 100 ± 0 | 100 ± 0 | 90 ± 127 | 0.90 ± 1.27 | 0.100 ± 0.000 |" in page
    assert f"| {ARMS['original'].title} | 1 | 100 | 200 | 50 | 0.25 | 1.000 |" in page
    assert "| kl | 1 | 100 | 100 | 80 | 0.80 | 0.100 |" in page
    assert "preferred" not in page  # never measured
    path = config.out / "ablation.svg"
    ablation.chart(
        path,
        {"original": [{"score": curve(1, 2)}], "kl": [{"score": curve(1, 2, 3)}, {"score": curve(3, 4)}]},
    )
    assert path.read_text().count("stroke-width: 1.8; stroke-linecap: square") == 2, "one line an arm"


def test_the_originals_recipe_is_the_one_of_the_benchmark() -> None:
    assert ablation.FITS["original"] == ORIGINAL
