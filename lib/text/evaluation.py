"""Evaluations of a language model while it is finetuned: by judges, beside the best of n, and side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.agent.evaluate import Evaluation
from lib.agent.finetune_metrics import BY_REWARD
from lib.cli import UserError, one_line
from lib.interrupt import Stopped
from lib.preferences.answers import Answer, distinct_2
from lib.preferences.labels import TEXT_TEACHERS
from lib.preferences.prompts import last, whole
from lib.preferences.teachers import own_teacher
from lib.preferences.text_teachers import JUDGES, value_of
from lib.provenance import now
from lib.reporting import Progress, format_mean
from lib.reward.report.page import signed, write_page
from lib.text.config import TextConfig
from lib.text.learner import EncodedPrompt, TextLearner

_TAKEN = (
    *("score", "scores", "reward", "reward_best", "reward_interval", "interval", "run", "games"),
    *("steps", "length", "kl", "finished", "distinct_2", *BY_REWARD),
)
"""Names that other figures have, on the charts or in the files of evaluations."""
_SEED = 10_000  # evaluations draw other answers than training does
_SHOWN = 6  # answers before and after on the terminal
_ON_PAGE = 20


class AnswersEvaluation(Evaluation):
    """N prompts in the places of games: `scores` are the judge's values, or learned rewards, and `steps` tokens.

    All are means over a prompt's answers, which are alike: intervals are over prompts.
    """

    def __str__(self) -> str:
        parts = [f"{name} {format_mean(values, 2)}" for name, values in self.measures.items()]
        parts += [f"{name} {value:.2f}" for name, value in self.overall.items()]
        return f"{', '.join(parts)}, tokens {self.steps.mean():.0f} (95 %, {len(self.scores)} prompts)"


class AnswersMeasure:
    """Evaluates by answers to held-out prompts, the same random numbers every time; see `EvaluationHook`.

    Args:
      learner: whose answers.
      prompts: held out.
      judges: what an answer is worth to each, by name; the first one's values are the scores.
      answers: to each prompt.
      best_of: of how many answers of the reference to each prompt the reward model chooses one, to compare with; 1: no
        comparison.
      seed: of the run.
    """

    def __init__(
        self,
        learner: TextLearner,
        prompts: Sequence[EncodedPrompt],
        judges: dict[str, Callable[[Answer], float]],
        answers: int,
        best_of: int,
        seed: int,
    ) -> None:
        self.reward: Any = None
        self._held_out, self._best_of = list(prompts), best_of
        self._best: tuple[Any, dict[str, float]] | None = None  # what chose, and what it found
        self._learner, self._judges, self._seed = learner, judges, [_SEED, seed]
        self._prompts = [prompt for prompt in prompts for _ in range(answers)]

    def __call__(self, policy: Any, baseline: list[float] | None) -> tuple[Evaluation, list[float] | None]:
        answers = self._learner.answer(self._prompts, self._seed)
        if answers is None:
            raise Stopped
        seen = self._learner.roles.experience(answers)
        learned = seen.scores.double().cpu().numpy()
        judged = {name: np.array([value(a) for a in answers]) for name, value in self._judges.items()}
        measures = {
            **judged,
            "learned": learned,
            "kl": seen.exact_kl.sum(0).double().cpu().numpy(),
            "finished": np.array([float(answer.finished) for answer in answers]),
        }
        measures = {name: self._of_prompts(values) for name, values in measures.items()}
        steps = self._of_prompts(np.array([len(answer.tokens) for answer in answers]))
        overall = {"distinct_2": distinct_2(answer.text for answer in answers), **self._of_the_best()}
        scores = measures[next(iter(judged), "learned")]
        return AnswersEvaluation(scores, steps, measures, overall), None

    def _of_prompts(self, values: np.ndarray) -> np.ndarray:
        """Means over the answers to each prompt."""
        return values.reshape(len(self._held_out), -1).mean(1)

    def _of_the_best(self) -> dict[str, float]:
        """What the best of n answers of the reference are worth: to the first judge, and to the reward model that chose."""
        reward, count = self._learner.roles.reward, self._best_of
        if count > 1 and (self._best is None or self._best[0] is not reward):
            answers = self._learner.answer(self._held_out, [*self._seed, count], count, reference=True)
            if answers is None:
                raise Stopped
            paid = reward.rate(answers).reshape(-1, count)
            best = [answers[row * count + at] for row, at in enumerate(paid.argmax(1))]
            found = {f"best_of_{count}_learned": float(paid.max(1).mean())}
            if value := next(iter(self._judges.values()), None):
                found[f"best_of_{count}"] = float(np.mean([value(answer) for answer in best]))
            self._best = reward, found
        return {} if self._best is None else self._best[1]


def judges_of(names: Sequence[str]) -> dict[str, Callable[[Answer], float]]:
    """The judges of `--judge`, by the names of their charts.

    Raises:
      UserError: there is no such judge, or it has the name of another figure.
    """
    judges: dict[str, Callable[[Answer], float]] = {}
    for name in names:
        chart = name.rpartition(":")[2]
        if chart in judges or chart in _TAKEN or chart.startswith("best_of_"):
            raise UserError(f"--judge {name}: expected another name than {chart}, which another figure has")
        judges[chart] = judge_of(name)
    return judges


def judge_of(name: str) -> Callable[[Answer], float]:
    """An answer's value to a judge of `--judge`."""
    if ":" in name:
        judge = own_teacher(name, flag="--judge")
        if judge.choose is not None:
            raise UserError(f"--judge {name}: expected a function of one answer, got one of two")
        return judge.value
    known = sorted({*TEXT_TEACHERS, *JUDGES} - {"keyword"})
    if name not in known:
        raise UserError(f"--judge {name}: expected {', '.join(known)} or module:function")
    return value_of(name)


def side_by_side(
    config: TextConfig,
    learner: TextLearner,
    prompts: Sequence[EncodedPrompt],
    run_dir: Path,
    progress: Progress,
) -> None:
    """Shows answers of the model before and after, to the same held-out prompts with the same random numbers."""
    shown, seed = prompts[:_ON_PAGE], [_SEED, config.seed]
    before, after = (learner.answer(shown, seed, reference=reference) for reference in (True, False))
    if before is None or after is None:
        return
    paid = [learner.roles.reward.rate(answers).tolist() for answers in (before, after)]
    rows = list(zip(before, after, *paid, strict=True))
    for one, other, first, second in rows[:_SHOWN]:
        progress.line(one_line(last(one.prompt))[:160])
        progress.line(f"   before {signed(first)}  {one_line(one.text)[:160]}")
        progress.line(f"   after  {signed(second)}  {one_line(other.text)[:160]}")
    path = run_dir / "before-after.html"
    write_page(
        "best.html",
        path,
        title="Before and after",
        subtitle=f"{config.model} · {config.reward} · {now()}",
        choices=[
            {
                "prompt": whole(one.prompt),
                "answers": [
                    {"name": "Before", "paid": signed(first), "text": one.text},
                    {"name": "After", "paid": signed(second), "text": other.text},
                ],
            }
            for one, other, first, second in rows
        ],
    )
    progress.line(f"answers before and after in {path}")
