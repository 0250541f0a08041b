"""Copying preferences from one DB to another: labels and the segments they name."""

import dataclasses
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lib.cli import UserError
from lib.preferences.labels import Label, LabelLog
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, save_segment


@dataclass(frozen=True)
class Copied:
    """The result of `copy_preferences`."""

    labels: int
    """Lines added, including those that cancel others."""
    segments: int
    """Segments added."""
    problems: list[str]
    """What was left out, one line each."""


def copy_preferences(source: Path, target: Path) -> Copied:
    """Adds the labels of one DB, and the segments they name, to another.

    A segment whose name the target has given to another one takes the next free number there, and its labels follow.
    Labels and segments that the target has already are not added again, so that copying twice does no harm. A recording
    may go on in the target: a label whose segments it has dropped meanwhile is left out.

    Args:
      source: the DB to copy from.
      target: the DB to add to, created if missing.

    Raises:
      UserError: the source is no DB, both are the same, or the target holds clips of another environment.
      OSError: something cannot be written; what was copied until then is whole.
    """
    db, log = SegmentDB(source), LabelLog(source / "labels.json")
    target.mkdir(parents=True, exist_ok=True)
    if source.resolve() == target.resolve():
        raise UserError(f"{source}: expected two DBs to copy preferences between, got the same one twice")
    target_db, target_log = SegmentDB(target), LabelLog(target / "labels.json")
    target_db.check_environment(db.environment())
    # Counted, as a line may repeat an earlier one: what holds is said last.
    held, seen = Counter(map(_said, target_log.read())), Counter[str]()
    lines = log.read()
    names: dict[str, str | None] = {}  # in the target; None for a segment that cannot be read
    labels = segments = 0
    problems = [f"{source}: {problem}" for problem in log.problems]
    for line in lines:
        for name in (line.sample1, line.sample2):
            if name in names:
                continue
            try:
                names[name], added = _place(db.load(name), name, target_db, names.values())
                segments += added
            except SegmentError as error:
                names[name] = None
                problems.append(f"{source}: labels of {name} left out: {error}")
        sample1, sample2 = names[line.sample1], names[line.sample2]
        if sample1 is None or sample2 is None:
            continue
        label = dataclasses.replace(line, sample1=sample1, sample2=sample2)
        said = _said(label)
        seen[said] += 1
        if seen[said] > held[said]:
            if target_log.append(label, partial(target_db.holds, label.pair)):
                labels += 1
            else:
                problems.append(
                    f"{target}: a label of {' and '.join(label.pair)} left out: dropped meanwhile"
                )
    return Copied(labels, segments, problems)


def _said(label: Label) -> str:
    """A line without the commit that wrote it, which copying changes."""
    return repr(dataclasses.replace(label, commit=None))


def _place(segment: Segment, name: str, db: SegmentDB, others: Collection[str | None]) -> tuple[str, bool]:
    """The name that a segment has in a DB, or gets there now, and whether it was added; `others` are of further segments."""
    folder, _, file = name.partition("/")
    number, width = int(Path(file).stem), len(Path(file).stem)
    while True:
        name = f"{folder}/{number:0{width}d}.dat"
        try:
            save_segment(db.root / name, segment)
            return name, True
        except FileExistsError:
            if not (db.root / name).exists():  # it was its folder's name that is a file's
                raise
            if name not in others and _holds(db, name, segment):
                return name, False
            number += 1


def _holds(db: SegmentDB, name: str, segment: Segment) -> bool:
    try:
        other = db.load(name)
    except SegmentError:
        return False
    return np.array_equal(other.frames, segment.frames) and np.array_equal(other.actions, segment.actions)
