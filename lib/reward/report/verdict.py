"""The verdict of a report: ready, label more, or something is wrong. docs/report.md gives the reasons."""

import math
from dataclasses import dataclass

from lib.reward.report.figures import ASSUMED, Ceiling, Share

READY, LABEL_MORE, WRONG = "ready", "label more", "something is wrong"

ENOUGH_LABELS = 200
"""From this many decided labels on, too few labels no longer excuse a fit that is no better than chance."""
LEAST_REPEATS = 20
"""Repeat checks needed to tell a labeller from a coin."""
WIDEST = 0.3
"""An interval of held-out accuracy wider than this leaves the question open."""
LEAST_ACCURACY = 0.6
"""The least lower end of the interval of held-out accuracy."""
LEAST_WAY = 0.6
"""The least share of the way from chance to the teacher's ceiling that held-out accuracy covers."""
UNLEARNED = 0.98
"""A training loss above this share of log 2, the loss of guessing, means that nothing was learned."""
MEMORISED = 0.5
"""A training loss below this share of a held-out loss no better than chance means memorised labels."""


@dataclass(frozen=True)
class Evidence:
    """The evidence for a verdict."""

    held_out: Share
    """Right among the decided pairs held out."""
    decided: int
    """All decided labels, fitted and held out."""
    ceiling: Ceiling
    repeats: Share
    """Repeat checks answered the same way."""
    train_loss: float
    """Of decided labels: the lowest of any epoch, averaged over the members."""
    held_out_loss: float
    """Of decided labels."""
    finite: bool
    """Every learned reward is a finite number, and so is the held-out loss."""
    spread: float
    """Standard deviation over segments of the learned reward a step; 0 where all segments are paid the same."""
    still_falling: bool
    """The held-out loss was lowest in the last epoch that --epochs allows."""


@dataclass(frozen=True)
class Verdict:
    """Whether a reward model is good enough to train on."""

    outcome: str
    """READY, LABEL_MORE or WRONG."""
    reasons: list[str]
    notes: list[str]
    """Notes that matter whatever the outcome."""

    @property
    def tone(self) -> str:
        """The class that pages show it in."""
        return {READY: "ready", LABEL_MORE: "more", WRONG: "wrong"}[self.outcome]

    def __str__(self) -> str:
        return f"{self.outcome}: {'; '.join(self.reasons)}"


def judge_fit(evidence: Evidence) -> Verdict:
    """The verdict by the thresholds above. The score does not count, because what is taught need not be the score."""
    wrong = _what_is_wrong(evidence)
    lacking = _what_is_lacking(evidence)
    if wrong:
        outcome, reasons = WRONG, wrong
    elif lacking:
        outcome, reasons = LABEL_MORE, lacking
    else:
        low, high = evidence.held_out.interval
        outcome = READY
        reasons = [
            f"{evidence.held_out.value:.0%} of the held-out pairs right ({low:.0%} to {high:.0%}), "
            f"where the teacher's own ceiling is {evidence.ceiling.value:.0%}"
        ]
    notes = []
    if evidence.still_falling:
        notes.append("the held-out loss was still falling in the last epoch: fit with more --epochs")
    if evidence.ceiling.kind == ASSUMED:
        notes.append(
            "the teacher's ceiling is assumed, not measured: answer some repeat checks when labelling"
        )
    return Verdict(outcome, reasons, notes)


def _what_is_wrong(evidence: Evidence) -> list[str]:
    reasons = []
    held_out, repeats = evidence.held_out, evidence.repeats
    low, high = held_out.interval
    chance = math.log(2)
    if not evidence.finite:
        reasons.append("the model's rewards or its loss are not finite numbers: fit with a smaller --lr")
    elif not evidence.spread > 1e-6:
        reasons.append("the model pays the same for every clip: the labels taught it nothing")
    elif held_out.count and high < 0.5:
        reasons.append(
            f"it gets {held_out.count - held_out.hits} of {held_out.count} held-out pairs wrong, worse than "
            "a coin: check whether some labels are the wrong way round"
        )
    if repeats.count >= LEAST_REPEATS and repeats.interval[0] <= 0.5:
        reasons.append(
            f"only {repeats.hits} of {repeats.count} repeat checks got the same answer, which chance alone could do: "
            f"agree on what is better, then label again"
        )
    if evidence.decided < ENOUGH_LABELS:
        return reasons
    if evidence.train_loss >= UNLEARNED * chance:
        reasons.append(
            f"even on the labels it was fitted to, the loss never fell below that of guessing ({chance:.3f}): check "
            f"--lr and --mask, and whether the clips show what the labels are about"
        )
    elif evidence.held_out_loss >= chance and evidence.train_loss < MEMORISED * evidence.held_out_loss:
        reasons.append(
            f"it memorised its labels (loss {evidence.train_loss:.3f}) and fails on the held-out ones "
            f"({evidence.held_out_loss:.3f}; guessing: {chance:.3f}): try --l2, --shift or --dropout"
        )
    elif held_out.count and low <= 0.5 <= high and high - low <= WIDEST:
        reasons.append(
            f"after {evidence.decided} labels it is no better than a coin on held-out pairs ({low:.0%} to {high:.0%}): "
            f"check whether the labels follow one rule that the clips show"
        )
    return reasons


def _what_is_lacking(evidence: Evidence) -> list[str]:
    held_out, ceiling = evidence.held_out, evidence.ceiling
    low, high = held_out.interval
    if not held_out.count:
        return ["no pair with a preference was held out, so nothing can be said"]
    if high - low > WIDEST:
        return [
            f"too few held-out pairs to tell ({held_out.count}): the accuracy lies anywhere from {low:.0%} to {high:.0%}"
        ]
    reasons = []
    if low < LEAST_ACCURACY:
        reasons.append(
            f"held-out accuracy may be as low as {low:.0%} (expected at least {LEAST_ACCURACY:.0%}, chance is 50%)"
        )
    way = (held_out.value - 0.5) / max(ceiling.value - 0.5, 1e-9)
    if way < LEAST_WAY:
        reasons.append(
            f"{held_out.value:.0%} is only {max(way, 0):.0%} of the way from chance to the teacher's ceiling of "
            f"{ceiling.value:.0%} (expected {LEAST_WAY:.0%})"
        )
    return reasons
