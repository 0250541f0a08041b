"""Makes room in a DB that a long training run records into: drops the oldest segments, keeps labelled ones."""

import contextlib
from pathlib import Path

from lib.cli import UserError
from lib.preferences.labels import LabelLog
from lib.preferences.segment_db import SegmentDB


def drop_oldest(db_path: Path, max_bytes: float) -> int:
    """Removes the oldest segments that no line of labels.json names, cancelled lines included, until a DB is small enough.

    No label is written at the same time, so none can name a segment that is being removed. If the labels cannot be
    read, nothing is removed.

    Args:
      db_path: the DB.
      max_bytes: size of all its segments to come down to, if unlabelled ones suffice.

    Returns:
      Bytes that its segments take now.
    """
    db = SegmentDB(db_path)
    sizes: dict[str, int] = {}
    for name in db.names:
        with contextlib.suppress(OSError):  # gone meanwhile
            sizes[name] = (db_path / name).stat().st_size
    total = sum(sizes.values())
    with (
        contextlib.suppress(OSError, UserError),  # the labels cannot be read: nothing is known to be free
        LabelLog(db_path / "labels.json").settled() as labels,
    ):
        named = {name for label in labels for name in label.pair}
        for name in sorted(sizes, key=lambda name: int(Path(name).stem)):
            if name in named:
                continue
            if total <= max_bytes:
                break
            with contextlib.suppress(OSError):  # what cannot be removed stays, and the next one goes
                (db_path / name).unlink(missing_ok=True)
                total -= sizes[name]
    return total
