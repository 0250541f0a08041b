"""The tasks of the experiment: every command as its script reads it, and the table by hand."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import environments
from experiments.environments import TASKS, EnvironmentsConfig, rounds_config, table
from experiments.pipeline import TimeUp
from experiments.rounds import learn_from_comparisons
from lib.agent.config import TrainConfig
from lib.envs.make import probes
from lib.preferences.labels import TEACHERS
from lib.reward.config import FitConfig
from tests.experiments.paper import Paper


@pytest.mark.parametrize("task", TASKS)
def test_every_command_is_one_that_its_script_reads(task: str, tmp_path: Path) -> None:
    flags = rounds_config(EnvironmentsConfig(task=task, out=tmp_path), 4)
    paper = Paper(tmp_path)
    learn_from_comparisons(flags, paper)
    trained = [config for config in paper.read.values() if isinstance(config, TrainConfig)]
    assert [config.env for config in trained] == [flags.env] * (1 + flags.rounds)
    assert {config.seed for config in trained} == {4}
    assert [config.reward is None for config in trained] == [True] + [False] * flags.rounds
    fits = [config for config in paper.read.values() if isinstance(config, FitConfig)]
    assert len(fits) == flags.rounds
    assert flags.teacher in TEACHERS
    assert TASKS[task].measure in probes(flags.env)
    # Flags of a stage stand for themselves, without those of the preset.
    assert flags.finetune == TASKS[task].rounds["finetune"]


def test_the_table_by_hand(tmp_path: Path) -> None:
    def found(positions: list[float], **more: list[float]) -> dict[str, Any]:
        return {"games": {"position": positions, "score": [1.0, 3.0], "steps": [10, 10], **more}}

    measured = [
        [found([1.0, 3.0]), found([-1.0, -1.0], learned=[5.0, 7.0])],
        [found([0.0, 0.0]), found([-2.0, -2.0], learned=[1.0, 1.0])],
    ]  # changes: −3 and −2
    page = table(EnvironmentsConfig(out=tmp_path), measured, 60.0)
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert rows[0].startswith("| 0 | v0 | 2.00 ± ")
    assert rows[0].endswith("| – |")
    assert rows[3].startswith("| 1 | v1 | -2.00 ± 0.00 | 2.0 ± ")
    assert (
        "over seeds ± 95 %: v0 1.00 ± 12.71, v1 -1.50 ± 6.35; its change from first to last -2.50 ± 6.35."
        in page
    )


def test_minutes_are_those_of_all_seeds_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    clock = iter([0.0, 60.0, 300.0])
    (tmp_path / "measured").write_text("{}")

    class Ends:
        seconds = 1.0

        def __init__(self, out: Path, max_minutes: float) -> None:
            given.append(max_minutes)

    def learn(flags: Any, pipeline: Any) -> list[Any]:
        if len(given) > 1:
            raise TimeUp
        return [SimpleNamespace(measures=tmp_path / "measured")]

    monkeypatch.setattr(environments, "Pipeline", Ends)
    monkeypatch.setattr(environments, "learn_from_comparisons", learn)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(TimeUp) as ended:
        environments.main(["dot", "--seeds", "2", "--out", str(tmp_path), "--max-minutes", "6"])
    assert ended.value.code == 75
    assert given == [5.0, 1.0]
