"""What made a result: versions, commit and lineage."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lib import checkpoints, provenance


def test_a_lineage_is_what_a_checkpoint_says_of_how_it_came_about(tmp_path: Path) -> None:
    grandparent = {"file": "v0.dat", "config": {"seed": 0}, "steps": 5}
    path = tmp_path / "v1.dat"
    checkpoints.save_checkpoint(
        path, "policy", {"steps": 9, "state_dict": {}}, {"seed": 1}, {"policy": grandparent}
    )
    content = checkpoints.load_checkpoint(path, "policy")
    assert provenance.lineage(content) == {
        "config": {"seed": 1},
        "parents": {"policy": grandparent},
        "steps": 9,
        **{key: content[key] for key in ("versions", "git_commit", "created")},
    }
    assert provenance.lineage({"kind": "policy", "bare": True, "state_dict": {}}) == {}


def test_a_lineage_takes_only_plain_values() -> None:
    odd = {"a": torch.ones(3), "b": b"x", "c": [1, None, object()], "d": (2.5, True), "e": 2**70, (1,): 1}
    assert provenance.lineage({"config": odd}) == {"config": {"c": [1, None], "d": [2.5, True]}}
    assert provenance.lineage({"config": torch.ones(3), "steps": 2**70, "created": "x" * 1001}) == {}


def test_a_lineage_is_bounded_whatever_a_file_says(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"x": "y" * 900}
    for _ in range(60):
        shared = {"left": shared, "right": shared}  # 2⁶⁰ dicts to whoever follows each
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    wide = {str(number): "x" * 900 for number in range(100_000)}
    for parents in (shared, deep, wide):
        kept = provenance.lineage({"config": {"seed": 1}, "parents": parents})
        assert kept["config"] == {"seed": 1}
        checkpoints.save_checkpoint(tmp_path / "a.dat", "policy", {}, {}, {"policy": kept})
        assert (tmp_path / "a.dat").stat().st_size < 4 << 20


def test_versions_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = provenance.versions()
    assert set(found) == {"python", "torch", "numpy", "gymnasium", "ale-py"}
    # PyPI's build names its CUDA in the module alone, the builds for a CPU in their metadata as well.
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert all(found.values())
    commit = provenance.git_commit()
    assert commit == "" or len(commit.removesuffix("-dirty")) == 40
    monkeypatch.setenv("PATH", "")
    assert provenance.git_commit.__wrapped__() == ""


def test_asking_for_the_commit_leaves_the_repository_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on its index would get in the way of a commit that is under way, and stay if we were killed."""
    code = tmp_path / "lib" / "runs.py"
    code.parent.mkdir()
    monkeypatch.setattr(provenance, "__file__", str(code))

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "--quiet")
    assert provenance.git_commit.__wrapped__() == "", "nothing was committed yet"
    code.write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    head = git("rev-parse", "HEAD")
    index = (tmp_path / ".git" / "index").read_bytes()
    os.utime(code, (1e9, 1e9))  # looks changed, and is not: what git would note in its index
    (tmp_path / "untracked").touch()
    assert provenance.git_commit.__wrapped__() == head
    code.write_text("2")
    assert provenance.git_commit.__wrapped__() == f"{head}-dirty"
    assert (tmp_path / ".git" / "index").read_bytes() == index
    # Installed into an environment that lies in somebody's repository, which has a commit of its own.
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "untracked"))
    assert provenance.git_commit.__wrapped__() == ""
