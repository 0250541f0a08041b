"""experiments.air: what its stages are, and its table."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import air
from experiments.measures import MeasureConfig
from tests.experiments.paper import Paper


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Paper]:
    """What the stages' commands are, in place of running them; each policy measured plays 20 games of two figures."""
    read: list[Paper] = []

    class Read(Paper):
        def __init__(self, out: Path) -> None:
            super().__init__(out)
            read.append(self)

        def run(self, name: str, title: str, script: str, config: Any, *rest: Any, **more: Any) -> None:
            super().run(name, title, script, config, *rest, **more)
            if isinstance(config, MeasureConfig):
                games = {column: [1.0 * len(read), 3.0] for column in air.COLUMNS}
                config.out.write_text(json.dumps({"games": games}))

    monkeypatch.setattr(air, "Pipeline", Read)
    return read


def test_every_command_is_read_by_its_script(
    tmp_path: Path, read: list[Paper], capsys: pytest.CaptureFixture[str]
) -> None:
    air.main(["--out", str(tmp_path / "out"), "--seed", "3", "--labels", "200"])
    (paper,) = read
    assert list(paper.read) == ["forks", "play", "labels", "v1", "games of v0", "games of v1"]
    forks, play, labels, v1 = list(paper.read.values())[:4]
    assert (forks.fork, forks.num_envs % forks.fork, forks.seed) == (4, 0, 3)
    assert (labels.strategy, labels.random_share, labels.count) == ("fork", 0, 200)
    assert labels.db_path == forks.db_path
    assert (v1.dbs, v1.keep) == ([forks.db_path], play.db_path)
    assert v1.policy == forks.model == play.model
    assert paper.read["games of v1"].model == v1.out / "v1.dat"
    assert "| v1 | 2 ± 13 | 2.00 ± 12.71 | 2.00 ± 12.71 | 2 ± 13 |" in capsys.readouterr().out
