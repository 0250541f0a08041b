"""Full games: every number this project reports about a policy comes from here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lib.agent.network import autocast
from lib.envs.make import Counter, Probe, counter, probes
from lib.envs.play import Policy, Turn, play
from lib.envs.world import World
from lib.reporting import decimals, format_score


@dataclass(frozen=True)
class Evaluation:
    """N full games of one policy."""

    scores: np.ndarray
    """float64 `[N]`: unclipped score of each game."""
    steps: np.ndarray
    """int64 `[N]`: its length."""
    measures: dict[str, np.ndarray]
    """float64 `[N]` by name: what observers measured in each game."""
    overall: dict[str, float] = field(default_factory=dict)
    """What observers measured over all games together, by name."""

    @property
    def figures(self) -> dict[str, np.ndarray]:
        """All figures by name, `[N]`, or `[1]` for those of all games together."""
        together = {name: np.array([value]) for name, value in self.overall.items()}
        return {"score": self.scores, "steps": self.steps, **self.measures, **together}

    def __str__(self) -> str:
        named = {name: values.mean() for name, values in self.measures.items()} | self.overall
        measures = "".join(f"  {name} {value:.2f}" for name, value in named.items())
        best = float(self.scores.max())
        return (
            f"{format_score(self.scores)}  best {best:.{0 if best.is_integer() else decimals(best)}f}"
            f"  steps {self.steps.mean():.0f}{measures}"
        )


class Observer:
    """Measures B games while they are played. An observer keeps state, so every evaluation needs new ones."""

    def before(self, turn: Turn) -> None:
        """Looks at a step while the emulator works on it."""

    def after(self, turn: Turn) -> None:
        """Looks at the outcome of the step."""

    def measures(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Measures by name, float64 `[B]` each, of games of so many steps, int64 `[B]`."""
        return {}

    def overall(self) -> dict[str, float]:
        """Measures of all games together, by name."""
        return {}


class ProbeMeans(Observer):
    """Averages what probes read over the frames of each game, its last one included, and counts events.

    Args:
      num_envs: B.
      probes: what to read off every step, by name.
      counter: of events; a new one, because it keeps state.
    """

    def __init__(self, num_envs: int, probes: dict[str, Probe], counter: Counter | None = None) -> None:
        self._probes, self._counter = probes, counter
        self._sums = {name: np.zeros(num_envs) for name in self._probes}
        self._readings = {name: np.zeros(num_envs) for name in self._probes}
        self._counts = {name: np.zeros(num_envs) for name in counter.counts()} if counter else {}

    @classmethod
    def of(cls, env_id: str, num_envs: int) -> "ProbeMeans":
        """With all the probes and the counter that an environment has."""
        return cls(num_envs, probes(env_id), counter(env_id, num_envs))

    def before(self, turn: Turn) -> None:
        step, running = turn.step, turn.running
        for name, probe in self._probes.items():
            reading = probe(step)
            seen = running & ~np.isnan(reading)
            self._sums[name][seen] += reading[seen]
            self._readings[name][seen] += 1
        if self._counter:
            self._counter.push(np.asarray(step.frames))
            for name, count in self._counter.counts().items():
                self._counts[name][running] = count[running]

    def measures(self, steps: np.ndarray) -> dict[str, np.ndarray]:
        means = {name: self._sums[name] / np.maximum(self._readings[name], 1) for name in self._sums}
        return means | self._counts


@torch.no_grad()
def evaluate(
    policy: Policy,
    world: World,
    seed: int,
    device: torch.device,
    observers: Sequence[Observer] = (),
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Plays one full game in every environment of a world.

    Args:
      policy: on `device`; it acts as it does everywhere: A2C and PPO draw their actions, SAC takes the mean.
      world: B environments; they are reset.
      seed: of the games and of the actions.
      device: where the policy computes.
      observers: measure the games.
      stop: asked at every step whether to give up.

    Returns:
      The B games.

    Raises:
      Stopped: `stop` said so.
    """
    scores, steps = np.zeros(world.num_envs), np.zeros(world.num_envs, np.int64)
    # One context for all steps, though it casts nothing itself: within it policies cast their weights to bf16 once.
    with autocast(device, False):
        for turn in play(world, policy, seed, device, stop=stop):
            for observer in observers:
                observer.before(turn)
            outcome, counts = turn.outcome(), turn.counts
            for observer in observers:
                observer.after(turn)
            scores[counts] += outcome.score[counts]
            steps[counts] += 1
    result = Evaluation(scores, steps, {})
    for observer in observers:
        result.measures.update(observer.measures(steps))
        result.overall.update(observer.overall())
    return result
