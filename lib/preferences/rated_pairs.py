"""The pairs that a reward model's members rank highest, and random candidates to choose from."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lib.preferences.labels import Pair
from lib.preferences.queries import Either, Query, RandomPairs

_CANDIDATES = 10  # pairs looked at for each one asked, as in Christiano et al.
POOL_SIZE = 256  # segments that candidate pairs are drawn among, at most
READS = 128  # segments decoded in a call beside the candidates, about 5 ms each for Atari's


class ClipRater(Protocol):
    """Rates clips for strategies, by a reward model (lib.reward.rater.ModelRater)."""

    def returns(self, names: Sequence[str]) -> np.ndarray:
        """R̂ of segments, in units in which differences are log-odds: P(first is better) = σ(R̂₁ − R̂₂).

        Args:
          names: K segments of the DB; with none the result still shows the number of members.

        Returns:
          float64 [M, K], by each of M members; NaN where a segment cannot be rated.
        """
        ...


def candidate_names(
    pairs: RandomPairs, names: Sequence[str], count: int, rng: np.random.Generator
) -> Sequence[str]:
    """Segments to form candidate pairs of, sorted: ten for each pair asked, at most `POOL_SIZE`, drawn at random."""
    size = min(_CANDIDATES * count, POOL_SIZE)
    if len(names) <= size:
        return names
    return pairs.some(names, size, rng)


def candidate_pairs(
    pairs: RandomPairs, names: Sequence[str], taken: Container[Pair], count: int, rng: np.random.Generator
) -> list[Pair]:
    """Pairs to choose `count` from: ten times as many, drawn at random among few segments, and then among all."""
    size = _CANDIDATES * count
    few = candidate_names(pairs, names, count, rng)
    found = [query.pair for query in pairs.propose(few, taken, size, rng)]
    if len(found) < size:  # as where each prompt has two answers, or most pairs of these segments are taken
        more = pairs.propose(names, Either(taken, set(found)), size - len(found), rng)
        found += [query.pair for query in more]
    return found


def disagreement(chances: np.ndarray) -> np.ndarray:
    """Variance over the members of the probability that the first is better.

    Args:
      chances: float64 [M, C], by each of M members for each of C pairs.

    Returns:
      float64 [C], 0 to ¼.
    """
    return chances.var(axis=0)


def entropy(chances: np.ndarray) -> np.ndarray:
    """Entropy in bits of which one is better, by the mean of the members' probabilities.

    Args:
      chances: float64 [M, C], that the first is better, by each of M members for each of C pairs.

    Returns:
      float64 [C], 0 to 1.
    """
    first = chances.mean(axis=0)
    both = np.clip(np.stack([first, 1 - first]), np.finfo(float).tiny, 1)
    return -(both * np.log2(both)).sum(axis=0)


def sigmoid(values: np.ndarray | float) -> np.ndarray:
    """σ(x) = 1 / (1 + e⁻ˣ) of each, in powers e⁻|x| with |x| up to 700, which neither overflow nor underflow."""
    power = np.exp(-np.minimum(np.abs(values), 700))
    return np.where(np.less(values, 0), power, 1) / (1 + power)


def chances_of(rater: ClipRater, pairs: Sequence[Pair]) -> np.ndarray:
    """float64 [M, C]: σ(R̂₁ − R̂₂) by each member; NaN where a segment cannot be rated."""
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    returns, at = rater.returns(names), {name: i for i, name in enumerate(names)}
    first, second = ([at[pair[side]] for pair in pairs] for side in (0, 1))
    return sigmoid(returns[:, first] - returns[:, second])


def ranked(values: np.ndarray) -> np.ndarray:
    """int64 positions of the values that are numbers, the highest first and equal ones in their order."""
    order = np.argsort(-values, kind="stable")  # which puts NaN last
    return order[np.isfinite(values[order])]


# Neither sentence says which of the two the model prefers: a labeller would lean that way.
def say_disagreement(chances: np.ndarray) -> str:
    return (
        f"the reward models disagree: {chances.min():.2f} to {chances.max():.2f} that the same one is better"
    )


def say_entropy(chances: np.ndarray) -> str:
    likelier = max(chances.mean(), 1 - chances.mean())
    return f"the reward model is unsure: {likelier:.2f} to {1 - likelier:.2f} which one is better"


@dataclass(frozen=True)
class RatedPairs:
    """Of ten times as many random candidates, the pairs that a reward model's members rank highest.

    Pairs with a segment that cannot be rated are skipped; if none can be rated, pairs are drawn at random.
    """

    rater: ClipRater
    strategy: str
    value: Callable[[np.ndarray], np.ndarray]
    """Of chances float64 [M, C]: float64 [C], the higher the better."""
    reason: Callable[[np.ndarray], str]
    """Of the chances of one pair, float64 [M]."""
    pairs: RandomPairs
    """Draws the candidates."""

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        """See :meth:`Strategy.propose`."""
        pairs = candidate_pairs(self.pairs, names, taken, count, rng)
        chances = chances_of(self.rater, pairs)
        best = ranked(self.value(chances))[:count]
        if not len(best):
            return self.pairs.propose(names, taken, count, rng)
        return [Query(*pairs[int(i)], self.strategy, self.reason(chances[:, i])) for i in best]
