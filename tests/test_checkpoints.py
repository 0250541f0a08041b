"""Checkpoint files: what is written loads again, and no file can do harm."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib import checkpoints, provenance
from lib.cli import UserError
from tests.disk import disk_full_after


@dataclass
class Config:
    lr: float = 7e-4
    save: Path = Path("saves/x")


def save(path: Path, kind: str = "policy", **payload: Any) -> Path:
    checkpoints.save_checkpoint(path, kind, payload, Config(), {"dbs": [Path("db")], "labels": 3})
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
    got = checkpoints.load_checkpoint(path, "policy")

    assert (got["kind"], got["format_version"]) == ("policy", checkpoints.FORMAT_VERSION)
    assert got["config"] == {"lr": 7e-4, "save": "saves/x"}
    assert got["parents"] == {"dbs": ["db"], "labels": 3}
    assert got["versions"] == provenance.versions()
    assert got["git_commit"] == provenance.git_commit()
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


def test_checkpoint_of_a_view_is_small(tmp_path: Path) -> None:
    path = save(tmp_path / "a.dat", row=torch.zeros(1_000_000)[:2])
    assert path.stat().st_size < 100_000


def test_a_checkpoint_is_written_without_a_second_copy_of_what_it_holds(tmp_path: Path) -> None:
    whole, view = torch.zeros(1000), torch.zeros(1000)[:500]
    kept = checkpoints.storable([whole, view])
    assert kept[0].data_ptr() == whole.data_ptr()
    assert kept[1].data_ptr() != view.data_ptr()
    program = (
        "import resource, sys, pathlib, torch\n"
        "from lib.checkpoints import save_checkpoint\n"
        "replay = torch.zeros(300_000_000, dtype=torch.uint8)\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000\n"
        "replay.add_(1)\n"
        "before = peak()\n"
        "save_checkpoint(pathlib.Path(sys.argv[1]), 'trainer', {'replay': replay}, {}, {})\n"
        "print(peak() - before)\n"
    )
    path = tmp_path / "a.dat"
    more = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True).stdout
    assert float(more) < 100, "MB"
    assert path.stat().st_size > 300_000_000


@pytest.mark.parametrize("size", [0, 100, 5_000, 300_000])
def test_a_full_disk_is_said_in_one_line_and_keeps_the_checkpoint_before(tmp_path: Path, size: int) -> None:
    path = save(tmp_path / "a.dat", row=torch.zeros(3))
    before = path.read_bytes()
    with (
        disk_full_after(size),
        pytest.raises(UserError, match="could not be written: File too large; make room"),
    ):
        save(path, row=torch.zeros(100_000), other=torch.zeros(3))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.dat"]


def test_checkpoint_refuses_what_it_could_not_load(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"checkpoint\['net'\]\[1\]: a Linear cannot"):
        save(tmp_path / "a.dat", net=[1, torch.nn.Linear(1, 1)])
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
    got = checkpoints.load_checkpoint(path, "reward")
    assert (got["kind"], got["bare"], sorted(got["state_dict"])) == ("reward", True, ["bias", "weight"])


class Hostile:
    """Runs a shell command when unpickled, if it is let."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """name → (file, what the refusal says)."""
    good = save(folder / "good.dat", state_dict=torch.nn.Linear(9, 9).state_dict()).read_bytes()
    mark = folder / "mark"
    hostile = saved({"kind": "policy", "format_version": 1, "x": Hostile(mark)})
    newer = saved({"kind": "policy", "format_version": checkpoints.FORMAT_VERSION + 1})
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
        "hostile": (hostile, "asks to run posix.system, which no checkpoint needs; nothing was run"),
        "pickle": (pickle.dumps(Hostile(mark)), "a plain pickle, which could run code, so it was not opened"),
        "newer": (newer, "of format 1 at most, got format 2"),
        "list": (saved([1, 2]), "got a file that holds a list"),
        "tensor": (saved(torch.zeros(2)), "got a file that holds a Tensor"),
        "nothing": (saved({}), "got a file that holds an empty dict"),
        "foreign": (
            saved({"model": {}, "kind": 3}),
            "got a file that holds a dict with the keys kind, model",
        ),
        "reward": (reward, "got a reward checkpoint; name a policy one"),
    }
    files = {}
    for name, (content, says) in contents.items():
        path = folder / f"{name}.bad"
        path.write_bytes(content)
        files[name] = (path, says)
    files["missing"] = (folder / "none.dat", "but there is no such file")
    files["folder"] = (folder, "got a folder")
    files["device"] = (Path("/dev/null"), "other than a regular file")
    return files


def test_bad_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    for path, says in bad_files(tmp_path).values():
        with pytest.raises(UserError) as refused:
            checkpoints.load_checkpoint(path, "policy")
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
            checkpoints.load_checkpoint(path, "policy")
        except UserError as error:
            assert str(error).startswith(f"{path}: expected")  # noqa: PT017  # some mutations are harmless
