"""Where a policy of Seaquest makes its points, and how its lives end: full games, read off the frames.

One lane of four gives some 220 to 260 points a tank, two lanes 400 and more (docs/seaquest.md).

.venv/bin/python -m experiments.lives -m MODEL [--games 12]
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from experiments.measures import SEED
from lib import cli
from lib.agent.checkpoints import check_policy, env_of, load_policy
from lib.agent.evaluate import Observer, evaluate
from lib.cli import UserError, flag
from lib.devices import has_fast_bf16, resolve_device
from lib.envs.ids import MAX_SEED
from lib.envs.make import make_world
from lib.envs.play import Turn
from lib.envs.seaquest import TOP, SurfaceCounter, diver_aboard, oxygen, submarine_depth

_TANK = 512  # steps that a tank of air lasts
_BANDS = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)  # of depth; lanes are a quarter apart
_EMPTY = 0.05  # of the bar


@dataclass(frozen=True)
class LivesConfig:
    """Which policy, and how many games of it."""

    model: Path = flag("-m", help="policy checkpoint")
    games: int = flag(default=12, min=1, help="full games")
    dev: str = flag(default="cpu", help="device of the network: cpu, cuda, cuda:1")
    seed: int = flag(default=0, min=0, max=MAX_SEED, help="seed of the games and the actions")


@dataclass(frozen=True)
class Life:
    """One life, up to the step that loses it."""

    score: float
    steps: int
    refuels: int
    end: str
    """What its last steps showed: "at the surface", "hit on the sea bed", "hit above it", "out of air with a diver on board" or
    "out of air with nobody on board"."""


class Lives(Observer):
    """Splits the games of an evaluation into lives: an observer of `evaluate`.

    Attributes:
      lives: those that are over.
      steps: int64 `[D]`: at each band of depth.
      points: float64 `[D]`: made there.
    """

    def __init__(self, games: int) -> None:
        self.lives: list[Life] = []
        self.steps, self.points = np.zeros(len(_BANDS) - 1, np.int64), np.zeros(len(_BANDS) - 1)
        self._counter = SurfaceCounter(games)
        self._score, self._length = np.zeros(games), np.zeros(games, np.int64)
        self._refuels = np.zeros(games, np.int64)  # before this life
        self._depth, self._oxygen, self._diver = np.ones((3, games))  # as last seen

    def before(self, turn: Turn) -> None:
        frames = np.asarray(turn.step.frames)
        self._counter.push(frames)
        self._depth_now = submarine_depth(frames)
        seen = ~np.isnan(self._depth_now)
        # A hit empties the bar at once, and hides the submarine.
        self._depth[seen], self._oxygen[seen] = self._depth_now[seen], oxygen(frames)[seen]
        self._diver[seen] = diver_aboard(frames)[seen]

    def after(self, turn: Turn) -> None:
        counts, outcome = turn.counts, turn.outcome()
        self._score[counts] += outcome.score[counts]
        self._length[counts] += 1
        seen = counts & ~np.isnan(self._depth_now)
        band = np.digitize(self._depth_now[seen], _BANDS[1:-1])
        np.add.at(self.steps, band, 1)
        np.add.at(self.points, band, outcome.score[seen])
        for game in np.flatnonzero(counts & outcome.terminal).tolist():
            refuels = int(self._counter.refuels[game] - self._refuels[game])
            self.lives.append(
                Life(float(self._score[game]), int(self._length[game]), refuels, self._end(game))
            )
            self._score[game], self._length[game] = 0, 0
            self._refuels[game] = self._counter.refuels[game]

    def _end(self, game: int) -> str:
        if self._oxygen[game] <= _EMPTY:
            return f"out of air with {'a diver' if self._diver[game] else 'nobody'} on board"
        if self._depth[game] <= TOP:
            return "at the surface"
        return "hit on the sea bed" if self._depth[game] > _BANDS[-2] else "hit above it"


def tables(seen: Lives) -> str:
    """Lives by their refuels, and points by depth, in Markdown."""
    lines = ["| refuels in a life | lives | score | steps | points a tank |", "|---|---:|---:|---:|---:|"]
    for refuels in sorted({life.refuels for life in seen.lives}):
        some = [life for life in seen.lives if life.refuels == refuels]
        score, steps = sum(life.score for life in some), sum(life.steps for life in some)
        lines.append(
            f"| {refuels} | {len(some)} | {score / len(some):.0f} | {steps / len(some):.0f} | {score / steps * _TANK:.0f} |"
        )
    lines += ["", "| depth, 0 at the surface | share of steps | points per 100 steps |", "|---|---:|---:|"]
    for low, high, steps, points in zip(
        _BANDS, _BANDS[1:], seen.steps.tolist(), seen.points.tolist(), strict=False
    ):
        each = f"{points / steps * 100:.0f}" if steps else "–"
        lines.append(f"| {low:g} to {high:g} | {steps / max(1, seen.steps.sum()):.0%} | {each} |")
    ends = [life.end for life in seen.lives]
    lines += ["", "; ".join(f"{ends.count(end)} lives end {end}" for end in sorted(set(ends)))]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(LivesConfig, argv, description=(__doc__ or "").splitlines()[0])
    device = resolve_device(config.dev)
    network, origin = load_policy(config.model)
    env_id = env_of(origin)
    if "Seaquest" not in env_id or ":" in env_id:  # no module is imported because a file names it
        raise UserError(
            f"{config.model}: expected a policy of Seaquest, got one of {env_id or 'an unnamed game'}"
        )
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen = Lives(config.games)
    with contextlib.closing(make_world(env_id, config.games)) as world:
        check_policy(network, world, config.model)
        policy = network.acting(has_fast_bf16(device))
        print(evaluate(policy, world, SEED + config.seed, device, [seen]), tables(seen), sep="\n\n")


if __name__ == "__main__":
    cli.run(main)
