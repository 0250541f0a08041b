"""Which pair of segments to ask about next, and who sees which pair now.

A strategy proposes pairs; :class:`Leases` remembers which are on a screen, so that two people are not asked about the
same pair at once. Nothing here reads frames or labels: the caller says which pairs are already taken.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from lib.preferences.labels import Pair, pair_of

LEASE_SECONDS = 120.0
"""How long a pair stays reserved after its holder's last request."""


@dataclass(frozen=True, slots=True)
class Query:
    """A pair worth asking about."""

    sample1: str
    sample2: str
    strategy: str
    """Name of the strategy that chose it, stored with the label."""
    reason: str = ""
    """Why it was chosen, one short phrase for the labeller."""
    repeat: bool = False
    """True when this labeller answered the pair before and is asked again on purpose."""

    @property
    def pair(self) -> Pair:
        return pair_of(self.sample1, self.sample2)


class Strategy(Protocol):
    """Proposes pairs that have not been asked about."""

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """Up to `count` different queries, best first; none only when the pairs have run out.

        Args:
          names: All segments of the DB, sorted.
          taken: Pairs that were answered or are on a screen, which must not be proposed.
          count: How many to propose.
          rng: The only source of chance.
          asked: Segments of the pairs in `taken`, with repetitions. Only strategies that look for what
            was not shown yet read it; without it they regard everything as new.
        """
        ...


class Either:
    """Membership in either of two collections of pairs, without joining them."""

    def __init__(self, one: Container[Pair], two: Container[Pair]) -> None:
        self._one, self._two = one, two

    def __contains__(self, pair: object) -> bool:
        return pair in self._one or pair in self._two


class RandomPairs:
    """Every remaining pair is equally likely.

    Args:
      group_of: of a segment's name, the group within which it may be compared; None: any two may be.
    """

    def __init__(self, group_of: Callable[[str], str] | None = None) -> None:
        self._group_of = group_of

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        found: dict[Pair, None] = {}
        groups = self._groups(names)
        if not groups or count < 1:
            return []
        pairs = np.array([len(group) * (len(group) - 1) for group in groups], float)
        chances = pairs / pairs.sum()
        # Drawing and rejecting is cheap while most pairs are free, which is nearly always.
        for _ in range(200 + 20 * count):
            group = groups[0 if len(groups) == 1 else rng.choice(len(groups), p=chances)]
            first, second = rng.choice(len(group), size=2, replace=False)
            pair = pair_of(group[first], group[second])
            if pair not in taken:
                found[pair] = None
                if len(found) == count:
                    break
        else:
            # Few are left: list them all rather than hope to hit one.
            left = [
                (one, two)
                for group in groups
                for i, one in enumerate(group)
                for two in group[i + 1 :]
                if (one, two) not in taken and (one, two) not in found
            ]
            more = rng.permutation(len(left))[: count - len(found)]
            found.update(dict.fromkeys(left[i] for i in more))
        return [Query(*pair, strategy="random", reason="drawn at random") for pair in found]

    def count(self, names: Sequence[str]) -> int:
        """The number of pairs that these segments make."""
        return sum(len(group) * (len(group) - 1) // 2 for group in self._groups(names))

    def some(self, names: Sequence[str], size: int, rng: np.random.Generator) -> list[str]:
        """At most `size` of the segments that can form pairs, sorted: groups drawn at random, whole unless one alone is larger."""
        groups = self._groups(names)
        found: list[str] = []
        for at in rng.permutation(len(groups)):
            group = groups[at]
            if found and len(found) + len(group) > size:
                break
            found += [group[i] for i in rng.permutation(len(group))[:size]]
        return sorted(found)

    def _groups(self, names: Sequence[str]) -> list[Sequence[str]]:
        """The groups that hold a pair, sorted as the names are."""
        if self._group_of is None:
            return [names] if len(names) > 1 else []
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self._group_of(name), []).append(name)
        return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True, slots=True)
class Lease:
    """A query on a labeller's screen."""

    id: str
    query: Query
    left: int
    """Which sample, 1 or 2, is shown on the left."""
    holder: str
    """The browser tab that asked."""
    expires: float
    """On the clock of the :class:`Leases` that granted it, seconds."""


class Leases:
    """Which pairs are on whose screen. Not thread-safe: the caller holds a lock.

    Any request of its holder renews a lease. An expired lease stays known until another holder gets the pair, so a
    holder who returns late can continue. Repeat checks concern one labeller and block no other.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_id: dict[str, Lease] = {}
        self._by_pair: dict[Pair, str] = {}

    def grant(self, query: Query, left: int, holder: str, id: str | None = None) -> Lease | None:
        """Gives a pair to a holder, or renews it.

        Args:
          query: What is asked.
          left: The sample shown on the left, 1 or 2.
          holder: The browser tab.
          id: The id of a lease that this or an earlier process granted and the holder still shows.

        Returns:
          The lease, or None while another holder has the pair.
        """
        now = self._clock()
        if not query.repeat:
            rival = self._by_id.get(self._by_pair.get(query.pair, ""))
            if rival is not None:
                if rival.holder != holder and rival.expires > now:
                    return None
                self.release(rival.id)
        lease = Lease(id or secrets.token_hex(12), query, left, holder, now + LEASE_SECONDS)
        self._by_id[lease.id] = lease
        if not query.repeat:
            self._by_pair[query.pair] = lease.id
        return lease

    def release(self, id: str) -> None:
        """Forgets a lease; unknown ids are fine."""
        lease = self._by_id.pop(id, None)
        if lease is not None and self._by_pair.get(lease.query.pair) == id:
            del self._by_pair[lease.query.pair]

    def lapse(self, holder: str) -> None:
        """Expires the leases of a holder at once; they can be renewed until another holder gets the pair."""
        now = self._clock()
        for lease in self.held_by(holder):
            self._by_id[lease.id] = replace(lease, expires=now)

    def held_by(self, holder: str) -> list[Lease]:
        """The leases of one holder, oldest first, expired ones included."""
        return [lease for lease in self._by_id.values() if lease.holder == holder]

    def find(self, id: str) -> Lease | None:
        """The lease of that id, which may have expired."""
        return self._by_id.get(id)

    def repeats(self) -> set[Pair]:
        """Pairs on a screen as a repeat check."""
        return {lease.query.pair for lease in self._by_id.values() if lease.query.repeat}

    def live(self) -> set[Pair]:
        """Pairs on a screen now. Forgets leases that expired long ago."""
        now = self._clock()
        for lease in [old for old in self._by_id.values() if old.expires + 10 * LEASE_SECONDS < now]:
            self.release(lease.id)
        return {
            lease.query.pair
            for lease in self._by_id.values()
            if lease.expires > now and not lease.query.repeat
        }
