"""Files are whole or not there."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from lib import files
from lib.cli import UserError


def test_write_atomic_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]
    umask = os.umask(0o022)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_write_atomic_fails_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_made_or_named_by_its_flag(tmp_path: Path) -> None:
    files.make_folder(tmp_path / "a" / "b", "--out")
    files.make_folder(tmp_path / "a" / "b", "--out")
    assert not list((tmp_path / "a" / "b").iterdir())
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "x", Path("/proc")):  # no one may write to the last
        with pytest.raises(UserError, match=f"--out {folder}: expected a folder to write to"):
            files.make_folder(folder, "--out")


def test_stale_temporary_files_are_removed(tmp_path: Path) -> None:
    """Old ones that are named as ours: not young ones, which may be in the making, and nothing of anybody else."""
    stale, young = f".{'0a' * 8}.tmp", f".{'1b' * 8}.tmp"
    others = ["model.dat", ".hidden.tmp", f"{'0a' * 8}.tmp"]
    for name in (stale, young, *others):
        (tmp_path / name).write_text("")
        if name != young:
            os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    (tmp_path / f".{'2c' * 8}.tmp").symlink_to("model.dat")
    files.remove_stale(tmp_path)
    assert set(os.listdir(tmp_path)) == {young, f".{'2c' * 8}.tmp", *others}
    files.remove_stale(tmp_path / "nowhere")
