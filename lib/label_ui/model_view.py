"""What the reward model thinks of a DB: rated segments, curves, and the labels it doubts."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from lib.label_ui.db import LabelledDB
from lib.label_ui.ledger import Labeller, display_name
from lib.label_ui.messages import CurveReply, Doubt, DoubtsReply, RatedClip, RatedClipsReply
from lib.label_ui.ratings import Ratings
from lib.preferences.labels import RECHECK, Label, Pair
from lib.preferences.queries import Query

Order = Literal["most", "least", "newest", "random", "name"]
"""Of segments: by their total learned reward, by age, by chance, by name."""
_MOST_DOUBTS = 100


class ModelView:
    """A reward model's view of a DB. It works in the background while somebody looks.

    Args:
      db: The DB.
      ratings: What the model pays for its segments.
    """

    def __init__(self, db: LabelledDB, ratings: Ratings) -> None:
        self.name = ratings.name
        self._db = db
        self._ratings = ratings

    def segments(self, order: Order, text: str = "", seed: int = 0, limit: int = 50) -> RatedClipsReply:
        """A list of segments. Those without a rating get one in the background.

        Args:
          order: How they are sorted; "most" and "least" know only what has been rated so far.
          text: Only segments whose name contains it.
          seed: Of the order "random".
          limit: How many at most.
        """
        clip_id = self._db.clip_id
        names = [name for name in self._db.playable() if text in name]
        if order == "newest":
            names.sort(key=lambda name: _modified(self._db.root / name), reverse=True)
        elif order == "random":
            names = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
        if order in ("most", "least"):
            # By digest, so that the first ones rated are of all environments and times.
            totals = self._ratings.look(sorted(names, key=clip_id))
            of = len(names)
            known = [name for name, total in totals.items() if not math.isnan(total)]
            names = sorted(known, key=totals.__getitem__, reverse=order == "most")[:limit]
        else:
            names = names[:limit]
            totals = self._ratings.look(names)
            of = len(names)
        clips = [RatedClip(clip=clip_id(name), name=name, total=_number(totals.get(name))) for name in names]
        return RatedClipsReply(clips=clips, rated=len(totals), of=of)

    def curve(self, id: str) -> CurveReply:
        """The learned reward of each step of a clip. Raises KeyError, SegmentError."""
        name = self._db.name_of(id)
        return CurveReply(rewards=[round(float(reward), 4) for reward in self._ratings.curve(name)])

    def doubts(self, labeller: str) -> DoubtsReply:
        """Labels that the model finds least likely, without those that the labeller has rechecked."""
        with self._db.lock:
            labels = self._decided((labeller, None))
        totals = self._ratings.look(_segments_of(labels))
        doubts = []
        for chance, label in self._least_likely(labels, totals)[:_MOST_DOUBTS]:
            better, other = label.sample1, label.sample2
            if label.label == 2:
                better, other = other, better
            doubts.append(
                Doubt(
                    clip=self._db.clip_id(better),
                    other=self._db.clip_id(other),
                    labeller=display_name(label.labeller),
                    probability=chance,
                    total=totals[better],
                    other_total=totals[other],
                )
            )
        rated = sum(label.sample1 in totals and label.sample2 in totals for label in labels)
        return DoubtsReply(doubts=doubts, rated=rated, of=len(labels))

    def rechecks(self, who: Labeller, live: Container[Pair], count: int) -> list[Query]:
        """The pairs whose label the model doubts most, as far as it has rated them. The caller holds the lock.

        Args:
          who: Whom to ask.
          live: Pairs to leave out: somebody has them on screen.
          count: How many at most.
        """
        labels = [label for label in self._decided(who) if label.pair not in live]
        totals = self._ratings.look(_segments_of(labels))
        return [recheck_query(*label.pair) for _, label in self._least_likely(labels, totals)[:count]]

    def _decided(self, who: Labeller) -> list[Label]:
        """Labels that prefer a clip, on pairs that can be shown and that this labeller has not rechecked."""
        self._db.sync()
        found = []
        for pair, said in self._db.ledger.standing.items():
            mine = said.get(who)
            if (mine is None or mine.strategy != RECHECK) and self._db.can_show(pair):
                found += [label for label in said.values() if label.label in (1, 2)]
        return found

    def _least_likely(self, labels: Iterable[Label], rated: Container[str]) -> list[tuple[float, Label]]:
        """One label a pair, the one the model finds least likely, and how likely that is; the least likely first."""
        found: dict[Pair, tuple[float, Label]] = {}
        for label in labels:
            chance = self._ratings.probability(label) if all(name in rated for name in label.pair) else None
            if chance is not None and (label.pair not in found or chance < found[label.pair][0]):
                found[label.pair] = chance, label
        return sorted(found.values(), key=lambda one: one[0])


def recheck_query(name1: str, name2: str) -> Query:
    """A pair that is asked again because a reward model doubts a label on it."""
    return Query(name1, name2, RECHECK, "asked again: the reward model doubts a label")


def _segments_of(labels: Iterable[Label]) -> Iterable[str]:
    """The segments that labels name, each once, in the labels' order."""
    return dict.fromkeys(name for label in labels for name in label.pair)


def _number(total: float | None) -> float | None:
    """None for NaN, which JSON lacks."""
    return None if total is None or math.isnan(total) else total


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -math.inf
