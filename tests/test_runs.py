"""Bookkeeping: checkpoints that cannot harm, run folders of one's own, runs that go on with the flags they began with."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib import runs
from lib.cli import UserError, flag

# --- checkpoints -----------------------------------------------------------------------------------------------


@dataclass
class Config:
    lr: float = 7e-4
    save: Path = Path("saves/x")


def save(path: Path, kind: str = "policy", **payload: Any) -> Path:
    runs.save_checkpoint(path, kind, payload, Config(), {"dbs": [Path("db")], "labels": 3})
    return path


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    rng = np.random.default_rng(5)
    path = save(
        tmp_path / "new" / "model.dat",
        state_dict=net.state_dict(),
        optimizer=optimizer.state_dict(),
        rng=rng.bit_generator.state,
        torch_rng=torch.get_rng_state(),
        best=np.float32(1.5),
        mean=np.arange(3.0),
        shape=(1, 2),
    )
    got = runs.load_checkpoint(path, "policy")

    assert (got["kind"], got["format_version"]) == ("policy", runs.FORMAT_VERSION)
    assert got["config"] == {"lr": 7e-4, "save": "saves/x"}
    assert got["parents"] == {"dbs": ["db"], "labels": 3}
    assert got["versions"] == runs.versions()
    assert got["git_commit"] == runs.git_commit()
    assert datetime.fromisoformat(got["created"]).utcoffset() is not None
    assert got["best"] == 1.5
    assert got["shape"] == (1, 2)
    torch.testing.assert_close(got["mean"], torch.arange(3.0, dtype=torch.float64))
    torch.testing.assert_close(got["torch_rng"], torch.get_rng_state())
    again = np.random.default_rng()
    again.bit_generator.state = got["rng"]
    assert again.random() == rng.random()

    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    other.load_state_dict(got["state_dict"])
    torch.optim.Adam(other.parameters()).load_state_dict(got["optimizer"])
    torch.testing.assert_close(other(torch.ones(4, 3)), net(torch.ones(4, 3)))


def test_a_lineage_is_what_a_checkpoint_says_of_how_it_came_about(tmp_path: Path) -> None:
    grandparent = {"file": "v0.dat", "config": {"seed": 0}, "steps": 5}
    path = tmp_path / "v1.dat"
    runs.save_checkpoint(path, "policy", {"steps": 9, "state_dict": {}}, {"seed": 1}, {"policy": grandparent})
    content = runs.load_checkpoint(path, "policy")
    assert runs.lineage(content) == {
        "config": {"seed": 1},
        "parents": {"policy": grandparent},
        "steps": 9,
        **{key: content[key] for key in ("versions", "git_commit", "created")},
    }
    assert runs.lineage({"kind": "policy", "bare": True, "state_dict": {}}) == {}


def test_a_lineage_takes_only_plain_values() -> None:
    odd = {"a": torch.ones(3), "b": b"x", "c": [1, None, object()], "d": (2.5, True), "e": 2**70, (1,): 1}
    assert runs.lineage({"config": odd}) == {"config": {"c": [1, None], "d": [2.5, True]}}
    assert runs.lineage({"config": torch.ones(3), "steps": 2**70, "created": "x" * 1001}) == {}


def test_a_lineage_is_bounded_whatever_a_file_says(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"x": "y" * 900}
    for _ in range(60):
        shared = {"left": shared, "right": shared}  # 2⁶⁰ dicts to whoever follows each
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    wide = {str(number): "x" * 900 for number in range(100_000)}
    for parents in (shared, deep, wide):
        kept = runs.lineage({"config": {"seed": 1}, "parents": parents})
        assert kept["config"] == {"seed": 1}
        runs.save_checkpoint(tmp_path / "a.dat", "policy", {}, {}, {"policy": kept})
        assert (tmp_path / "a.dat").stat().st_size < 4 << 20


def test_checkpoint_of_a_view_is_small(tmp_path: Path) -> None:
    path = save(tmp_path / "a.dat", row=torch.zeros(1_000_000)[:2])
    assert path.stat().st_size < 100_000


def test_checkpoint_refuses_what_it_could_not_load(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"checkpoint\['net'\]\[1\]: a Linear cannot"):
        save(tmp_path / "a.dat", net=[1, torch.nn.Linear(1, 1)])
    with pytest.raises(ValueError, match="kind"):
        runs.save_checkpoint(tmp_path / "a.dat", "policy", {"kind": 1}, {}, {})
    with pytest.raises(ValueError, match="expected a kind of policy, reward, trainer; got 'x'"):
        save(tmp_path / "a.dat", "x")
    assert not (tmp_path / "a.dat").exists()


def test_checkpoint_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"file/a\.dat: the policy checkpoint could not be written: (Not a d|File e)"
    ):
        save(tmp_path / "file" / "a.dat")


def test_bare_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "model.dat"
    torch.save(torch.nn.Linear(2, 1).state_dict(), path)
    got = runs.load_checkpoint(path, "reward")
    assert (got["kind"], got["bare"], sorted(got["state_dict"])) == ("reward", True, ["bias", "weight"])


class Hostile:
    """Runs a shell command when unpickled, if it is let."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """name → (file, what the refusal says)."""
    good = save(folder / "good.dat", state_dict=torch.nn.Linear(9, 9).state_dict()).read_bytes()
    mark = folder / "mark"
    hostile = io.BytesIO()
    torch.save({"kind": "policy", "format_version": 1, "x": Hostile(mark)}, hostile)
    newer = io.BytesIO()
    torch.save({"kind": "policy", "format_version": runs.FORMAT_VERSION + 1}, newer)
    listed = io.BytesIO()
    torch.save([1, 2], listed)
    nothing = io.BytesIO()
    torch.save({}, nothing)
    foreign = io.BytesIO()
    torch.save({"model": {}, "kind": 3}, foreign)
    reward = save(folder / "reward.dat", "reward").read_bytes()
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    contents = {
        "empty": (b"", "got an empty file"),
        "truncated": (good[: len(good) // 2], "got a damaged file"),
        "cut": (good[:-1], "got a damaged file"),
        "magic": (b"PK", "got a damaged file"),
        "text": (b"hello", "that PyTorch's torch.save (1.6 or later) did not write"),
        "zip": (bomb.getvalue(), "claims 10000000 bytes inside"),
        "hostile": (
            hostile.getvalue(),
            "asks to run posix.system, which no checkpoint needs; nothing of it was run",
        ),
        "pickle": (pickle.dumps(Hostile(mark)), "a plain pickle, which could run code and was not opened"),
        "newer": (newer.getvalue(), "of format 1 at most, got format 2"),
        "list": (listed.getvalue(), "got a file that holds a list"),
        "nothing": (nothing.getvalue(), "got a file that holds an empty dict"),
        "foreign": (foreign.getvalue(), "got a file that holds a dict with the keys kind, model"),
        "reward": (reward, "got a reward checkpoint; name a policy one"),
    }
    files = {}
    for name, (content, says) in contents.items():
        path = folder / f"{name}.bad"
        path.write_bytes(content)
        files[name] = (path, says)
    files["missing"] = (folder / "none.dat", "but there is no such file")
    files["folder"] = (folder, "got a folder")
    files["device"] = (Path("/dev/null"), "no regular file")
    return files


def test_bad_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    for path, says in bad_files(tmp_path).values():
        with pytest.raises(UserError) as refused:
            runs.load_checkpoint(path, "policy")
        line = str(refused.value)
        assert line.startswith(f"{path}: expected a policy checkpoint")
        assert says in line
        assert "\n" not in line
    assert not (tmp_path / "mark").exists()


def test_mutated_checkpoints_never_crash(tmp_path: Path) -> None:
    good = save(tmp_path / "good.dat", state_dict=torch.nn.Linear(4, 4).state_dict()).read_bytes()
    rng = np.random.default_rng(0)
    path = tmp_path / "mutated.dat"
    for _ in range(150):
        content = bytearray(good)
        for at in rng.integers(0, len(content), rng.integers(1, 8)):
            content[at] = rng.integers(256)
        path.write_bytes(bytes(content))
        try:
            runs.load_checkpoint(path, "policy")
        except UserError as error:
            assert str(error).startswith(f"{path}: expected")  # noqa: PT017  # some mutations are harmless


# --- provenance ------------------------------------------------------------------------------------------------


def test_versions_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = runs.versions()
    assert set(found) == {"python", "torch", "numpy", "gymnasium", "ale-py"}
    assert found["torch"] == torch.__version__
    assert all(found.values())
    commit = runs.git_commit()
    assert commit == "" or len(commit.removesuffix("-dirty")) == 40
    monkeypatch.setenv("PATH", "")
    assert runs.git_commit.__wrapped__() == ""


def test_asking_for_the_commit_leaves_the_repository_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on its index would get in the way of a commit that is under way, and stay if we were killed."""
    code = tmp_path / "lib" / "runs.py"
    code.parent.mkdir()
    monkeypatch.setattr(runs, "__file__", str(code))

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "--quiet")
    assert runs.git_commit.__wrapped__() == "", "nothing was committed yet"
    code.write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    head = git("rev-parse", "HEAD")
    index = (tmp_path / ".git" / "index").read_bytes()
    os.utime(code, (1e9, 1e9))  # looks changed, and is not: what git would note in its index
    (tmp_path / "untracked").touch()
    assert runs.git_commit.__wrapped__() == head
    code.write_text("2")
    assert runs.git_commit.__wrapped__() == f"{head}-dirty"
    assert (tmp_path / ".git" / "index").read_bytes() == index


# --- run folders -----------------------------------------------------------------------------------------------


def test_run_folders_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "20250102-030405")
    made = [runs.make_run_dir(tmp_path / "runs", "a2c", "v0") for _ in range(3)]
    assert [path.name for path in made] == [
        "20250102-030405-a2c-v0",
        "20250102-030405-a2c-v0-2",
        "20250102-030405-a2c-v0-3",
    ]
    assert all(path.is_dir() for path in made)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "a b", "a\n", "x" * 101, "ä"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="expected a name of 1 to 100 letters"):
        runs.make_run_dir(tmp_path, "a2c", name)
    assert not any(tmp_path.iterdir())


def test_run_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: the run's folder could not be made here"):
        runs.make_run_dir(tmp_path / "file", "a2c", "v0")


def test_write_config(tmp_path: Path) -> None:
    runs.write_config(tmp_path, Config())
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["config"] == {"lr": 7e-4, "save": "saves/x"}
    assert set(content) == {"config", "command", "versions", "git_commit", "created"}
    with pytest.raises(UserError, match=r"config\.json: could not be written: No such file"):
        runs.write_config(tmp_path / "gone", {})


# --- going on with a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flags:
    dbs: list[Path] = flag(positional=True, metavar="DB")
    name: str = flag("-n")
    steps: int = flag(default=10, min=1)
    lr: float | None = flag(default=None)
    save: Path | None = flag(default=None)
    gentle: bool = flag(default=False)
    resume: Path | None = flag(default=None)
    later: str = flag(default="was not there then")
    clip_range: float = flag(default=0.2, formerly="clip")


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    config = Flags(dbs=[Path("a"), Path("b")], name="x", lr=0.5, save=Path("saves"), gentle=True)
    runs.write_config(tmp_path, {k: v for k, v in vars(config).items() if k != "later"})
    return tmp_path


def resumed(*argv: object) -> Flags:
    return runs.parse_resumable(Flags, ("steps", "save"), list(map(str, argv)))


def test_a_resumed_run_has_the_flags_it_began_with(begun: Path) -> None:
    assert resumed("-n", "y", "c") == Flags(dbs=[Path("c")], name="y")
    found = resumed("--resume", begun, "--steps", "20", "--lr", "0.5")
    assert found == Flags(
        dbs=[Path("a"), Path("b")], name="x", steps=20, lr=0.5, save=Path("saves"), gentle=True, resume=begun
    )
    assert type(found) is Flags
    assert resumed(f"--resume={begun}", "--save", "other").save == Path("other")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--lr", "0.1"], "--lr cannot change, the run began with 0.5; only --steps, --save may differ"),
        (["-n", "y"], "--name cannot change, the run began with x"),
        (["c"], "--dbs cannot change, the run began with a b"),
        (["--later", "z"], None),  # the run says nothing of it
    ],
)
def test_what_may_not_change_is_named(begun: Path, argv: list[str], says: str | None) -> None:
    if says is None:
        assert resumed("--resume", begun, *argv).later == "z"
    else:
        with pytest.raises(UserError, match=says):
            resumed("--resume", begun, *argv)


def test_a_run_of_before_a_flag_was_renamed_goes_on(begun: Path) -> None:
    path = begun / "config.json"
    content = json.loads(path.read_text())
    content["config"]["clip"] = 0.1
    del content["config"]["clip_range"]
    path.write_text(json.dumps(content))
    assert resumed("--resume", begun).clip_range == 0.1
    with pytest.raises(UserError, match="--clip-range cannot change, the run began with 0"):
        resumed("--resume", begun, "--clip", "0.2")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "expected a run's folder with a config.json: No such file"),
        ("{", "that file is damaged"),
        ("[1]", "that file is of another program"),
        ('{"config": {"name": "x", "algo_2": 1}}', "has --algo-2, which is no flag here"),
    ],
)
def test_a_folder_that_is_no_run_is_said(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=says):
        resumed("--resume", tmp_path)


def test_a_config_keeps_how_a_run_began(begun: Path) -> None:
    began = json.loads((begun / "config.json").read_text())
    runs.write_config(begun, {"steps": 20}, resumed=True)
    runs.write_config(begun, {"steps": 30}, resumed=True)
    content = json.loads((begun / "config.json").read_text())
    assert content["config"] == {"steps": 30}
    assert content["created"] == began["created"]
    assert [set(each) for each in content["resumed"]] == [
        {"command", "versions", "git_commit", "created"}
    ] * 2


def test_a_state_is_of_one_stage_and_of_one_process(tmp_path: Path) -> None:
    assert runs.load_state(tmp_path, "01") is None
    runs.save_state(tmp_path, "01", {"steps": 5}, {}, {"dbs": []})
    state = runs.load_state(tmp_path, "01")
    assert state is not None
    assert (state["steps"], state["parents"]) == (5, {"dbs": []})
    with pytest.raises(UserError, match="expected a run of 03, got one of 01; take that script"):
        runs.load_state(tmp_path, "03")
    with runs.locked(tmp_path), pytest.raises(UserError, match="still going on"), runs.locked(tmp_path):
        pass
    with runs.locked(tmp_path):  # let go of
        pass


def test_minutes_are_counted() -> None:
    now = 100.0
    every = runs.Every(0.5, lambda: now)
    now = 129.9
    assert not every.due()
    now = 130.0
    assert every.due()
    every.restart()
    assert not every.due()
    assert runs.Every(0.0, lambda: now).due()
