"""Disks that fill up, DBs that become read-only or go away, clocks that are set back, everybody at once."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib import checkpoints, files, reporting
from lib.agent.network import PolicyNet
from lib.cli import UserError
from lib.envs.gym_world import GymWorld
from lib.envs.world import Step
from lib.label_ui.db import NotSaved
from lib.label_ui.desk import Desk
from lib.label_ui.messages import BatchRequest, Vote
from lib.preferences.labels import Label, LabelLog
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.reward import clips as clips_module
from lib.reward import fit as fit_module
from lib.reward.config import FitConfig
from lib.reward.data import load_preferences
from lib.reward.fit import fit
from tests.disk import disk_full_after
from tests.label_ui.dbs import make_db
from tests.reward.clips import clip, grey_db, save
from tests.reward.models import save_unfitted
from tests.scripts import refusal

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def as_nobody(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Permissions count meanwhile, though root runs the tests; paths have to be relative to `cwd`."""
    monkeypatch.chdir(cwd)
    root = os.geteuid() == 0
    if root:
        cwd.chmod(0o755)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def read_only(db: Path) -> None:
    for path in (*db.rglob("*"), db):
        path.chmod(0o555 if path.is_dir() else 0o444)


def scored_db(db: Path, count: int = 8) -> Path:
    db.mkdir()
    for number in range(count):
        save(db, number, clip(20 * number + 10, scores=[number] * 5))
    return db


def play(recorder: SegmentRecorder, steps: int) -> None:
    frames, off = np.zeros((1, 48, 48, 3), np.uint8), np.zeros(1, bool)
    for _ in range(steps):
        recorder.before(frames, np.zeros(1, np.int64))
        recorder.after(Step(frames, np.zeros(1, np.float32), off, off, off))


def config(db: Path, out: Path, **flags: Any) -> FitConfig:
    small: dict[str, Any] = {"epochs": 2, "frame_stride": 2, "batch_size": 8, "bf16": False, "seed": 1}
    return FitConfig(dbs=[db], name="grey", out=out, runs=out / "runs", **(small | flags))


# --- disks and DBs ----------------------------------------------------------------------------------------------


def test_a_teacher_keeps_what_it_wrote_when_the_disk_fills_up(tmp_path: Path) -> None:
    db = scored_db(tmp_path / "db")
    with (
        disk_full_after(1000),
        pytest.raises(UserError, match=r"labels\.json: could not be written .* after [1-9] lab"),
    ):
        label_with_teacher(db, "score", 20)
    log = LabelLog(db / "labels.json")
    written = len(log.read())
    assert written > 0
    assert log.problems == []
    assert label_with_teacher(db, "score", 5).written == 5
    assert len(LabelLog(db / "labels.json").read()) == written + 5


def test_nothing_is_said_to_be_written_to_a_read_only_db(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = scored_db(tmp_path / "db")
    label_with_teacher(db, "score", 1)
    before = {path: path.read_bytes() for path in db.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    desk = Desk(Path("db"), repeat_rate=0)
    recorder = SegmentRecorder(Path("db"), 1, "Grey-v0", 4, 1.0, seed=0)
    read_only(db)
    with as_nobody(tmp_path, monkeypatch):
        with pytest.raises(OSError, match=r"Permission denied: 'db/00/"):
            play(recorder, 50)
        with pytest.raises(UserError, match=r"db/labels\.json: could not be written \(Permission denied\)"):
            label_with_teacher(Path("db"), "score", 1)
        with pytest.raises(NotSaved, match="Permission denied"):
            vote(desk, "ada", 1)
        data = load_preferences([Path("db")], 100)
    assert len(data.pairs) == 1, "it can still be read"
    assert recorder.stored == 0
    assert {path: path.read_bytes() for path in db.rglob("*") if path.is_file()} == before
    for path in (db, *db.rglob("*")):
        path.chmod(0o755)


def test_labels_that_may_not_be_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = scored_db(tmp_path / "db")
    label_with_teacher(db, "score", 1)
    (db / "labels.json").chmod(0)
    with (
        as_nobody(tmp_path, monkeypatch),
        pytest.raises(UserError, match=r"^db/labels\.json: cannot be read: Permission denied$"),
    ):
        load_preferences([Path("db")], 100)


@pytest.mark.slow
def test_a_db_that_is_deleted_while_a_fit_reads_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = grey_db(tmp_path / "db", segments=20, labels=30)
    split = vars(fit_module)["split_by_segment"]

    def delete(*arguments: Any) -> Any:
        shutil.rmtree(db)
        return split(*arguments)

    monkeypatch.setattr(fit_module, "split_by_segment", delete)
    with pytest.raises(UserError, match=r"can no longer be read: .*\.dat.*continue with --resume"):
        fit(config(db, tmp_path / "out", memory_mb=0))
    assert not list((tmp_path / "out").glob("*.dat"))


def test_curves_that_cannot_be_written_stop_no_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = set(threading.enumerate())
    with reporting.Charts(tmp_path) as charts:
        charts.scalars({"a": 1.0}, 0)
        charts.flush()
        with disk_full_after(20):
            for step in range(1, 4):
                charts.scalars({"a": 1.0}, step)
                charts.flush()
    for thread in set(threading.enumerate()) - others:
        thread.join(10)
    assert (
        capsys.readouterr().err
        == "curves can no longer be written (File too large); continuing without them\n"
    )


# --- flags ------------------------------------------------------------------------------------------------------


DOT = ["01_a2c.py", "-n", "x", "-e", "MovingDot-v0"]
FIT = ["03_reward_train.py", "-n", "x", "-o", "out"]
PAGE = ["02_label_ui.py", "-d", "db"]
FLAGS: list[tuple[list[str], str]] = [
    (["01_a2c.py"], "--name"),
    (["01_a2c.py", "-n", "x", "--finetune"], "add -m FILE"),
    (["01_a2c.py", "-n", "x", "-e", "Seaqest-v5"], "did you mean"),
    (["01_a2c.py", "-n", "x", "-e", "Seaquest-v4"], "SeaquestNoFrameskip-v4"),
    ([*DOT, "--steps", "0"], "at least 1"),
    ([*DOT, "--dev", "gpu"], "expected cpu, cuda or cuda:N"),
    ([*DOT, "--dev", "cuda:99"], "--dev cuda:99"),
    ([*DOT, "--num-envs", "-1"], "--num-envs"),
    ([*DOT, "--lr", "-1"], "--lr"),
    ([*DOT, "--lr", "nan"], "--lr"),
    ([*DOT, "--checkpoint-minutes", "-1"], "--checkpoint-minutes"),
    ([*DOT, "--teacher", "nobody", "-m", "policy.dat", "--finetune"], "--teacher: expected one of"),
    ([*DOT, "-r", "none.dat"], "none.dat: expected a reward checkpoint"),
    ([*DOT, "-r", "reward.dat"], "a reward model for 4 actions, but MovingDot-v0 has 5 actions"),
    ([*DOT, "-m", "none.dat"], "none.dat: expected a policy checkpoint"),
    ([*DOT, "-m", "reward.dat"], "got a reward checkpoint"),
    ([*DOT, "-m", "FILE"], "FILE: expected a policy checkpoint"),
    ([*DOT, "--save", "FILE/x"], "--save FILE/x: expected a folder"),
    ([*DOT, "--db-path", "FILE"], "--db-path FILE: expected a folder"),
    ([*DOT, "--db-path", "FILE/x"], "--db-path FILE/x: expected a folder"),
    ([*DOT, "--runs", "FILE/x"], "FILE/x: the run's folder could not be made"),
    (["01_a2c.py", "--resume", "none"], "--resume none: expected a run's folder"),
    ([*PAGE, "--teacher", "score", "--count", "-3"], "--count"),
    ([*PAGE, "--teacher", "score", "--error-rate", "2"], "--error-rate"),
    (["02_label_ui.py", "-d", "FILE"], "FILE"),
    ([*PAGE, "--port", "-1"], "--port"),
    ([*PAGE, "--reward", "none.dat"], "none.dat: expected a reward checkpoint"),
    ([*PAGE, "--reward", "reward.dat", "--dev", "tpu"], "expected cpu, cuda or cuda:N"),
    ([*FIT, "none"], "none: no such folder"),
    ([*FIT, "empty"], "labels.json, found none"),
    ([*FIT, "few"], "at least 10 labels"),
    (["03_reward_train.py", "-n", "x", "-o", "FILE", "db"], "-o FILE: expected a folder to write to"),
    ([*FIT, "db", "--dev", "tpu"], "expected cpu, cuda or cuda:N"),
    ([*FIT, "db", "--epochs", "-1"], "--epochs"),
    ([*FIT, "db", "--lr", "-1"], "--lr"),
    ([*FIT, "db", "--runs", "FILE/x"], "FILE/x: the run's folder could not be made"),
    ([*FIT, "db", "--only", "eve"], "expected labellers among"),
    ([*FIT, "db", "--judge", "none.dat", "--audit", "policy.dat"], "none.dat: expected a reward checkpoint"),
    (["03_reward_train.py", "--resume", "none"], "--resume none: expected a run's folder"),
    (["04_play.py", "-m", "none.dat"], "none.dat: expected a policy checkpoint"),
    (["04_play.py", "-m", "none.dat", "--game", "5"], "--games"),
    (["04_play.py", "-m", "policy.dat", "-e", "SeaquestNoFrameskip-v4"], "5 actions"),
    (["04_play.py", "-m", "policy.dat", "--dev", "tpu"], "expected cpu, cuda or cuda:N"),
    (["04_play.py", "-m", "policy.dat", "-e", "Nothing-v0"], "no environment 'Nothing-v0'"),
    (["04_play.py", "-m", "policy.dat", "-n", "-1"], "-n"),
    (["04_play.py", "-m", "policy.dat", "--seed", "-1"], "--seed"),
    (["04_play.py", "-m", "policy.dat", "--reward", "none.dat"], "none.dat: expected a reward checkpoint"),
    (
        ["04_play.py", "-m", "policy.dat", "--reward", "reward.dat"],
        "a reward model for 4 actions, but MovingDot-v0 has 5 actions",
    ),
    (["04_play.py", "-m", "policy.dat", "-r", "FILE"], "-r FILE: expected a folder"),
    (["04_play.py", "-m", "policy.dat", "-r", "FILE/x"], "-r FILE/x: expected a folder"),
]


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("artefacts")
    (root / "FILE").write_text("no folder")
    (root / "empty").mkdir()
    grey_db(root / "db", segments=20, labels=30)
    grey_db(root / "few", segments=20, labels=9)
    state = PolicyNet(5).state_dict()
    checkpoints.save_checkpoint(
        root / "policy.dat", "policy", {"state_dict": state}, {"env": "MovingDot-v0"}, {}
    )
    save_unfitted(root / "reward.dat", (48, 48, 3), 4)
    return root


def work(*_: Any, **__: Any) -> Any:
    raise AssertionError("work began")


@pytest.mark.slow(0)
@pytest.mark.parametrize(("line", "says"), FLAGS, ids=[" ".join(line)[:60] for line, _ in FLAGS])
def test_bad_flags_are_found_before_any_work(
    artefacts: Path,
    line: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(GymWorld, "reset", work)  # before any game is played
    monkeypatch.setattr(clips_module, "train_epoch", work)
    monkeypatch.chdir(artefacts)
    assert says in refusal(line, monkeypatch, capsys)
    assert not list(artefacts.glob("*.json"))
    assert not (artefacts / "out").exists()


# --- everybody at once ------------------------------------------------------------------------------------------


def vote(desk: Desk, name: str, label: int, page: str | None = None) -> str:
    """Answers the next pair; the vote's id once that is said to be saved."""
    page = page or f"page{name}000"
    (offer,) = desk.assign.batch(BatchRequest(db=desk.db.id, page=page, labeller=name, want=1)).pairs
    reply = desk.votes.vote(Vote(db=desk.db.id, labeller=name, offer=offer, label=label))  # type: ignore[arg-type]
    assert reply.outcome == "saved"
    return offer.id


def test_a_thousand_labels_of_four_people_on_two_pages_of_one_db(tmp_path: Path) -> None:
    root = make_db(tmp_path / "db", 60)
    desks = [Desk(root, repeat_rate=0, seed=seed) for seed in range(2)]
    saved: dict[str, list[str]] = {name: [] for name in ("ann", "bob", "cyd", "dan")}

    def label(name: str, desk: Desk) -> None:
        for number in range(250):
            saved[name].append(vote(desk, name, number % 3))

    threads = [threading.Thread(target=label, args=(name, desks[at % 2])) for at, name in enumerate(saved)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = LabelLog(root / "labels.json")
    lines = log.read()
    assert log.problems == []
    assert Counter(line.annotator for line in lines) == dict.fromkeys(saved, 250)
    assert {name: [line.id for line in lines if line.annotator == name] for name in saved} == saved
    assert [desk.stats.overview().usable for desk in desks] == [1000, 1000]


def test_a_fit_takes_whole_labels_while_the_page_writes_more(tmp_path: Path) -> None:
    db = grey_db(tmp_path / "db", segments=24, labels=40)
    names = SegmentDB(db).names
    done = threading.Event()

    def write() -> None:
        log = LabelLog(db / "labels.json")
        for number in range(10**6):
            if done.is_set():
                return
            one, two = names[number % 24], names[(number + 1 + number // 24 % 22) % 24]
            log.append(Label(one, two, 1, annotator=f"ann {number}"))

    before = len(load_preferences([db], 100).pairs)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        fitted = fit(config(db, tmp_path / "out"))
    finally:
        done.set()
        writer.join()
    after = load_preferences([db], 100)
    content = torch.load(fitted.path, weights_only=True)
    assert before <= content["parents"]["labels"] < len(after.pairs)
    assert fitted.data.problems == after.problems == []
    assert sum(content["parents"]["dbs"][0]["labellers"].values()) == content["parents"]["labels"]


# --- clocks -----------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_loses_and_reorders_nothing(tmp_path: Path) -> None:
    root = make_db(tmp_path / "db", 6)
    times = iter(
        [1e9 - 86400 * day for day in range(1000)]
    )  # every look at the clock is a day before the last one
    desk = Desk(root, repeat_rate=0, seed=0, now=lambda: next(times))
    ids = [vote(desk, "ada", 1) for _ in range(6)]
    lines = LabelLog(root / "labels.json").read()
    assert [line.id for line in lines] == ids
    assert [line.time for line in lines] == sorted((line.time for line in lines), reverse=True)  # type: ignore[type-var]
    assert [said.offer.id for said in desk.votes.history("ada", None, 10)] == ids
    assert desk.stats.overview().usable == 6


def test_files_in_the_making_outlive_a_clock_that_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = tmp_path / f".{'0' * 16}.tmp"
    young.touch()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    files.remove_stale(tmp_path)
    assert young.exists(), "it may be in the making, whatever the clock says"


@pytest.mark.slow(9)
def test_training_that_nobody_reads_any_more_keeps_what_it_has(tmp_path: Path) -> None:
    words = ["-n", "x", "-e", "MovingDot-v0", "--num-envs", "2", "--steps", "1M", "--eval-games", "1"]
    with subprocess.Popen(
        [sys.executable, str(ROOT / "01_a2c.py"), *words, "--eval-every", "20", "--save", "save"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")  # as after Ctrl-C
    (state,) = (tmp_path / "runs").glob("*/state.dat")
    saved = checkpoints.load_checkpoint(tmp_path / "save" / "latest.dat", "policy")
    assert checkpoints.load_checkpoint(state, "trainer")["steps"] == saved["steps"]
