"""Labels during training: how many are due by when, and the file that tells the other processes how far the training is.

The training writes `<db>/progress.json`; the page, the simulated teacher and the refit daemon read it. No process waits for
another: one that finds no file, or a broken one, does without.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError
from lib.files import NotRecorded, signature, write_atomic
from lib.preferences.labels import LabelLog, usable

PROGRESS = "progress.json"
"""Name of the file in a DB."""
SCHEDULES = ("constant", "paper")
"""How the labels after the opening are spread over the training, as --label-schedule names it."""
LEAST_LABELS = 10
"""The fewest labels that a reward model is fitted to."""

_LARGEST = 65_536  # bytes of such a file; it takes some 300
_SECONDS = 1.0  # between two writes while nothing but the steps has changed


@dataclass(frozen=True)
class LabelPlan:
    """When the labels of a training run are due."""

    steps: int
    """Steps of the training, by the end of which all labels are due."""
    budget: int
    """All labels, including those of the opening."""
    opening: int
    """Labels due before the first step."""
    schedule: str = "constant"
    """One of SCHEDULES."""
    halving: float = 5e6
    """Steps after which the rate of `paper` has halved."""


def labels_due(plan: LabelPlan, steps: float) -> int:
    """How many labels are due in all after so many steps of training.

    Those of the opening at once, the others in proportion to ∫₀ᵀ r(t) dt, with r = 1 (constant) or
    r = h / (t + h), of which the integral is h ln(1 + T/h); all of them at the end of the training.

    Args:
      plan: the budget and its schedule.
      steps: T, of all environments together.

    Returns:
      0 to `plan.budget`.

    Source: Christiano et al. 2017, arXiv 1706.03741, section A.2 (h = 5·10⁶).
    """
    done = min(max(steps, 0.0), plan.steps)
    if plan.schedule == "paper":
        share = math.log1p(done / plan.halving) / math.log1p(plan.steps / plan.halving)
    else:
        share = done / plan.steps
    opening = min(plan.opening, plan.budget)
    # In floating point 0.29 of 100 falls short of 29.
    return opening + math.floor((plan.budget - opening) * share + 1e-9)


@dataclass(frozen=True)
class TrainingProgress:
    """A training run's progress, as in progress.json."""

    plan: LabelPlan
    steps: int
    """Of training so far; those of the opening do not count."""
    phase: str
    """opening (records the first clips), waiting (for labels or a model), training or over."""
    policy: str = ""
    """Name of the run."""
    reward_version: int | None = None
    """Of the reward model that pays; None before there is one."""

    @property
    def due(self) -> int:
        """All labels due so far."""
        return labels_due(self.plan, self.steps)


class ProgressWriter:
    """Keeps a DB's progress.json up to date: at once when something happens, every second while steps go by.

    Args:
      db: the DB; it exists.
      clock: seconds from any origin.
    """

    def __init__(self, db: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = db / PROGRESS, clock
        self._last: TrainingProgress | None = None
        self._next = -math.inf

    def write(self, progress: TrainingProgress) -> None:
        """Writes the progress, if that is due.

        Raises:
          NotRecorded: the file could not be written; the previous one remains.
        """
        last, now = self._last, self._clock()
        same = last is not None and dataclasses.replace(progress, steps=last.steps) == last
        if same and (progress == last or now < self._next):
            return
        content = {"format": "progress", "version": 1, **dataclasses.asdict(progress), "due": progress.due}
        try:
            write_atomic(self._path, (json.dumps(content, indent=2) + "\n").encode())
        except OSError as error:
            raise NotRecorded(error.errno, error.strerror, str(self._path)) from error
        self._last, self._next = progress, now + _SECONDS


class ProgressReader:
    """Reads a DB's progress.json, again only when it has changed.

    Args:
      db: the DB; neither it nor the file need be there yet.
    """

    def __init__(self, db: Path) -> None:
        self._path = db / PROGRESS
        self._seen: tuple[int, ...] | None = None
        self._found: TrainingProgress | None = None

    def read(self) -> TrainingProgress | None:
        """The file's content; None if it is missing or cannot be read."""
        try:
            now = signature(self._path)
            if now != self._seen:
                self._seen, self._found = now, None if now is None else _parsed(self._bytes())
        except OSError:
            self._seen, self._found = None, None
        return self._found

    def _bytes(self) -> bytes:
        # A stranger's file may be a link, a pipe or without an end.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(self._path, flags), "rb") as file:
            return file.read(_LARGEST)


def _parsed(data: bytes) -> TrainingProgress | None:
    """The content of a progress.json of ours; None of any other file."""
    try:
        content = json.loads(data)
        if (content["format"], content["version"]) != ("progress", 1):
            return None
        parts = {field.name: content[field.name] for field in dataclasses.fields(TrainingProgress)}
        progress = TrainingProgress(**{**parts, "plan": LabelPlan(**content["plan"])})
        return progress if type(progress.due) is int else None
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None


class LabelCount:
    """How many labels of a DB a fit can use, read again only when the file has changed.

    Args:
      db: the DB; neither it nor its labels need be there yet.

    Attributes:
      problem: why the file could not be read the last time; "" where it could.
    """

    def __init__(self, db: Path) -> None:
        self._log = LabelLog(db / "labels.json")
        self._seen: tuple[int, ...] | None = None
        self._count = 0
        self.problem = ""

    def read(self) -> int:
        """What `usable` says; the previous number if the file cannot be read (`problem`)."""
        try:
            now = signature(self._log.path)
            if now != self._seen:
                self._count = usable(self._log.read())
                self._seen = now
            self.problem = ""
        except (OSError, UserError) as error:
            self.problem = str(error)
        return self._count
