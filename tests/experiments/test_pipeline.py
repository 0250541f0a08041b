"""Stages run once, stop in time and continue; with work that takes no time."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.pipeline import Pipeline, TimeUp, settle
from lib.agent.config import TrainConfig
from lib.cli import UserError, flag
from lib.envs.moving_dot import MovingDotEnv
from lib.interrupt import Interrupt
from lib.preferences.wrappers import EpisodeRecorderWrapper
from lib.runs import read_config, save_state, write_config
from tests.disk import disk_full_after

Work = Callable[[Path | None], bool | None]


@dataclass(frozen=True)
class Steps:
    """Configuration of a stage."""

    steps: int = flag(default=5)
    dev: str = flag(default="cpu")


def stage(
    out: Path,
    work: Work,
    name: str = "one",
    title: str = "Makes it",
    minutes: float | None = None,
    **more: Path,
) -> None:
    """Runs one stage of a pipeline in a folder; `makes` and `runs` are one path each."""
    makes = [more["makes"]] if "makes" in more else []
    Pipeline(out, minutes).run(name, title, "made.py", Steps(steps=7), work, makes, more.get("runs"))


def append(made: Path) -> Work:
    """Adds a plus to a file."""

    def work(_: Path | None) -> None:
        made.write_text(made.read_text() + "+" if made.exists() else "+")

    return work


def fail(_: Path | None) -> None:
    raise UserError("no")


def attempts(out: Path) -> list[tuple[str, str]]:
    return [(row["stage"], row["how"]) for row in map(json.loads, (out / "stages.jsonl").open())]


def test_a_stage_that_is_done_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    for _ in range(2):
        stage(tmp_path, append(made), makes=made)
    assert made.read_text() == "+"
    assert attempts(tmp_path) == [("one", "done")]
    said = capsys.readouterr().out
    assert "$ python made.py --steps 7\n" in said
    assert said.endswith("== Makes it: done before\n")


def test_all_attempts_are_counted(tmp_path: Path) -> None:
    log: list[dict[str, object]] = [
        {"stage": "one", "how": how, "seconds": 2.5, "command": []} for how in ("time up", "failed", "done")
    ]
    (tmp_path / "stages.jsonl").write_text("".join(json.dumps(attempt) + "\n" for attempt in log))
    pipeline = Pipeline(tmp_path)
    assert pipeline.seconds == 7.5
    assert pipeline.done("one")
    assert not pipeline.done("two")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_an_unfinished_attempt_left_is_removed(tmp_path: Path, kind: str) -> None:
    left = tmp_path / "left"
    if kind == "file":
        left.write_text("part")
    else:
        (left / "deep").mkdir(parents=True)
    stage(tmp_path, lambda _: None, makes=left)
    assert not left.exists()


def test_a_failure_is_named_and_tried_again(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="no"):
            stage(tmp_path, fail)
    assert attempts(tmp_path) == [("one", "failed")] * 2


def test_two_processes_do_not_run_one_experiment(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def work(_: Path | None) -> None:
        made.write_text("by the first")
        with pytest.raises(UserError, match=f"--out {tmp_path}: another process is still running it"):
            stage(tmp_path, append(made), makes=made)

    stage(tmp_path, work, makes=made)
    assert made.read_text() == "by the first"
    assert attempts(tmp_path) == [("one", "done")]


def test_a_full_disk_tears_no_line(tmp_path: Path) -> None:
    stage(tmp_path, lambda _: None)
    size = (tmp_path / "stages.jsonl").stat().st_size
    with disk_full_after(size + 5), pytest.raises(OSError, match="large"):
        stage(tmp_path, lambda _: None, name="two")
    stage(tmp_path, lambda _: None, name="two")
    assert attempts(tmp_path) == [("one", "done"), ("two", "done")]


def test_time_that_is_up_stops_a_stage_as_ctrl_c_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = Pipeline(tmp_path, max_minutes=1 / 60)

    def work(_: Path | None) -> bool:
        with Interrupt() as interrupt:
            while not interrupt.asked:
                time.sleep(0.01)
        return True

    with pytest.raises(TimeUp):
        pipeline.run("one", "Waits", "made.py", Steps(), work)
    assert attempts(tmp_path) == [("one", "time up")]
    # No further stage starts, and the log does not mention it.
    with pytest.raises(TimeUp):
        pipeline.run("two", "Makes it", "made.py", Steps(), append(tmp_path / "two"))
    assert not (tmp_path / "two").exists()
    assert len(attempts(tmp_path)) == 1
    assert capsys.readouterr().out.count("time is up; the same command continues from here") == 2
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_time_is_up_in_a_background_shell_too(tmp_path: Path) -> None:
    """Its processes ignore Ctrl-C, so nothing would end a stage that does not ask for it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(TimeUp):
            Pipeline(tmp_path, max_minutes=1 / 60).run(
                "one", "Waits", "made.py", Steps(), lambda _: time.sleep(3)
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert attempts(tmp_path) == [("one", "time up")]


@pytest.mark.parametrize("heeds", [True, False])
def test_ctrl_c_ends_the_pipeline_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], heeds: bool
) -> None:
    """Whether the stage saves what it has, or is torn out of its work."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

    def work(_: Path | None) -> bool:
        with Interrupt() if heeds else open(os.devnull):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0)
        return heeds

    with pytest.raises(KeyboardInterrupt):
        stage(tmp_path, work)
    assert attempts(tmp_path) == [("one", "stopped")]
    assert "stopped; the same command continues from here" in capsys.readouterr().out


def test_a_stage_continues_from_its_state(tmp_path: Path) -> None:
    runs, save = tmp_path / "runs", tmp_path / "save"
    save.mkdir()
    run = runs / "20260101-a2c-v0"
    run.mkdir(parents=True)
    write_config(run, {"steps": 100})
    resumed: list[Path | None] = []

    # Without a state it begins anew.
    with pytest.raises(UserError):
        stage(tmp_path, fail, makes=save, runs=runs)
    assert not save.exists()

    save_state(run, "a2c", {"examined": 6}, {}, {})
    save.mkdir()
    stage(tmp_path, lambda run: resumed.append(run), makes=save, runs=runs)
    assert resumed == [run]
    assert json.loads((tmp_path / "stages.jsonl").read_text().splitlines()[-1])["command"] == [
        *("made.py", "--dev", "cpu", "--resume", str(run)),
    ]
    assert save.is_dir()


def test_a_resume_that_fails_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device that is missing, or a full disk, say: the next attempt resumes the same run."""
    runs, save, resumed = tmp_path / "runs", tmp_path / "save", list[Path | None]()
    save.mkdir()
    (runs / "run").mkdir(parents=True)
    save_state(runs / "run", "reward", {}, {}, {})
    for _ in range(2):
        with pytest.raises(UserError):
            stage(tmp_path, fail, makes=save, runs=runs)
        assert f"what was made so far is in {runs}/run; without that folder" in capsys.readouterr().out
    stage(tmp_path, lambda run: resumed.append(run), makes=save, runs=runs)
    assert resumed == [runs / "run"]
    assert save.is_dir()


def test_a_fit_that_was_stopped_is_resumed(tmp_path: Path) -> None:
    run, resumed = tmp_path / "runs" / "run", list[Path | None]()
    run.mkdir(parents=True)
    write_config(run, {"epochs": 3, "steps": None})  # those of a policy fit, which a reward fit has too
    save_state(run, "reward", {}, {}, {})
    stage(tmp_path, lambda run: resumed.append(run), runs=run.parent)
    assert resumed == [run]


def test_a_training_that_was_over_when_it_was_asked_to_stop_is_done(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    write_config(run, {})  # a language model's steps follow from other flags
    save_state(run, "a2c", {"examined": 7}, {}, {})
    stage(tmp_path, fail, runs=run.parent)
    assert attempts(tmp_path) == [("one", "done")]


def test_threads_of_a_stage_are_its_own(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    stage(tmp_path, lambda _: torch.set_num_threads(threads + 3))
    assert torch.get_num_threads() == threads


@dataclass(frozen=True)
class Config:
    out: Path
    steps: int = 5
    model: Path | None = None
    teacher: str = "score"
    train: dict[str, Any] = flag(default={}, of=TrainConfig)


def test_a_folder_is_for_one_experiment(tmp_path: Path) -> None:
    out = tmp_path / "new" / "experiment"
    settle(Config(out, model=Path("a.dat")))
    stage(out, lambda _: None)
    out = out.rename(tmp_path / "moved")
    settle(Config(out, model=Path("a.dat")))
    with pytest.raises(UserError, match=r"--steps: .* was begun with 5, got 6; repeat its flags"):
        settle(Config(out, 6, Path("a.dat")))
    settle(Config(out, 6, Path("a.dat")), "steps")
    with pytest.raises(UserError, match=r"--model: .* was begun with 'a\.dat', got None"):
        settle(Config(out, 6))
    assert len(read_config(out)["resumed"]) == 2  # each with its commit


def test_until_a_stage_was_done_or_stopped_flags_may_change(tmp_path: Path) -> None:
    """Or what was mistyped would be settled."""
    settle(Config(tmp_path / "out", 5))
    with pytest.raises(UserError):
        stage(tmp_path / "out", fail)
    settle(Config(tmp_path / "out", 6))
    assert read_config(tmp_path / "out")["config"]["steps"] == 6
    save_state(tmp_path / "out" / "runs" / "run", "a2c", {}, {}, {})  # killed
    with pytest.raises(UserError, match="was begun with 6"):
        settle(Config(tmp_path / "out", 7))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": {"db_path": Path("mine")}}, "--train db_path: it is set for all runs alike; leave it out"),
        ({"train": {"steps": 7}}, "--train steps: it is set"),
        ({"teacher": "socre"}, "--teacher: expected one of .* got 'socre'"),
    ],
)
def test_what_no_stage_could_use_is_refused_before_all_of_them(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """A folder of the user's would even be removed, as a leftover of the stage."""
    with pytest.raises(UserError, match=said):
        settle(Config(tmp_path / "out", **given))
    assert not (tmp_path / "out").exists()


def test_fewer_labels_than_asked_for_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dots = EpisodeRecorderWrapper(MovingDotEnv(), tmp_path / "db", record_prob=1)
    dots.reset(seed=0)
    for _ in range(4 * 51):
        if dots.step(np.int64(0))[2:4] != (False, False):
            dots.reset()
    Pipeline(tmp_path).label("labels", "Some", tmp_path / "db", "score", 50, error_rate=0.0, seed=0)
    assert "expected 50 labels" in capsys.readouterr().out


def test_a_folder_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="belongs to another program"):
        settle(Config(tmp_path))
    write_config(tmp_path, {"name": "x"})  # a run of a script
    with pytest.raises(UserError, match="was begun by another version of this code"):
        settle(Config(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a folder to write to"):
        settle(Config(tmp_path / "file" / "out"))
