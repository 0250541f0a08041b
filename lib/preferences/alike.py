"""Pairs of segments that begin alike: in the same situation, or from the same moment."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

import numpy as np

from lib.preferences.labels import Pair
from lib.preferences.queries import Either, Query, RandomPairs
from lib.preferences.rated_pairs import POOL_SIZE, READS
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError


class AlikePairs:
    """Pairs of segments that begin in the same situation, so that they differ in what the policy did there.

    A situation is what probes read off the first step (`lib.envs.make.situation`): of each, the third of its range over
    the segments read so far, or that it reads nothing. Situations are drawn first, each equally likely, and then pairs:
    a rare one is asked about as often as a common one. Where the environment has no probes, all segments are alike.
    Comparing within a stage of the task is due to STAIR (stage-aligned reward learning).
    """

    def __init__(self, db: SegmentDB) -> None:
        self._db = db
        self._readings: dict[str, dict[str, float] | None] = {}  # None: the segment cannot be read

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        unread = [name for name in names if name not in self._readings]
        for at in rng.permutation(len(unread))[:POOL_SIZE]:
            self._readings[unread[at]] = self._read(unread[at])
        groups = self._groups(names)
        found: dict[Pair, str] = {}
        while groups and len(found) < count:
            at = int(rng.integers(len(groups)))
            probes, group = groups[at]
            pair = RandomPairs().propose(group, Either(taken, found), 1, rng)
            if not pair:
                del groups[at]
                continue
            found[pair[0].pair] = (
                f"both begin alike: in {' and '.join(probes)}" if probes else "drawn at random"
            )
        if not found:
            return RandomPairs().propose(names, taken, count, rng)
        return [Query(*pair, "alike", reason) for pair, reason in found.items()]

    def _read(self, name: str) -> dict[str, float] | None:
        try:
            segment = self._db.load(name)
        except SegmentError:
            return None
        if segment.sidecar is None:
            return {}
        from lib.envs.make import situation  # the page's start need not wait for Gymnasium

        first = segment.as_step(slice(1))
        read = {probe: float(value(first)[0]) for probe, value in situation(segment.sidecar.env_id).items()}
        return {} if all(map(math.isnan, read.values())) else read

    def _groups(self, names: Sequence[str]) -> list[tuple[list[str], list[str]]]:
        """The probes and segments of each situation."""
        known = {name: reading for name in names if (reading := self._readings.get(name)) is not None}
        values: dict[str, list[float]] = defaultdict(list)
        for reading in known.values():
            for probe, value in reading.items():
                if not math.isnan(value):
                    values[probe].append(value)
        edges = {probe: np.linspace(min(some), max(some), 4)[1:3] for probe, some in values.items()}
        groups: dict[tuple[tuple[str, int], ...], list[str]] = defaultdict(list)
        for name, reading in known.items():
            thirds = [
                (probe, -1 if math.isnan(value) else int(np.searchsorted(edges[probe], value)))
                for probe, value in reading.items()
            ]
            groups[tuple(thirds)].append(name)
        return [([probe for probe, _ in thirds], group) for thirds, group in groups.items()]


class ForkPairs:
    """Pairs of segments that continue from one moment, each such pair as likely as any other.

    They differ only in actions and outcome, like answers to one prompt. If a DB has no such pairs left,
    pairs are drawn at random.
    """

    def __init__(self, db: SegmentDB) -> None:
        self._db = db
        self._moments: dict[str, str] = {}

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        # Segments of one moment share their number; few others do.
        of_one_number = RandomPairs(lambda name: name.rpartition("/")[2])
        found: list[Query] = []
        seen: set[Pair] = set()
        while len(found) < count and len(seen) < READS + count:
            drawn = of_one_number.propose(names, Either(taken, seen), count - len(found), rng)
            if not drawn:
                break
            seen |= {query.pair for query in drawn}
            moments = [{self._moment(name) for name in query.pair} for query in drawn]
            found += [
                query
                for query, of_pair in zip(drawn, moments, strict=True)
                if len(of_pair) == 1 and "" not in of_pair
            ]
        if not found:
            return RandomPairs().propose(names, taken, count, rng)
        return [Query(*query.pair, "fork", "both continue from the same moment") for query in found]

    def _moment(self, name: str) -> str:
        """The name of the moment that a segment forked from; "" if it did not."""
        if name not in self._moments:
            try:
                sidecar = self._db.load(name).sidecar
            except SegmentError:
                sidecar = None
            self._moments[name] = "" if sidecar is None else sidecar.moment
        return self._moments[name]
