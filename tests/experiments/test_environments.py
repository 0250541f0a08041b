"""The worlds of the experiment: every command as its script reads it, and the table by hand."""

import time
from pathlib import Path
from typing import Any

import pytest

from experiments import environments
from experiments.environments import TASKS, EnvironmentsConfig, rounds_config, table
from experiments.rounds import Experiment
from experiments.stages import TIME_IS_UP
from lib import cli
from lib.agent.config import TrainConfig
from lib.envs.make import probes
from lib.preferences.teachers import TEACHERS
from lib.reward.config import FitConfig


class Written:
    """Takes the place of `Stages`: notes the commands and runs none."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def run(self, name: str, title: str, command: Any, makes: Any = (), again: Any = None) -> None:
        self.commands.append([str(word) for word in command])

    def done(self, name: str) -> bool:
        return False


@pytest.mark.parametrize("task", TASKS)
def test_every_command_is_one_that_its_script_reads(task: str, tmp_path: Path) -> None:
    flags = rounds_config(EnvironmentsConfig(task=task, out=tmp_path), 4)
    (flags.out / "db" / "v0").mkdir(parents=True)
    stages = Written()
    experiment = Experiment(flags, stages)  # type: ignore[arg-type]
    for version in range(flags.rounds):
        experiment.db(version).mkdir(parents=True, exist_ok=True)
    experiment.run()
    trained = [
        cli.parse(TrainConfig, command[1:]) for command in stages.commands if command[0] == "01_a2c.py"
    ]
    assert [config.env for config in trained] == [flags.env] * (1 + flags.rounds)
    assert {config.seed for config in trained} == {4}
    assert [config.reward is None for config in trained] == [True] + [False] * flags.rounds
    fits = [
        cli.parse(FitConfig, command[1:]) for command in stages.commands if command[0] == "03_reward_train.py"
    ]
    assert len(fits) == flags.rounds
    assert flags.teacher in TEACHERS
    assert TASKS[task].measure in probes(flags.env)


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

        def finish(self, run: Any) -> bool:
            return len(given) == 1

    class Measures:
        def __init__(self, flags: Any, stages: Any) -> None:
            pass

        def run(self) -> None:
            pass

        def measured(self, version: int) -> Path:
            return tmp_path / "measured"

    monkeypatch.setattr(environments, "Stages", Ends)
    monkeypatch.setattr(environments, "Experiment", Measures)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    status = environments.main(["dot", "--seeds", "2", "--out", str(tmp_path), "--max-minutes", "6"])
    assert status == TIME_IS_UP
    assert given == [5.0, 1.0]
