"""Evaluations of the policy while it learns."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np
import torch

from lib.agent.config import TrainConfig
from lib.agent.evaluate import Evaluation, Observer, ProbeMeans
from lib.agent.finetune_metrics import BY_REWARD, CHARTED, FinetuneMetrics, Reading, changes
from lib.agent.network import ActorPolicy
from lib.envs.world import World
from lib.interrupt import Stopped
from lib.learner import Advance, Learner
from lib.preferences.teachers import Teacher
from lib.reporting import Charts, Progress, format_count, mean_interval
from lib.reward.model import RewardModel
from lib.training.charts import ChartsHook
from lib.training.checkpoints import Checkpoints
from lib.training.loop import Hook, RunConfig

_SEED = 10_000  # evaluations play other games than training does

MEASURES = ("test_reward", "test_learned", "test_kl", "test_steps")
"""Charts of evaluations for comparing runs."""

Evaluate = Callable[..., Evaluation]
"""`lib.agent.evaluate.evaluate`, or what takes its arguments."""


class Measure(Protocol):
    """Plays and measures, for `EvaluationHook`."""

    reward: Any
    """The reward model that measures, if any does."""

    def __call__(self, policy: Any, baseline: list[float] | None) -> tuple[Evaluation, list[float] | None]:
        """Measures a policy.

        Args:
          policy: of a learner.
          baseline: what the first call returned; None in that call.

        Returns:
          The reading, and the baseline for later evaluations.

        Raises:
          Stopped: a stop was requested.
        """
        ...


class GamesMeasure:
    """Evaluates by full games.

    Args:
      config: of the run.
      arena: environments to evaluate in, one game each.
      device: of the networks.
      reference: the policy that a finetune is compared with.
      reward: what pays, where it is known from the start.
      teacher: compares fresh clips.
      stop: whether to give up.
      evaluate: plays the games.
    """

    def __init__(
        self,
        config: TrainConfig,
        arena: World,
        device: torch.device,
        reference: ActorPolicy | None,
        reward: RewardModel | None,
        teacher: Teacher | None,
        stop: Callable[[], bool],
        evaluate: Evaluate,
    ) -> None:
        self.reward = reward
        self._config, self._arena, self._device, self._reference = config, arena, device, reference
        self._teacher, self._stop, self._evaluate = teacher, stop, evaluate

    def __call__(self, policy: Any, baseline: list[float] | None) -> tuple[Evaluation, list[float] | None]:
        config, seed = self._config, _SEED + self._config.seed
        observers: list[Observer] = [ProbeMeans.of(config.env, config.eval_games)]
        metrics = None
        if config.finetunes:
            metrics = FinetuneMetrics(
                self._arena, self._device, seed, self.reward, self._reference, self._teacher, baseline
            )
            observers.append(metrics)
        result = self._evaluate(policy, self._arena, seed, self._device, observers, self._stop)
        return result, None if metrics is None else metrics.clip_values()


class EvaluationHook(Hook):
    """Evaluates the policy every so many steps and at the end; a finetune also at its start, to compare with.

    Args:
      config: of the run.
      measure: evaluates a policy.
      charts, progress: what is found goes there.
      monitor: checks the learner before it is evaluated.
      checkpoints: saves the policy that was evaluated.
      stop: whether to give up.

    Attributes:
      readings: of every evaluation so far.
      comparable: those since the reward model was last replaced; learned returns of two models have no common unit.
    """

    def __init__(
        self,
        config: RunConfig,
        measure: Measure,
        charts: Charts,
        progress: Progress,
        monitor: ChartsHook,
        checkpoints: Checkpoints,
        stop: Callable[[], bool],
    ) -> None:
        self.readings: list[Reading] = []
        self._config, self._measure, self._charts, self._progress = config, measure, charts, progress
        self._monitor, self._checkpoints, self._stop = monitor, checkpoints, stop
        self._first: dict[str, np.ndarray] | None = None
        self._baseline: list[float] | None = None
        self._since = 0

    @property
    def unit(self) -> str:
        """What a step is."""
        return self._monitor.unit

    @property
    def comparable(self) -> list[Reading]:
        return self.readings[self._since :]

    @property
    def _evaluated_at(self) -> int:
        """Steps before the last evaluation."""
        return self.readings[-1].steps if self.readings else 0

    def begin(self, learner: Learner) -> None:
        if self._config.finetunes and not self.readings and not self._stop():
            self._try(learner)
        self._if_due(learner)

    def after(self, learner: Learner, made: Advance) -> None:
        self._if_due(learner)

    def use_reward(self, model: RewardModel, another: bool, by_reward: Collection[str] = BY_REWARD) -> None:
        """Lets a reward model measure from now on.

        Args:
          model: measures.
          another: whether it differs from the previous one; its figures are then compared with its own first evaluation.
          by_reward: names of its figures.
        """
        self._measure.reward = model
        if not another:
            return
        self._since = len(self.readings)
        if self._first is not None:
            self._first = {name: values for name, values in self._first.items() if name not in by_reward}

    def state(self) -> dict[str, Any]:
        return {
            "examined": self._evaluated_at,
            "examiner": {
                "readings": [tuple(reading) for reading in self.readings],
                "first": self._first,
                "baseline": self._baseline,
                "since": self._since,
            },
        }

    def load_state(self, state: dict[str, Any]) -> None:
        found = state["examiner"]
        self.readings = [Reading(*reading) for reading in found["readings"]]
        # Older states lack "since".
        self._baseline, self._since = found["baseline"], found.get("since", 0)
        if found["first"] is not None:
            self._first = {name: values.numpy() for name, values in found["first"].items()}

    def _if_due(self, learner: Learner) -> None:
        steps, last = learner.steps, self._evaluated_at
        due = min(last + self._config.eval_every, self._config.steps)
        if self._stop() or steps <= last or steps < due:
            return
        self._monitor.check(learner)
        result = self._try(learner)
        if result is not None:
            self._checkpoints.save_policy(learner, result)

    def _try(self, learner: Learner) -> Evaluation | None:
        """Evaluates the policy; None if a stop was requested."""
        try:
            result, baseline = self._measure(learner.policy(), self._baseline)
        except Stopped:
            return None
        if not self.readings:
            self._charts.layout(_layout(self._config.finetunes))
        self.readings.append(_reading(result, learner.steps))
        self._checkpoints.log(result, learner.steps)
        self._charts.scalars(_scalars(result), learner.steps)
        if self._config.finetunes:
            self._chart_changes(result, baseline, learner.steps)
        self._progress.line(f"{format_count(learner.steps)} {self._monitor.unit}: {result}")
        return result

    def _chart_changes(self, result: Evaluation, baseline: list[float] | None, steps: int) -> None:
        """Charts the policy's changes since the finetune began."""
        if self._first is None:
            self._first, self._baseline = {}, baseline
        self._first = result.figures | self._first
        since = changes(result.figures, self._first)
        self._charts.scalars({f"finetune/{name}": value for name, value in since.items()}, steps)


def _reading(result: Evaluation, steps: int) -> Reading:
    score, half = mean_interval(result.scores)
    means = {name: float(values.mean()) for name, values in result.figures.items()}
    parts = {name: means.get(name) for name in BY_REWARD}
    return Reading(steps, score, 0.0 if np.isnan(half) else half, **parts)


def _scalars(result: Evaluation) -> dict[str, float]:
    return {
        "test_reward_interval": mean_interval(result.scores)[1],
        "test_reward_best": float(result.scores.max()),
        **{_tag(name): float(values.mean()) for name, values in result.figures.items()},
    }


def _layout(finetunes: bool) -> dict[str, list[str]]:
    """Charts of several curves, the important ones first."""
    charts = {"score": ["test_reward", "reward_100"]}
    if finetunes:
        charts |= {
            "learned return": ["test_learned", "learned_return_100"],
            "KL to the reference policy": ["test_kl"],
            "finetune: change since the start": [f"finetune/{name}" for name in CHARTED],
            "finetune: as measured": [_tag(name) for name in CHARTED],
        }
    return charts | {
        "length": ["test_steps", "steps"],
        "losses": ["loss_total", "loss_policy", "loss_value"],
    }


def _tag(name: str) -> str:
    """The chart of a figure of an evaluation."""
    return "test_reward" if name == "score" else f"test_{name}"
