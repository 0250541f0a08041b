"""A skill from comparisons, on Seaquest and two cores: surfacing for air, which training on the score does not teach.

In each round, clips fork from moments of the newest policy's play at which it is low on air. A simulated teacher compares clips of one
moment, and errs in a tenth of its comparisons. v0 is fitted to all comparisons so far (DPO), without the score, and goes on as
before in its ordinary play where there is air: v1, v2, v3. With `--score-steps` v3 learns on by PPO from the score and the reward that it implies, beside
a control, v0 by as many steps on the score alone. The same command continues after the last finished stage, and may ask for more
rounds; delete the folder to start over.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.measure_config import MeasureConfig
from experiments.pipeline import Pipeline, settle
from lib import cli
from lib.agent.config import TrainConfig
from lib.checkpoints import load_checkpoint
from lib.cli import flag
from lib.reward.config import FitConfig

COLUMNS = {"score": 0, "refuels": 2, "pickups": 2, "steps": 0}
"""Of the table, with their decimals."""
LONG_PPO: dict[str, Any] = {"algo": "ppo", "lr": 2.5e-4, "gamma": 0.999, "rollout": 128, "minibatches": 8}
"""PPO with a horizon of several tanks, each of 512 steps; with `critic_warmup` the critic first learns what air is worth."""
_PAIRS_FITTED = 8000
"""Labels × epochs of each fit, so that all make as many updates."""


@dataclass(frozen=True)
class AirConfig:
    """How much of everything."""

    out: Path = flag(default=Path("air-out"), help="folder for everything it makes")
    model: Path = flag("-m", default=Path("examples/seaquest/a2c.dat"), metavar="FILE", help="v0")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of every stage")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    rounds: int = flag(default=3, min=1, help="rounds of recording, comparisons and a fit")
    record_steps: int = flag(default=80_000, min=1, help="steps of play to fork clips from, in each round")
    labels: int = flag(default=100, min=10, help="comparisons by the teacher, in each round")
    hold_prob: float = flag(
        default=0.0,
        min=0,
        max=1,
        help="chance per step that an action is held in the play that clips fork from",
    )
    beta: float = flag(default=0.01, min=1e-6, help="price of moving away from v0, in the fits")
    epochs: int = flag(
        default=0,
        min=0,
        help="times that each fit goes through its comparisons; 0: through 8,000 in all",
    )
    nll_weight: float = flag(
        default=0.0, min=0, help="--nll-weight of the fits: makes what was done in better clips likelier"
    )
    keep_where: str = flag(
        default="oxygen=0.5:1",
        metavar="PROBE=MIN:MAX",
        help="steps of v0's ordinary play in which it goes on as before; '': all",
    )
    score_steps: int = flag(
        default=0,
        min=0,
        help="steps of PPO on the score and the reward that the last fit implies, in three parts, and of the control; 0: none",
    )
    games: int = flag(default=20, min=2, help="full games that each policy is measured by")


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(AirConfig, argv, description=__doc__)
    if not config.out.exists():  # a mistyped name makes no folder
        load_checkpoint(config.model, "policy")
    settle(config, "rounds", "score_steps")
    print(table(learn(config, Pipeline(config.out)), config.games))


def learn(config: AirConfig, pipeline: Pipeline) -> dict[str, dict[str, list[float]]]:
    """All stages that are not done.

    Returns:
      The measures of each policy's games, by name.
    """
    out, seed, dev = config.out, config.seed, config.dev
    play, newest, dbs = out / "play", config.model, list[Path]()
    record(
        pipeline,
        "v0 plays; clips by chance say what is to stay as it is",
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
    versions = {"v0": config.model}
    for round in range(1, config.rounds + 1):
        name, db = f"v{round}", out / f"db{round}"
        record_forks(
            pipeline,
            f"{round}. v{round - 1} plays; where it is low on air, four clips continue from one moment, each holding an action",
            name=f"forks-{round}",
            model=newest,
            db_path=db,
            steps=config.record_steps,
            record_prob=0.0,
            event_kinds="alarm",
            hold_prob=config.hold_prob,
            seed=seed,
            dev=dev,
            runs=out / "runs" / f"forks-{round}",
        )
        compare(pipeline, f"labels-{round}", db, config.labels, seed)
        dbs.append(db)
        newest = pipeline.fit(
            name,
            "v0 is fitted to all comparisons: what was done in the first 25 steps of the better clips (DPO)",
            FitConfig(
                dbs=list(dbs),
                name=name,
                out=out,
                policy=config.model,
                keep=play,
                keep_where=config.keep_where or None,
                steps=25,
                beta=config.beta,
                nll_weight=config.nll_weight,
                lr=3e-4,
                error_rate=0.2,
                epochs=config.epochs or -(-_PAIRS_FITTED // (config.labels * len(dbs))),
                seed=seed,
                dev=dev,
                runs=out / "runs" / name,
            ),
        )
        versions[name] = newest
    if config.score_steps:
        # Their names hold their steps, because the same folder may be asked for others, or for another round.
        last = f"v{config.rounds}"
        later, control = f"{last}-{config.score_steps}", f"control-{config.score_steps}"
        implied = out / f"reward-{last}.dat"
        title = f"{last} learns on from the score and the reward that it implies"
        versions[later] = learn_on(config, pipeline, later, title, newest, implied)
        title = "The control: v0 learns on from the score"
        versions[control] = learn_on(config, pipeline, control, title, config.model)
    return {
        name: games(
            pipeline, name, MeasureConfig(model=model, out=out / f"{name}.json", games=config.games, dev=dev)
        )
        for name, model in versions.items()
    }


def learn_on(
    config: AirConfig, pipeline: Pipeline, name: str, title: str, model: Path, implied: Path | None = None
) -> Path:
    """PPO by `LONG_PPO` from the score, and from what a fit implies beside it, in three parts of as many steps.

    The implied reward holds the skill in the first, until the critic knows what air is worth. In full its return would go on
    rising at the cost of the score, so a quarter is paid from then on, with less exploration. The rate falls to a half in the
    first part and from there to 0 in the second, and once more in the third.
    """
    steps = -(-config.score_steps // 3)
    slow = {"lr": LONG_PPO["lr"] / 2, "entropy": 0.003, "critic_warmup": 5, "lr_decay_steps": steps}
    parts: list[tuple[str, float, dict[str, Any]]] = [
        (
            "the rate falls to a half",
            0.08,
            {"entropy": 0.01, "critic_warmup": 40, "lr_decay_steps": 2 * steps},
        ),
        ("and to 0, with less entropy", 0.02, slow),
        ("and once more", 0.02, slow),
    ]
    for number, (how, scale, settings) in enumerate(parts, 1):
        part = f"{name}-{number}"
        paid: dict[str, Any] = {"reward": implied, "score_weight": 1.0, "reward_scale": scale}
        model = pipeline.train(
            part,
            f"{title}; {how}",
            TrainConfig(
                name=part,
                model=model,
                save=config.out / part,
                steps=steps,
                num_envs=32,
                epochs=2,
                hold_prob=0.003,
                eval_every=steps // 3,
                eval_games=16,
                seed=config.seed,
                dev=config.dev,
                runs=config.out / "runs" / part,
                **LONG_PPO | settings,
                **(paid if implied else {}),
            ),
        )
    return model


def games(pipeline: Pipeline, name: str, config: MeasureConfig) -> dict[str, list[float]]:
    """Full games of a policy: what `experiments.measures` finds of each, by its name."""
    pipeline.measure(f"games of {name}", f"{config.games} full games of {name}", config)
    found: dict[str, list[float]] = json.loads(config.out.read_text())["games"]
    return found


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


def compare(pipeline: Pipeline, name: str, db: Path, labels: int, seed: int, teacher: str = "air") -> None:
    """Has a simulated teacher compare clips of one moment."""
    pipeline.label(
        name,
        "A simulated teacher compares clips of one moment, and errs in a tenth of its comparisons",
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
