"""Detects drift of a finetune: the learned reward rises while the score, and agreement on fresh clips, fall."""

import math
from collections.abc import Sequence
from pathlib import Path

from lib.agent.finetune_metrics import Reading
from lib.learner import Advance, Learner
from lib.reporting import Progress, decimals, format_count
from lib.training.checkpoints import Checkpoints
from lib.training.evaluation import EvaluationHook
from lib.training.loop import Hook, RunConfig, Stop

DRIFTED = "--stop-on-drift"


def best_before(history: Sequence[Reading], patience: int) -> Reading | None:
    """The evaluation of the highest score, the first of equal ones, before the last `patience`."""
    return max(history[:-patience], key=lambda reading: reading.score, default=None)


def drifting(history: Sequence[Reading], patience: int, unit: str = "steps") -> str | None:
    """Whether the learned reward is being exploited: it rises, while the score and agreement on fresh clips fall.

    Each of the last `patience` evaluations is compared with the best before them. In every one the learned return is
    higher and the score lower, and so is the agreement with the teacher; without a teacher the ensemble disagrees
    more; with neither, the score stands alone. And the scores have fallen by more than games differ by chance: their
    mean is below the best by more than the 95 % interval of the difference.

    Args:
      history: the evaluations that compare: all so far, the first before any training, or those since the newest reward model.
      patience: how many evaluations in a row.
      unit: what a step is.

    Returns:
      One line with the figures, or None.
    """
    best, recent = best_before(history, patience), history[-patience:]
    if best is None or best.learned is None:
        return None
    for reading in recent:
        rises = reading.learned is not None and reading.learned > best.learned
        if not (rises and reading.score < best.score and _trusted_less(reading, best)):
            return None
    chance = math.hypot(best.interval, math.hypot(*(reading.interval for reading in recent)) / patience)
    if best.score - sum(reading.score for reading in recent) / patience <= chance:
        return None
    last = recent[-1]
    digits = max(1, decimals(best.score, best.interval))
    paid = max(1, *(decimals(reading.learned or 0.0) for reading in (best, last)))
    said = (
        f"drift: since {format_count(best.steps)} {unit} the learned return rose from {best.learned:.{paid}f} to "
        f"{last.learned:.{paid}f} while the score fell from {best.score:.{digits}f} to {last.score:.{digits}f}"
    )
    if best.agreement is not None and last.agreement is not None:
        said += f" and agreement with the teacher from {best.agreement:.2f} to {last.agreement:.2f}"
    elif best.disagreement is not None and last.disagreement is not None:
        said += (
            f" and disagreement of the members rose from {best.disagreement:.2f} to {last.disagreement:.2f}"
        )
    return said


def _trusted_less(reading: Reading, best: Reading) -> bool:
    """Whether fresh play speaks against the reward model more than before; True if nothing can tell."""
    if reading.agreement is not None and best.agreement is not None:
        return reading.agreement < best.agreement
    if reading.disagreement is not None and best.disagreement is not None:
        return reading.disagreement > best.disagreement
    return True


class Drift(Hook):
    """Reports drift of a finetune, keeps the best policy before it, and ends the run if asked to.

    Args:
      config: of the run.
      evaluation: what to judge by.
      checkpoints: keeps the policy.
      progress: on the terminal.
      stop: of the run.
    """

    def __init__(
        self,
        config: RunConfig,
        evaluation: EvaluationHook,
        checkpoints: Checkpoints,
        progress: Progress,
        stop: Stop,
    ) -> None:
        self._config, self._evaluation, self._checkpoints = config, evaluation, checkpoints
        self._progress, self._stop = progress, stop
        self._seen = 0  # readings

    def begin(self, learner: Learner) -> None:
        self._seen = len(self._evaluation.readings)

    def after(self, learner: Learner, made: Advance) -> None:
        self._check()

    def end(self, learner: Learner) -> None:
        self._check()  # an evaluation that a resumed run made up for, with no update after it

    def _check(self) -> None:
        if len(self._evaluation.readings) == self._seen:
            return
        self._seen = len(self._evaluation.readings)
        history, patience = self._evaluation.comparable, self._config.drift_patience
        warning = drifting(history, patience, self._evaluation.unit)
        if warning is None:
            return
        best = best_before(history, patience)
        if best is not None and best.steps == 0:
            kept = f"the best before the drift is {start_of(self._config)}"
        elif self._checkpoints.folder is None:
            kept = "no checkpoint is kept: no --save"
        else:
            kept = f"the best checkpoint before the drift is kept: {self._checkpoints.folder.keep_best()}"
        self._progress.line(f"{warning}; {kept}")
        if self._config.stop_on_drift:
            self._stop.reason = DRIFTED


def start_of(config: RunConfig) -> str:
    """The policy that a finetune started from, in words."""
    return "the policy it started from" + ("" if config.model is None else f", {config.model}")


def best_of_run(evaluation: EvaluationHook, config: RunConfig, best: Path) -> str:
    """Which policy had the best score, for a run's last line; `best` is the link to the best that was saved."""
    first, *others = evaluation.readings
    if config.finetunes and others and max(reading.score for reading in others) <= first.score:
        digits = max(1, decimals(first.score))
        return f"no checkpoint beat {start_of(config)} (score {first.score:.{digits}f})"
    return f"the best is {best}"
