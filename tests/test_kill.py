"""Each stage, killed at random moments and resumed: whatever lies on disk can be read, and nothing that was said to be
done is lost.

A server of a warm process forks a child for every life of a stage; that is what makes so many kills cheap.
"""

import errno
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib import checkpoints, cli, provenance, runs
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.agent.evaluate import Evaluation, evaluate
from lib.envs.world import Step
from lib.label_ui.desk import Desk
from lib.label_ui.messages import BatchRequest
from lib.preferences import recorder, segments
from lib.preferences.labels import LabelLog
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from lib.reward.data import load_preferences
from lib.tools.lineage import lineage_text
from lib.training.train import train
from tests.reward.clips import add_labels, clip, grey_db, save
from tests.scripts import ROOT, warm

SCRIPTS = ("02_label_ui.py", "03_reward_train.py")
KILLS = 18  # of each stage

pytestmark = pytest.mark.slow(8)


def serve(jobs: Connection) -> None:
    """Lives as a process: a job comes in, what became of it goes out."""
    torch.set_num_threads(1)
    provenance.git_commit(), provenance.versions()  # known to all children then
    scripts = {name: runpy.run_path(str(ROOT / name))["main"] for name in SCRIPTS}
    while job := jobs.recv():
        end, begin = os.pipe()
        child = os.fork()
        if child == 0:
            live(scripts.get(job["script"]), job, begin)
        os.close(begin)
        with open(end) as told:
            # Its work is what the moment is counted by, for how fast a machine is differs.
            lines = [told.readline() for _ in range(job["lines"])]
            time.sleep(job["seconds"])
            before = processor_seconds(child)
            os.kill(child, job["signal"])
            lines += told.readlines()  # up to the end of the child
        _, status, used = os.wait4(child, 0)
        answer = {
            "lines": [line.strip() for line in lines],
            "status": os.waitstatus_to_exitcode(status),
            "asked": before,
            "ended": used.ru_utime + used.ru_stime,
        }
        jobs.send(answer)


def processor_seconds(process: int | str) -> float:
    """What a process has computed so far. It does not depend on what else a machine does, as the time of day does."""
    after_its_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(after_its_name[11]) + int(after_its_name[12])) / os.sysconf("SC_CLK_TCK")


def live(main: Callable[[list[str]], int | None] | None, job: dict[str, Any], told: int) -> None:
    """A life of a stage, in a process of its own; tells of each label, segment and state that is said to be on disk, and
    of each evaluation that begins. Without `main` the stage is that of 01_a2c.py."""
    status = 1
    try:
        os.chdir(job["folder"])
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        append, save_segment, replace = LabelLog.append, segments.save_segment, os.replace

        def append_and_tell(self: LabelLog, label: Any, present: Callable[[], bool] = lambda: True) -> bool:
            written = append(self, label, present)
            os.write(told, f"{label.sample1} {label.sample2}\n".encode())
            return written

        def save_and_tell(path: Path, segment: Any) -> int:
            size = save_segment(path, segment)
            os.write(told, f"{path}\n".encode())
            return size

        def replace_and_tell(old: str | Path, new: str | Path) -> None:
            replace(old, new)
            if Path(new).name == runs.STATE:
                os.write(told, f"state {time.process_time()}\n".encode())

        def tell_and_evaluate(*arguments: Any) -> Evaluation:
            os.write(told, b"evaluating\n")
            return evaluate(*arguments)

        def train_and_tell(argv: list[str]) -> None:
            train(runs.parse_resumable(TrainConfig, MAY_DIFFER, argv), evaluate=tell_and_evaluate)

        vars(os)["replace"] = replace_and_tell
        vars(recorder)["save_segment"] = save_and_tell
        LabelLog.append = append_and_tell  # type: ignore[method-assign]
        stage = main or train_and_tell
        cli.run(lambda _: stage(job["argv"]))
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(status)


class Stages:
    """The server, as the tests see it.

    Attributes:
      to_save: seconds that the last life computed from the signal to its first state after it; None without one.
      to_end: seconds that it computed from the signal to its end.
    """

    to_save: float | None = None
    to_end: float = 0.0

    def __init__(self) -> None:
        self._jobs, theirs = warm.Pipe()
        self._process = warm.Process(target=serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(
        self,
        folder: Path,
        script: str,
        argv: list[object],
        lines: int,
        seconds: float,
        how: int = signal.SIGKILL,
    ) -> list[str]:
        """Lets a stage live until it has told so much, and so many seconds; returns all that it told."""
        job = {"folder": str(folder), "script": script, "argv": list(map(str, argv))}
        self._jobs.send(job | {"lines": lines, "seconds": seconds, "signal": int(how)})
        answer = self._jobs.recv()
        expected = -how if how == signal.SIGKILL else 0
        assert answer["status"] == expected, (folder / "log").read_text()[-2000:]
        states = [float(line.split()[1]) for line in answer["lines"] if line.startswith("state ")]
        self.to_save = min((at - answer["asked"] for at in states if at > answer["asked"]), default=None)
        self.to_end = answer["ended"] - answer["asked"]
        return [line.split()[0] if line.startswith("state ") else line for line in answer["lines"]]

    def close(self) -> None:
        self._jobs.send(None)
        self._process.join()
        self._jobs.close()


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
        *("-n", "x", "-e", "MovingDot-v0", "--network", "shared", "--num-envs", 2, "--steps", "1M"),
        *("--eval-every", 250, "--eval-games", 1, "--save", "save", "--db-path", "db", "--record-prob", 1),
        *("--rollout", 25, "--checkpoint-minutes", 0),  # two updates a clip, and a state after each
    ]
    told: set[str] = set()
    reached = [0]
    for _ in range(KILLS):
        moment = int(rng.integers(8)), rng.uniform(0, 0.2)
        told |= set(stages.run(tmp_path, "01_a2c.py", begin_or_resume(tmp_path, first), *moment)) - {
            "state",
            "evaluating",
        }
        state = whole_state(tmp_path, "01_a2c.py")
        assert state is not None or reached[-1] == 0
        reached.append(state["steps"] if state else 0)
        for path in (tmp_path / "save").glob("*.dat"):
            if path.is_symlink():
                assert path.is_file()  # it points to one of the others
            else:
                assert checkpoints.load_checkpoint(path, "policy")["steps"] > 0
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
    assert checkpoints.load_checkpoint(tmp_path / "save" / "latest.dat", "policy")["steps"] == state["steps"]


def test_a_teacher_that_is_killed_goes_on(stages: Stages, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    (tmp_path / "db").mkdir()
    for number in range(70):
        save(tmp_path / "db", number, clip(100, scores=[number] * 5, seed=number))
    told: list[str] = []
    for kills in range(1, KILLS + 1):
        command: list[object] = ["-d", "db", "--teacher", "score", "--count", 2000]
        moment = int(rng.integers(50)), rng.uniform(0, 0.02)
        told += stages.run(tmp_path, "02_label_ui.py", command, *moment)
        log = LabelLog(tmp_path / "db" / "labels.json")
        lines = [f"{label.sample1} {label.sample2}" for label in log.read()]
        assert set(told) <= set(lines)
        assert len(lines) == len(set(lines))  # none is asked again
        # A line is one write. Linux looks for a kill between two pages of it, and so may leave the first part of one, not told yet.
        assert len(log.problems) <= kills
        assert all("torn" in problem for problem in log.problems)
    assert told


def test_a_fit_that_is_killed_goes_on(stages: Stages, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    grey_db(tmp_path / "db", segments=30, labels=40)
    first: list[object] = [
        *("-n", "x", "-o", "rewards", "db", "--epochs", 10_000, "--patience", 10_000),
        *("--ensemble", 2, "--frame-stride", 2, "--checkpoint-minutes", 0.001),
    ]
    reached = [0]
    for _ in range(KILLS):
        moment = int(rng.integers(4)), rng.uniform(0, 0.1)
        stages.run(tmp_path, "03_reward_train.py", begin_or_resume(tmp_path, first), *moment)
        state = whole_state(tmp_path, "03_reward_train.py")
        assert state is not None or reached[-1] == 0
        if state is not None:
            reached.append(state["member"]["epoch"])
            assert len(state["history"]) == state["member"]["epoch"]
    assert reached == sorted(reached)
    assert reached[-1] > 1
    assert not list(tmp_path.glob("rewards/*.dat"))
    stages.run(tmp_path, "03_reward_train.py", begin_or_resume(tmp_path, first), 3, 0.0, signal.SIGTERM)
    assert checkpoints.load_checkpoint(tmp_path / "rewards" / "reward-x.dat", "reward")["members"]
    state = whole_state(tmp_path, "03_reward_train.py")
    assert state is not None
    assert state["member"]["epoch"] >= reached[-1]


@pytest.mark.parametrize(("while_", "how"), [("evaluating", signal.SIGTERM), ("acting", signal.SIGINT)])
def test_training_that_is_asked_to_end_saves_within_five_seconds(
    stages: Stages, tmp_path: Path, while_: str, how: signal.Signals
) -> None:
    """Of its own work, on one core: the time of day would tell of whatever else the machine does.

    An evaluation of 200 full games takes longer than that.
    """
    often = {"evaluating": (80, 60), "acting": ("1M", 0.001)}[while_]
    command: list[object] = [
        *("-n", "x", "-e", "MovingDot-v0", "--num-envs", 16, "--steps", "1M", "--save", "save"),
        *("--eval-games", 200, "--eval-every", often[0], "--checkpoint-minutes", often[1]),
    ]
    lines = stages.run(tmp_path, "01_a2c.py", command, 1, 0.3, how)
    assert lines[0] == {"evaluating": "evaluating", "acting": "state"}[while_]
    assert lines[-1] == "state"
    assert stages.to_save is not None
    assert stages.to_save < 5
    assert stages.to_end < 5
    state = whole_state(tmp_path, "01_a2c.py")
    assert state is not None
    assert state["examined"] == 0, "the evaluation was cut short"
    saved = checkpoints.load_checkpoint(tmp_path / "save" / "latest.dat", "policy")
    assert saved["steps"] == state["steps"] > 0


def test_a_fit_that_is_asked_to_end_saves_within_five_seconds(stages: Stages, tmp_path: Path) -> None:
    """Of its own work, on one core, with clips about as large as Seaquest's and the usual batches."""
    (tmp_path / "db").mkdir()
    greys = range(20, 180, 20)
    names = [save(tmp_path / "db", n, clip(grey, size=180, steps=50)) for n, grey in enumerate(greys)]
    add_labels(tmp_path / "db", [(a, b, 2) for a, b in itertools.combinations(names, 2)])
    command: list[object] = ["-n", "x", "-o", "rewards", "db", "--checkpoint-minutes", 0.001]
    stages.run(tmp_path, "03_reward_train.py", command, 1, 0.1, signal.SIGTERM)
    assert stages.to_save is not None
    assert stages.to_save < 5
    assert whole_state(tmp_path, "03_reward_train.py") is not None
    assert checkpoints.load_checkpoint(tmp_path / "rewards" / "reward-x.dat", "reward")["members"]


class Killed(BaseException):
    pass


def test_a_segment_cut_off_where_there_are_no_hard_links_bothers_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between taking the name and putting the content there: an empty file is left."""
    db = grey_db(tmp_path / "db", segments=6, labels=0)

    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_links)
        patched.setattr(os, "replace", kill)
        with pytest.raises(Killed):
            save(db, 6, clip(100))
    empty = "00/00000006.dat"
    assert (db / empty).stat().st_size == 0

    again = SegmentRecorder(db, 1, "Grey-v0", 4, 1.0, seed=0)
    step = Step(np.zeros((1, 48, 48, 3), np.uint8), np.zeros(1, np.float32), *np.zeros((3, 1), bool))
    for _ in range(60):
        again.before(step.frames, np.zeros(1, np.int64))
        again.after(step)
    assert again.stored == 1
    assert (db / "00" / "00000007.dat").stat().st_size > 0
    assert (db / empty).stat().st_size == 0

    names = SegmentDB(db).names
    others = [name for name in names if name != empty]
    assert len(names) == len(others) + 1 == 8
    add_labels(db, [(a, b, 1) for a, b in itertools.pairwise(others)] + [(empty, others[0], 2)])
    data = load_preferences([db], 100)
    assert len(data.pairs) == 6
    assert data.problems == [f"{db}: labels of {empty} left out: db/{empty}: empty"]
    assert "1 of those read are damaged" in lineage_text(db)
    with pytest.raises(cli.UserError, match="empty"):
        lineage_text(db / empty)

    desk = Desk(db, repeat_rate=0)
    page = BatchRequest(db=desk.db.id, page="page00000000", labeller="ada", want=50)
    offers = desk.assign.batch(page).pairs
    assert any(empty in (offer.sample1, offer.sample2) for offer in offers)
    with pytest.raises(segments.SegmentError, match="empty"):
        desk.db.clip(desk.db.clip_id(empty))
    reply = desk.assign.batch(page)
    assert reply.problems == [f"db/{empty}: empty"]
    assert reply.pairs
    assert not any(empty in (offer.sample1, offer.sample2) for offer in reply.pairs)
