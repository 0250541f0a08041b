"""Folders to write to, and atomic writes: a file is whole or absent, whatever happens."""

import contextlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lib.cli import UserError

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # as write_atomic names them
_STALE_MINUTES = 10


class NotRecorded(OSError):
    """A training run could not write to its DB."""


def make_folder(folder: Path, flag: str) -> None:
    """Makes a folder that a flag names, and those above it, unless it is there.

    Raises:
      UserError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{flag} {folder}: expected a folder to write to: {error.strerror}") from error


def write_atomic(path: Path, data: bytes | Callable[[BinaryIO], object]) -> None:
    """Writes a file so that readers see the old content or the new, never a part, even after a loss of power.

    Writes a hidden temporary file in the same folder, fsyncs it, renames it over path, and fsyncs the folder. A failure
    leaves path as it was and no temporary file behind.

    Args:
      path: The file to write; its folder exists.
      data: The whole content, or what writes it, where a copy might not fit into memory.

    Raises:
      OSError: The folder is missing or not writable, or the disk is full.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    # 0o666 lets the umask decide, as for any other file; tempfile's 0o600 would lock colleagues out.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            data(file) if callable(data) else file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def signature(path: Path) -> tuple[int, ...] | None:
    """A value that changes whenever a file is replaced or written to; None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def remove_stale(folder: Path, name: re.Pattern[str] = _TEMPORARY) -> None:
    """Removes the temporary files that killed processes left in a folder, as far as it can.

    Args:
      folder: Where to look, subfolders excluded; it need not exist.
      name: Full names of such files; those of `write_atomic` by default. Files younger than ten minutes stay, as
        they may be in use.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            old = time.time() - entry.stat(follow_symlinks=False).st_mtime > 60 * _STALE_MINUTES
            if old and name.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry)
