"""Full games: every number this project reports about a policy comes from here."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from lib.agent.actor_critic import sample_actions
from lib.agent.network import PolicyNet
from lib.agent.rollout import autocast
from lib.agent.watch import Watch
from lib.envs.make import Counter, Probe
from lib.envs.observation import Viewer
from lib.envs.world import World, bounded_actions
from lib.interrupt import Stopped
from lib.reporting import format_mean


@dataclass(frozen=True)
class Evaluation:
    """N full games of one policy."""

    scores: np.ndarray
    """float64 `[N]`: unclipped score of each game."""
    steps: np.ndarray
    """int64 `[N]`: its length."""
    measures: dict[str, np.ndarray]
    """float64 `[N]` by name: what a probe read, averaged over the steps of each game, what was counted in it, and what
    a `Watch` made of it."""
    overall: dict[str, float] = field(default_factory=dict)
    """Figures of all games together, by name."""

    @property
    def figures(self) -> dict[str, np.ndarray]:
        """All there is by name, `[N]`, or `[1]` for what is of all games together."""
        together = {name: np.array([value]) for name, value in self.overall.items()}
        return {"score": self.scores, "steps": self.steps, **self.measures, **together}

    def __str__(self) -> str:
        named = {name: values.mean() for name, values in self.measures.items()} | self.overall
        measures = "".join(f"  {name} {value:.2f}" for name, value in named.items())
        return (
            f"score {format_mean(self.scores)} (95 %, {len(self.scores)} games)  best {self.scores.max():.0f}"
            f"  steps {self.steps.mean():.0f}{measures}"
        )


@torch.no_grad()
def evaluate(
    network: PolicyNet,
    world: World,
    seed: int,
    device: torch.device,
    bf16: bool,
    probes: dict[str, Probe] | None = None,
    counter: Counter | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] | None = None,
) -> Evaluation:
    """Plays one full game in every environment of a world, with sampled actions.

    One game each, however long, so that short games are not counted more often than long ones.

    Args:
      network: the policy, on `device`.
      world: B environments; they are reset.
      seed: of the games and of the actions.
      device: where the network lies.
      bf16: whether it computes in bf16.
      probes: what to read at every step and average over each game.
      counter: of events in the B games; a new one, as it remembers.
      watch: what else to measure; a new one, as it remembers.
      stop: asked at every step whether to give up.

    Returns:
      The B games.

    Raises:
      Stopped: `stop` said so.
    """
    envs = world.num_envs
    probes = probes or {}
    generator = torch.Generator(device).manual_seed(seed)
    viewer = Viewer(world, device)
    step = world.reset(seed)
    running = np.ones(envs, bool)
    scores, steps = np.zeros(envs), np.zeros(envs, np.int64)
    sums = {name: np.zeros(envs) for name in probes}
    readings = {name: np.zeros(envs) for name in sums}
    counts = {name: np.zeros(envs) for name in counter.counts()} if counter else {}
    while True:
        if stop is not None and stop():
            raise Stopped
        for name, probe in probes.items():
            reading = probe(step)
            seen = running & ~np.isnan(reading)
            sums[name][seen] += reading[seen]
            readings[name][seen] += 1
        if counter:
            counter.push(np.asarray(step.frames))
            for name, count in counter.counts().items():
                counts[name][running] = count[running]
        observation = viewer.look(step)
        with autocast(device, bf16):
            logits = network.logits(network.features(observation))
        actions = bounded_actions(sample_actions(logits, generator, network.continuous), network.continuous)
        chosen = actions.cpu().numpy()
        world.send(chosen)
        if watch is not None:  # while the emulator works
            watch.record(step, chosen)
            watch.judge(viewer, observation, logits, actions)
        step = world.recv()
        running &= ~step.reset
        if watch is not None:
            watch.after(step, running)
        if not running.any():
            break
        scores[running] += step.score[running]
        steps[running] += 1
    means = {name: sums[name] / np.maximum(readings[name], 1) for name in sums}
    if watch is None:
        return Evaluation(scores, steps, means | counts)
    return Evaluation(scores, steps, means | counts | watch.measures(steps), watch.overall())
