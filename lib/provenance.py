"""The origin of a result: versions, commit, time, and the lineage that a checkpoint passes on."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LINEAGE = ("config", "parents", "versions", "git_commit", "created", "steps", "results", "version")
"""Keys of a checkpoint that describe its origin."""

_PACKAGES = ("torch", "numpy", "gymnasium", "ale-py")
_MAX_BYTES = 1 << 20  # of a lineage; a generation takes about 5,000
_MAX_DEPTH = 100  # of dicts and lists; a generation takes two
_MAX_TEXT = 1000  # characters


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes; "" for one that is not installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


@functools.cache
def git_commit() -> str:
    """Full hash of this code's commit, with "-dirty" when tracked files differ; "" where it is not in a repository of its own.

    Installed, it may lie in an environment in somebody else's repository, which does not track it.
    """
    # Inside hooks GIT_DIR and its kin are set, and may name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Leaves index.lock to a commit that may be under way; `git describe --dirty` would take it all the same.
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    here = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.check_output(
            command, cwd=here.parent, env=environment, stderr=subprocess.DEVNULL, text=True, timeout=10
        )

    try:
        git("ls-files", "--error-unmatch", here.name)
        said = git("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    head = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", said, re.MULTILINE)
    if head is None:
        return ""
    changed = any(not line.startswith("#") for line in said.splitlines())
    return head[1] + ("-dirty" if changed else "")


def now() -> str:
    """The time in UTC as ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def made_by() -> dict[str, Any]:
    """`versions`, `git_commit` and, as "created", `now`, as checkpoints and run folders keep them."""
    return {"versions": versions(), "git_commit": git_commit(), "created": now()}


def lineage(content: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's origin, for its child to keep, because the file itself may be deleted.

    Args:
      content: As `load_checkpoint` returns it; it may come from a stranger.

    Returns:
      A `plain` copy of those keys in LINEAGE that it has. `parents` includes the parents' own lineages.
    """
    return plain({key: content[key] for key in LINEAGE if key in content})


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with nothing but dicts, lists, numbers, None and texts up to 1,000 characters; drops everything else.

    It is bounded in size and depth too, whatever a stranger's file holds: 2⁶⁰ references to one dict, say.
    """
    room = _MAX_BYTES

    def copied(value: Any, depth: int) -> Any:
        """A copy, or _DROPPED."""
        nonlocal room
        room -= 16
        if room < 0 or depth > _MAX_DEPTH:
            return _DROPPED
        if isinstance(value, Mapping):
            items = ((key, copied(item, depth + 1)) for key, item in value.items() if fits(key))
            return {key: item for key, item in items if item is not _DROPPED}
        if isinstance(value, (list, tuple)):
            return [item for item in (copied(item, depth + 1) for item in value) if item is not _DROPPED]
        return value if value is None or fits(value) else _DROPPED

    def fits(value: Any) -> bool:
        nonlocal room
        if isinstance(value, str):
            room -= len(value)
            return len(value) <= _MAX_TEXT
        return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64)

    return dict(copied(content, 0))


_DROPPED = object()
