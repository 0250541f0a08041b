"""What the labelling page does, without HTTP: hands out pairs, writes answers down, takes them back, sums up."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from lib.files import signature
from lib.label_ui.ahead import Ahead
from lib.label_ui.clips import Clip, ClipStore
from lib.label_ui.ledger import Entry, Labeller, Ledger
from lib.label_ui.messages import (
    BatchReply,
    BatchRequest,
    CurveReply,
    Doubt,
    DoubtsReply,
    Judged,
    JudgedReply,
    Offer,
    Said,
    Standing,
    Undo,
    UndoReply,
    Vote,
    VoteReply,
)
from lib.label_ui.opinion import Opinion
from lib.preferences.labels import RECHECK, Label, LabelLog, Pair, pair_of
from lib.preferences.queries import Either, Leases, Query, RandomPairs, Strategy
from lib.preferences.schedule import ProgressReader
from lib.preferences.segments import SegmentDB, SegmentError

CHECK_DISTANCE = 10
"""A pair comes again as a repeat check after this many other answers at the earliest."""

IN_HAND = 3
"""Pairs that a page has at the least, drawn at random if the strategy has not chosen any by then."""

Order = Literal["most", "least", "newest", "random", "name"]
"""Of segments on the reward model's page: by their total learned reward, by age, by chance, by name."""

_RATE_WINDOW = 30
_PAUSE_SECONDS = 60.0
"""Longer gaps between two answers are breaks and do not count as labelling time."""
_REFRESH_SECONDS = 1.0


class NotSaved(Exception):
    """An answer could not be written; the message says why and what mends it."""


class Desk:
    """One DB and everybody who labels it through this process. All methods may be called from any thread.

    Args:
      root: The DB's folder.
      strategies: What may choose pairs, by name; "random", which needs no time, is always among them. The others
        choose ahead in threads of their own, and what they choose is filled up with random pairs.
      strategy: Name of the strategy that chooses pairs unless a page asks for another.
      opinion: What a reward model thinks, for its page; None without one.
      repeat_rate: Share of queries that are repeat checks, 0 to 1.
      goal: Number of labels to reach in the DB, None without.
      seed: Of the choice of pairs and sides; None for a fresh one.
      clock: Seconds, monotonic; leases are measured with it.
      now: Unix seconds; labels are dated with it.

    Raises:
      UserError: root is no folder.
    """

    def __init__(
        self,
        root: Path,
        *,
        strategies: Mapping[str, Strategy] | None = None,
        strategy: str = "random",
        opinion: Opinion | None = None,
        repeat_rate: float = 0.05,
        goal: int | None = None,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self.strategy = strategy
        self.opinion = opinion
        self.goal = goal
        slower = {name: one for name, one in (strategies or {}).items() if name != "random"}
        self.id = hashlib.blake2s(str(root.resolve()).encode(), digest_size=8).hexdigest()
        self._db = SegmentDB(root)
        self._log = LabelLog(root / "labels.json")
        self._training = ProgressReader(root)
        self._clips = ClipStore(self._db)
        self._broken: dict[str, str] = {}
        self._ledger = Ledger()
        self._read_as: tuple[int, ...] | None = None
        self._leases = Leases(clock=clock)
        self._random = RandomPairs()
        self._repeat_rate = repeat_rate
        self._rng = np.random.default_rng(seed)
        self._ahead = {
            name: Ahead(slow, self._free, rng)
            for (name, slow), rng in zip(slower.items(), self._rng.spawn(len(slower)), strict=True)
        }
        self.strategies = ["random", *slower]
        self._clock = clock
        self._now = now
        self._refreshed = -np.inf
        self._lock = threading.RLock()
        if strategy in self._ahead:
            self._ahead[strategy].want()  # so that the first pair need not be a random one

    # --- labelling ---------------------------------------------------------------------------------------------

    def batch(self, ask: BatchRequest) -> BatchReply:
        """Renews the pairs a page still holds, frees its others, and adds new ones up to the number it wants.

        Raises:
          UserError: the DB's folder is gone, or labels.json is no file.
        """
        who: Labeller = (ask.labeller, None)
        with self._lock:
            names = self._sync()
            kept = [offer for offer in ask.keep if self._keep(offer, ask.page, who, names)]
            ids = {offer.id for offer in kept}
            for lease in self._leases.held_by(ask.page):
                if lease.id not in ids:
                    self._leases.release(lease.id)
            playable = [name for name in names if name not in self._broken]
            count = max(0, ask.want - len(kept))
            live = self._leases.live()
            if ask.strategy == RECHECK and self.opinion is not None:
                queries = self._rechecks(self.opinion, who, live, count)
            else:
                checks = self._repeat_checks(who, names, self._rng.binomial(count, self._repeat_rate))
                fresh = self._choose(
                    ask.strategy, playable, live, count - len(checks), IN_HAND - len(kept) - len(checks)
                )
                if len(fresh) < count - len(checks):  # of pairs that there are not, none is asked again
                    checks = checks[: self._rng.binomial(len(fresh), self._repeat_rate)]
                queries = _shuffle_in(fresh, checks, self._rng)
            offers = list(kept)
            for query in queries:
                left = int(self._rng.integers(1, 3))
                if query.repeat:
                    earlier = self._ledger.standing[query.pair][who]
                    left = 3 - _left(earlier, query.sample1)
                granted = self._leases.grant(query, left, ask.page)
                if granted is not None:
                    offers.append(self._offer(granted.id, query, left))
            notice = "" if offers else self._why_none(playable, live, ask.strategy)
            problems = [*self._broken.values(), *(one.problem for one in self._ahead.values() if one.problem)]
            return BatchReply(
                pairs=offers,
                standing=self._standing(who),
                notice=notice,
                problems=problems[:20],
            )

    def vote(self, vote: Vote) -> VoteReply:
        """Writes an answer to disk. An answer sent twice is written once.

        A vote counts even when its lease has run out or was granted by an earlier process; when somebody else has
        answered the pair meanwhile, both answers are kept. It is dropped, and the reply says so, when its labeller
        has already answered the pair another time.

        Raises:
          NotSaved: the disk is full, the DB read-only or gone.
        """
        who: Labeller = (vote.labeller, None)
        offer = vote.offer
        with self._lock:
            names = self._sync()

            def reply(outcome: Literal["saved", "duplicate", "dropped"], reason: str = "") -> VoteReply:
                return VoteReply(outcome=outcome, reason=reason, standing=self._standing(who))

            if offer.id in self._ledger.ids:
                return reply("duplicate")
            if vote.db != self.id:
                return reply("dropped", "it belongs to another database")
            gone = "one of its segments is no longer in the database"
            if offer.sample1 == offer.sample2 or not all(
                _holds(names, name) for name in (offer.sample1, offer.sample2)
            ):
                return reply("dropped", gone)
            lease = self._leases.find(offer.id)
            if lease is not None:
                asked = self._offer(lease.id, lease.query, lease.left)
                if (asked.sample1, asked.sample2) != (offer.sample1, offer.sample2):
                    return reply("dropped", "it does not name the pair that was asked")
                offer = asked
            before = self._ledger.standing.get(pair_of(offer.sample1, offer.sample2), {}).get(who)
            again = offer.repeat or vote.change or offer.strategy == RECHECK
            if before is not None and not again:
                return reply("dropped", "you have already answered this pair, perhaps in another tab")
            written = self._write(
                Label(
                    sample1=offer.sample1,
                    sample2=offer.sample2,
                    label=vote.label,
                    annotator=vote.labeller,
                    time=round(self._now(), 3),
                    response_ms=vote.response_ms,
                    left=offer.left,
                    flag=vote.flag or None,
                    strategy=offer.strategy,
                    repeat=offer.repeat and before is not None,
                    id=offer.id,
                ),
                # The names are a second old at most; a training that keeps its DB small may have dropped one since.
                partial(self._db.holds, (offer.sample1, offer.sample2)),
            )
            if not written:
                return reply("dropped", gone)
            self._leases.release(offer.id)
            return reply("saved")

    def undo(self, undo: Undo) -> UndoReply:
        """Takes an answer back; the pair may then be asked again.

        Raises:
          NotSaved: as for :meth:`vote`.
        """
        who: Labeller = (undo.labeller, None)
        with self._lock:
            self._sync()

            def reply(outcome: Literal["undone", "duplicate", "dropped"], reason: str = "") -> UndoReply:
                return UndoReply(outcome=outcome, reason=reason, standing=self._standing(who))

            if undo.id in self._ledger.ids:
                return reply("duplicate")
            if undo.db != self.id:
                return reply("dropped", "it belongs to another database")
            entry = self._ledger.entry(who, undo.target)
            if entry is None:
                return reply("dropped", "that answer was already replaced or taken back")
            line = entry.before or dataclasses.replace(
                entry.label, cancelled=True, time=round(self._now(), 3)
            )
            self._write(dataclasses.replace(line, id=undo.id))
            return reply("undone")

    def leave(self, page: str) -> None:
        """A page was closed: what it held may go to others at once. It may come back, as after a reload."""
        with self._lock:
            self._leases.lapse(page)

    def history(self, labeller: str, before: str | None, limit: int) -> list[Said]:
        """A labeller's answers that can be undone, oldest first.

        Args:
          labeller: Whose.
          before: Only answers before the one of this vote id.
          limit: How many at most, the latest of them.
        """
        with self._lock:
            names = self._sync()
            entries = [
                entry
                for entry in self._ledger.history[(labeller, None)]
                if _is_ours(entry.label.id) and all(_holds(names, name) for name in entry.label.pair)
            ]
            ids = [entry.label.id for entry in entries]
            if before in ids:
                entries = entries[: ids.index(before)]
            return [self._said(entry.label) for entry in entries[-limit:]]

    def pair(self, clip1: str, clip2: str, recheck: bool = False) -> tuple[Offer, list[Said]]:
        """A pair by its clips' ids, and what everybody says about it, for a look or a change.

        Args:
          clip1: Id of a clip.
          clip2: Id of another.
          recheck: Asked anew because the reward model doubts a label of it: sides are drawn, nothing is quoted.

        Raises:
          KeyError: no such clip.
        """
        with self._lock:
            self._sync()
            name1, name2 = self._clips.name_of(clip1), self._clips.name_of(clip2)
            if name1 == name2:
                raise KeyError(clip2)
            if recheck:
                left = int(self._rng.integers(1, 3))
                return self._offer(secrets.token_hex(12), _recheck(name1, name2), left), []
            said = list(self._ledger.standing.get(pair_of(name1, name2), {}).values())
            left, strategy = 1, "opened"
            if said:
                name1, name2 = said[-1].sample1, said[-1].sample2
                left, strategy = said[-1].left or 1, said[-1].strategy or strategy
            query = Query(name1, name2, strategy, "opened from the existing labels")
            return self._offer(secrets.token_hex(12), query, left), [self._said(one) for one in said]

    def delete(self, label: Label) -> None:
        """Cancels a label, whoever gave it.

        Raises:
          NotSaved: as for :meth:`vote`.
        """
        with self._lock:
            self._sync()
            if self._ledger.standing.get(label.pair, {}).get(label.labeller) is not None:
                time = round(self._now(), 3)
                id = "d-" + secrets.token_hex(12)
                self._write(dataclasses.replace(label, cancelled=True, time=time, id=id))

    # --- looking -----------------------------------------------------------------------------------------------

    def clip(self, id: str) -> Clip:
        """A clip; one that cannot be shown is left out from then on. Raises KeyError, SegmentError."""
        try:
            return self._clips.clip(id)
        except SegmentError as error:
            with self._lock:
                self._broken[self._clips.name_of(id)] = str(error)
            raise

    def thumbnail(self, id: str) -> Clip:
        """A small picture of a segment. Raises KeyError, SegmentError."""
        return self._clips.thumbnail(id)

    def clip_id(self, name: str) -> str:
        """The opaque id under which a segment's clip and thumbnail are served."""
        return self._clips.id_of(name)

    def labels(self) -> tuple[list[Label], set[Pair]]:
        """The labels that hold, latest last, and the pairs on which there is disagreement."""
        with self._lock:
            self._sync()
            labels = sorted(self._ledger.labels(), key=lambda label: label.time or 0.0)
            return labels, self._ledger.disputed()

    def count_segments(self) -> int:
        """How many segments there are now. Raises UserError if the DB cannot be read."""
        with self._lock:
            return len(self._sync())

    def state(self) -> tuple[object, ...]:
        """Differs from an earlier one if segments or labels have changed since. Raises UserError, OSError."""
        with self._lock:
            return len(self._sync()), self._read_as, len(self._broken)

    def judged(self, order: Order, text: str = "", seed: int = 0, limit: int = 50) -> JudgedReply:
        """Segments for the reward model's page. Whatever is not judged yet gets judged in the background.

        Args:
          order: How they are sorted; "most" and "least" know only what has been judged so far.
          text: Only segments whose name contains it.
          seed: Of the order "random".
          limit: How many at most.

        Raises:
          KeyError: there is no model.
        """
        opinion = self._opinion()
        with self._lock:
            names = [name for name in self._sync() if text in name and name not in self._broken]
        if order == "newest":
            names.sort(key=lambda name: _modified(self.root / name), reverse=True)
        elif order == "random":
            names = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
        if order in ("most", "least"):
            # By digest, so that the first ones judged are of all environments and times.
            totals = opinion.look(sorted(names, key=self.clip_id))
            judged, of = len(totals), len(names)
            names = sorted(
                (name for name, total in totals.items() if not math.isnan(total)),
                key=totals.__getitem__,
                reverse=order == "most",
            )[:limit]
        else:
            names = names[:limit]
            totals = opinion.look(names)
            judged, of = len(totals), len(names)
        clips = [
            Judged(clip=self.clip_id(name), name=name, total=_number(totals.get(name))) for name in names
        ]
        return JudgedReply(clips=clips, judged=judged, of=of)

    def curve(self, id: str) -> CurveReply:
        """The learned reward of each step of a clip. Raises KeyError (no such clip, no model), SegmentError."""
        opinion = self._opinion()
        name = self._clips.name_of(id)
        return CurveReply(name=name, rewards=[round(float(reward), 4) for reward in opinion.curve(name)])

    def doubts(self, labeller: str, limit: int = 100) -> DoubtsReply:
        """Labels that the reward model finds least likely, without those the labeller has rechecked.

        Raises:
          KeyError: there is no model.
        """
        opinion = self._opinion()
        with self._lock:
            labels = self._doubtful((labeller, None))
        totals = opinion.look(_segments_of(labels))
        doubts = []
        for chance, label in _least_likely(opinion, labels, totals)[:limit]:
            better, other = label.sample1, label.sample2
            if label.label == 2:
                better, other = other, better
            doubts.append(
                Doubt(
                    clip=self.clip_id(better),
                    other=self.clip_id(other),
                    labeller=display_name(label.labeller),
                    probability=chance,
                    total=totals[better],
                    other_total=totals[other],
                )
            )
        judged = sum(label.sample1 in totals and label.sample2 in totals for label in labels)
        return DoubtsReply(doubts=doubts, judged=judged, of=len(labels))

    def overview(self) -> Overview:
        """Figures about the whole DB. Walks the files once for their size."""
        with self._lock:
            names = self._sync()
            labels = list(self._ledger.labels())
            usable = self._ledger.usable
            checks = {
                who: [e.agrees for e in entries if e.agrees is not None]
                for who, entries in self._ledger.history.items()
            }
            pairs = [said for said in self._ledger.standing.values() if len(said) > 1]
            broken = dict(self._broken)
            answered = self._answered(names)
        alike = sum(len({label.winner for label in said.values()}) == 1 for said in pairs)
        return Overview(
            segments=len(names),
            labels=labels,
            usable=usable,
            pairs=answered,
            shared_pairs=len(pairs),
            shared_alike=alike,
            checks={display_name(who): results for who, results in checks.items() if results},
            broken=broken,
            log_problems=list(self._log.problems),
            bytes=sum(_size(self.root / name) for name in names) + _size(self._log.path),
        )

    # --- inside ------------------------------------------------------------------------------------------------

    def _sync(self) -> list[str]:
        """Takes in new segments and labels of other processes; returns the segments' names, sorted."""
        if self._clock() - self._refreshed >= _REFRESH_SECONDS:
            self._db.refresh()
            self._refreshed = self._clock()
        read_as = signature(self._log.path)
        if read_as != self._read_as:
            self._ledger.update(self._log.read())
            self._read_as = read_as
        return self._db.names

    def _write(self, label: Label, present: Callable[[], bool] = lambda: True) -> bool:
        """Puts a label on disk, unless its segments are not present."""
        try:
            written = self._log.append(label, present)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotSaved(
                f"{self._log.path} could not be written ({reason}); free space or mend it"
            ) from error
        self._sync()
        return written

    def _opinion(self) -> Opinion:
        if self.opinion is None:
            raise KeyError("no reward model")
        return self.opinion

    def _free(self) -> tuple[list[str], set[Pair]]:
        """What strategies may choose from now: segments, and the pairs that are taken."""
        with self._lock:
            names = [name for name in self._sync() if name not in self._broken]
            return names, self._leases.live().union(self._ledger.standing)

    def _choose(
        self, strategy: str | None, playable: list[str], live: set[Pair], count: int, at_least: int
    ) -> list[Query]:
        """New queries, at once: what the strategy has ready, and random ones up to `at_least` if that is too few."""
        taken = Either(self._ledger.standing, live)
        ahead = self._ahead.get(strategy if strategy in self.strategies else self.strategy)
        if ahead is None:
            return self._random.propose(playable, taken, count, self._rng)
        found = ahead.take(count, set(playable), taken)
        more = min(count, at_least) - len(found)
        if more > 0:
            taken = Either(self._ledger.standing, live.union(query.pair for query in found))
            found += self._random.propose(playable, taken, more, self._rng)
        return found

    def _doubtful(self, who: Labeller) -> list[Label]:
        """Decided labels on pairs that can be shown and that this labeller has not rechecked."""
        names = self._sync()
        found = []
        for pair, said in self._ledger.standing.items():
            mine = said.get(who)
            if (mine is None or mine.strategy != RECHECK) and all(
                _holds(names, name) and name not in self._broken for name in pair
            ):
                found += [label for label in said.values() if label.label in (1, 2)]
        return found

    def _rechecks(self, opinion: Opinion, who: Labeller, live: set[Pair], count: int) -> list[Query]:
        """The pairs whose label the reward model doubts most, as far as it has judged them."""
        labels = [label for label in self._doubtful(who) if label.pair not in live]
        totals = opinion.look(_segments_of(labels))
        return [_recheck(*label.pair) for _, label in _least_likely(opinion, labels, totals)[:count]]

    def _keep(self, offer: Offer, page: str, who: Labeller, names: Sequence[str]) -> bool:
        pair = pair_of(offer.sample1, offer.sample2)
        if offer.id in self._ledger.ids or not all(
            _holds(names, name) and name not in self._broken for name in pair
        ):
            return False
        said = self._ledger.standing.get(pair, {})
        if offer.strategy == RECHECK:
            mine = said.get(who)
            if mine is not None and mine.strategy == RECHECK:
                return False
        elif (who not in said) if offer.repeat else said:
            return False
        query = Query(offer.sample1, offer.sample2, offer.strategy, offer.reason, offer.repeat)
        offer.clip1, offer.clip2 = self.clip_id(offer.sample1), self.clip_id(offer.sample2)
        return self._leases.grant(query, offer.left, page, id=offer.id) is not None

    def _repeat_checks(self, who: Labeller, names: Sequence[str], count: int) -> list[Query]:
        """Earlier pairs of a labeller to ask once more, none a second time."""
        if not count:
            return []
        history = self._ledger.history[who]
        checked = {entry.label.pair for entry in history if entry.label.repeat}
        checked |= self._leases.repeats()
        candidates = [
            label
            for label in (entry.label for entry in history[:-CHECK_DISTANCE])
            if label.pair not in checked
            and self._ledger.standing.get(label.pair, {}).get(who) is label
            and all(_holds(names, name) and name not in self._broken for name in label.pair)
        ]
        chosen = self._rng.permutation(len(candidates))[:count]
        return [
            Query(candidates[i].sample1, candidates[i].sample2, "repeat", "asked once more", repeat=True)
            for i in chosen
        ]

    def _why_none(self, playable: list[str], live: set[Pair], strategy: str | None) -> str:
        segments = len(playable)
        if strategy == RECHECK:
            return "There is no label left to recheck, or the reward model has yet to judge them."
        if self._broken and segments < 2:
            return f"None of the segments can be shown as a pair. {next(iter(self._broken.values()))}"
        if segments == 0:
            return (
                "This database holds no segments yet. Record some with 01_a2c.py --db-path; "
                "they appear here by themselves."
            )
        if segments == 1:
            return "There is one segment so far, and a pair takes two. More appear here by themselves."
        pairs = segments * (segments - 1) // 2
        left = pairs - self._answered(playable)
        if left and live:
            which = "The last pair is" if left == 1 else f"The last {left} of {pairs} pairs are"
            return (
                f"{which} in front of other labellers, or in another tab of yours. "
                "A pair comes free two minutes after its page was last heard of."
            )
        made = "the one pair" if pairs == 1 else f"every one of the {pairs} pairs"
        return (
            f"All done: {made} that {segments} segments make has been answered. "
            "Newly recorded segments appear here by themselves."
        )

    def _answered(self, names: Sequence[str]) -> int:
        """How many pairs of these segments somebody answered; labels may name segments that are gone."""
        there = set(names)
        return sum(one in there and two in there for one, two in self._ledger.standing)

    def _offer(self, id: str, query: Query, left: int) -> Offer:
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

    def _said(self, label: Label) -> Said:
        query = Query(label.sample1, label.sample2, label.strategy or "", "", label.repeat)
        # Labels without an id of ours can be looked at but not undone.
        id = label.id if _is_ours(label.id) else None
        offer = self._offer(id or secrets.token_hex(12), query, label.left or 1)
        return Said.model_validate(
            {
                "offer": offer,
                "label": label.label,
                "labeller": display_name(label.labeller),
                "flag": label.flag,
                "time": label.time,
            }
        )

    def _standing(self, who: Labeller) -> Standing:
        mine = self._ledger.history[who]
        training = self._training.read()
        midnight = time.mktime((*time.localtime(self._now())[:3], 0, 0, 0, 0, 0, -1))
        return Standing(
            total=self._ledger.usable,
            skipped=self._ledger.skipped,
            mine=len(mine),
            today=sum((entry.label.time or 0.0) >= midnight for entry in mine),
            per_minute=_per_minute(mine),
            checks=[entry.agrees for entry in mine if entry.agrees is not None][-20:],
            goal=self.goal,
            due=None if training is None else max(0, training.due - self._ledger.usable),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """Figures about a DB."""

    segments: int
    labels: list[Label]
    usable: int
    """Labels that count towards the goal."""
    pairs: int
    """Pairs of these segments that somebody answered."""
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


def display_name(who: Labeller) -> str:
    """What a labeller is called on the page."""
    annotator, teacher = who
    return annotator or (f"{teacher} (simulated)" if teacher else "unnamed")


def _recheck(name1: str, name2: str) -> Query:
    return Query(name1, name2, RECHECK, "asked again: the reward model doubts a label")


def _segments_of(labels: Iterable[Label]) -> Iterable[str]:
    """The segments that labels name, each once, in the labels' order."""
    return dict.fromkeys(name for label in labels for name in label.pair)


def _least_likely(
    opinion: Opinion, labels: Iterable[Label], judged: Container[str]
) -> list[tuple[float, Label]]:
    """One label a pair, the one the model finds least likely, and how likely that is; the least likely pair first."""
    found: dict[Pair, tuple[float, Label]] = {}
    for label in labels:
        chance = opinion.probability(label) if all(name in judged for name in label.pair) else None
        if chance is not None and (label.pair not in found or chance < found[label.pair][0]):
            found[label.pair] = chance, label
    return sorted(found.values(), key=lambda one: one[0])


def _is_ours(id: str | None) -> bool:
    """Whether it is the id of a vote from a page."""
    return id is not None and id.isascii() and id.isalnum() and 8 <= len(id) <= 64


def _holds(names: Sequence[str], name: str) -> bool:
    at = bisect.bisect_left(names, name)
    return at < len(names) and names[at] == name


def _left(label: Label, sample1: str) -> int:
    """Which sample stood on the left, counted the way round that has `sample1` first."""
    left = label.left or 1
    return left if label.sample1 == sample1 else 3 - left


def _shuffle_in(fresh: list[Query], checks: list[Query], rng: np.random.Generator) -> list[Query]:
    """Puts repeat checks at random places among fresh queries, whose order is kept."""
    queries = list(fresh)
    for check in checks:
        queries.insert(int(rng.integers(0, len(queries) + 1)), check)
    return queries


def _per_minute(entries: list[Entry]) -> float | None:
    """Answers a minute over the last ones, breaks left out; None before there are a few."""
    times = [entry.label.time for entry in entries[-_RATE_WINDOW:] if entry.label.time is not None]
    gaps = [b - a for a, b in itertools.pairwise(times) if 0 < b - a <= _PAUSE_SECONDS]
    return round(60 * len(gaps) / sum(gaps), 1) if len(gaps) >= 2 else None


def _number(total: float | None) -> float | None:
    """None for NaN, which JSON lacks."""
    return None if total is None or math.isnan(total) else total


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -math.inf


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
