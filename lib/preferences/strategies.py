"""Strategies that choose the next pair by the reward model, the policies or the clips.

=======================  ==============================================================================================
random                   every pair that is left is equally likely
disagreement             the members of an ensemble disagree most about which is better (Christiano et al. 2017,
                         arXiv 1706.03741, section 2.2.4)
entropy                  the reward model is least sure which is better
recent                   both segments of the newest policy, the newest of it first
diversity                segments unlike those asked about so far: greedy k-centre
disagreement+diversity   of the pairs that the ensemble disagrees on, those unlike what was asked about so far
alike                    both segments begin in the same situation, such as low on air; every situation equally often
fork                     both segments continue from the same moment, which `01_a2c.py --fork` records
=======================  ==============================================================================================

Each but `random` is mixed with a stream of random pairs. Pairs that a reward model picked are hard for it, so only the
random ones tell how often it is right.

Work per call is bounded, whatever the size of the DB: at most `POOL_SIZE` segments are candidates, and `READS` more are
read. What was read once is remembered, so that later calls know more.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from lib.cli import UserError
from lib.preferences.alike import AlikePairs, ForkPairs
from lib.preferences.answers import load_answer, prompt_of
from lib.preferences.labels import STRATEGIES, Pair
from lib.preferences.looks import Looks, features, k_centre_pairs
from lib.preferences.queries import Either, Query, RandomPairs, Strategy
from lib.preferences.rated_pairs import (
    POOL_SIZE,
    READS,
    ClipRater,
    RatedPairs,
    candidate_names,
    candidate_pairs,
    chances_of,
    disagreement,
    entropy,
    ranked,
    say_disagreement,
    say_entropy,
)
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError

_SHORTLIST = 3  # of these, how many pass from disagreement to diversity
_RANKS = {"entropy": (entropy, say_entropy), "disagreement": (disagreement, say_disagreement)}
_CENTRES = 2000  # segments asked about that novelty is measured against, at most


def make_strategy(
    name: str,
    db: SegmentDB,
    rater: ClipRater | None = None,
    random_share: float = 0.2,
    answers: bool = False,
) -> Strategy:
    """The strategy of that name for one DB.

    Args:
      name: in STRATEGIES.
      db: what the segments are read from.
      rater: the reward model; only some ask it.
      random_share: probability that a proposal is a random pair instead, kept to judge the reward model by. Has no
        effect on `random`.
      answers: whether the DB holds answers of a language model; only those to one prompt make a pair.

    Raises:
      UserError: there is no such strategy, or it lacks the reward model, the ensemble or the frames it needs.
    """
    pairs = RandomPairs(prompt_of if answers else None)
    if name not in STRATEGIES:
        raise UserError(f"--strategy {name}: expected one of {', '.join(STRATEGIES)}")
    if name == "random":
        return pairs
    needs = STRATEGIES[name]
    if answers and "frames" in needs:
        raise UserError(
            f"--strategy {name} compares frames, but {db.root} holds texts; take another strategy"
        )
    if "rater" in needs and rater is None:
        raise UserError(
            f"--strategy {name} needs a reward model, got none; give --reward REWARD, "
            "fit one with 03_reward_train.py"
        )
    if "ensemble" in needs and rater is not None and len(rater.returns(())) < 2:
        raise UserError(
            f"--strategy {name} needs an ensemble, whose members can disagree, and got a single reward model; "
            "fit one with 03_reward_train.py --ensemble 3"
        )
    informed: Strategy
    if name == "recent":
        informed = RecentPairs(db, pairs, answers)
    elif name == "alike":
        informed = AlikePairs(db)
    elif name == "fork":
        informed = ForkPairs(db)
    elif "frames" in needs:
        informed = DiversePairs(db, rater if "rater" in needs else None)
    else:
        assert rater is not None
        informed = RatedPairs(rater, name, *_RANKS[name], pairs)
    return WithRandomShare(informed, random_share, pairs)


@dataclass(frozen=True)
class WithRandomShare:
    """Each proposal is a random pair with some probability, otherwise the next of another strategy."""

    informed: Strategy
    share: float
    pairs: RandomPairs = field(default_factory=RandomPairs)

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        at_random = rng.random(count) < self.share
        # Random ones first, from all pairs that are left rather than from what the other strategy leaves.
        drawn = [
            Query(*query.pair, strategy="random", reason="drawn at random, to judge the reward model")
            for query in self.pairs.propose(names, taken, int(at_random.sum()), rng)
        ]
        taken = Either(taken, {query.pair for query in drawn})
        informed = self.informed.propose(names, taken, count - len(drawn), rng, asked)
        queries = []
        for chance in at_random:
            source = drawn if chance and drawn else informed
            if source:
                queries.append(source.pop(0))
        return queries + drawn + informed


# --- By who recorded it ---------------------------------------------------------------------------------------


class RecentPairs:
    """Pairs of which both segments come from the newest policy, and from the newest tenth of the DB, first.

    Newest is the highest number in a clip's file name, and of answers, which are numbered by prompt, the file written
    last. The recorder counts on from the highest number in the DB, so it orders several recordings into one DB one after
    the other; two that run at once are interleaved. Files of the original format are ordered by their number too,
    because they have nothing else. The policy of a segment is in its sidecar, which is read from the newest segment
    downwards as far as it is needed. Only when the pairs of the newest policy have run out, those with older segments
    come.
    """

    def __init__(self, db: SegmentDB, pairs: RandomPairs, answers: bool) -> None:
        self._db, self._pairs, self._answers = db, pairs, answers
        self._ages: dict[str, float] = {}
        self._policies: dict[str, str | None] = {}  # None: the segment cannot be read

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        pool: list[str] = []
        policies: set[str] = set()
        found: dict[Pair, str] = {}
        for group, policy in self._groups(names):
            pool += group
            policies.add(policy)
            reason = f"both among the {len(pool)} newest {'answers' if self._answers else 'clips'}"
            if policies == {policy} and policy:
                reason += f", of policy {policy[-60:]}"
            more = self._pairs.propose(sorted(pool), Either(taken, found), count - len(found), rng)
            found |= {query.pair: reason for query in more}
            if len(found) >= count:
                break
        return [Query(*pair, "recent", reason) for pair, reason in found.items()]

    def _groups(self, names: Sequence[str]) -> Iterator[tuple[list[str], str]]:
        """Segments of one policy and its name, newest first; then those that are not read yet or cannot be."""
        self._ages |= {name: self._age(name) for name in names if name not in self._ages}
        order = sorted(names, key=lambda name: (-self._ages[name], name))
        largest, reads = max(READS // 2, len(names) // 10), READS
        group: list[str] = []
        unread: list[str] = []
        policy = ""

        for at, name in enumerate(order):
            if name not in self._policies:
                if not reads:
                    unread += order[at:]
                    break
                reads -= 1
                self._policies[name] = self._policy(name)
            of_this = self._policies[name]
            if of_this is None:
                unread.append(name)
                continue
            if group and (of_this != policy or len(group) == largest):
                yield group, policy
                group = []
            policy = of_this
            group.append(name)
        if group:
            yield group, policy
        if unread:
            yield unread, ""

    def _policy(self, name: str) -> str | None:
        try:
            if self._answers:
                return load_answer(self._db, name).policy
            sidecar = self._db.load(name).sidecar
        except SegmentError:
            return None
        return sidecar.policy if sidecar else ""

    def _age(self, name: str) -> float:
        """1234 for 00/00001234.dat, as clips are numbered as they are recorded; of an answer, when it was written."""
        if not self._answers:
            return int(name.rpartition("/")[2].removesuffix(".dat"))
        try:
            return os.stat(f"{self._db.root}/{name}").st_mtime
        except OSError:
            return 0.0


# --- By how it looks ------------------------------------------------------------------------------------------


class DiversePairs:
    """Of the pairs among some random segments, those whose two are most unlike all that was asked about so far.

    With a rater, of ten times as many random pairs only those are looked at that its members disagree on most, three
    for each pair asked. Segments that cannot be read or rated are passed over; where no candidate is left, pairs are
    drawn at random.
    """

    def __init__(self, db: SegmentDB, rater: ClipRater | None = None) -> None:
        self._looks = Looks(db)
        self._rater = rater
        self._name = "diversity" if rater is None else "disagreement+diversity"

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        if self._rater is None:
            pool = candidate_names(RandomPairs(), names, count, rng)
            pairs = [pair for pair in itertools.combinations(pool, 2) if pair not in taken]
            if len(pairs) < count:
                pairs = candidate_pairs(RandomPairs(), names, taken, count, rng)
            said = [""] * len(pairs)
        else:
            pairs = candidate_pairs(RandomPairs(), names, taken, count, rng)
            chances = chances_of(self._rater, pairs)
            best = ranked(disagreement(chances))[: _SHORTLIST * count]
            pairs, said = [pairs[i] for i in best], [say_disagreement(chances[:, i]) + "; " for i in best]
        looks = self._looks.of(dict.fromkeys(name for pair in pairs for name in pair), POOL_SIZE)
        seen = sorted(set(asked))
        some = rng.permutation(len(seen))[:_CENTRES]
        before = self._looks.of((seen[i] for i in some), READS)
        at = {name: i for i, name in enumerate(looks)}
        readable = [i for i, (one, two) in enumerate(pairs) if one in at and two in at]
        if not readable:
            return RandomPairs().propose(names, taken, count, rng)
        points, centres = features(list(looks.values()), list(before.values()))
        places = [(at[pairs[i][0]], at[pairs[i][1]]) for i in readable]
        queries = []
        for place, novelty in k_centre_pairs(points, centres, places, count):
            i = readable[place]
            reason = f"{said[i]}unlike the clips asked about so far: {novelty:.2f} times the usual distance"
            queries.append(Query(*pairs[i], self._name, reason))
        return queries
