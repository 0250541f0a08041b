"""A habit taught by comparisons in environments other than Atari: experiments.rounds once for each of several seeds.

CartPole is taught to keep to the left, while the score still pays for standing. By comparisons alone, the moving dot is
taught to keep to the middle and MuJoCo's Hopper to flip over backwards.
Ends in environments.md.

    .venv/bin/python -m experiments.environments [cartpole|dot|hopper] [--seeds 3] [--out FOLDER] [--max-minutes 9]
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.pipeline import Pipeline, max_minutes, settle
from experiments.rounds import RoundsConfig, learn_from_comparisons
from lib import cli
from lib.cli import flag
from lib.reporting import format_duration, format_mean


@dataclass(frozen=True)
class Task:
    """What is taught where."""

    measure: str
    """What the teaching is to change, of the measures of an evaluation."""
    says: str
    """What that is, with its unit."""
    rounds: dict[str, Any]
    """Fields of `RoundsConfig`."""


_FIT = {"ensemble": 3, "frame_stride": 1, "batch_size": 16}

TASKS = {
    "cartpole": Task(
        "position",
        "where the cart is, −2.4 (left end) to 2.4 (right end)",
        {
            "env": "CartPole-v1",
            "teacher": "left",
            "v0_steps": 100_000,
            "steps": 100_000,
            "segments": 400,
            "train_v0": {"algo": "ppo", "num_envs": 16, "lr": 1e-3},
            "fit": _FIT,
            "finetune": {"algo": "ppo", "num_envs": 16, "lr": 1e-3, "critic_warmup": 10, "score_weight": 2.0},
        },
    ),
    "dot": Task(
        "distance",
        "pixels from the middle, sideways and up or down",
        {
            "env": "MovingDot-v0",
            "teacher": "score",
            "v0_steps": 40_000,  # of random play: only comparisons teach it
            "steps": 40_000,
            "labels": 400,
            "train_v0": {"lr": 0.0, "num_envs": 16},
            "fit": {"ensemble": 3, "frame_stride": 5},
            "finetune": {
                "algo": "ppo",
                "gamma": 0.9,
                "num_envs": 32,
                "lr": 2.5e-4,
                "lr_decay_steps": 44_000,
                "freeze_convs": False,
            },
        },
    ),
    "hopper": Task(
        "spin",
        "how fast the torso turns backwards, rad/s",
        {
            "env": "HopperFlip-v0",
            "teacher": "backflip",
            "v0_steps": 50_000,
            "steps": 500_000,
            "rounds": 2,
            "labels": 200,
            "segments": 200,  # drawing their frames takes longer than all else
            "train_v0": {"algo": "ppo", "num_envs": 16, "lr": 0.0},
            "fit": _FIT,
            "finetune": {
                "algo": "ppo",
                "num_envs": 16,
                "lr": 3e-4,
                "rollout": 128,
                "freeze_convs": False,
                "critic_warmup": 5,
            },
        },
    ),
}
"""By the name that the command takes."""


@dataclass(frozen=True)
class EnvironmentsConfig:
    """What to teach, and on how many seeds."""

    task: str = flag(
        positional=True, default="cartpole", choices=tuple(TASKS), help="task: cartpole, dot or hopper"
    )
    seeds: int = flag(default=3, min=1, help="seeds: 0, 1, …")
    out: Path = flag(default=Path("runs/environments"), help="folder for everything the experiment makes")
    max_minutes: float | None = max_minutes()


def rounds_config(config: EnvironmentsConfig, seed: int) -> RoundsConfig:
    """The rounds of one seed."""
    given = {"rounds": 1, "labels": 100, "error_rate": 0.1, "eval_every": 25_000, "games": 20, "lives": 1}
    return RoundsConfig(
        out=config.out / config.task / f"seed-{seed}", seed=seed, **(given | TASKS[config.task].rounds)
    )


def table(config: EnvironmentsConfig, measured: Sequence[Sequence[dict[str, Any]]], seconds: float) -> str:
    """The page of results.

    Args:
      config: of the experiment.
      measured: of each seed, what `experiments.measures` found of its versions, v0 first.
      seconds: what all of it took.
    """
    task, flags = TASKS[config.task], rounds_config(config, 0)
    lines = [
        f"{flags.env}, taught by at most {flags.labels} labels a round of teacher `{flags.teacher}` ({flags.error_rate:.0%} errors). "
        f"`{task.measure}`: {task.says}. Means of {flags.games} full games ± 95 %. {format_duration(seconds)} in all.",
        "",
        f"| seed | | {task.measure} | score | steps a game | learned return |",
        "|---|---|---|---|---|---|",
    ]
    for seed, versions in enumerate(measured):
        for version, found in enumerate(versions):
            games = found["games"]
            cells = [
                str(seed),
                f"v{version}",
                format_mean(games[task.measure], 2),
                format_mean(games["score"], 1),
                format_mean(games["steps"], 0),
                format_mean(games["learned"], 1) if "learned" in games else "–",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    means = np.array([[np.mean(found["games"][task.measure]) for found in versions] for versions in measured])
    said = ", ".join(f"v{version} {format_mean(column, 2)}" for version, column in enumerate(means.T))
    change = format_mean(means[:, -1] - means[:, 0], 2)
    lines += ["", f"Mean {task.measure} over seeds ± 95 %: {said}; its change from first to last {change}."]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(EnvironmentsConfig, argv, description=(__doc__ or "").splitlines()[0])
    measured, seconds, began = [], 0.0, time.monotonic()
    for seed in range(config.seeds):
        flags = rounds_config(config, seed)
        settle(flags)
        left = None if config.max_minutes is None else config.max_minutes - (time.monotonic() - began) / 60
        pipeline = Pipeline(flags.out, left)
        versions = learn_from_comparisons(flags, pipeline)
        seconds += pipeline.seconds
        measured.append([json.loads(version.measures.read_text()) for version in versions])
    page = table(config, measured, seconds)
    (config.out / config.task / "environments.md").write_text(page)
    print("\n" + page)


if __name__ == "__main__":
    cli.run(main)
