"""The label log as the page needs it: each labeller's answers to each pair, their order, and what can be undone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lib.preferences.labels import Label, Pair, counted

Labeller = tuple[str | None, str | None]
"""Annotator and teacher, as :attr:`Label.labeller` has them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer in a labeller's history."""

    label: Label
    before: Label | None
    """The same labeller's previous answer to the pair."""

    @property
    def agrees(self) -> bool | None:
        """Whether a repeat check brought the same answer; None for any other answer."""
        if not self.label.repeat or self.before is None:
            return None
        return self.label.winner == self.before.winner


def display_name(who: Labeller) -> str:
    """A labeller's name on the page."""
    annotator, teacher = who
    return annotator or (f"{teacher} (simulated)" if teacher else "unnamed")


class Ledger:
    """All lines of a label log, applied in order.

    Attributes:
      ids: of the lines that have one.
      standing: the labels that hold, by pair and labeller.
      history: each labeller's answers that were not taken back, in order.
      usable: labels that hold and that a fit can use; rechecks of other people's labels do not count.
      skipped: labels that hold and say "cannot tell", without such rechecks.
    """

    def __init__(self) -> None:
        self._lines: list[Label] = []
        self._clear()

    def _clear(self) -> None:
        self.ids: set[str] = set()
        self.standing: dict[Pair, dict[Labeller, Label]] = {}
        self.history: dict[Labeller, list[Entry]] = defaultdict(list)
        self.usable = 0
        self.skipped = 0

    def update(self, lines: list[Label]) -> None:
        """Applies the log's lines: only new ones, or all again if the file was replaced.

        Args:
          lines: Every line of the log, in order.
        """
        known = len(self._lines)
        if lines[:known] != self._lines:  # quick: unchanged ones are the same objects
            self._clear()
            known = 0
        for line in lines[known:]:
            self._apply(line)
        self._lines = lines

    def _apply(self, line: Label) -> None:
        if line.id is not None:
            self.ids.add(line.id)
        pair, who = line.pair, line.labeller
        history = self.history[who]
        self._count(pair, -1)
        before = self.standing.get(pair, {}).pop(who, None)
        holds: Label | None = None if line.cancelled else line
        if line.undoes:
            last = next((i for i in reversed(range(len(history))) if history[i].label.pair == pair), None)
            if last is not None:
                undone = history.pop(last)
                holds = undone.before  # itself, so that it can be undone in turn
        elif line.cancelled:
            self.history[who] = [entry for entry in history if entry.label.pair != pair]
        else:
            history.append(Entry(line, before))
        if holds is not None:
            self.standing.setdefault(pair, {})[who] = holds
        if not self.standing.get(pair, True):
            del self.standing[pair]
        self._count(pair, 1)

    def _count(self, pair: Pair, sign: int) -> None:
        """Adds or subtracts a pair's labels, without rechecks of other people's labels."""
        for label in counted(list(self.standing.get(pair, {}).values())):
            if label.label is None:
                self.skipped += sign
            else:
                self.usable += sign

    def labels(self) -> Iterator[Label]:
        """The labels that hold, pair by pair."""
        for by_labeller in self.standing.values():
            yield from by_labeller.values()

    def answered(self, names: Iterable[str]) -> int:
        """How many pairs of these segments somebody answered; labels may name segments that are gone."""
        there = set(names)
        return sum(one in there and two in there for one, two in self.standing)

    def entry(self, who: Labeller, id: str) -> Entry | None:
        """The answer of that vote id if it is the labeller's last word on its pair."""
        for entry in reversed(self.history[who]):
            if entry.label.id == id:
                return entry if self.standing.get(entry.label.pair, {}).get(who) is entry.label else None
        return None

    def disputed(self) -> set[Pair]:
        """Pairs on which people disagree, with each other or with themselves in a repeat check."""
        pairs = {
            pair for pair, said in self.standing.items() if len({label.winner for label in said.values()}) > 1
        }
        for history in self.history.values():
            pairs.update(entry.label.pair for entry in history if entry.agrees is False)
        return pairs & self.standing.keys()
