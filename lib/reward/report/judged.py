"""What the reports of clips and of answers have in common: the model against the labels, and a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib.preferences.labels import Label, LabelLog
from lib.reward.data import Pairs, labeller_of
from lib.reward.fit import AnyFit, Epoch
from lib.reward.report.figures import (
    Agreement,
    Bin,
    Ceiling,
    Share,
    agreement,
    calibration,
    decided_loss,
    known_accuracy,
    preference_probabilities,
    teacher_ceiling,
)
from lib.reward.report.verdict import Evidence, Verdict, judge_fit

_SHOWN = 4
"""Clips or answers of either end."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A reward model of S clips or answers, judged by N labels."""

    right: np.ndarray
    """bool `[N]`: the model prefers what the teacher prefers; says nothing of the teacher's ties."""
    probabilities: np.ndarray
    """float64 `[N]`, that the first is preferred."""
    decided: np.ndarray
    """int64: positions of the held-out pairs that are no ties."""
    held_out: Share
    """Right among those."""
    ceiling: Ceiling
    agreed: Agreement
    bins: list[Bin]
    calibration_error: float
    worth: np.ndarray
    """float `[S]`: the learned reward of each answer, or of a step of each clip."""
    verdict: Verdict

    def liked(self) -> tuple[list[int], list[int]]:
        """The clips or answers worth most and least, most extreme first; none is in both."""
        order = np.argsort(self.worth, kind="stable").tolist()
        count = min(_SHOWN, len(order) // 2)
        return order[::-1][:count], order[:count]


def judge(fit: AnyFit[Any, Any], returns: np.ndarray, paid: np.ndarray, worth: np.ndarray) -> Judged:
    """Judges a fit.

    Args:
      fit: what was fitted, and to which labels.
      returns: float `[M, S]`, by each member, before standardisation.
      paid: float `[S]`, what the model pays for each in all; for a clip as `RewardModel.as_fitted` says.
      worth: see `Judged`.
    """
    pairs, config = fit.data.pairs, fit.config
    error_rate = config.error_rate if config.loss == "bradley-terry" else 0.0
    probabilities = preference_probabilities(returns, pairs.first, pairs.second, error_rate)
    right = np.sign(paid[pairs.first] - paid[pairs.second]) == 2 * pairs.preference1 - 1
    decided = fit.test[pairs.preference1[fit.test] != 0.5]
    held_out = Share(int(right[decided].sum()), len(decided))
    bins, error = calibration(probabilities[decided], pairs.preference1[decided] == 1)
    agreed = agreement_in(config.dbs, fit.data.labels)
    ceiling = teacher_ceiling(agreed, error_rate, fit.data.labels)
    finite = bool(np.isfinite(paid).all())
    verdict = judge_fit(
        Evidence(
            held_out=held_out,
            decided=int((pairs.preference1[np.union1d(fit.train, fit.test)] != 0.5).sum()),
            ceiling=ceiling,
            repeats=agreed.same_labeller,
            train_loss=decided_train_loss(fit.history, pairs, fit.train),
            held_out_loss=decided_loss(returns, pairs.subset(decided), error_rate),
            finite=finite and math.isfinite(fit.best.loss),
            spread=float(np.std(worth)) if finite else math.nan,
            still_falling=still_falling(fit.history, config.epochs),
        )
    )
    return Judged(
        right=right,
        probabilities=probabilities,
        decided=decided,
        held_out=held_out,
        ceiling=ceiling,
        agreed=agreed,
        bins=bins,
        calibration_error=error,
        worth=worth,
        verdict=verdict,
    )


def agreement_in(dbs: Sequence[Path], labels: Sequence[Label]) -> Agreement:
    """The agreement between answers of labellers whose accuracy is not known.

    Reads the label logs of the DBs again, because replaced answers count as well.
    """
    labellers = {labeller_of(label) for label in labels}
    logs = (LabelLog(path / "labels.json").read() for path in dbs)
    return agreement(
        [line for line in log if labeller_of(line) in labellers and known_accuracy(line) is None]
        for log in logs
    )


def by_member(history: Sequence[Epoch]) -> list[list[Epoch]]:
    """The epochs of each member whose losses are finite."""
    finite = [e for e in history if math.isfinite(e.train_loss) and math.isfinite(e.held_out_loss)]
    members = sorted({epoch.member for epoch in finite})
    return [[epoch for epoch in finite if epoch.member == member] for member in members]


def kept(epochs: Sequence[Epoch]) -> Epoch:
    """The epoch whose weights a member with early stopping keeps."""
    compared = [epoch for epoch in epochs if epoch.counts]
    return min(compared, key=lambda epoch: epoch.held_out_loss) if compared else epochs[-1]


def decided_train_loss(history: Sequence[Epoch], pairs: Pairs, train: np.ndarray) -> float:
    """The lowest training loss of any epoch, averaged over the members, of decided labels alone; NaN without any.

    An upper bound, as a tie's loss is log 2 at least.
    """
    lowest = [min(epoch.train_loss for epoch in epochs) for epochs in by_member(history)]
    share = float(np.average(pairs.preference1[train] != 0.5, weights=pairs.weight[train]))
    chance = math.log(2)
    return chance + (float(np.mean(lowest)) - chance) / share if lowest and share else math.nan


def still_falling(history: Sequence[Epoch], most: int) -> bool:
    """Whether a member's held-out loss was lowest in the last epoch there may be."""
    return any(kept(epochs).epoch == most > 1 for epochs in by_member(history))
