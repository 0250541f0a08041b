"""experiments.skill: what its stages are, and its table."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import air, skill
from experiments.measures import MeasureConfig
from experiments.pipeline import TIME_IS_UP
from lib.agent.config import TrainConfig
from tests.experiments.paper import Paper


def test_each_stage_begins_with_what_the_one_before_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    papers: list[Paper] = []

    class Read(Paper):
        def __init__(self, out: Path, max_minutes: float | None) -> None:
            super().__init__(out)
            papers.append(self)

        def run(self, name: str, title: str, script: str, config: Any, *rest: Any, **more: Any) -> None:
            super().run(name, title, script, config, *rest, **more)
            if isinstance(config, MeasureConfig):
                config.out.write_text(json.dumps({"games": {column: [1.0, 3.0] for column in air.COLUMNS}}))

    monkeypatch.setattr(skill, "Pipeline", Read)
    out = tmp_path / "out"
    skill.main(["--out", str(out), "--seed", "2", "--learned-steps", "50k", "--score-steps", "70k"])
    (paper,) = papers
    read = paper.read
    stages = [
        "v0",
        "forks-1",
        "labels-1",
        "v1",
        "climbs",
        "v2",
        "forks-2",
        "labels-2",
        "divers",
        "v3",
        "v4",
        "control",
    ]
    assert list(read) == stages + [f"games of {name}" for name in ("v0", "v1", "v2", "v3", "v4", "control")]
    latest = {name: out / name / "latest.dat" for name in stages}
    begins = {"forks-1": "v0", "forks-2": "v2", "v3": "v2", "v4": "v3", "control": "v0"}
    assert {name: read[name].model for name in begins} == {
        name: latest[model] for name, model in begins.items()
    }
    assert (read["v1"].policy, read["v2"].model) == (latest["v0"], out / "v1.dat")
    dbs = [out / "db-1", out / "db-2"]
    assert [read[name].dbs for name in ("v1", "climbs", "divers")] == [dbs[:1], dbs[:1], dbs]
    rewards = [read[name].reward for name in ("v2", "v3", "v4", "control")]
    assert rewards == [out / "reward-climbs.dat", out / "reward-divers.dat", None, None]
    after = [
        config.steps for config in read.values() if isinstance(config, TrainConfig) and config.algo == "ppo"
    ]
    assert after == [50_000, 50_000, 70_000, 170_000]
    assert {config.seed for config in read.values() if not isinstance(config, MeasureConfig)} == {2}
    assert "| v4 | 2 ± 13 |" in capsys.readouterr().out


def test_after_max_minutes_the_next_run_does_the_rest(tmp_path: Path) -> None:
    assert skill.main(["--out", str(tmp_path / "out"), "--max-minutes", "0.0001"]) == TIME_IS_UP
