"""A database in the page's process: its segments, its labels, and the lock around them."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from lib.cli import UserError
from lib.files import signature
from lib.label_ui.clips import Clip, ClipStore
from lib.label_ui.ledger import Ledger
from lib.label_ui.messages import Offer
from lib.preferences.answers import Answer, holds_answers, load_answer, prompt_of
from lib.preferences.labels import Label, LabelLog
from lib.preferences.queries import Query, RandomPairs
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError

_REFRESH_SECONDS = 1.0

Shown = TypeVar("Shown", Clip, Answer)


class NotSaved(Exception):
    """An answer could not be written; the message says why and what to do."""


class LabelledDB:
    """Segments and labels of one folder, shared by the parts of the desk.

    Concurrency: each request runs in a thread, and strategies and the reward model work in threads of their own.

    * `lock` guards everything that changes: this object, the leases and the random generator. It is re-entrant. Public
      methods of the desk's parts take it themselves; if the caller must hold it, the docstring says so.
    * Nothing slow runs under it: clips are encoded, segments rated and pairs chosen outside. The exception is writing a
      label, fsync included: labels reach the disk in the order in which they are acknowledged, and of two
      votes on one pair the second sees the first.
    * Code that needs this lock and that of a :class:`QueryPrefetcher` or :class:`Ratings` takes this one first. Their
      threads hold no lock of their own when they call back.
    * Other processes may append labels, and add or drop segments, at any time. `sync` sees labels at once and segments
      within a second. A training drops segments under the file lock under which labels are appended, and `write` looks
      for a label's segments under that lock, so no label outlives its segments unnoticed.

    Args:
      root: The DB's folder.
      clock: Seconds, monotonic.
      now: Unix seconds; labels are dated with it.

    Raises:
      UserError: root is no folder, or holds clips and answers.

    Attributes:
      answers: Whether it holds answers of a language model rather than clips; False while it is empty.
      pairs: Draws pairs that may be compared.
      id: Names the DB to browsers, the same in every process.
      broken: Why a segment cannot be shown, by name.
    """

    def __init__(self, root: Path, clock: Callable[[], float], now: Callable[[], float] = time.time) -> None:
        self.root = root
        self.id = hashlib.blake2s(str(root.resolve()).encode(), digest_size=8).hexdigest()
        self.lock = threading.RLock()
        self.log = LabelLog(root / "labels.json")
        self.ledger = Ledger()
        self.broken: dict[str, str] = {}
        self._broken_at: dict[str, tuple[int, ...] | None] = {}  # the file's signature then
        self._segments = SegmentDB(root)
        self._look()
        self._clips = ClipStore(self._segments)
        self._clock = clock
        self._now = now
        self._refreshed = -math.inf
        self._names: list[str] = []
        self._known: frozenset[str] = frozenset()
        self._labels_read: tuple[int, ...] | None = None

    def expect(self, id: str) -> None:
        """Raises UserError if a page is about another DB, served at its address before: its answers are not for this one."""
        if id != self.id:
            raise UserError(
                "another database is served at this address now; reload the page to label that one"
            )

    def sync(self) -> list[str]:
        """Reads new segments, and labels of other processes.

        Returns:
          Names of all segments, sorted.

        Raises:
          UserError: the folder is gone, or labels.json is no file.
        """
        with self.lock:
            if self._clock() - self._refreshed >= _REFRESH_SECONDS:
                self._segments.refresh()
                self._refreshed = self._clock()
                if not self._names:  # the page may have been opened before there was anything to compare
                    self._look()
                self._names = self._segments.names
                self._known = frozenset(self._names)
                # One that was being copied may be whole now, or dropped.
                for name in list(self.broken):
                    if name not in self._known or signature(self.root / name) != self._broken_at[name]:
                        del self.broken[name]
            found = signature(self.log.path)
            if found != self._labels_read:
                self.ledger.update(self.log.read())
                self._labels_read = found
            return self._names

    def _look(self) -> None:
        self.answers = holds_answers(self._segments)
        self.pairs = RandomPairs(prompt_of if self.answers else None)

    def counted(self, count: int) -> str:
        """A number of segments in words: "48 clips", "1 answer"."""
        return f"{count:,} {'answer' if self.answers else 'clip'}{'' if count == 1 else 's'}"

    def playable(self) -> list[str]:
        """As :meth:`sync`, without the segments that cannot be shown."""
        with self.lock:
            names = self.sync()
            return [name for name in names if name not in self.broken] if self.broken else names

    def holds(self, names: Iterable[str]) -> bool:
        """Whether these were segments of the DB at the last `sync`."""
        return self._known.issuperset(names)

    def can_show(self, names: Iterable[str]) -> bool:
        """As :meth:`holds`, and none of them is broken."""
        return all(name in self._known and name not in self.broken for name in names)

    def version(self) -> tuple[object, ...]:
        """Differs from an earlier one if segments or labels have changed since. Raises UserError, OSError."""
        with self.lock:
            return len(self.sync()), self._labels_read, len(self.broken)

    def write(self, label: Label) -> bool:
        """Puts a label on disk. The caller holds the lock.

        Returns:
          False, and nothing is written, if one of its segments was dropped since the last `sync`.

        Raises:
          NotSaved: the disk is full, the DB read-only or gone.
        """
        return self._append(label, lambda: self._segments.holds((label.sample1, label.sample2)))

    def write_back(self, label: Label) -> None:
        """Puts a line on disk that cancels or restores a label, whether its segments are there or not. As :meth:`write`."""
        self._append(label, lambda: True)

    def _append(self, label: Label, present: Callable[[], bool]) -> bool:
        try:
            written = self.log.append(label, present)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotSaved(
                f"{self.log.path} could not be written ({reason}); free space or fix the problem"
            ) from error
        self.sync()
        return written

    def now(self) -> float:
        """Unix seconds, to the millisecond, as labels are dated."""
        return round(self._now(), 3)

    def clip(self, id: str) -> Clip:
        """A clip. One that cannot be shown is broken from then on. Raises KeyError, SegmentError."""
        return self._shown(id, self._clips.clip, of_answers=False)

    def answer(self, id: str) -> Answer:
        """An answer, as :meth:`clip`."""
        return self._shown(id, lambda id: load_answer(self._segments, self.name_of(id)), of_answers=True)

    def _shown(self, id: str, load: Callable[[str], Shown], of_answers: bool) -> Shown:
        if self.answers is not of_answers:
            raise KeyError(id)
        name = self.name_of(id)
        found = signature(self._segments.path(name))
        try:
            return load(id)
        except SegmentError as error:
            with self.lock:
                self.broken[name], self._broken_at[name] = str(error), found
            raise

    def thumbnail(self, id: str) -> Clip:
        """A small picture of a segment. Raises KeyError, SegmentError."""
        if self.answers:
            raise KeyError(id)
        return self._clips.thumbnail(id)

    def clip_id(self, name: str) -> str:
        """The opaque id under which a segment's clip and thumbnail are served."""
        return self._clips.id_of(name)

    def name_of(self, id: str) -> str:
        """The segment of a clip's id. Raises KeyError."""
        return self._clips.name_of(id)

    def offer(self, id: str, query: Query, left: int) -> Offer:
        """A query as sent to a page."""
        return Offer.model_validate(
            {
                "id": id,
                "sample1": query.sample1,
                "sample2": query.sample2,
                "left": left,
                "strategy": query.strategy[:60],  # a label of another program may say anything
                "reason": query.reason[:200],
                "repeat": query.repeat,
                "clip1": self.clip_id(query.sample1),
                "clip2": self.clip_id(query.sample2),
            }
        )
