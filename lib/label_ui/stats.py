"""Counts and rates over a DB's labels: a labeller's standing, and the overview."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from lib.label_ui.db import LabelledDB
from lib.label_ui.ledger import Entry, Labeller, display_name
from lib.label_ui.messages import Standing
from lib.preferences.labels import Label, Pair
from lib.preferences.schedule import ProgressReader

_RATE_WINDOW = 30
_PAUSE_SECONDS = 60.0
"""Longer gaps between two answers are breaks and do not count as labelling time."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures about a DB."""

    segments: int
    counted: str
    """The same in words."""
    labels: list[Label]
    usable: int
    """Labels that count towards the goal."""
    left: int
    """Pairs of these segments that nobody answered."""
    shared_pairs: int
    """Pairs that several labellers answered."""
    shared_alike: int
    """Of these, pairs on which all of them said the same."""
    checks: dict[str, list[bool]]
    """Outcomes of repeat checks by labeller."""
    broken: dict[str, str]
    log_problems: list[str]
    bytes: int
    """On disk, labels included."""


class Statistics:
    """Figures about a DB and its labellers.

    Args:
      db: The DB.
      goal: Number of labels to reach in the DB, None without.
    """

    def __init__(self, db: LabelledDB, goal: int | None) -> None:
        self.goal = goal
        self._db = db
        self._training = ProgressReader(db.root)

    def standing(self, who: Labeller) -> Standing:
        """Where a labeller and the DB stand. The caller holds the lock."""
        ledger = self._db.ledger
        answers = ledger.history[who]
        mine = {entry.label.pair: entry.label for entry in answers}.values()  # as of each pair's last answer
        training = self._training.read()
        over = training is not None and training.phase == "over"
        midnight = time.mktime((*time.localtime(self._db.now())[:3], 0, 0, 0, 0, 0, -1))
        return Standing(
            total=ledger.usable,
            skipped=ledger.skipped,
            mine=len(mine),
            today=sum((label.time or 0.0) >= midnight for label in mine),
            per_minute=_per_minute(answers),
            checks=[entry.agrees for entry in answers if entry.agrees is not None][-20:],
            goal=self.goal,
            due=None if training is None or over else max(0, training.due - ledger.usable),
            over=over,
        )

    def labels(self) -> tuple[list[Label], set[Pair]]:
        """The labels that hold, latest last, and the pairs on which there is disagreement."""
        with self._db.lock:
            self._db.sync()
            labels = sorted(self._db.ledger.labels(), key=lambda label: label.time or 0.0)
            return labels, self._db.ledger.disputed()

    def overview(self) -> Overview:
        """Figures about the whole DB. Looks at each file once for its size."""
        db = self._db
        with db.lock:
            names = db.sync()
            labels = list(db.ledger.labels())
            usable = db.ledger.usable
            checks = {
                who: [entry.agrees for entry in entries if entry.agrees is not None]
                for who, entries in db.ledger.history.items()
            }
            shared = [said for said in db.ledger.standing.values() if len(said) > 1]
            shared_alike = sum(len({label.winner for label in said.values()}) == 1 for said in shared)
            broken = dict(db.broken)
            left = db.pairs.count(names) - db.ledger.answered(names)
            problems = list(db.log.problems)
        return Overview(
            segments=len(names),
            counted=db.counted(len(names)),
            labels=labels,
            usable=usable,
            left=left,
            shared_pairs=len(shared),
            shared_alike=shared_alike,
            checks={display_name(who): results for who, results in checks.items() if results},
            broken=broken,
            log_problems=problems,
            bytes=sum(_size(db.root / name) for name in names) + _size(db.log.path),
        )


def _per_minute(entries: list[Entry]) -> float | None:
    """Answers a minute over the last ones, breaks left out; None before there are a few."""
    times = [entry.label.time for entry in entries[-_RATE_WINDOW:] if entry.label.time is not None]
    gaps = [b - a for a, b in itertools.pairwise(times) if 0 < b - a <= _PAUSE_SECONDS]
    return round(60 * len(gaps) / sum(gaps), 1) if len(gaps) >= 2 else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
