"""Files that are whole or not there, whatever happens while they are written."""

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # as write_atomic names them
_STALE_MINUTES = 10


class NotRecorded(OSError):
    """Something could not be written to the DB that a training records into."""


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that a reader, or a machine that loses power, sees the old content or the new, never a part.

    The data goes to a hidden temporary name in the same folder, is fsynced, renamed over path, and the folder is
    fsynced. A failure leaves path as it was and no temporary file behind.

    Args:
      path: The file to write; its folder exists.
      data: The whole content.

    Raises:
      OSError: The folder is missing or not writable, or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    # 0o666 lets the umask decide, as for any other file; tempfile's 0o600 would lock colleagues out.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sees to it that the names in a folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def signature(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is replaced or written to; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def remove_stale(folder: Path, name: re.Pattern[str] = _TEMPORARY) -> None:
    """Removes the temporary files that killed processes left in a folder.

    Args:
      folder: Where to look; it need not exist. Its subfolders are left alone.
      name: Names of such files, in full; those of `write_atomic` when not given. Younger ones than ten minutes
        stay, as they may be in the making.
    """
    with contextlib.suppress(OSError):  # tidying up is worth no failure
        for entry in list(os.scandir(folder)):
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            if (
                name.fullmatch(entry.name)
                and entry.is_file(follow_symlinks=False)
                and age > 60 * _STALE_MINUTES
            ):
                os.unlink(entry)
