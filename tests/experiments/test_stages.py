"""Stages run once, stop in time and go on; with commands that take no time to start."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments import stages as module
from experiments.stages import Resumable, Stages, settle
from lib.cli import UserError
from lib.runs import save_state, write_config

APPEND = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); path.write_text(path.read_text() + '+' if path.exists() else '+')"
WAIT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(sys.argv[1]).write_text("saved"), sys.exit(0)))
pathlib.Path(sys.argv[1]).write_text("begun")
time.sleep(60)
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of doors of their own."""
    (tmp_path / "append.py").write_text(APPEND)
    (tmp_path / "wait.py").write_text(WAIT)
    (tmp_path / "fail.py").write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


def attempts(out: Path) -> list[tuple[str, str]]:
    return [(row["stage"], row["how"]) for row in map(json.loads, (out / "stages.jsonl").open())]


def test_a_stage_that_is_done_is_not_run_again(scripts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = scripts / "made"
    for _ in range(2):
        Stages(scripts).run("one", "Makes it", ("append.py", made), makes=[made])
    assert made.read_text() == "+"
    assert attempts(scripts) == [("one", "done")]
    said = capfd.readouterr().out
    assert f"$ python append.py {made}\n" in said
    assert said.endswith("== Makes it: done before\n")


def test_all_attempts_are_counted(tmp_path: Path) -> None:
    log: list[dict[str, object]] = [
        {"stage": "one", "how": how, "seconds": 2.5, "command": []} for how in ("time up", "failed", "done")
    ]
    (tmp_path / "stages.jsonl").write_text("".join(json.dumps(attempt) + "\n" for attempt in log))
    stages = Stages(tmp_path)
    assert stages.seconds == 7.5
    assert stages.done("one")
    assert not stages.done("two")


def test_what_an_unfinished_attempt_left_is_removed(scripts: Path) -> None:
    made, folder = scripts / "made", scripts / "folder"
    made.write_text("part")
    (folder / "deep").mkdir(parents=True)
    Stages(scripts).run("one", "Makes it", ("append.py", made), makes=[made, folder])
    assert made.read_text() == "+"
    assert not folder.exists()


def test_a_failure_is_named_and_tried_again(scripts: Path) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match=r"fail\.py --now …: ended with status 3"):
            Stages(scripts).run("one", "Fails", ("fail.py", "--now"))
    assert attempts(scripts) == [("one", "failed")] * 2


def test_time_that_is_up_stops_a_stage_as_ctrl_c_does(
    scripts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = scripts / "made"
    stages = Stages(scripts, max_minutes=2 / 60)

    def work() -> None:
        stages.run("one", "Waits", ("wait.py", made))
        raise AssertionError("it went on")

    assert not stages.finish(work)
    assert made.read_text() == "saved"
    assert attempts(scripts) == [("one", "time up")]
    # Nothing more is begun, and the log says nothing of it.
    assert not stages.finish(lambda: stages.run("two", "Makes it", ("append.py", scripts / "two")))
    assert not (scripts / "two").exists()
    assert len(attempts(scripts)) == 1
    assert "time is up" in capfd.readouterr().out


def test_a_stage_goes_on_from_its_state(scripts: Path) -> None:
    (scripts / "note.py").write_text("")
    runs, save = scripts / "runs", scripts / "save"
    save.mkdir()
    again = Resumable(("note.py", "--dev", "cpu"), runs)
    run = runs / "20260101-a2c-v0"
    run.mkdir(parents=True)
    write_config(run, {"steps": 100})

    # Without a state it begins anew.
    stages = Stages(scripts)
    with pytest.raises(UserError, match="status 3"):
        stages.run("one", "Goes on", ("fail.py",), makes=[save], again=again)
    assert not save.exists()

    save_state(run, "a2c", {"examined": 60}, {}, {})
    save.mkdir()
    stages.run("one", "Goes on", ("fail.py",), makes=[save], again=again)
    assert json.loads((scripts / "stages.jsonl").read_text().splitlines()[-1])["command"] == [
        *("note.py", "--dev", "cpu", "--resume", str(run)),
    ]
    assert save.is_dir()


def test_a_state_that_cannot_be_gone_on_from_is_left(scripts: Path) -> None:
    runs = scripts / "runs"
    (runs / "run").mkdir(parents=True)
    write_config(runs / "run", {"epochs": 3})  # a fit
    save_state(runs / "run", "reward", {}, {}, {})
    stages = Stages(scripts)
    with pytest.raises(UserError, match=r"fail\.py --resume"):
        stages.run("one", "Goes on", ("append.py",), again=Resumable(("fail.py",), runs))
    made = scripts / "made"
    stages.run("one", "Begins anew", ("append.py", made), makes=[runs], again=Resumable(("fail.py",), runs))
    assert made.read_text() == "+"
    assert not runs.exists()


def test_a_training_that_was_over_when_it_was_asked_to_stop_is_done(scripts: Path) -> None:
    run = scripts / "runs" / "run"
    run.mkdir(parents=True)
    write_config(run, {"steps": 100})
    save_state(run, "a2c", {"examined": 120}, {}, {})
    stages = Stages(scripts)
    stages.run("one", "Trains", ("fail.py",), again=Resumable(("fail.py",), run.parent))
    assert stages.done("one")
    assert attempts(scripts) == [("one", "done")]


@dataclass(frozen=True)
class Config:
    out: Path
    steps: int = 5
    model: Path | None = None


def test_a_folder_is_for_one_experiment(tmp_path: Path) -> None:
    out = tmp_path / "new" / "experiment"
    settle(Config(out, model=Path("a.dat")), out, free=("out",))
    settle(Config(tmp_path, model=Path("a.dat")), out, free=("out",))
    with pytest.raises(UserError, match=r"--steps: the experiment in .* has 5, got 6; repeat its flags"):
        settle(Config(out, 6, Path("a.dat")), out, free=("out",))
    with pytest.raises(UserError, match=r"--model: .* has 'a\.dat', got None"):
        settle(Config(out), out, free=("out",))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a folder to write to"):
        settle(Config(tmp_path), tmp_path / "file" / "out", free=("out",))


def test_commands_find_this_project(tmp_path: Path) -> None:
    Stages(tmp_path).run("help", "Says its flags", ("-m", "experiments.rounds", "--help"))
    assert attempts(tmp_path) == [("help", "done")]
