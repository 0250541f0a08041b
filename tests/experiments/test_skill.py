"""experiments.skill: what its stages are, and its table."""

from pathlib import Path

import pytest

from experiments import skill
from experiments.measure_config import MeasureConfig
from experiments.pipeline import TimeUp
from lib.agent.config import TrainConfig
from tests.experiments.paper import Measured


def test_each_stage_begins_with_what_the_one_before_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    paper = Measured(out)
    monkeypatch.setattr(skill, "Pipeline", lambda out, max_minutes: paper)
    sizes = ["--rounds", "3", "--seed", "2", "--learned-steps", "50k", "--score-steps", "70k"]
    skill.main(["--out", str(out), *sizes])
    read = paper.read
    stages = ["v0", "forks-1", "labels-1", "v1", "climbs", "v2"]
    stages += ["forks-2", "labels-2", "divers-2", "v3", "v4", "forks-3", "labels-3", "divers-3", "v5", "v6"]
    versions = ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "control-3"]
    assert list(read) == [*stages, "control-3", *(f"games of {name}" for name in versions)]
    begins = {
        "forks-1": "v0",
        "forks-2": "v2",
        "v3": "v2",
        "v4": "v3",
        "forks-3": "v4",
        "v5": "v4",
        "v6": "v5",
    }
    assert {name: read[name].model for name in [*begins, "control-3"]} == {
        name: out / model / "latest.dat" for name, model in (begins | {"control-3": "v0"}).items()
    }
    assert (read["v1"].policy, read["v2"].model) == (out / "v0" / "latest.dat", out / "v1.dat")
    dbs = [out / f"db-{round}" for round in (1, 2, 3)]
    assert [read[name].dbs for name in ("v1", "climbs", "divers-2", "divers-3")] == [
        *(dbs[:1], dbs[:1]),
        *(dbs[:2], dbs),
    ]
    rewards = {"v2": "climbs", "v3": "divers-2", "v5": "divers-3"}
    assert {name: read[name].reward for name in (*rewards, "v4", "v6", "control-3")} == {
        name: out / f"reward-{rewards[name]}.dat" if name in rewards else None
        for name in (*rewards, "v4", "v6", "control-3")
    }
    after = {
        name: config.steps
        for name, config in read.items()
        if isinstance(config, TrainConfig) and config.algo == "ppo"
    }
    # The control makes as many steps as all rounds.
    assert after.pop("control-3") == sum(after.values()) == 3 * 50_000 + 2 * 70_000
    assert {config.seed for config in read.values() if not isinstance(config, MeasureConfig)} == {2}
    assert "| v6 | 2 ± 13 |" in capsys.readouterr().out


def test_max_minutes_is_over_before_the_first_stage(tmp_path: Path) -> None:
    with pytest.raises(TimeUp) as ended:
        skill.main(["--out", str(tmp_path / "out"), "--max-minutes", "0.0001"])
    assert ended.value.code == 75
