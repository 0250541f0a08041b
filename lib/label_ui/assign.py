"""Which pairs a page gets: those it holds, repeat checks, rechecks, and new ones of the chosen strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lib.cli import UserError
from lib.label_ui.db import LabelledDB
from lib.label_ui.ledger import Labeller
from lib.label_ui.messages import BatchReply, BatchRequest, Offer
from lib.label_ui.model_view import ModelView
from lib.label_ui.prefetch import QueryPrefetcher
from lib.label_ui.stats import Statistics
from lib.preferences.labels import RECHECK, Label, Pair, pair_of
from lib.preferences.queries import Either, Leases, Query, Strategy

CHECK_DISTANCE = 10
"""A pair returns as a repeat check after at least this many other answers."""

IN_HAND = 3
"""Pairs that a page always has; they are drawn at random if the strategy has not chosen enough in time."""


class Assigner:
    """Hands out pairs, each to one page at a time.

    Args:
      db: The DB.
      leases: The pairs that pages hold.
      stats: Tells labellers where they stand.
      model: The reward model's view, whose doubted labels can be asked again; None without a model.
      make: Makes what may choose pairs, by name, for the DB as it is; again when one that was empty turns out to hold
        answers. "random", which needs no time, is always among them. The others choose in advance in their own threads,
        and random pairs fill in until theirs are ready.
      strategy: Name of the strategy that chooses pairs unless a page asks for another.
      repeat_rate: Share of queries that are repeat checks, 0 to 1.
      rng: Draws pairs and sides.

    Attributes:
      strategies: Names of those that a page may ask for.
    """

    def __init__(
        self,
        db: LabelledDB,
        leases: Leases,
        stats: Statistics,
        model: ModelView | None,
        *,
        make: Callable[[], Mapping[str, Strategy]],
        strategy: str,
        repeat_rate: float,
        rng: np.random.Generator,
    ) -> None:
        self.strategy = strategy
        self._db = db
        self._leases = leases
        self._stats = stats
        self.model = model
        self._repeat_rate = repeat_rate
        self._rng = rng
        self._make, self._unsuited = make, ""
        self._begin()

    def _begin(self) -> None:
        slow = {name: one for name, one in self._make().items() if name != "random"}
        self.strategies = ["random", *slow]
        self._prefetchers = {
            name: QueryPrefetcher(one, self._free, rng)
            for (name, one), rng in zip(slow.items(), self._rng.spawn(len(slow)), strict=True)
        }
        self._of_answers = self._db.answers
        if self.strategy in self._prefetchers:
            self._prefetchers[self.strategy].wake()  # so that the first pair need not be a random one

    def _begin_anew(self) -> None:
        """The DB was empty, and holds answers now. A strategy that cannot choose among them leaves random pairs."""
        try:
            self._begin()
        except UserError as error:
            self._unsuited, self._of_answers = str(error), self._db.answers
            self.strategies, self._prefetchers = ["random"], {}

    def batch(self, ask: BatchRequest) -> BatchReply:
        """Renews the pairs a page still holds, frees its others, and adds new ones up to the number it wants.

        Raises:
          UserError: the page is about another DB, the DB's folder is gone, or labels.json is no file.
        """
        who: Labeller = (ask.labeller, None)
        db = self._db
        db.expect(ask.db)
        with db.lock:
            db.sync()
            if db.answers != self._of_answers:
                self._begin_anew()
            offers = [offer for offer in ask.keep if self._keep(offer, ask.page, who)]
            ids = {offer.id for offer in offers}
            for lease in self._leases.held_by(ask.page):
                if lease.id not in ids:
                    self._leases.release(lease.id)
            playable = db.playable()
            live = self._leases.live()
            for query in self._queries(ask, who, playable, live, len(offers)):
                left = int(self._rng.integers(1, 3))
                if query.repeat:
                    left = 3 - _left(db.ledger.standing[query.pair][who], query.sample1)
                granted = self._leases.grant(query, left, ask.page)
                if granted is not None:
                    offers.append(db.offer(granted.id, query, left))
            stuck = [self._unsuited, *(one.problem for one in self._prefetchers.values())]
            return BatchReply(
                pairs=offers,
                standing=self._stats.standing(who),
                notice="" if offers else self._why_none(playable, live, ask.strategy),
                problems=[*db.broken.values(), *filter(None, stuck)][:20],
                answers=db.answers,
            )

    def leave(self, page: str) -> None:
        """Frees the pairs of a page that was closed. If it comes back, as after a reload, it may renew them."""
        with self._db.lock:
            self._leases.lapse(page)

    def _keep(self, offer: Offer, page: str, who: Labeller) -> bool:
        """Renews a pair that a page holds, unless it has been answered, dropped or given away."""
        db = self._db
        pair = pair_of(offer.sample1, offer.sample2)
        if offer.id in db.ledger.ids or not db.can_show(pair):
            return False
        said = db.ledger.standing.get(pair, {})
        if offer.strategy == RECHECK:
            mine = said.get(who)
            if mine is not None and mine.strategy == RECHECK:
                return False
        elif (who not in said) if offer.repeat else said:
            return False
        query = Query(offer.sample1, offer.sample2, offer.strategy, offer.reason, offer.repeat)
        offer.clip1, offer.clip2 = db.clip_id(offer.sample1), db.clip_id(offer.sample2)
        return self._leases.grant(query, offer.left, page, id=offer.id) is not None

    def _queries(
        self, ask: BatchRequest, who: Labeller, playable: list[str], live: set[Pair], kept: int
    ) -> list[Query]:
        """New pairs for a page that has kept some, up to the number it wants."""
        count = max(0, ask.want - kept)
        if ask.strategy == RECHECK and self.model is not None:
            return self.model.rechecks(who, live, count)
        checks = self._repeat_checks(who, self._rng.binomial(count, self._repeat_rate))
        count -= len(checks)
        fresh = self._choose(ask.strategy, playable, live, count, IN_HAND - kept - len(checks))
        if len(fresh) < count:  # pairs run out: then repeat checks are a share of those that are left
            checks = checks[: self._rng.binomial(len(fresh), self._repeat_rate)]
        for check in checks:  # at random places, where they are not expected
            fresh.insert(int(self._rng.integers(0, len(fresh) + 1)), check)
        return fresh

    def _choose(
        self, strategy: str | None, playable: list[str], live: set[Pair], count: int, at_least: int
    ) -> list[Query]:
        """New queries, at once: what the strategy has ready, and random ones up to `at_least` if that is too few."""
        standing = self._db.ledger.standing
        prefetcher = self._prefetchers.get(strategy if strategy in self.strategies else self.strategy)
        if prefetcher is None:
            return self._db.pairs.propose(playable, Either(standing, live), count, self._rng)
        found = prefetcher.take(count, set(playable), Either(standing, live))
        more = min(count, at_least) - len(found)
        if more > 0:
            taken = Either(standing, live.union(query.pair for query in found))
            found += self._db.pairs.propose(playable, taken, more, self._rng)
        return found

    def _free(self) -> tuple[list[str], set[Pair]]:
        """The segments that strategies may choose from now, and the pairs that are taken. Called from their threads."""
        with self._db.lock:
            return self._db.playable(), self._leases.live().union(self._db.ledger.standing)

    def _repeat_checks(self, who: Labeller, count: int) -> list[Query]:
        """Earlier pairs of a labeller to ask once more, each once at most."""
        if not count:
            return []
        ledger = self._db.ledger
        history = ledger.history[who]
        checked = self._leases.repeats().union(entry.label.pair for entry in history if entry.label.repeat)
        candidates: list[Label] = [
            entry.label
            for entry in history[:-CHECK_DISTANCE]
            if entry.label.pair not in checked
            and ledger.standing.get(entry.label.pair, {}).get(who) is entry.label
            and self._db.can_show(entry.label.pair)
        ]
        chosen = (candidates[i] for i in self._rng.permutation(len(candidates))[:count])
        return [
            Query(label.sample1, label.sample2, "repeat", "drawn at random", repeat=True) for label in chosen
        ]

    def _why_none(self, playable: list[str], live: set[Pair], strategy: str | None) -> str:
        """Why a page gets no pair, as a message for the labeller."""
        segments, broken = len(playable), self._db.broken
        if strategy == RECHECK:
            return "There are no labels left to recheck, or the reward model has not rated their clips yet."
        if broken and segments < 2:
            return f"No two of the clips can be shown as a pair. {next(iter(broken.values()))}"
        if segments == 0:
            return (
                "This database holds no clips yet. Record some with 01_a2c.py --db-path; they appear "
                "here as they are recorded."
            )
        if segments == 1 and not self._db.answers:
            return "There is one clip, and a pair takes two. New ones appear here as they are recorded."
        pairs = self._db.pairs.count(playable)
        if not pairs:
            return "No prompt has two answers yet. Sample more with 01_text.py --answers 2."
        left = pairs - self._db.ledger.answered(playable)
        if left and live:
            which = "The last pair is" if left == 1 else f"The last {left} of {pairs} pairs are"
            return (
                f"{which} on other labellers' screens, or in another tab of yours. A pair is free again two "
                "minutes after its page last contacted the server."
            )
        made = "the one pair" if pairs == 1 else f"every one of the {pairs} pairs"
        return (
            f"All done: {made} that {self._db.counted(segments)} make has been answered. "
            "New ones appear here as they are recorded."
        )


def _left(label: Label, sample1: str) -> int:
    """Which sample was on the left, if `sample1` counts as the first."""
    left = label.left or 1
    return left if label.sample1 == sample1 else 3 - left
