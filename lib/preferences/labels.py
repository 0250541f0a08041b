"""Labels on disk: JSON lines, only ever appended to, by several people and programs at once.

The original's files have `sample1`, `sample2` and `label` in a line; they load unchanged.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lib.cli import UserError
from lib.files import sync_folder
from lib.provenance import git_commit

TEACHERS: dict[str, dict[str, Any]] = {
    "oracle": {},
    "mistake": {"error_rate": 0.1},
    "noisy": {"beta": 1.0},
    "skip": {"threshold": 0.1, "skips": True},
    "myopic": {},
    "equal": {"threshold": 0.1},
    "midwater": {"tie": 0.02},
    "score": {},
    "seaquest": {},
    "air": {"tie": 0.09, "rare": 0.29},
    "left": {"tie": 0.02},
    "backflip": {"tie": 0.1},
}
"""The simulated teachers by name, as flags take and labels carry it, with their parameters (`lib.preferences.teachers`)."""
TEXT_TEACHERS = ("shorter", "keyword", "no-questions", "positive")
"""The simulated teachers of answers (`lib.preferences.text_teachers`)."""


def is_own(teacher: str) -> bool:
    """Whether a teacher's name is that of a function of the user's, `package.module:function`."""
    return ":" in teacher


STRATEGIES: dict[str, tuple[str, ...]] = {
    "random": (),
    "disagreement": ("rater", "ensemble"),
    "entropy": ("rater",),
    "recent": (),
    "diversity": ("frames",),
    "disagreement+diversity": ("rater", "ensemble", "frames"),
    "alike": ("frames",),
    "fork": ("frames",),
}
"""The strategies of lib.preferences.strategies by name, as flags, page and labels use it, with what they need: a reward
model (rater), one of several members (ensemble), clips rather than answers (frames)."""

UNDO = "u-"
"""First characters of the id of a line that takes back the labeller's last one on its pair. It either cancels, or
says again what had held before, so that undoing a repeat check or a change does not lose the earlier label."""

RECHECK = "recheck"
"""Strategy of an answer to a pair that was asked again because a reward model doubts its label. It counts
as no further label, and being chosen by the model it may not judge one (`lib.reward.data.asked_at_random`)."""

OPENED = "opened"
"""Strategy of an answer to a pair that its labeller picked, with what others had said about it in view, so that it
agrees with them not by itself."""

Pair = tuple[str, str]
"""Two segment names in sorted order: (a, b) and (b, a) are one pair."""

MAX_RESPONSE_MS = 10**9

_log = logging.getLogger(__name__)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_LINE = 65_536  # bytes; a label takes some 200
_LARGEST = 1 << 30  # bytes of a file, five million labels


def pair_of(name1: str, name2: str) -> Pair:
    """The pair that two segment names form, whichever came first."""
    return (name1, name2) if name1 <= name2 else (name2, name1)


@dataclass(frozen=True, slots=True)
class Label:
    """One line of labels.json. Segments are named as in SegmentDB.names."""

    sample1: str
    sample2: str
    label: int | None  # 1, 2: that one is better; 0: both alike; None: cannot tell
    annotator: str | None = None  # the person who labelled
    teacher: str | None = None  # the simulated teacher that labelled
    parameters: dict[str, float] | None = None  # the teacher's, such as its error rate
    time: float | None = None  # unix seconds
    response_ms: int | None = None
    left: int | None = None  # which sample, 1 or 2, stood on the left
    flag: str | None = None
    strategy: str | None = None  # why this pair was asked
    repeat: bool = False  # a consistency check
    cancelled: bool = False  # undoes the labeller's last word on this pair
    id: str | None = None  # of the vote, so that one sent twice is written once
    commit: str | None = field(default=None, compare=False)  # of the code that wrote the line

    @property
    def pair(self) -> Pair:
        """The pair that its two samples form."""
        return pair_of(self.sample1, self.sample2)

    @property
    def labeller(self) -> tuple[str | None, str | None]:
        """Who answered: annotator and teacher."""
        return self.annotator, self.teacher

    @property
    def undoes(self) -> bool:
        """Whether this line takes back the labeller's last answer to its pair; see `UNDO`."""
        return self.id is not None and self.id.startswith(UNDO)

    @property
    def winner(self) -> str | None:
        """The better segment's name, whichever way round the two stand; "" when both are alike, None for "cannot tell"."""
        return None if self.label is None else ("", self.sample1, self.sample2)[self.label]


_KEYS = tuple(field.name for field in fields(Label))


def current(labels: Iterable[Label]) -> list[Label]:
    """The labels that hold: the last line of each labeller on each pair, without the cancelled ones.

    Args:
      labels: Lines in the order of the file, which counts rather than their times (clocks get set back).

    Returns:
      The surviving lines in the order of the file. Labels of different labellers on one pair are all kept.
    """
    last: dict[tuple[object, ...], Label] = {}
    for label in labels:
        key = (label.pair, label.labeller)
        last.pop(key, None)  # so that the later line also takes the later place
        last[key] = label
    return [label for label in last.values() if not label.cancelled]


def counted(said: Sequence[Label]) -> Sequence[Label]:
    """Of the labels that hold on one pair, those that count: rechecks of other people's labels do not."""
    return [label for label in said if label.strategy != RECHECK] or said[:1]


def usable(lines: Iterable[Label]) -> int:
    """How many labels of a log a fit can use: those that hold, without "cannot tell" and what `counted` leaves out."""
    held: dict[Pair, list[Label]] = {}
    for label in current(lines):
        held.setdefault(label.pair, []).append(label)
    return sum(label.label is not None for said in held.values() for label in counted(said))


def answers(
    labels: Iterable[Label],
) -> dict[tuple[Pair, tuple[str | None, str | None]], list[Label]]:
    """Each labeller's answers to each pair, first to last, without those taken back.

    Args:
      labels: Lines in the order of the file.

    Returns:
      Answers by pair and labeller, one at least; the last one is that which holds (see `current`).
    """
    said: dict[tuple[Pair, tuple[str | None, str | None]], list[Label]] = {}
    for label in labels:
        history = said.setdefault((label.pair, label.labeller), [])
        if label.undoes:
            del history[-1:]
            if not label.cancelled:
                history[-1:] = [label]  # the earlier answer, which the line says again
        elif label.cancelled:
            history.clear()
        else:
            history.append(label)
    return {key: history for key, history in said.items() if history}


class LabelLog:
    """The labels.json of a database. It need not exist yet.

    Attributes:
      problems: What was wrong with the lines that the last `read` left out, one text each, with line numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self._forget()

    def _forget(self) -> None:
        """Start anew: whole lines that were read once are not parsed again while the file still begins with them."""
        self._size = 0  # of the whole lines that were read
        self._digest = hashlib.blake2b()
        self._lines = 0
        self._seen: tuple[int, ...] | None = None  # the file's status, if that is all that it holds
        self._labels: list[Label] = []
        self._wrong_lines: list[str] = []

    def append(self, label: Label, present: Callable[[], bool] = lambda: True) -> bool:
        """Put a label on disk; it is there for good when this returns True, and not at all if it raises.

        The line also gets the commit of the code that wrote it.

        Args:
          label: The label.
          present: Whether its segments are still there; asked when none can be dropped any more (`settled`).

        Returns:
          False when they were not.

        Raises:
          ValueError: a field has a wrong type or value.
          UserError: the path is no regular file.
          OSError: it could not be written (disk full, read-only, the database is gone).
        """
        values = {key: getattr(label, key) for key in _KEYS} | {"commit": git_commit() or None}
        wrong = _wrong(values)
        if wrong:
            raise ValueError(f"label not saved: {wrong}")
        kept = {k: v for k, v in values.items() if k == "label" or (v is not None and v is not False)}
        line = json.dumps(kept).encode("ascii") + b"\n"
        if len(line) > _MAX_LINE:
            raise ValueError(f"label not saved: {len(line)} bytes, expected at most {_MAX_LINE}")
        fd = self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not present():
                return False
            status = os.fstat(fd)
            size, known = status.st_size, _status(status) == self._seen
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last writer was cut off; its torn line must not swallow this one
            try:
                written = os.write(fd, line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(fd)
                if not size:
                    sync_folder(self.path.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
                raise
            if known:  # nobody else wrote since the last `read`, so it need not read this line again
                self._take(line, _status(os.fstat(fd)))
        finally:
            os.close(fd)
        return True

    def read(self) -> list[Label]:
        """All lines in order, cancelled and repeated ones too; see `current`.

        Torn or foreign lines are left out, listed in `problems`, and reported once. Cheap to call again.

        Raises:
          UserError: the path is no regular file, or another user's, or larger than labels can be.
          OSError: it cannot be read; a missing file is no error but has no labels.
        """
        try:
            fd = self._open(os.O_RDONLY)
        except FileNotFoundError:
            data, status = b"", None
        except PermissionError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None
        else:
            with open(fd, "rb") as file:
                found = os.fstat(fd)
                status = _status(found)
                if status == self._seen:
                    return list(self._labels)
                if found.st_size > _LARGEST:
                    raise UserError(
                        f"{self.path}: {found.st_size} bytes, expected at most {_LARGEST}; move it away"
                    )
                data = file.read()
        data = data.removeprefix(_BYTE_ORDER_MARK)
        if hashlib.blake2b(memoryview(data)[: self._size]).digest() != self._digest.digest():
            self._forget()
        end = data.rfind(b"\n") + 1
        self._take(data[self._size : end], status if end == len(data) else None)
        labels, problems = self._parse_lines(data[end:])
        said = set(self.problems)
        self.problems = self._wrong_lines + problems
        for problem in self.problems:
            if problem not in said:
                _log.warning("%s", problem)
        return self._labels + labels

    def _take(self, lines: bytes, status: tuple[int, ...] | None) -> None:
        """Takes in whole lines that follow those that are known; `status` is that of a file that ends there."""
        labels, problems = self._parse_lines(lines)
        self._labels += labels
        self._wrong_lines += problems
        self._lines += lines.count(b"\n")
        self._size += len(lines)
        self._digest.update(lines)
        self._seen = status

    def _parse_lines(self, data: bytes) -> tuple[list[Label], list[str]]:
        """The labels in some new lines, and what is wrong with the others."""
        labels: list[Label] = []
        problems: list[str] = []
        for number, line in enumerate(data.split(b"\n"), start=self._lines + 1):
            if line.strip():
                result = _parse(line)
                if isinstance(result, Label):
                    labels.append(result)
                else:
                    problems.append(f"{self.path.name} line {number}: {result}; left out")
        return labels, problems

    @contextlib.contextmanager
    def settled(self) -> Iterator[list[Label]]:
        """All lines, while no other process on this machine can add one.

        Raises:
          UserError: the path is no regular file.
          OSError: it cannot be opened.
        """
        fd = self._open(os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(fd)

    def _open(self, flags: int) -> int:
        """Open the file, but neither wait on a pipe nor follow a link to somewhere else."""
        try:
            fd = os.open(self.path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise UserError(
                    f"{self.path}: expected a file of labels, found a link, folder or device"
                ) from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise UserError(f"{self.path}: expected a file of labels, found a folder or device")
        return fd


def _status(of: os.stat_result) -> tuple[int, ...]:
    """Differs once a file was replaced or written to, whatever an editor makes of its modification time."""
    return of.st_ino, of.st_size, of.st_ctime_ns


def _parse(line: bytes) -> Label | str:
    """A label, or what is wrong with its line."""
    if len(line) > _MAX_LINE:
        return f"{len(line)} bytes, expected at most {_MAX_LINE}"
    try:
        values = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return "torn or not JSON"
    if not isinstance(values, dict):
        return f"expected a JSON object, found {type(values).__name__}"
    wrong = _wrong(values)
    if wrong:
        return wrong
    return Label(**{key: values[key] for key in _KEYS if key in values})


def _wrong(values: dict[str, Any]) -> str | None:
    """What is wrong with a label's fields; None if nothing is."""
    for key in ("sample1", "sample2"):
        if not _is_text(values.get(key)) or not values[key]:
            return f"{key} must be a segment's name"
    if "label" not in values or not _is_one_of(values["label"], (0, 1, 2)):
        return "label must be 0, 1, 2 or null"
    for key in ("annotator", "teacher", "flag", "strategy", "id", "commit"):
        if values.get(key) is not None and not _is_text(values[key]):
            return f"{key} must be text"
    if not _is_one_of(values.get("left"), (1, 2)):
        return "left must be 1 or 2"
    parameters = values.get("parameters")
    if parameters is not None and not _is_numbers(parameters):
        return "parameters must be numbers by name"
    seconds = values.get("time")
    if seconds is not None and (type(seconds) not in (int, float) or not abs(seconds) < 1e12):
        return "time must be a number of seconds"
    response = values.get("response_ms")
    if response is not None and (type(response) is not int or not 0 <= response <= MAX_RESPONSE_MS):
        return "response_ms must be a whole number of milliseconds, no more than 11 days"
    for key in ("repeat", "cancelled"):
        if type(values.get(key, False)) is not bool:
            return f"{key} must be true or false"
    return None


def _is_one_of(value: object, choices: tuple[int, ...]) -> bool:
    return value is None or (type(value) is int and value in choices)


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(
        _is_text(name) and type(number) in (int, float) and abs(number) <= sys.float_info.max
        for name, number in value.items()
    )


def _is_text(value: object) -> bool:
    """Whether it is text that can be written out again: JSON can spell lone surrogates, UTF-8 cannot."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))
