#!/usr/bin/env python3
"""The whole pipeline once, on real Seaquest and a CPU: train, record, label, fit, finetune, play.

The command of each stage is printed. The same command continues where the last one was stopped; delete the folder to start
over.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.pipeline import Pipeline, settle
from lib import cli
from lib.agent.config import TrainConfig
from lib.agent.play_config import PlayConfig
from lib.cli import flag
from lib.reward.config import FitConfig

TEACHER = "midwater"
FINETUNE: dict[str, Any] = {"finetune": True, "algo": "ppo", "lr": 2.5e-4, "critic_warmup": 5}
"""A critic that is not warmed up knows the score and no learned reward yet, and may call every action bad."""


@dataclass(frozen=True)
class DemoConfig:
    """How much of everything."""

    out: Path = flag(default=Path("demo-out"), help="folder for everything the demo makes")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    v0_steps: int = flag(default=200_000, min=1, help="steps of training on the game's score")
    v1_steps: int = flag(default=120_000, min=1, help="steps of finetuning on the learned reward")
    labels: int = flag(default=250, min=10, help="pairs that the simulated teacher compares")
    games: int = flag(default=20, min=2, help="full games behind each row of the table")


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(DemoConfig, argv, description=__doc__)
    out, runs, db, seed = config.out, config.out / "runs", config.out / "db", config.seed
    settle(config)
    pipeline = Pipeline(out)
    v0 = pipeline.train(
        "v0",
        "1. An agent learns on the game's score, and clips of its play are recorded",
        TrainConfig(
            name="demo-v0",
            num_envs=64,  # quicker than 16, which learn more only later than this; so is the small network
            network="small",
            steps=config.v0_steps,
            eval_every=config.v0_steps,
            eval_games=config.games,
            seed=seed,
            save=out / "v0",
            runs=runs / "v0",
            db_path=db,
            record_prob=0.003,
        ),
    )
    pipeline.label(
        "labels",
        f"2. A simulated teacher compares pairs of clips: it likes the submarine in {TEACHER}, and errs in 10 % of its comparisons",
        db,
        TEACHER,
        config.labels,
        error_rate=0.1,
        seed=seed,
    )
    reward = pipeline.fit(
        "fit",
        "3. A reward model is fitted to the comparisons",
        FitConfig(dbs=[db], name="demo", out=out / "rewards", seed=seed, runs=runs / "fit"),
    )
    v1 = pipeline.train(
        "v1",
        "4. The agent is finetuned on the learned reward; the score is never shown to it",
        TrainConfig(
            name="demo-v1",
            model=v0,
            reward=reward,
            steps=config.v1_steps,
            eval_every=config.v1_steps,
            eval_games=config.games,
            seed=seed,
            save=out / "v1",
            runs=runs / "v1",
            **FINETUNE,
        ),
    )
    for name, model in (("v0", v0), ("v1", v1)):
        pipeline.play(
            f"videos of {name}",
            f"5. Watch {name} play, with the learned reward drawn under the picture",
            PlayConfig(model=model, games=1, record=out / "videos" / name, reward=reward, seed=seed),
        )
    _report(config, {"v0 (score)": v0, "v1 (learned reward)": v1}, pipeline.seconds)


def _report(config: DemoConfig, models: dict[str, Path], seconds: float) -> None:
    from lib.checkpoints import load_checkpoint
    from lib.reporting import format_duration, format_mean

    print(
        f"\n{'':22}{'score':>16}{TEACHER:>18}{'steps a game':>18}   ({config.games} full games, mean ± 95 %)"
    )
    for name, path in models.items():
        games = load_checkpoint(path, "policy")["evaluation"]
        cells = [
            format_mean(games[column], digits)
            for column, digits in (("scores", 0), (TEACHER, 3), ("steps", 0))
        ]
        print(f"{name:22}{cells[0]:>16}{cells[1]:>18}{cells[2]:>18}")
    out = config.out
    mine = TrainConfig(
        name="mine",
        model=out / "v0" / "latest.dat",
        reward=out / "rewards" / "reward-mine.dat",
        steps=config.v1_steps,
        save=out / "mine",
        **FINETUNE,
    )
    print(
        f"\n{TEACHER}: 1 is half-way between the surface and the sea bed, 0 is at either of them; that is what was taught.\n"
        f"videos {out}/videos   curves: tensorboard --logdir {out}/runs   clips and labels {out}/db\n"
        f"{format_duration(seconds)} in all. Now with your own labels:\n"
        f"  cp -r {out}/db {out}/db-mine && rm {out}/db-mine/labels.json\n"
        f"  make label DB={out}/db-mine\n"
        f"  ./03_reward_train.py -n mine -o {out}/rewards {out}/db-mine\n"
        f"  ./01_a2c.py {shlex.join(cli.words(mine))}"
    )


if __name__ == "__main__":
    cli.run(main)
