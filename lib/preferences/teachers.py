"""Simulated teachers: programs that compare segments in a person's place, for demonstrations and experiments.

They read what a person would see, or the sidecar that no model sees, and write the same label log, marked with
their name.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.cli import UserError
from lib.envs.seaquest import submarine_midwater
from lib.preferences.labels import Label, LabelLog, current
from lib.preferences.queries import STRATEGIES, Pair
from lib.preferences.segments import Segment, SegmentDB, SegmentError


def score(segment: Segment) -> float:
    """The game's score gained over the segment.

    Raises:
      UserError: the segment has no record of its score.
    """
    if segment.sidecar is None:
        raise UserError(
            "teacher score: expected segments with recorded scores, got one of the original format; "
            "record a DB with 01_a2c.py --db-path"
        )
    return float(segment.sidecar.scores.sum())


def midwater(segment: Segment) -> float:
    """How near to mid-water Seaquest's submarine kept, 0 (surface or sea bed) to 1 (half-way) on average.

    Raises:
      UserError: the frames are not of Seaquest's size.
    """
    if segment.frames.shape[1:] != (210, 160, 3):
        size = "×".join(map(str, segment.frames.shape[1:3]))
        raise UserError(f"teacher midwater: expected Seaquest's 210×160 frames, got {size}")
    seen = submarine_midwater(segment.frames)
    return 0.0 if np.isnan(seen).all() else float(np.nanmean(seen))


@dataclass(frozen=True)
class Teacher:
    """Prefers the segment of the higher value; calls two alike that differ by no more than `tie`."""

    value: Callable[[Segment], float]
    tie: float = 0.0

    def compare(self, value1: float, value2: float) -> int:
        """1 or 2 for the better one, 0 for alike."""
        if abs(value1 - value2) <= self.tie:
            return 0
        return 1 if value1 > value2 else 2


TEACHERS = {"score": Teacher(score), "midwater": Teacher(midwater, tie=0.02)}
"""Teachers by the name that --teacher takes and labels carry."""


@dataclass(frozen=True)
class LabelSummary:
    """What a simulated teacher did."""

    written: int
    wrong: int
    """How many of them were swapped on purpose (--error-rate)."""
    ties: int
    exhausted: bool
    """No pair is left that nobody was asked about."""
    problems: list[str]
    """Segments that could not be read, one line each."""


def label_with_teacher(
    db_path: Path, teacher: str, count: int, error_rate: float = 0.0, seed: int = 0, strategy: str = "random"
) -> LabelSummary:
    """Has a simulated teacher answer queries about a DB, appending to its labels.json.

    Args:
      db_path: the segment DB.
      teacher: a name in TEACHERS.
      count: labels to add.
      error_rate: probability that a preference is written the wrong way round; ties are never touched.
      seed: of the queries and the errors.
      strategy: a name in lib.preferences.queries.STRATEGIES.

    Raises:
      UserError: unknown teacher, or the DB does not have what the teacher reads.
    """
    if teacher not in TEACHERS:
        raise UserError(f"--teacher {teacher}: expected one of {', '.join(sorted(TEACHERS))}")
    judge, db, log = TEACHERS[teacher], SegmentDB(db_path), LabelLog(Path(db_path) / "labels.json")
    db.refresh()
    names = db.names
    if len(names) < 2:
        raise UserError(f"{db_path}: expected at least two segments to compare, found {len(names)}")
    taken: set[Pair] = {label.pair for label in current(log.read())}
    rng = np.random.default_rng(seed)
    queries = STRATEGIES[strategy](db)
    values: dict[str, float] = {}
    problems: dict[str, str] = {}
    written = wrong = ties = 0
    while written < count:
        usable = [name for name in names if name not in problems]
        proposed = queries.propose(usable, taken, min(count - written, 64), rng)
        if not proposed:
            break
        for query in proposed:
            taken.add(query.pair)
            for name in query.pair:
                if name not in values and name not in problems:
                    try:
                        values[name] = judge.value(db.load(name))
                    except SegmentError as error:
                        problems[name] = str(error)
            if query.sample1 in problems or query.sample2 in problems:
                continue
            answer = judge.compare(values[query.sample1], values[query.sample2])
            ties += answer == 0
            if answer and rng.random() < error_rate:
                answer = 3 - answer
                wrong += 1
            log.append(
                Label(
                    query.sample1,
                    query.sample2,
                    answer,
                    teacher=teacher,
                    time=time.time(),
                    strategy=query.strategy,
                )
            )
            written += 1
    return LabelSummary(written, wrong, ties, written < count, list(problems.values()))
