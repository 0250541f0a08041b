"""How many minutes of learning A2C, PPO, DQN and, on Atari, other libraries' A2C and PPO need until full games average a score.

The clock stands still while a policy is evaluated. Each run is kept in `--out`/ENV.jsonl, and is not measured again; delete
the file before measuring with other flags, or up to a higher score. Ends in `--out`/ENV.md and ENV.svg.

    .venv/bin/python -m benchmarks.time_to_score CartPole-v1 [--algos a2c ppo dqn] [--seeds 3] [--minutes 5]
"""

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.ours import NEVER, Training
from benchmarks.report import provenance
from benchmarks.rivals import RIVALS, Rival
from lib import cli
from lib.agent.checkpoints import save_policy
from lib.agent.config import TrainConfig
from lib.agent.evaluate import evaluate
from lib.agent.network import PolicyNet
from lib.cli import UserError, flag
from lib.devices import resolve_device
from lib.envs.make import make_world
from lib.plots import chart, save_svg, styled
from lib.reporting import format_mean

_SEED = 20_000  # of the games, which no training plays


Stages = list[dict[str, Any]]
"""A contender's flags of 01_a2c.py. Each stage but the first begins with the policy of the one before; all but the last end after their `steps`."""


class Task(NamedTuple):
    """The scores to reach in an environment, and its contenders; a contender's name is its --algo unless its flags say one."""

    scores: tuple[float, ...]
    contenders: dict[str, Stages]


TASKS = {
    "CartPole-v1": Task(
        (200, 475),
        {
            "a2c": [{"num_envs": 16, "lr": 2e-3}],
            "ppo": [{"num_envs": 8, "lr": 1e-3, "rollout": 32, "epochs": 10, "entropy": 0.0}],
            "dqn": [
                {
                    "num_envs": 4,
                    "lr": 1e-3,
                    "batch_size": 64,
                    "learning_starts": 1000,
                    "steps": 50_000,
                    "target_every": 50,
                }
            ],
        },
    ),
    "MovingDot-v0": Task(
        (80, 90),
        {
            "a2c": [{"network": "small", "num_envs": 32, "gamma": 0.9}],
            "ppo": [{"network": "small", "num_envs": 32, "gamma": 0.9}],
            "dqn": [{"network": "small", "gamma": 0.9, "learning_starts": 1000, "steps": 50_000}],
        },
    ),
    "SeaquestNoFrameskip-v4": Task(
        (100, 200, 300),
        {
            "a2c": [{"network": "small", "num_envs": 32}],
            "ppo": [{"network": "small", "num_envs": 32}],
            "a2c-ppo": [
                {"algo": "a2c", "num_envs": 64, "hold_prob": 0.01, "entropy": 0.02, "steps": 750_000},
                {
                    "algo": "ppo",
                    "num_envs": 32,
                    "rollout": 128,
                    "minibatches": 8,
                    "epochs": 2,
                    "lr_decay_steps": 10_000_000,
                    "gamma": 0.97,
                    "hold_prob": 0.01,
                    "hold_shortest": 3,
                    "hold_longest": 8,
                    "learn_held": True,
                    "critic_warmup": 3,
                },
            ],
            "dqn": [
                {
                    "network": "small",
                    "learning_starts": 5000,
                    "steps": 500_000,
                    "n_step": 3,
                    "quantiles": 50,
                    "target_every": 1000,
                }
            ],
        },
    ),
}
"""By environment. DQN's `steps` say how soon it stops acting at random."""


@dataclass(frozen=True)
class TimeConfig:
    """What to measure."""

    env: str = flag(
        positional=True, default="CartPole-v1", choices=tuple(TASKS), help="environment to learn in"
    )
    out: Path = flag(default=Path("time-to-score-out"), help="folder for the results")
    algos: list[str] = flag(
        default=["a2c", "ppo", "dqn"],
        choices=("a2c", "ppo", "dqn", "a2c-ppo", *RIVALS),
        metavar="ALGO",
        help="a2c, ppo, dqn; on Seaquest also a2c-ppo, A2C and then PPO with γ = 0.97 that learns from held actions, Stable-Baselines3's "
        "sb3-a2c and sb3-ppo, and cleanrl-ppo, PPO as CleanRL sets it on EnvPool",
    )
    scores: list[float] | None = flag(
        default=None, metavar="POINTS", help="scores to reach (default: by environment)"
    )
    seeds: int = flag(default=3, min=1, help="runs of each: seeds 0, 1, …")
    minutes: float = flag(default=5.0, min=0.01, help="minutes of learning after which a run gives up")
    every: float = flag(default=0.25, min=0.001, help="minutes of learning between evaluations")
    games: int = flag(default=20, min=2, help="full games per evaluation")
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")


class Ours:
    """One run of 01_a2c.py or several, one after the other, which learn and play as a `Rival` does.

    Args:
      stages: the flags of each run; `model` of each but the first says where the policy of the one before goes.
      games: that `score` plays at once.
    """

    def __init__(self, stages: Sequence[TrainConfig], games: int) -> None:
        self._stage, *self._later = stages
        self._device = resolve_device(self._stage.dev)
        self._arena = make_world(self._stage.env, games)
        self._training = Training(self._stage, warm=False)

    def __call__(self) -> int:
        if self._later and self._training.steps >= self._stage.steps:
            self._next()
        return self._training()

    @property
    def network(self) -> PolicyNet:
        """Its policy's."""
        return self._training.network

    def _next(self) -> None:
        """Begins the next stage."""
        before, self._stage = self._stage, self._later.pop(0)
        assert self._stage.model is not None
        save_policy(self._stage.model, self.network, self._training.steps, {}, dataclasses.asdict(before), {})
        self._training.close()
        self._training = Training(self._stage, warm=False)

    def score(self, games: int, seed: int) -> np.ndarray:
        return evaluate(self._training.policy, self._arena, seed, self._device).scores

    def close(self) -> None:
        self._training.close()
        self._arena.close()


def contender(config: TimeConfig, algo: str, seed: int, folder: Path) -> Ours:
    """One of ours; its curves and the policies between its stages go to a folder."""
    shared: dict[str, Any] = {"algo": algo, "steps": NEVER, "eval_every": NEVER, "eval_games": 1}
    stages = [
        TrainConfig(
            name=algo,
            env=config.env,
            seed=seed,
            dev=config.dev,
            runs=folder,
            model=folder / f"{number}.dat" if number else None,
            **shared | flags,
        )
        for number, flags in enumerate(TASKS[config.env].contenders[algo])
    ]
    return Ours(stages, config.games)


def learning_curve(config: TimeConfig, algo: str, seed: int) -> list[list[float]]:
    """Minutes of learning, steps made and mean score at each evaluation of a run, which it prints as they come.

    It ends with the first that reaches the highest score asked for, or after `config.minutes`.
    """
    curve: list[list[float]] = []
    with tempfile.TemporaryDirectory(prefix="time-to-score-") as folder, contextlib.ExitStack() as stack:
        learner: Rival
        if algo in RIVALS:
            learner = RIVALS[algo](config.env, seed, config.dev)
        else:
            learner = contender(config, algo, seed, Path(folder))
        stack.callback(learner.close)
        seconds, steps = 0.0, 0
        while not curve or not _over(config, curve):
            due = 60 * config.every * (len(curve) + 1)
            while seconds < due:
                began = time.perf_counter()
                steps += learner()
                seconds += time.perf_counter() - began
            scores = learner.score(config.games, _SEED + seed)
            minutes, score = seconds / 60, float(scores.mean())
            curve.append([minutes, steps, score])
            print(
                f"{algo}, seed {seed}: {score:.1f} points after {minutes:.1f} minutes, {steps} steps",
                flush=True,
            )
    return curve


def _over(config: TimeConfig, curve: Sequence[Sequence[float]]) -> bool:
    """Whether a run has reached the highest score asked for, or had its minutes."""
    minutes, _, score = curve[-1]
    return score >= max(_scores(config)) or minutes >= config.minutes


def _scores(config: TimeConfig) -> Sequence[float]:
    return config.scores or TASKS[config.env].scores


def table(config: TimeConfig, curves: dict[tuple[str, int], list[list[float]]]) -> str:
    """Minutes until each score, of each seed and in the mean.

    Args:
      config: of the benchmark.
      curves: by algorithm and seed, what `learning_curve` returned.
    """
    ours, wanted = TASKS[config.env].contenders, _scores(config)
    lines = [
        "| | flags | steps a second | " + " | ".join(f"{score:g} points" for score in wanted) + " |",
        "|---" * (3 + len(wanted)) + "|",
    ]
    for algo in config.algos:
        of_seeds = [curve for (name, _), curve in curves.items() if name == algo]
        if not of_seeds:
            continue
        speed = sum(curve[-1][1] for curve in of_seeds) / sum(60 * curve[-1][0] for curve in of_seeds)
        cells = [_cell([_until(curve, score) for curve in of_seeds]) for score in wanted]
        shown = ", then ".join(map(cli.shown, ours[algo])) if algo in ours else "its own"
        lines.append(f"| {algo} | {shown} | {speed:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@styled
def draw(path: Path, curves: dict[tuple[str, int], list[list[float]]]) -> None:
    """Draws the score over minutes of learning, a colour for each algorithm and a line for each seed."""
    figure, [panel] = chart("minutes of learning", "mean score of full games", 780, 400)
    figure.set_facecolor("white")
    names = list(dict.fromkeys(algo for algo, _ in curves))
    for (algo, seed), curve in sorted(curves.items()):
        minutes, _, scores = zip(*curve, strict=True)
        first = seed == min(each for name, each in curves if name == algo)
        label = algo if first else None
        panel.plot(minutes, scores, f"C{names.index(algo)}.-", label=label, linewidth=1.5)
    panel.legend(frameon=False)
    save_svg(path, figure)


def _until(curve: Sequence[Sequence[float]], score: float) -> float | None:
    """Minutes until the first evaluation that reaches a score; None if none does."""
    return next((minutes for minutes, _, mean in curve if mean >= score), None)


def _cell(minutes: Sequence[float | None]) -> str:
    each = ", ".join("never" if each is None else f"{each:.1f}" for each in minutes)
    reached = [each for each in minutes if each is not None]
    if len(reached) < 2 or len(reached) < len(minutes):
        return each
    return f"{each}: {format_mean(reached)}"


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether runs with these settings compare."""
    free = ("out", "algos", "seeds", "scores")
    return {**one, **dict.fromkeys(free)} == {**other, **dict.fromkeys(free)}


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(TimeConfig, argv, description=(__doc__ or "").splitlines()[0])
    known = TASKS[config.env].contenders.keys() | (RIVALS if config.env.endswith("NoFrameskip-v4") else {})
    if unknown := set(config.algos) - known:
        raise UserError(f"--algos: expected {', '.join(sorted(known))} on {config.env}, got {min(unknown)}")
    kept = config.out / f"{config.env}.jsonl"
    settings = json.loads(
        json.dumps(dataclasses.asdict(config) | {"flags": TASKS[config.env].contenders}, default=str)
    )
    curves: dict[tuple[str, int], list[list[float]]] = {}
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        for line in kept.read_text().splitlines() if kept.exists() else ():
            run = json.loads(line)
            if not _alike(run["settings"], settings):
                raise UserError(
                    f"--out {config.out}: {kept.name} has runs with other flags; name another folder"
                )
            if run["algo"] in config.algos and not _over(config, run["curve"]):
                raise UserError(
                    f"--out {config.out}: {run['algo']}, seed {run['seed']}, ended at {run['curve'][-1][2]:g} points, "
                    f"below {max(_scores(config)):g}; name another folder"
                )
            curves[run["algo"], run["seed"]] = run["curve"]
        for seed in range(config.seeds):
            for algo in config.algos:
                if (algo, seed) in curves:
                    continue
                curve = curves[algo, seed] = learning_curve(config, algo, seed)
                run = {
                    "algo": algo,
                    "seed": seed,
                    "curve": curve,
                    "settings": settings,
                    "origin": provenance(),
                }
                with kept.open("a") as file:
                    file.write(json.dumps(run) + "\n")
        page = table(config, curves)
        (config.out / f"{config.env}.md").write_text(page)
        draw(config.out / f"{config.env}.svg", curves)
    except OSError as error:
        raise UserError(f"--out {config.out}: expected a folder to write to: {error.strerror}") from error
    print(page)


if __name__ == "__main__":
    cli.run(main)
