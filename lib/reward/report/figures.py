"""The figures of a report: pure functions over arrays and labels."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lib.preferences.labels import OPENED, RECHECK, Label, answers
from lib.preferences.rated_pairs import sigmoid
from lib.reward.data import Pairs, labeller_of

LEAST_CHECKS = 10
"""Comparisons of two answers to one question needed to estimate a teacher's ceiling."""
_LEAST_HELD_OUT = 20
"""Held-out segments needed to correlate over them alone."""
_RESAMPLES = 500
_Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""


@dataclass(frozen=True)
class Share:
    """`hits` of `count`."""

    hits: int
    count: int

    @property
    def value(self) -> float:
        """hits / count; NaN where count is 0."""
        return self.hits / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval, `wilson_interval`."""
        return wilson_interval(self.hits, self.count)


def wilson_interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % score interval of a probability (Wilson 1927), which holds for few trials too.

    Args:
      hits: successes.
      count: independent trials; (0, 1) without any.
    """
    if not count:
        return 0.0, 1.0
    share, spread = hits / count, _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


# --- The model on pairs ----------------------------------------------------------------------------------------


def preference_probabilities(
    returns: np.ndarray, first: np.ndarray, second: np.ndarray, error_rate: float
) -> np.ndarray:
    """The probability that the teacher prefers the first of each pair: P' of `preference_loss`.

        P'[1 ≻ 2] = 1/M Σₘ (1 − ε) σ(R₁ₘ − R₂ₘ) + ε/2

    Args:
      returns: float `[M, S]`: Σₜ r̂(oₜ, aₜ) of each member over each segment, before standardisation.
      first: int64 `[N]`, positions of segments.
      second: int64 `[N]`.
      error_rate: ε.

    Returns:
      float64 `[N]`.
    """
    difference = returns[:, first].astype(float) - returns[:, second]
    chosen: np.ndarray = (1 - error_rate) * sigmoid(difference).mean(0) + error_rate / 2
    return chosen


def decided_loss(returns: np.ndarray, pairs: Pairs, error_rate: float) -> float:
    """The mean loss −log P' of decided pairs, weighted, in nats; NaN without any.

    Args:
      returns, error_rate: as for `preference_probabilities`.
      pairs: N of them, without ties.
    """
    if not len(pairs):
        return math.nan
    ends = [pairs.first, pairs.second]
    better, worse = np.where(pairs.preference1 == 1, ends, ends[::-1])
    # Not 1 − P' of the other way round, which is rounded to 0 where a model is sure of what is wrong.
    right = preference_probabilities(returns, better, worse, error_rate)
    return float(np.average(-np.log(np.maximum(right, np.finfo(float).tiny)), weights=pairs.weight))


@dataclass(frozen=True)
class Bin:
    """Pairs of similar confidence."""

    predicted: float
    """Mean probability, ½ … 1, that the model gives the segment it prefers."""
    agreed: Share
    """Pairs in which the teacher also prefers it."""


def calibration(probabilities: np.ndarray, first_better: np.ndarray) -> tuple[list[Bin], float]:
    """Predicted probability against the teacher's answers, in at most ten bins of equal counts, ten pairs or more each.

    The order within a pair is arbitrary, so each pair is read from the side of the segment that the model prefers.

    Args:
      probabilities: float `[N]`, that the first is preferred; decided pairs only.
      first_better: bool `[N]`, the teacher's answers.

    Returns:
      The bins, and the expected calibration error Σ_b N_b/N · abs(predicted_b − share_b); NaN without pairs.
    """
    if not len(probabilities):
        return [], math.nan
    confidence = np.maximum(probabilities, 1 - probabilities)
    agreed = (probabilities > 0.5) == first_better
    parts = np.array_split(np.argsort(confidence, kind="stable"), min(10, max(1, len(confidence) // 10)))
    bins = [Bin(float(confidence[part].mean()), Share(int(agreed[part].sum()), len(part))) for part in parts]
    error = sum(bin.agreed.count * abs(bin.predicted - bin.agreed.value) for bin in bins) / len(confidence)
    return bins, error


@dataclass(frozen=True)
class Kind:
    """Accuracy on labels that have something in common."""

    group: str
    name: str
    labels: int
    """All of this kind, including those neither fitted nor held out."""
    fitted: Share
    """Right among the decided pairs fitted."""
    held_out: Share
    """Right among the decided pairs held out."""
    confidence: float
    """Mean of max(P, 1 − P) over the held-out pairs, including ties; NaN without any."""


def by_kind(
    labels: Sequence[Label],
    db_names: Sequence[str],
    train: np.ndarray,
    test: np.ndarray,
    right: np.ndarray,
    probabilities: np.ndarray,
) -> list[Kind]:
    """Accuracy by answer, note, repeat check, reason for asking, labeller and DB.

    Args:
      labels: of N pairs.
      db_names: of N pairs.
      train: int64, positions of the fitted pairs.
      test: int64, positions of the held-out pairs.
      right: bool `[N]`: the model prefers what the teacher prefers.
      probabilities: float `[N]`, that the first is preferred.

    Returns:
      A row for each kind, largest first in its group. Groups of a single kind are left out, except answers and
      labellers.
    """
    members: dict[tuple[str, str], list[int]] = {}
    said = {1: "first is better", 2: "second is better", 0: "both alike"}
    for position, (label, db_name) in enumerate(zip(labels, db_names, strict=True)):
        for kind in (
            ("answer", said[label.label or 0]),
            ("asked", "repeat check" if label.repeat else label.strategy or "not recorded"),
            ("note", "with a note" if label.flag else "without"),
            ("labeller", labeller_of(label) + (" (simulated)" if label.teacher else "")),
            ("DB", db_name),
        ):
            members.setdefault(kind, []).append(position)
    decided = np.array([label.label in (1, 2) for label in labels], bool)
    positions = np.arange(len(labels))
    sides = np.isin(positions, train), np.isin(positions, test)
    confidence = np.maximum(probabilities, 1 - probabilities)
    sizes = Counter(group for group, _ in members)
    rows = []
    for group in ("answer", "labeller", "asked", "note", "DB"):
        if sizes[group] < 2 and group not in ("answer", "labeller"):
            continue
        kinds = [(name, np.array(at)) for (owner, name), at in members.items() if owner == group]
        for name, at in sorted(kinds, key=lambda kind: -len(kind[1])):
            chosen = [at[decided[at] & side[at]] for side in sides]
            fitted, held_out = (Share(int(right[some].sum()), len(some)) for some in chosen)
            held = at[sides[1][at]]
            sure = float(confidence[held].mean()) if len(held) else math.nan
            rows.append(Kind(group, name, len(at), fitted, held_out, sure))
    return rows


# --- The teacher's own ceiling --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How often two answers to one question agree."""

    same_labeller: Share
    """Repeat checks: the same person asked again."""
    between_labellers: Share
    """Different labellers on one pair, two at a time."""


def agreement(logs: Iterable[Sequence[Label]]) -> Agreement:
    """Compares answers to the same question.

    Only answers that prefer a segment are compared; a tie or "cannot tell" contradicts nothing. Answers taken back do
    not count. Nor do, between labellers, rechecks, as a model chose the pairs for being likely wrong, and answers of
    somebody who had opened the pair and saw what others had said.

    Args:
      logs: every line of each log, in the order of the file.
    """
    checks, between = [], []
    for lines in logs:
        standing: dict[tuple[str, str], list[str]] = {}
        for (pair, _), history in answers(lines).items():
            for before, again in itertools.pairwise(history):
                if again.repeat and before.winner and again.winner:
                    checks.append(before.winner == again.winner)
            own = [answer.winner for answer in history if answer.strategy != RECHECK]
            if own and own[-1] and history[0].strategy != OPENED:
                standing.setdefault(pair, []).append(own[-1])
        for names in standing.values():
            between += [one == other for one, other in itertools.combinations(names, 2)]
    return Agreement(Share(sum(checks), len(checks)), Share(sum(between), len(between)))


@dataclass(frozen=True)
class Ceiling:
    """The accuracy of a model that knew exactly what the teacher means."""

    value: float
    low: float
    high: float
    kind: str
    """How it is known: MEASURED, KNOWN or ASSUMED."""
    detail: str = ""
    """How it was found, as a phrase."""


MEASURED, KNOWN, ASSUMED = "measured", "known", "assumed"


def known_accuracy(label: Label) -> float | None:
    """The accuracy of a label's simulated teacher; None if it is not recorded, or as no share."""
    parameters = label.parameters or {}
    error_rate = parameters.get("error_rate", -1)
    if not 0 <= error_rate <= 1 or "beta" in parameters:  # with β it depends on the pair
        return None
    return max(error_rate, 1 - error_rate)


def ceiling_of_agreement(same: float) -> float:
    """Accuracy against labels of a teacher who gives the same answer again with probability a, `same`.

    A teacher who errs with probability e, independently each time, agrees with a = e² + (1 − e)², so
    1 − e = (1 + sqrt(2a − 1)) / 2; ½ where a is at most ½, which is chance.
    """
    return 0.5 * (1 + math.sqrt(max(0.0, 2 * same - 1)))


def teacher_ceiling(agreed: Agreement, error_rate: float, labels: Sequence[Label]) -> Ceiling:
    """The accuracy that no model can be expected to exceed.

    Labels of simulated teachers carry their error rate. For others it is measured by how their answers agree, or, with
    fewer than `LEAST_CHECKS` comparisons, assumed. The lower ceiling of the two kinds of agreement counts: labellers who
    remember a pair repeat their error, so repeat checks flatter.

    Args:
      agreed: comparisons of answers by labellers whose accuracy is not known.
      error_rate: ε of the loss, to assume: half of the random answers are wrong.
      labels: the labels that the model is compared with.
    """
    found = []
    for share, source in (
        (agreed.same_labeller, "repeat checks"),
        (agreed.between_labellers, "pairs labelled by several"),
    ):
        if share.count >= LEAST_CHECKS:
            low, high = map(ceiling_of_agreement, share.interval)
            detail = f"{share.hits} of {share.count} answers agree in {source}"
            found.append(Ceiling(ceiling_of_agreement(share.value), low, high, MEASURED, detail))
    assumed = 1 - error_rate / 2
    detail = f"from --error-rate {error_rate:g}, because there are too few repeat checks to tell"
    told = min(
        found, key=lambda each: each.value, default=Ceiling(assumed, assumed, assumed, ASSUMED, detail)
    )

    preferences = [label for label in labels if label.label in (1, 2)]
    known = [accuracy for accuracy in map(known_accuracy, preferences) if accuracy is not None]
    if not known:
        return told
    mean, share_known = float(np.mean(known)), len(known) / len(preferences)
    if share_known == 1:
        return Ceiling(mean, mean, mean, KNOWN, "from the simulated teacher's error rate")
    value, low, high = (
        share_known * mean + (1 - share_known) * bound for bound in (told.value, told.low, told.high)
    )
    detail = f"{told.detail}; known for the {share_known:.0%} of labels by simulated teachers"
    return Ceiling(value, low, high, told.kind, detail)


# --- Learned against true -------------------------------------------------------------------------------------


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
    """The product-moment correlation of two float `[N]`; None where one is constant."""
    if len(x) < 2:
        return None
    dx, dy = x - x.mean(), y - y.mean()
    norm = math.sqrt(float(dx @ dx) * float(dy @ dy))
    # Rounding gives a constant column a tiny spread.
    if norm <= 1e-12 * len(x) * max(1.0, float(np.abs(x).max())) * max(1.0, float(np.abs(y).max())):
        return None
    return float(np.clip(dx @ dy / norm, -1, 1))


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks of float `[N]` from 1, float64 `[N]`; equal values share the mean of their ranks."""
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: np.ndarray = (last - (counts - 1) / 2)[which]
    return mean_rank


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """The rank correlation of two float `[N]`; None where one is constant."""
    return pearson(ranks(x), ranks(y))


@dataclass(frozen=True)
class Correlation:
    """A coefficient and its 95 % interval; None if undefined."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """Such as "+0.42 (+0.30 … +0.53)"."""
        if self.value is None:
            return "not defined"
        between = "" if self.low is None or self.high is None else f" ({self.low:+.2f} … {self.high:+.2f})"
        return f"{self.value:+.2f}{between}".replace("-", "−")


@dataclass(frozen=True)
class Correlations:
    """Learned against true returns over spans of one length."""

    span: str
    count: int
    """Number of spans."""
    pearson: Correlation
    spearman: Correlation


def span_sums(values: np.ndarray, steps: int) -> np.ndarray:
    """Sums of float `[T]` over successive spans, float64 `[T // steps]`; an incomplete last span is dropped."""
    whole = len(values) // steps
    sums: np.ndarray = values[: whole * steps].astype(float).reshape(whole, steps).sum(1)
    return sums


def correlations(
    learned: Sequence[np.ndarray], scores: Sequence[np.ndarray], steps: int | None, span: str
) -> Correlations:
    """Pearson's and Spearman's coefficient over spans, with a 95 % interval.

    The bootstrap draws segments, not spans, because spans of one segment are not independent.

    Args:
      learned: learned reward of each step of S segments, float `[T]` each.
      scores: the game's own reward, float `[T]` each.
      steps: length of a span; None for whole segments.
      span: the name of that length.
    """
    x, y = (
        [span_sums(values, len(values) if steps is None else steps) for values in side]
        for side in (learned, scores)
    )
    both = [np.stack(pair) for pair in zip(x, y, strict=True)]
    joined = np.concatenate(both, 1)
    rng = np.random.default_rng(0)
    drawn = [
        np.concatenate([both[i] for i in rng.integers(len(both), size=len(both))], 1)
        for _ in range(_RESAMPLES if len(both) > 2 else 0)
    ]
    found = []
    for coefficient in (pearson, spearman):
        value = coefficient(*joined)
        redrawn = [] if value is None else [coefficient(*sample) for sample in drawn]
        defined = [number for number in redrawn if number is not None]
        if len(defined) < 0.9 * _RESAMPLES:
            found.append(Correlation(value, None, None))
        else:
            low, high = np.quantile(defined, [0.025, 0.975])
            found.append(Correlation(value, float(low), float(high)))
    return Correlations(span, joined.shape[1], *found)


def segments_to_correlate(held_out: Sequence[int], scored: Sequence[int]) -> tuple[list[int], bool]:
    """The segments to compare with the score: the held-out ones where there are enough, else all with a score.

    Returns:
      The segments, and whether they are held out.
    """
    fresh = sorted(set(held_out) & set(scored))
    return (fresh, True) if len(fresh) >= _LEAST_HELD_OUT else (sorted(scored), False)
