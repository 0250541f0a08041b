"""Run folders, and runs that resume with the flags they began with."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lib import runs
from lib.cli import UserError, flag


@dataclass
class Config:
    lr: float = 7e-4
    save: Path = Path("saves/x")


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
    clip_score: bool = flag(default=True)
    bf16: bool | None = flag(default=None)
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


def test_what_was_switched_off_may_be_said_again(tmp_path: Path) -> None:
    config = Flags(dbs=[Path("a")], name="x", clip_score=False, bf16=False)
    runs.write_config(tmp_path, vars(config))
    again = resumed("--resume", tmp_path, "--no-clip-score", "--no-bf16")
    assert again == dataclasses.replace(config, resume=tmp_path)
    with pytest.raises(UserError, match="--bf16 cannot change: the run began with False"):
        resumed("--resume", tmp_path, "--bf16")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--lr", "0.1"], "--lr cannot change: the run began with 0.5; only --steps, --save may differ"),
        (["-n", "y"], "--name cannot change: the run began with x"),
        (["c"], "--dbs cannot change: the run began with a b"),
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
    with pytest.raises(UserError, match="--clip-range cannot change: the run began with 0"):
        resumed("--resume", begun, "--clip", "0.2")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "expected a run's folder with a config.json: No such file"),
        ("{", "that file is damaged"),
        ("[1]", "that file belongs to another program"),
        ('{"config": {"name": "x", "algo_2": 1}}', "has --algo-2, which is not a flag here"),
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
    with pytest.raises(UserError, match="expected a run of 03, got one of 01; use that script"):
        runs.load_state(tmp_path, "03")
    with runs.locked(tmp_path), pytest.raises(UserError, match="still running it"), runs.locked(tmp_path):
        pass
    with runs.locked(tmp_path):  # let go of
        pass


def test_minutes_are_counted() -> None:
    now = 100.0
    timer = runs.Timer(0.5, lambda: now)
    now = 129.9
    assert not timer.due()
    now = 130.0
    assert timer.due()
    timer.restart()
    assert not timer.due()
    assert runs.Timer(0.0, lambda: now).due()
