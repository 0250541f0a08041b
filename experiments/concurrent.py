"""Labels in rounds against labels while it trains: the same number of labels and steps, several seeds.

    .venv/bin/python -m experiments.concurrent [--preset seaquest --model V0] [--seeds 5] [--max-minutes 9]

Three ways to spend the same labels: all of them before training (frozen), in rounds of labelling, fitting and training
(rounds), and during training (concurrent: online.py). The last two differ in little but when labels come: as many models pay,
each fitted from new weights, pairs are of the newest clips, and a KL penalty refers to the policy that all begin with. But labels that come
evenly are always fewer than those of the round. Ends in concurrent.md; results.jsonl has a line for each finished run.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.measure_config import MeasureConfig
from experiments.pipeline import (
    TIME_IS_UP,
    Pipeline,
    TimeUp,
    by_preset,
    fill_in,
    max_minutes,
    settle,
    write_lines,
)
from lib import cli
from lib.agent.config import TrainConfig
from lib.cli import UserError, flag
from lib.preferences.labels import LabelLog, usable
from lib.reporting import format_duration, format_mean
from lib.reward.config import FitConfig
from online import OnlineConfig, record_prob

PRESETS: dict[str, dict[str, Any]] = {
    "dot": {
        "env": "MovingDot-v0",
        "teacher": "score",
        "error_rate": 0.0,
        "steps": 60_000,
        "labels": 400,
        "opening_labels": 100,
        "eval_every": 15_000,
        "train": {"num_envs": 32, "algo": "ppo", "gamma": 0.9},
        "fit": {"frame_stride": 5},
    },
    # A finetune of --model, a quarter of an hour on two cores for each seed.
    "seaquest": {
        "env": "SeaquestNoFrameskip-v4",
        "teacher": "seaquest",
        "error_rate": 0.1,
        "steps": 100_000,
        "labels": 200,
        "opening_labels": 80,
        "eval_every": 50_000,
        "train": {"algo": "ppo", "lr": 1e-4, "freeze_convs": True, "kl": 1.0, "critic_warmup": 10},
        "fit": {"frame_stride": 10},
    },
}
"""Defaults of the flags that depend on --preset."""

ARMS = {"frozen": "all labels first", "rounds": "in rounds", "concurrent": "while it trains"}


@dataclass(frozen=True)
class ConcurrentConfig:
    """What to compare, at which budget. What is None by default depends on --preset."""

    preset: str = flag(
        group="most used", default="dot", choices=tuple(PRESETS), help="game and size of the experiment"
    )
    out: Path = flag(default=Path("runs/concurrent"), help="folder for everything the experiment makes")
    arms: list[str] = flag(default=list(ARMS), choices=tuple(ARMS), metavar="ARM", help="methods to compare")
    seeds: int = flag(default=5, min=1, help="runs of each method")
    env: str = flag("-e", default=None, help=by_preset(PRESETS, "environment", "env"))
    model: Path | None = flag(
        "-m", default=None, help="policy that all methods begin with (default: a random one)"
    )
    steps: int = flag(default=None, min=1, help=by_preset(PRESETS, "steps of training in all", "steps"))
    labels: int = flag(default=None, min=20, help=by_preset(PRESETS, "labels in all", "labels"))
    dev: str = flag(default="cpu", help="device of the networks")
    max_minutes: float | None = max_minutes()

    rounds: int = flag(group="labels", default=4, min=2, help="rounds of the arm with rounds")
    opening_labels: int = flag(
        default=None,
        min=10,
        help=by_preset(PRESETS, "number of --labels given before the first step", "opening_labels"),
    )
    refit_every: int = flag(
        default=0,
        min=0,
        help="new labels for each refit of the concurrent arm; 0: as many as bring a model for each round",
    )
    teacher: str = flag(default=None, help=by_preset(PRESETS, "who compares", "teacher"))
    error_rate: float = flag(
        default=None,
        min=0,
        max=1,
        help=by_preset(PRESETS, "how often the teacher prefers the wrong clip", "error_rate"),
    )
    segments: int = flag(
        default=1000, min=4, help="approximate number of clips recorded during a training run"
    )

    eval_every: int = flag(
        group="evaluation",
        default=None,
        min=1,
        help=by_preset(PRESETS, "steps between evaluations", "eval_every"),
    )
    games: int = flag(default=20, min=2, help="full games behind each figure")

    train: dict[str, Any] = flag(
        group="flags of the scripts",
        default=None,
        of=TrainConfig,
        formerly="train_flags",
        help=by_preset(PRESETS, "more flags of 01_a2c.py, for every training run", "train"),
    )
    fit: dict[str, Any] = flag(
        default=None,
        of=FitConfig,
        formerly="fit_flags",
        help=by_preset(PRESETS, "more flags of 03_reward_train.py, for every fit", "fit"),
    )

    def __post_init__(self) -> None:
        fill_in(self, PRESETS)
        if self.opening_labels >= self.labels:
            raise UserError(
                f"--opening-labels {self.opening_labels}: expected fewer than the {self.labels} of --labels"
            )
        if self.refit_every == 0:
            each = (
                self.labels - self.opening_labels
            ) // self.rounds  # the last one's model would come at the end
            object.__setattr__(self, "refit_every", max(1, each))


def shares(total: int, parts: int) -> list[int]:
    """A number cut into whole parts that differ by one at most and add up to it."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


class Comparison:
    """The stages of all arms and seeds."""

    def __init__(self, config: ConcurrentConfig, pipeline: Pipeline) -> None:
        self._config, self._pipeline = config, pipeline

    def run(self) -> None:
        """All stages that are not done, seed by seed.

        Raises:
          TimeUp, UserError, KeyboardInterrupt: see `Pipeline.run`.
        """
        for seed in range(self._config.seeds):
            for arm in self._config.arms:
                if arm == "concurrent":
                    policy = self._concurrent(seed)
                else:
                    policy = self._staged(arm, seed, self._config.rounds if arm == "rounds" else 1)
                self._measure(arm, seed, policy)
                self.collect()

    def folder(self, arm: str, seed: int) -> Path:
        """Everything of one run."""
        return self._config.out / f"{arm}-{seed}"

    def collect(self) -> list[dict[str, Any]]:
        """Writes the results of all finished runs to results.jsonl.

        Returns:
          Of each, its `arm` and `seed`, the `scores` of its games, its `labels` and its `seconds`.
        """
        rows = []
        for arm in ARMS:
            for seed in range(self._config.seeds):
                if self._pipeline.done(f"{arm}-{seed} measured"):
                    folder = self.folder(arm, seed)
                    games = json.loads((folder / "measures.json").read_text())["games"]
                    row = {
                        "arm": arm,
                        "seed": seed,
                        "scores": games["score"],
                        "labels": sum(usable(LabelLog(path).read()) for path in folder.rglob("labels.json")),
                        "seconds": self._pipeline.seconds_of(f"{arm}-{seed} "),
                    }
                    rows.append(row)
        write_lines(self._config.out / "results.jsonl", rows)
        return rows

    def _train(
        self, arm: str, seed: int, part: int, title: str, model: Path | None, steps: int, **given: Any
    ) -> Path:
        """Trains from `model`, and returns the policy; its clips are in `db-PART` beside it."""
        config, folder = self._config, self.folder(arm, seed)
        training: dict[str, Any] = {
            "name": str(part),
            "env": config.env,
            "dev": config.dev,
            "seed": seed,
            "model": model,
            "steps": steps,
            "eval_every": min(steps, config.eval_every),
            "eval_games": config.games,
            "save": folder / f"policy-{part}",
            "runs": folder / "runs" / str(part),
            "db_path": folder / f"db-{part}",
        }
        return self._pipeline.train(
            f"{arm}-{seed} {part}",
            f"{arm}, seed {seed}: {title}",
            TrainConfig(**training | config.train | self._reference() | given),
        )

    def _reference(self) -> dict[str, Any]:
        """What a KL penalty refers to, in all arms alike."""
        config = self._config
        penalised = config.model is not None and config.train.get("kl", 0) > 0
        return {"kl_reference": config.model} if penalised else {}

    def _staged(self, arm: str, seed: int, rounds: int) -> Path:
        """Rounds of labels on the newest clips, a fit to all labels, and training on it from the policy before."""
        config, folder = self._config, self.folder(arm, seed)
        first = config.labels if rounds == 1 else config.opening_labels
        wanted = [first, *shares(config.labels - first, rounds - 1)]
        steps, policy = shares(config.steps, rounds), config.model
        # Two clips for each label of the opening, as in concurrent mode; an environment rests as long as it records.
        clips = 2 * first * 100
        opening = {"lr": 0.0, "record_prob": 0.02, "eval_every": clips}
        self._train(arm, seed, 0, "clips of the first policy", policy, clips, **opening)
        for round in range(1, rounds + 1):
            labels = wanted[round - 1]
            self._pipeline.label(
                f"{arm}-{seed} labels {round}",
                f"{arm}, seed {seed}: {labels} labels",
                folder / f"db-{round - 1}",
                config.teacher,
                labels,
                config.error_rate,
                seed,
                strategy="recent",
            )
            fit: dict[str, Any] = {
                "dbs": [folder / f"db-{before}" for before in range(round)],
                "name": str(round),
                "out": folder,
                "dev": config.dev,
                "seed": seed,
                "runs": folder / "runs" / f"fit-{round}",
            }
            reward = self._pipeline.fit(
                f"{arm}-{seed} fit {round}",
                f"{arm}, seed {seed}: a reward model of {sum(wanted[:round])} labels",
                FitConfig(**fit | config.fit),
            )
            policy = self._train(
                *(arm, seed, round, f"training {round} of {rounds}", policy, steps[round - 1]),
                reward=reward,
                record_prob=record_prob(config.segments, config.steps),
            )
        assert policy is not None
        return policy

    def _concurrent(self, seed: int) -> Path:
        config, folder = self._config, self.folder("concurrent", seed)
        started = {} if config.model is None else {"model": config.model}
        self._pipeline.online(
            f"concurrent-{seed} all",
            f"concurrent, seed {seed}: {config.labels} labels while it trains",
            OnlineConfig(
                out=folder,
                env=config.env,
                dev=config.dev,
                seed=seed,
                check=False,
                teacher=config.teacher,
                error_rate=config.error_rate,
                steps=config.steps,
                labels=config.labels,
                opening_labels=config.opening_labels,
                refit_every=config.refit_every,
                segments=config.segments,
                eval_every=config.eval_every,
                eval_games=config.games,
                train=config.train | {"wait_for_labels": config.refit_every} | started | self._reference(),
                fit=config.fit | {"fresh_weights": True},
            ),
        )
        return folder / "policy" / "latest.dat"

    def _measure(self, arm: str, seed: int, policy: Path) -> None:
        config = self._config
        self._pipeline.measure(
            f"{arm}-{seed} measured",
            f"{arm}, seed {seed}: {config.games} full games",
            MeasureConfig(
                model=policy,
                out=self.folder(arm, seed) / "measures.json",
                env=config.env,
                games=config.games,
                lives=1,
                dev=config.dev,
                seed=seed,
            ),
        )


def table(config: ConcurrentConfig, rows: Sequence[dict[str, Any]]) -> str:
    """The page of results: means over the seeds ± 95 %, then every run.

    Args:
      config: of the comparison.
      rows: of `Comparison.collect`.
    """
    lines = [
        f"{config.env}, {config.steps:,} steps of training and {config.labels} labels by `{config.teacher}`, "
        f"{config.error_rate:.0%} of them wrong; in rounds: {config.rounds} of them, the first with {config.opening_labels} labels, "
        f"as many as are given before the first step while it trains. Means over seeds ± 95 % of the mean score of "
        f"{config.games} full games where the training ended.",
        "",
        "| labels | seeds | score | labels given | time |",
        "|---|---|---|---|---|",
    ]
    for arm, title in ARMS.items():
        found = [row for row in rows if row["arm"] == arm]
        if found:
            scores = format_mean(fmean(row["scores"]) for row in found)
            labels = format_mean((row["labels"] for row in found), 0)
            minutes = format_mean(row["seconds"] / 60 for row in found)
            lines.append(f"| {title} | {len(found)} | {scores} | {labels} | {minutes} min |")
    lines += [
        "",
        "| run | seed | score (± 95 % over its games) | labels given | time |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['arm']} | {row['seed']} | {format_mean(row['scores'])} | {row['labels']} | "
            f"{format_duration(row['seconds'])} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    config = cli.parse(ConcurrentConfig, argv, description=(__doc__ or "").splitlines()[0])
    # The same experiment may later have more seeds and more arms.
    settle(config, "seeds", "arms")
    pipeline = Pipeline(config.out, config.max_minutes)
    comparison = Comparison(config, pipeline)
    status = 0
    try:
        comparison.run()
    except TimeUp:
        status = TIME_IS_UP
    rows = comparison.collect()
    if rows:
        page = table(config, rows)
        (config.out / "concurrent.md").write_text(page)
        print(f"\n{page}\n{config.out}/concurrent.md, results.jsonl")
    return status


if __name__ == "__main__":
    cli.run(main)
