"""A skill from comparisons, on Seaquest and two cores: surfacing for air, which training on the score does not teach.

Clips fork from moments of v0's play at which it is low on air. A simulated teacher compares clips of one moment, and errs
in a tenth of its comparisons. v0 is fitted to them (DPO), without the score, and goes on as before in its ordinary play. The same
command continues after the last finished stage; delete the folder to start over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    record_steps: int = flag(default=150_000, min=1, help="steps of play to fork clips from")
    labels: int = flag(default=300, min=10, help="comparisons by the teacher")
    games: int = flag(default=20, min=2, help="full games that each policy is measured by")


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(AirConfig, argv, description=__doc__)
    out, seed, dev = config.out, config.seed, config.dev
    settle(config, out, ())
    db, play, pipeline = out / "db", out / "play", Pipeline(out)
    record_forks(
        pipeline,
        "1. v0 plays; where it is low on air, four clips continue from one moment, each holding an action of its own",
        name="forks",
        model=config.model,
        db_path=db,
        steps=config.record_steps,
        record_prob=0.0,
        event_kinds="alarm",
        seed=seed,
        dev=dev,
        runs=out / "runs" / "forks",
    )
    record(
        pipeline,
        "Ordinary play of v0, clips of which are kept as they are",
        TrainConfig(
            name="play",
            model=config.model,
            db_path=play,
            record_only=True,
            num_envs=16,
            steps=40_000,
            record_prob=0.01,
            seed=seed,
            dev=dev,
            runs=out / "runs" / "play",
        ),
    )
    compare(pipeline, "labels", db, config.labels, seed, number="2. ")
    v1 = pipeline.fit(
        "v1",
        "3. v0 is fitted to the comparisons: what was done in the first 25 steps of the better clips (DPO)",
        FitConfig(
            dbs=[db],
            name="v1",
            out=out,
            keep=play,
            policy=config.model,
            steps=25,
            beta=0.03,
            lr=3e-4,
            error_rate=0.2,
            epochs=25,
            seed=seed,
            dev=dev,
            runs=out / "runs" / "v1",
        ),
    )
    rows: dict[str, dict[str, list[float]]] = {}
    for name, model in {"v0": config.model, "v1": v1}.items():
        measured = MeasureConfig(model=model, out=out / f"{name}.json", games=config.games, dev=dev)
        pipeline.measure(f"games of {name}", f"4. {config.games} full games of {name}", measured)
        rows[name] = json.loads(measured.out.read_text())["games"]
    print(table(rows, config.games))


def record_forks(pipeline: Pipeline, title: str, **settings: Any) -> None:
    """Records four continuations each of moments at random and at events; the settings are those of `TrainConfig`."""
    held: dict[str, Any] = {"hold_prob": 0.02, "hold_shortest": 12, "hold_longest": 40}
    forks: dict[str, Any] = {"record_only": True, "fork": 4, "num_envs": 16, "event_prob": 1.0}
    record(pipeline, title, TrainConfig(**forks | held | settings))


def record(pipeline: Pipeline, title: str, config: TrainConfig) -> None:
    """Records clips of a policy's play."""

    def work(_: Path | None) -> bool:
        from lib.training.train import train

        return train(config).stopped

    assert config.db_path is not None
    pipeline.run(config.name, title, "01_a2c.py", config, work, [config.db_path, config.runs])


def compare(
    pipeline: Pipeline, name: str, db: Path, labels: int, seed: int, number: str = "", teacher: str = "air"
) -> None:
    """Has a simulated teacher compare clips of one moment."""
    pipeline.label(
        name,
        f"{number}A simulated teacher compares clips of one moment, and errs in a tenth of its comparisons",
        *(db, teacher, labels),
        error_rate=0.1,
        seed=seed,
        strategy="fork",
        random_share=0.0,
    )


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
