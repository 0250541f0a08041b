#!/usr/bin/env python3
"""The whole wheel once, on real Seaquest and a CPU: train, record, label, fit, finetune, play.

Each stage is run as a user would type it, and what it makes lies in a folder. The same command goes on where the last one was
stopped; delete the folder to start over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib import cli
from lib.cli import flag

TEACHER = "midwater"


@dataclass(frozen=True)
class DemoConfig:
    """How to turn the wheel."""

    out: Path = flag(default=Path("demo-out"), help="folder for everything the demo makes")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    v0_steps: int = flag(default=200_000, min=1, help="steps of training on the game's score")
    v1_steps: int = flag(default=120_000, min=1, help="steps of finetuning on the learned reward")
    labels: int = flag(default=250, min=10, help="pairs that the simulated teacher compares")
    games: int = flag(default=20, min=2, help="full games behind each row of the table")


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(DemoConfig, argv, description=__doc__)
    from experiments.rounds import answered  # after the flags: --help need not wait for it
    from experiments.stages import Resumable, Stages, settle

    out, runs, db = config.out, config.out / "runs", config.out / "db"
    v0, v1, reward = out / "v0" / "latest.dat", out / "v1" / "latest.dat", out / "rewards" / "reward-demo.dat"
    settle(config, out, free=("out",))
    stages = Stages(out)
    seed = ("--seed", config.seed)
    games = ("--eval-games", config.games)

    stages.run(
        "v0",
        "1. An agent learns on the game's score, and clips of its play are recorded",
        (
            *("01_a2c.py", "-n", "demo-v0", "--steps", config.v0_steps, "--eval-every", config.v0_steps),
            *(*games, *seed, "--save", v0.parent, "--runs", runs / "v0"),
            *("--db-path", db, "--record-prob", 0.003),
        ),
        makes=[v0.parent, runs / "v0", db],
        again=Resumable(("01_a2c.py",), runs / "v0"),
    )
    missing = config.labels - answered(db)
    if missing > 0 or stages.done("labels"):
        stages.run(
            "labels",
            f"2. A simulated teacher compares pairs of clips: it likes the submarine in {TEACHER}, and errs in 10 %",
            (
                *("02_label_ui.py", "-d", db, "--teacher", TEACHER, "--error-rate", 0.1, *seed),
                *("--count", missing),
            ),
        )
    stages.run(
        "fit",
        "3. A reward model is fitted to the comparisons",
        ("03_reward_train.py", "-n", "demo", "-o", reward.parent, db, *seed, "--runs", runs / "fit"),
        makes=[reward, runs / "fit"],
        again=Resumable(("03_reward_train.py",), runs / "fit"),
    )
    stages.run(
        "v1",
        "4. The agent is finetuned on the learned reward; the score is never shown to it",
        (
            *("01_a2c.py", "-n", "demo-v1", "-m", v0, "-r", reward, "--finetune", "--lr", 3e-4),
            *("--steps", config.v1_steps, "--eval-every", config.v1_steps),
            *(*games, *seed, "--save", v1.parent, "--runs", runs / "v1"),
        ),
        makes=[v1.parent, runs / "v1"],
        again=Resumable(("01_a2c.py",), runs / "v1"),
    )
    for name, model in (("v0", v0), ("v1", v1)):
        videos = out / "videos" / name
        stages.run(
            f"videos of {name}",
            f"5. Watch {name} play, with the learned reward drawn under the picture",
            ("04_play.py", "-m", model, "-n", 1, "-r", videos, "--reward", reward, *seed),
            makes=[videos],
        )
    _report(config, {"v0 (score)": v0, "v1 (learned reward)": v1}, stages.seconds)


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
    print(
        f"\n{TEACHER}: 1 is half-way between the surface and the sea bed, 0 is either of them; that is what was taught.\n"
        f"videos {out}/videos   curves: tensorboard --logdir {out}/runs   clips and labels {out}/db\n"
        f"{format_duration(seconds)} in all. Now with your own labels:\n"
        f"  make label DB={out}/db\n"
        f"  ./03_reward_train.py -n mine -o {out}/rewards {out}/db\n"
        f"  ./01_a2c.py -n mine -m {out}/v0/latest.dat -r {out}/rewards/reward-mine.dat --finetune --algo ppo "
        f"--lr 1e-4 --kl 1 --critic-warmup 10 --steps {config.v1_steps} --save {out}/mine"
    )


if __name__ == "__main__":
    cli.run(main)
