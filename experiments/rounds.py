"""The original's experiment in one command: v0 learns on the score, v1 to v3 from comparisons, each from the one before.

`learn_from_comparisons` is the whole algorithm. Ends in rounds.md, rounds.svg and videos.

    .venv/bin/python -m experiments.rounds [--preset gpu] [--seed 0] [--out FOLDER] [--max-minutes 9]
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.measure_config import MeasureConfig
from experiments.pipeline import Pipeline, by_preset, fill_in, max_minutes, settle
from lib import cli
from lib.agent.config import TrainConfig
from lib.agent.play_config import PlayConfig
from lib.checkpoints import load_checkpoint
from lib.cli import flag
from lib.reporting import format_duration, format_mean
from lib.reward.config import FitConfig
from online import record_prob

PRESETS: dict[str, dict[str, Any]] = {
    # Within an hour on two cores.
    "cpu": {
        "dev": "cpu",
        "v0_steps": 600_000,
        "steps": 200_000,
        "eval_every": 50_000,
        "eval_games": 10,
        "games": 20,
        "finetune": {"algo": "ppo", "lr": 1e-4, "kl": 1.0, "critic_warmup": 10},
    },
    # The original's budget.
    "gpu": {
        "dev": "cuda",
        "v0_steps": 12_000_000,
        "steps": 2_000_000,
        "eval_every": 250_000,
        "eval_games": 20,
        "games": 30,
        "finetune": {"algo": "ppo", "lr": 1e-4, "kl": 1.0, "critic_warmup": 20},
    },
}
"""Defaults of the flags that depend on --preset."""

ORIGINAL = {0: (460, 580), 1: (900, 1120), 2: (860, 1083), 3: (1820, 1613)}
"""The original's table: points and steps of the best of ten single lives, by version."""
SB3_SCORE = 1721
"""Mean score of Stable-Baselines3's A2C after 10 M steps on the true score (its zoo's benchmark)."""

_V0_EVALUATIONS = 4
_GAME = "SeaquestNoFrameskip-v4"


@dataclass(frozen=True)
class RoundsConfig:
    """How much of everything. What is None by default depends on --preset."""

    preset: str = flag(
        group="most used",
        default="cpu",
        choices=tuple(PRESETS),
        help="cpu: within an hour; gpu: the original's budget",
    )
    out: Path = flag(default=Path("runs/rounds"), help="folder for everything the experiment makes")
    env: str = flag("-e", default=_GAME, help="environment")
    rounds: int = flag(default=3, min=1, help="finetunes, each starting from the last")
    labels: int = flag(default=100, min=2, help="pairs that the teacher compares in each round")
    teacher: str = flag(default="seaquest", help="who compares; see 02_label_ui.py --teacher")
    dev: str = flag(default=None, help=by_preset(PRESETS, "device of the networks", "dev"))
    seed: int = flag(default=0, min=0, help="seed of every stage")
    max_minutes: float | None = max_minutes()

    v0_steps: int = flag(
        group="task and data",
        default=None,
        min=1,
        help=by_preset(PRESETS, "steps of v0 on the score", "v0_steps"),
    )
    steps: int = flag(default=None, min=1, help=by_preset(PRESETS, "steps of each finetune", "steps"))
    segments: int = flag(
        default=1000, min=4, help="approximate number of clips recorded during each version's training"
    )
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong clip")

    eval_every: int = flag(
        group="evaluation",
        default=None,
        min=1,
        help=by_preset(PRESETS, "steps between evaluations of a finetune", "eval_every"),
    )
    eval_games: int = flag(default=None, min=1, help=by_preset(PRESETS, "full games of each", "eval_games"))
    games: int = flag(
        default=None, min=2, help=by_preset(PRESETS, "full games behind each row of the table", "games")
    )
    lives: int = flag(
        default=10, min=1, help="single lives, of which the best counts, as in the original's table"
    )

    train_v0: dict[str, Any] = flag(
        group="flags of the scripts",
        default={},
        of=TrainConfig,
        formerly="v0_flags",
        help="more flags of 01_a2c.py for v0",
    )
    fit: dict[str, Any] = flag(
        default={"ensemble": 3, "frame_stride": 10},
        of=FitConfig,
        formerly="fit_flags",
        help="more flags of 03_reward_train.py",
    )
    finetune: dict[str, Any] = flag(
        default=None,
        of=TrainConfig,
        formerly="finetune_flags",
        help=by_preset(PRESETS, "more flags of 01_a2c.py for the finetunes", "finetune"),
    )

    def __post_init__(self) -> None:
        fill_in(self, PRESETS)


def shares(labels: int, round: int) -> list[int]:
    """How many pairs of each DB are compared in a round: half of the newest DB's, the rest evenly of the older ones'.

    Args:
      labels: of the round.
      round: from 1; there are so many DBs, v0's first.

    Returns:
      Of each DB, oldest first; they add up to `labels`.
    """
    older = round - 1
    if older == 0:
        return [labels]
    rest = labels // 2
    # Where they do not come out even, the newer ones have one more.
    return [*((rest + at) // older for at in range(older)), labels - rest]


@dataclass(frozen=True)
class Version:
    """A policy and what is kept of it."""

    out: Path
    """Folder of the experiment."""
    number: int

    @property
    def policy(self) -> Path:
        """Where its training ended: choosing by score would use the score."""
        return self.out / f"v{self.number}" / "latest.dat"

    @property
    def segments(self) -> Path:
        """DB of segments of its training, with their labels."""
        return self.out / "db" / f"v{self.number}"

    @property
    def curves(self) -> Path:
        """TensorBoard curves of its training."""
        return self.out / "runs" / f"v{self.number}"

    @property
    def labels(self) -> int:
        """Comparisons that its round's reward model was fitted to, all of them so far; 0 for v0."""
        reward = self.out / "rewards" / f"reward-r{self.number}.dat"
        return load_checkpoint(reward, "reward")["parents"]["labels"] if self.number else 0

    @property
    def measures(self) -> Path:
        """What `experiments.measures` found."""
        return self.out / "measures" / f"v{self.number}.json"


def learn_from_comparisons(config: RoundsConfig, pipeline: Pipeline) -> list[Version]:
    """Deep reinforcement learning from human preferences (Christiano et al. 2017, section 2.2), in rounds.

    Segments σ of a policy π's play are recorded. A teacher compares pairs of them, which makes a database D of triples
    (σ¹, σ², μ). A reward estimate r̂ is fitted to D. π is trained on r̂, and recorded. And again. The paper does all of it
    at once (online.py); here each ends before the next begins.

    Returns:
      v0 and the version of each round.

    Raises:
      TimeUp, UserError, KeyboardInterrupt: see `Pipeline.run`.
    """
    versions = [Version(config.out, number) for number in range(config.rounds + 1)]
    v0 = versions[0]
    for version in versions:
        round, steps = version.number, config.steps if version.number else config.v0_steps
        everywhere: dict[str, Any] = {"dev": config.dev, "seed": config.seed}
        training: dict[str, Any] = {
            **everywhere,
            "name": f"v{round}",
            "env": config.env,
            "steps": steps,
            "eval_games": config.eval_games,
            "save": version.policy.parent,
            "runs": version.curves,
            "db_path": version.segments,
            "record_prob": record_prob(config.segments, steps),
        }
        if round == 0:
            # Train: π learns on the game's score, which is never used again.
            reward = None
            training |= {"eval_every": max(1, steps // _V0_EVALUATIONS), **config.train_v0}
            pipeline.train("v0", "v0 learns on the score", TrainConfig(**training))
        else:
            # Ask: pairs (σ¹, σ²) of the newest play and of older play are compared, which adds (σ¹, σ², μ) to D.
            for older, share in zip(versions, shares(config.labels, round), strict=False):
                pipeline.label(
                    f"labels-{round}-v{older.number}",
                    f"round {round}: {share} pairs of v{older.number}'s play are compared",
                    older.segments,
                    config.teacher,
                    labels=sum(
                        shares(config.labels, k)[older.number] for k in range(older.number + 1, round + 1)
                    ),
                    error_rate=config.error_rate,
                    seed=config.seed + round,
                )
            # Fit: r̂ minimises the cross-entropy of μ and P(σ¹ ≻ σ²) = exp Σ r̂(σ¹) ÷ (exp Σ r̂(σ¹) + exp Σ r̂(σ²)) over D.
            reward = pipeline.fit(
                f"r{round}",
                f"round {round}: a reward model is fitted to all comparisons",
                FitConfig(
                    dbs=[older.segments for older in versions[:round]],
                    name=f"r{round}",
                    out=config.out / "rewards",
                    runs=config.out / "runs" / f"r{round}",
                    **everywhere | config.fit,
                ),
            )
            # Finetune: π maximises Σ r̂ − β KL(π ‖ π of the round before), and its play is recorded.
            training |= {"model": versions[round - 1].policy, "reward": reward, "finetune": True}
            training |= {"teacher": config.teacher, "eval_every": config.eval_every, **config.finetune}
            pipeline.train(
                f"v{round}", f"v{round} learns on the reward of round {round}", TrainConfig(**training)
            )
        # Measure: full games and single lives, with the score that π never saw.
        pipeline.measure(
            f"measures-v{round}",
            f"v{round} is measured: {config.games} full games, {config.lives} single lives",
            MeasureConfig(
                model=version.policy,
                out=version.measures,
                env=config.env,
                games=config.games,
                lives=config.lives,
                reference=v0.policy,
                reward=reward,
                **everywhere,
            ),
        )
        pipeline.play(
            f"videos-v{round}",
            f"v{round} plays for the camera",
            PlayConfig(
                model=version.policy,
                env=config.env,
                games=1,
                record=config.out / "videos" / f"v{round}",
                reward=reward,
                **everywhere,
            ),
        )
    return versions


def table(
    config: RoundsConfig, measured: Sequence[dict[str, Any]], labels: Sequence[int], seconds: float
) -> str:
    """The page of results.

    Args:
      config: of the experiment.
      measured: what `experiments.measures` found, v0 first.
      labels: that each version comes from.
      seconds: what the experiment took.
    """
    original = config.env == _GAME
    lines = [
        f"{config.v0_steps:,} steps on the score, then {config.rounds} × {config.steps:,} on what at most {config.labels} labels a "
        f"round say (teacher `{config.teacher}`, {config.error_rate:.0%} errors), seed {config.seed}. Versions are where "
        f"their training ended. Means of {config.games} full games ± 95 %. {format_duration(seconds)} in all.",
        "",
        f"| | labels | best of {config.lives} single lives | {'the original | ' if original else ''}score, full games | "
        f"steps a game | refuels a game | rescues a game | learned return | KL to v0 |",
        "|---|" + "---|" * (9 if original else 8),
    ]
    for version, found in enumerate(measured):
        lives, games = found["lives"], found["games"]
        best = max(range(len(lives["scores"])), key=lambda life: lives["scores"][life])
        points, length = ORIGINAL.get(version, (None, None))
        cells = [
            f"v{version}",
            str(labels[version]),
            f"{lives['scores'][best]:,.0f} in {lives['steps'][best]:,} steps",
            *([f"{points:,} in {length:,} steps" if points else "–"] if original else []),
            format_mean(games["score"], 0 if original else 1),
            format_mean(games["steps"], 0),
            *(format_mean(games[name], 2) if name in games else "–" for name in ("refuels", "rescues")),
            format_mean(games["learned"], 1) if "learned" in games else "–",
            format_mean(games["kl"], 3) if version else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if original:
        first, last = measured[0], measured[-1]
        lines += [
            "",
            f"v{len(measured) - 1} against the original's v3, best of {config.lives} and of ten single lives: "
            f"{max(last['lives']['scores']):,.0f} and {ORIGINAL[3][0]:,}. Its mean over full games against "
            f"Stable-Baselines3's A2C after 10 M steps on the true score: {format_mean(last['games']['score'], 0)} and "
            f"{SB3_SCORE:,}. Refuels a game, v0 and v{len(measured) - 1}: {format_mean(first['games']['refuels'], 2)} and "
            f"{format_mean(last['games']['refuels'], 2)}.",
        ]
    lines += [
        "",
        "The learned return of each version is that of its own round's reward model; they have no common unit.",
    ]
    return "\n".join(lines) + "\n"


def report(config: RoundsConfig, versions: Sequence[Version], seconds: float) -> str:
    """Writes rounds.md and rounds.svg.

    Returns:
      The page.
    """
    from experiments.curves import COLOURS, Line, read_curves, write_chart  # TensorBoard takes long to import

    measured = [json.loads(version.measures.read_text()) for version in versions]
    titles = {
        "score": "score (± 95 %)",
        "learned": "learned return, each by its own reward model",
        "kl": "KL to the policy that the round began with",
        "preferred": "clips preferred to those that the round began with",
    }
    panels: dict[str, list[Line]] = {title: [] for title in titles.values()}
    began = 0
    for version in versions:
        found = read_curves(version.curves)
        for name, title in titles.items():
            if name in found:
                steps, values = found[name]
                half = found["interval"].values if name == "score" else None
                panels[title].append(
                    Line(steps + began, values, half, COLOURS[version.number % len(COLOURS)])
                )
        began += config.v0_steps if version.number == 0 else config.steps
    kinds = {COLOURS[version]: f"v{version}" for version in range(min(len(COLOURS), config.rounds + 1))}
    write_chart(config.out / "rounds.svg", panels, kinds)
    page = table(config, measured, [version.labels for version in versions], seconds)
    (config.out / "rounds.md").write_text(page)
    return page


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(RoundsConfig, argv, description=(__doc__ or "").splitlines()[0])
    settle(config)
    pipeline = Pipeline(config.out, config.max_minutes)
    versions = learn_from_comparisons(config, pipeline)
    print("\n" + report(config, versions, pipeline.seconds))
    print(f"{config.out}/rounds.md, rounds.svg, videos/; curves: tensorboard --logdir {config.out}/runs")


if __name__ == "__main__":
    cli.run(main)
