"""The folder of segments to compare, while others may be adding to it."""

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from lib.cli import UserError
from lib.envs.ids import same_environment
from lib.preferences.closed_pickle import printable
from lib.preferences.segments import Segment, SegmentError, load_as

_FOLDER = re.compile(r"[0-9]{2,20}")
_NAME = re.compile(r"[0-9]{2,20}/[0-9]{1,20}\.dat")
# A folder's modification time is as coarse as its file system's clock (2 s on FAT), so a scan made this soon
# after it may have missed a file that came later within the same tick.
_MTIME_GRAIN_NS = 2_500_000_000
_AHEAD = 4  # clips of 5 MB each

T = TypeVar("T")


class SegmentDB:
    """The segments under a folder, `<env index, 2 digits>/<step>.dat`, while others may be adding to it.

    Args:
      root: The database's folder; it may still be empty.

    Raises:
      UserError: root is no folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        # What a folder held, and when it had last changed; see _scan.
        self._folders: dict[str, tuple[int, frozenset[str]]] = {}
        self._names: list[str] | None = None
        if not root.is_dir():
            raise UserError(
                f"{root}: no such folder; expected a DB of clips, recorded with 01_a2c.py --db-path"
            )

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all these segments exist at this moment, whatever the last look found."""
        return all((self.root / name).exists() for name in names)

    def refresh(self) -> None:
        """Look for new segments; a folder is read again only if it has changed since.

        Raises:
          UserError: the database's folder is gone or cannot be read.
        """
        folders = {}
        try:
            for folder in os.listdir(self.root):
                if _FOLDER.fullmatch(folder) and not (self.root / folder).is_symlink():
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a file, or gone by now
                        folders[folder] = self._scan(folder)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot read the DB: {error.strerror}") from None
        changed = (
            self._names is None
            or folders.keys() != self._folders.keys()
            or any(folders[folder][1] is not self._folders[folder][1] for folder in folders)
        )
        self._folders = folders
        if changed:
            self._names = sorted(name for _, names in folders.values() for name in names)

    def _scan(self, folder: str) -> tuple[int, frozenset[str]]:
        """What a folder holds: its modification time in ns (-1: too recent to rely on), its segments' names."""
        path = self.root / folder
        changed, names = path.stat().st_mtime_ns, self._folders.get(folder)
        if names is not None and names[0] == changed:
            return names
        if abs(time.time_ns() - changed) < _MTIME_GRAIN_NS:
            changed = -1
        with os.scandir(path) as entries:
            held = frozenset(
                name
                for e in entries
                if _NAME.fullmatch(name := f"{folder}/{e.name}") and e.is_file(follow_symlinks=False)
            )
        if names is not None and names[1] == held:
            held = names[1]
        return changed, held

    @property
    def names(self) -> list[str]:
        """Names of the segments as of the last `refresh`, like "00/00001234.dat", sorted."""
        if self._names is None:
            self.refresh()
        return list(self._names or ())

    def load(self, name: str) -> Segment:
        """Load one segment by its name, such as a label gives it.

        Raises:
          SegmentError: as `load_segment`; also when the name is not a segment's or leads out of the database.
        """
        return load_as(self.path(name), f"{self.root.name}/{name}")

    def environment(self) -> str:
        """The environment of its newest readable clip; "" where that names none, or there is none."""
        for name in reversed(self.names):
            with contextlib.suppress(SegmentError):
                sidecar = self.load(name).sidecar
                return "" if sidecar is None else sidecar.env_id
        return ""

    def check_environment(self, env_id: str) -> None:
        """Refuses clips to come that could not be compared with those that it holds.

        Args:
          env_id: their environment.

        Raises:
          UserError: names both environments.
        """
        found = self.environment()
        if not same_environment(found, env_id):
            raise UserError(f"{self.root}: holds clips of {found}, not of {env_id}; take another folder")

    def path(self, name: str) -> Path:
        """The file of that name, such as a label gives it; it need not exist.

        Raises:
          SegmentError: the name is not a segment's or leads out of the database.
        """
        if not _NAME.fullmatch(name):
            raise SegmentError(f"{printable(name)}: not a segment's name (expected one like 00/00001234.dat)")
        path = self.root / name
        try:
            inside = path.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links, before Python 3.13
            inside = False
        if not inside:
            raise SegmentError(f"{name}: leads out of the DB {self.root}")
        return path


def read_ahead(load: Callable[[str], T], names: Iterable[str]) -> Iterator[tuple[str, Future[T]]]:
    """The names in order, each with what `load` reads, a few ahead in two threads: most of it is decompression."""
    with ThreadPoolExecutor(2) as pool:
        pending: deque[tuple[str, Future[T]]] = deque()
        for name in names:
            pending.append((name, pool.submit(load, name)))
            if len(pending) > _AHEAD:
                yield pending.popleft()
        yield from pending
