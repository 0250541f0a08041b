"""Each stage, killed at random moments and gone on with: whatever lies on disk can be read, and nothing that was said to
be done is lost.

A server imports everything once and forks a child for every life of a stage; that is what makes so many kills cheap.
"""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib import cli, runs
from lib.agent import trainer
from lib.preferences import recorder, segments
from lib.preferences.labels import LabelLog
from lib.preferences.segments import SegmentDB
from lib.reward import fit
from tests.reward.clips import clip, grey_db, save

ROOT = Path(__file__).parents[1]
DOORS = ("01_a2c.py", "02_label_ui.py", "03_reward_train.py")
KILLS = 18  # of each stage

pytestmark = pytest.mark.slow


def serve() -> None:
    """Lives as a process: a job a line comes in, what became of it goes out."""
    import torch
    import torch.utils.tensorboard

    import lib.agent.audit
    import lib.reward.report  # noqa: F401

    torch.set_num_threads(1)
    runs.git_commit(), runs.versions()  # known to all children then
    doors = {name: runpy.run_path(str(ROOT / name))["main"] for name in DOORS}
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        end, begin = os.pipe()
        child = os.fork()
        if child == 0:
            live(doors[job["door"]], job, begin)
        os.close(begin)
        with open(end) as told:
            # Its work is what the moment is counted by, for how fast a machine is differs.
            lines = [told.readline() for _ in range(job["lines"])]
            time.sleep(job["seconds"])
            os.kill(child, job["signal"])
            lines += told.readlines()  # up to the end of the child
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"lines": [line.strip() for line in lines], "status": status}), flush=True)


def live(main: Callable[[list[str]], int | None], job: dict[str, Any], told: int) -> None:
    """A life of a stage, in a process of its own; tells of each label, segment and state that is said to be on disk."""
    status = 1
    try:
        os.chdir(job["folder"])
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        append, save_segment, save_state = LabelLog.append, segments.save_segment, runs.save_state

        def append_and_tell(self: LabelLog, label: Any) -> None:
            append(self, label)
            os.write(told, f"{label.sample1} {label.sample2}\n".encode())

        def save_and_tell(path: Path, segment: Any) -> int:
            size = save_segment(path, segment)
            os.write(told, f"{path}\n".encode())
            return size

        def keep_and_tell(*arguments: Any) -> None:
            save_state(*arguments)
            os.write(told, b"state\n")

        for module in (trainer, fit):
            vars(module)["save_state"] = keep_and_tell
        vars(recorder)["save_segment"] = save_and_tell
        LabelLog.append = append_and_tell  # type: ignore[method-assign]
        cli.run(lambda argv: main(list(argv or [])), job["argv"])
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(status)


class Stages:
    """The server, as the tests see it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.test_kill import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._answers = self._process.stdin, self._process.stdout
        assert self._answers.readline() == "ready\n"

    def run(
        self,
        folder: Path,
        door: str,
        argv: list[object],
        lines: int,
        seconds: float,
        how: int = signal.SIGKILL,
    ) -> list[str]:
        """Lets a stage live until it has told so much, and so many seconds; returns all that it told."""
        job = {"folder": str(folder), "door": door, "argv": list(map(str, argv))}
        print(
            json.dumps(job | {"lines": lines, "seconds": seconds, "signal": int(how)}),
            file=self._jobs,
            flush=True,
        )
        answer = json.loads(self._answers.readline())
        expected = -how if how == signal.SIGKILL else 0
        assert answer["status"] == expected, (folder / "log").read_text()[-2000:]
        return answer["lines"]

    def close(self) -> None:
        self._jobs.close()
        self._process.wait()
        self._answers.close()


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    server = Stages()
    yield server
    server.close()


def run_of(folder: Path) -> Path | None:
    """The run that a killed stage left, if it came so far as to say what it is."""
    found = sorted((folder / "runs").glob("*/config.json"))
    assert len(found) <= 1
    return found[0].parent if found else None


def begin_or_resume(folder: Path, first: list[object]) -> list[object]:
    run = run_of(folder)
    if run is None:
        shutil.rmtree(folder / "runs", ignore_errors=True)
        return first
    json.loads((run / "config.json").read_text())
    return ["--resume", run]


def whole_state(folder: Path, stage: str) -> dict[str, Any] | None:
    run = run_of(folder)
    return None if run is None else runs.load_state(run, stage)


def test_training_that_is_killed_goes_on(stages: Stages, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    first: list[object] = [
        *("-n", "x", "-e", "MovingDot-v0", "--num-envs", 2, "--steps", "1M", "--eval-every", 250),
        *("--eval-games", 1, "--save", "save", "--db-path", "db", "--record-prob", 0.3),
        *("--checkpoint-minutes", 0.01),
    ]
    told: set[str] = set()
    reached = [0]
    for _ in range(KILLS):
        moment = int(rng.integers(4)), rng.uniform(0, 0.2)
        told |= set(stages.run(tmp_path, "01_a2c.py", begin_or_resume(tmp_path, first), *moment)) - {"state"}
        state = whole_state(tmp_path, "01_a2c.py")
        assert state is not None or reached[-1] == 0
        reached.append(state["steps"] if state else 0)
        for path in (tmp_path / "save").glob("*.dat"):
            if path.is_symlink():
                assert path.is_file()  # it points to one of the others
            else:
                assert runs.load_checkpoint(path, "policy")["steps"] > 0
        db = SegmentDB(tmp_path / "db")
        db.refresh()
        assert {str(Path("db") / name) for name in db.names} >= told
        for name in db.names:
            db.load(name)
        strays = [path.name for path in tmp_path.rglob(".*") if path.is_file() and not path.is_symlink()]
        assert all(re.fullmatch(r"\..*\.tmp", name) for name in strays)
    assert reached == sorted(reached)
    assert reached[-1] > 0
    assert told
    stages.run(tmp_path, "01_a2c.py", begin_or_resume(tmp_path, first), 3, 0.0, signal.SIGTERM)
    state = whole_state(tmp_path, "01_a2c.py")
    assert state is not None
    assert state["steps"] >= reached[-1]
    assert runs.load_checkpoint(tmp_path / "save" / "latest.dat", "policy")["steps"] == state["steps"]


def test_a_teacher_that_is_killed_goes_on(stages: Stages, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    (tmp_path / "db").mkdir()
    for number in range(70):
        save(tmp_path / "db", number, clip(100, scores=[number] * 5, seed=number))
    told: list[str] = []
    for _ in range(KILLS):
        command: list[object] = ["-d", "db", "--teacher", "score", "--count", 2000]
        moment = int(rng.integers(50)), rng.uniform(0, 0.02)
        told += stages.run(tmp_path, "02_label_ui.py", command, *moment)
        log = LabelLog(tmp_path / "db" / "labels.json")
        lines = [f"{label.sample1} {label.sample2}" for label in log.read()]
        assert set(told) <= set(lines)
        assert len(lines) == len(set(lines))  # none is asked again
        assert len(log.problems) == 0  # a line is one write: it is there or not
    assert told


def test_a_fit_that_is_killed_goes_on(stages: Stages, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    grey_db(tmp_path / "db", segments=30, labels=40)
    first: list[object] = [
        *("-n", "x", "-o", "rewards", "db", "--epochs", 10_000, "--patience", 10_000),
        *("--ensemble", 2, "--frame-stride", 2, "--checkpoint-minutes", 0.001),
    ]
    reached = [(0, 0)]
    for _ in range(KILLS):
        moment = int(rng.integers(4)), rng.uniform(0, 0.1)
        stages.run(tmp_path, "03_reward_train.py", begin_or_resume(tmp_path, first), *moment)
        state = whole_state(tmp_path, "03_reward_train.py")
        assert state is not None or reached[-1] == (0, 0)
        if state is not None:
            reached.append((state["member"]["epoch"], state["member"]["passed"]["at"]))
            assert len(state["history"]) == state["member"]["epoch"]
    assert reached == sorted(reached)
    assert reached[-1][0] > 1
    assert not list(tmp_path.glob("rewards/*.dat"))
    stages.run(tmp_path, "03_reward_train.py", begin_or_resume(tmp_path, first), 3, 0.0, signal.SIGTERM)
    assert runs.load_checkpoint(tmp_path / "rewards" / "reward-x.dat", "reward")["members"]
    state = whole_state(tmp_path, "03_reward_train.py")
    assert state is not None
    assert (state["member"]["epoch"], state["member"]["passed"]["at"]) >= reached[-1]
