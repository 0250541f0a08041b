"""A skill from comparisons, on Seaquest and two cores: surfacing for air, which training on the score does not teach.

Clips fork from moments of v0's play. A simulated teacher compares clips of one moment, and errs in a tenth of its
comparisons. v0 is fitted to them (DPO) and never sees the score. The same command continues after the last finished stage;
delete the folder to start over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.measures import MeasureConfig
from experiments.pipeline import Pipeline, settle
from lib import cli
from lib.agent.config import TrainConfig
from lib.cli import flag
from lib.reward.config import FitConfig

COLUMNS = {"score": 0, "refuels": 2, "pickups": 2, "steps": 0}
"""Of the table, with their decimals."""


@dataclass(frozen=True)
class AirConfig:
    """How much of everything."""

    out: Path = flag(default=Path("air-out"), help="folder for everything it makes")
    model: Path = flag("-m", default=Path("examples/seaquest/v0.dat"), metavar="FILE", help="v0")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of every stage")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    record_steps: int = flag(default=200_000, min=1, help="steps of play to fork clips from")
    labels: int = flag(default=1000, min=10, help="comparisons by the teacher")
    ppo_steps: int = flag(
        default=0,
        min=0,
        help="steps of PPO after that, on the score and a reward model of the same comparisons: v2; in the first 330k "
        "only the critic learns",
    )
    games: int = flag(default=20, min=2, help="full games that each policy is measured by")


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(AirConfig, argv, description=__doc__)
    out, seed, dev = config.out, config.seed, config.dev
    settle(config, out, ())
    db, pipeline = out / "db", Pipeline(out)
    record(pipeline, config, db)
    pipeline.label(
        "labels",
        "2. A simulated teacher compares clips of one moment, and errs in a tenth of its comparisons",
        db,
        "air",
        config.labels,
        error_rate=0.1,
        seed=seed,
        strategy="fork",
        random_share=0.0,
    )
    v1 = pipeline.fit(
        "v1",
        "3. v0 is fitted to the comparisons: what was done in the first 25 steps of the better clips (DPO)",
        FitConfig(
            dbs=[db],
            name="v1",
            out=out,
            policy=config.model,
            steps=25,
            beta=0.03,
            lr=3e-4,
            error_rate=0.2,
            epochs=6,
            seed=seed,
            dev=dev,
            runs=out / "runs" / "v1",
        ),
    )
    models = {"v0": config.model, "v1": v1}
    if config.ppo_steps:
        models["v2"] = finetune(pipeline, config, db, v1)
    rows: dict[str, dict[str, list[float]]] = {}
    last = 6 if config.ppo_steps else 4
    for name, model in models.items():
        measured = MeasureConfig(model=model, out=out / f"{name}.json", games=config.games, dev=dev)
        pipeline.measure(f"games of {name}", f"{last}. {config.games} full games of {name}", measured)
        rows[name] = json.loads(measured.out.read_text())["games"]
    print(table(rows, config.games))


def finetune(pipeline: Pipeline, config: AirConfig, db: Path, v1: Path) -> Path:
    """v1 learns on by PPO: from the score, as v0 did, and from what the comparisons say about air.

    The reward model is fitted to pairs in which both submarines survive. It pays a full tank some 2 standard deviations
    more than an empty one at every step, so its share is small: by estimate, a refuel is worth ten hits. A tank lasts 512
    steps; with γ = 0.999 a refuel is worth its risk, and with 0.995 the policy stops surfacing. Before the policy moves, the
    critic has to learn what a full tank is worth: until then a climb looks like hits missed.
    """
    reward = pipeline.fit(
        "reward",
        "4. A reward model is fitted to those comparisons in which no submarine is lost",
        FitConfig(
            dbs=[db],
            name="air",
            out=config.out,
            survived=True,
            half_frames=True,
            error_rate=0.2,
            seed=config.seed,
            dev=config.dev,
            runs=config.out / "runs" / "reward",
        ),
    )
    return pipeline.train(
        "v2",
        "5. PPO: v1 learns on the score and the learned reward",
        TrainConfig(
            name="v2",
            algo="ppo",
            model=v1,
            reward=reward,
            finetune=True,
            steps=config.ppo_steps,
            lr=2.5e-4,
            gamma=0.999,
            num_envs=64,
            rollout=128,
            entropy=0.002,
            kl=0.02,
            critic_warmup=40,
            score_weight=1.0,
            reward_offset=1.1,
            reward_scale=0.03,
            seed=config.seed,
            dev=config.dev,
            save=config.out / "v2",
            runs=config.out / "runs" / "v2",
        ),
    )


def record(pipeline: Pipeline, config: AirConfig, db: Path) -> None:
    """Four continuations each of moments at random, and of each 25th step low on air with a diver on board."""
    recording = TrainConfig(
        name="forks",
        record_only=True,
        fork=4,
        num_envs=16,
        model=config.model,
        db_path=db,
        steps=config.record_steps,
        record_prob=0.0015,
        event_prob=1.0,
        event_kinds="alarm",
        hold_prob=0.02,
        hold_shortest=12,
        hold_longest=40,
        seed=config.seed,
        dev=config.dev,
        runs=config.out / "runs" / "forks",
    )

    def work(_: Path | None) -> bool:
        from lib.training.train import train

        return train(recording).stopped

    title = "1. v0 plays; now and then four clips continue from one moment, each holding an action of its own"
    pipeline.run("forks", title, "01_a2c.py", recording, work, [db, recording.runs])


def table(rows: dict[str, dict[str, list[float]]], games: int) -> str:
    """What `experiments.measures` found of each policy, in Markdown."""
    from lib.reporting import format_mean

    lines = [f"\n{games} full games each, mean ± 95 %\n", f"| | {' | '.join(COLUMNS)} |"]
    lines.append("|---|" + "---:|" * len(COLUMNS))
    for name, figures in rows.items():
        cells = [format_mean(figures[column], digits) for column, digits in COLUMNS.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
