"""How many labels SAC needs if it relabels its replay, compared with no relabelling, PPO, and SAC on the score.

Labels arrive during training. Ends in relabelling.md.

    .venv/bin/python -m experiments.relabelling [--labels 100 400] [--seeds 3] [--out FOLDER] [--max-minutes 9]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.pipeline import Pipeline, max_minutes, settle
from lib import cli
from lib.agent.config import TrainConfig
from lib.checkpoints import load_checkpoint
from lib.cli import flag
from lib.reporting import format_mean
from online import TRAINER, OnlineConfig

ARMS = {
    "relabelled": "SAC, relabelled",
    "kept": "SAC, rewards kept as first paid",
    "ppo": "PPO",
    "score": "SAC on the score itself",
}


@dataclass(frozen=True)
class RelabellingConfig:
    """What to compare, at which budget."""

    out: Path = flag(
        group="most used", default=Path("runs/relabelling"), help="folder for everything the experiment makes"
    )
    env: str = flag("-e", default="Pendulum-v1", help="environment of continuous actions")
    arms: list[str] = flag(default=list(ARMS), choices=tuple(ARMS), metavar="ARM", help="methods to compare")
    labels: list[int] = flag(default=[100, 400], metavar="N", help="labels of each run")
    steps: int = flag(default=15_000, min=1, help="steps of training")
    seeds: int = flag(default=3, min=1, help="runs of each kind: seeds 0, 1, …")
    teacher: str = flag(default="score", help="who compares; see 02_label_ui.py --teacher")
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong clip")
    refits: int = flag(default=8, min=2, help="approximate number of fits of the reward model in a run")
    games: int = flag(default=20, min=2, help="full games behind each figure")
    max_minutes: float | None = max_minutes()

    sac: dict[str, Any] = flag(
        group="flags of the scripts",
        default={"num_envs": 8, "lr": 1e-3, "batch_size": 128, "replay_ratio": 0.4, "state_entropy": True},
        of=TrainConfig,
        help="more flags of 01_a2c.py for SAC",
    )
    ppo: dict[str, Any] = flag(
        default={"num_envs": 8, "lr": 1e-3, "rollout": 64, "gamma": 0.9, "entropy": 0.0, "critic_warmup": 2},
        of=TrainConfig,
        help="more flags of 01_a2c.py for PPO",
    )


def learn(config: RelabellingConfig, pipeline: Pipeline, arm: str, labels: int, seed: int) -> list[float]:
    """Scores of full games at the end of one run."""
    name = f"{arm}-{labels}-{seed}"
    folder = config.out / name
    title = f"{ARMS[arm]}{f', {labels} labels' if labels else ''}, seed {seed}"
    if arm == "score":
        flags = {key: value for key, value in config.sac.items() if key != "state_entropy"}
        training: dict[str, Any] = {
            "name": name,
            "env": config.env,
            "algo": "sac",
            "steps": config.steps,
            "seed": seed,
            "save": folder / "policy",
            "runs": folder / "runs",
            "eval_every": config.steps,
            "eval_games": config.games,
        }
        pipeline.train(name, title, TrainConfig(**training | flags))
    else:
        each = max(10, labels // config.refits)
        train = {"algo": "ppo"} | config.ppo if arm == "ppo" else {"algo": "sac"} | config.sac
        given = OnlineConfig(
            out=folder,
            env=config.env,
            seed=seed,
            teacher=config.teacher,
            error_rate=config.error_rate,
            steps=config.steps,
            labels=labels,
            opening_labels=2 * each,
            refit_every=each,
            segments=2 * labels,
            eval_every=config.steps,
            eval_games=config.games,
            train=train | {"wait_for_labels": each},
            fit={"ensemble": 3, "frame_stride": 1, "error_rate": min(0.99, 2 * config.error_rate)},
        )
        trainer = ("-m", "experiments.kept_rewards") if arm == "kept" else TRAINER
        pipeline.online(name, title, given, trainer)
    scores: list[float] = load_checkpoint(folder / "policy" / "latest.dat", "policy")["evaluation"]["scores"]
    return scores


def table(config: RelabellingConfig, means: dict[tuple[str, int], list[float]]) -> str:
    """The page of results.

    Args:
      config: of the experiment.
      means: by arm and labels, the mean score of each seed's games.
    """
    lines = [
        f"{config.env}, {config.steps:,} steps, teacher `{config.teacher}`, {config.error_rate:.0%} of labels wrong. Mean "
        f"score of {config.games} full games at the end: of each seed, and their mean ± 95 %.",
        "",
        "| | labels | seeds | mean |",
        "|---|---|---|---|",
    ]
    for (arm, labels), scores in means.items():
        each = ", ".join(f"{score:.0f}" for score in scores)
        lines.append(f"| {ARMS[arm]} | {labels or '–'} | {each} | {format_mean(scores, 0)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(RelabellingConfig, argv, description=(__doc__ or "").splitlines()[0])
    settle(config, "seeds", "arms", "labels")
    pipeline, means = Pipeline(config.out, config.max_minutes), dict[tuple[str, int], list[float]]()
    kinds = [(arm, labels) for arm in config.arms for labels in ([0] if arm == "score" else config.labels)]
    try:
        for seed in range(config.seeds):
            for arm, labels in kinds:
                scores = learn(config, pipeline, arm, labels, seed)
                means.setdefault((arm, labels), []).append(sum(scores) / len(scores))
    finally:
        if means:
            page = table(config, means)
            (config.out / "relabelling.md").write_text(page)
            print("\n" + page)


if __name__ == "__main__":
    cli.run(main)
