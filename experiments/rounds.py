"""The original's experiment in one command: v0 learns on the score, v1 to v3 from comparisons, each from the one before.

Every stage is a command of its own, as a user would type it. One that has ended is not run again, so the same command
goes on where the last one stopped. Ends in rounds.md, rounds.svg and videos.

    .venv/bin/python -m experiments.rounds [--preset gpu] [--seed 0] [--out FOLDER] [--max-minutes 9]
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.stages import TIME_IS_UP, Resumable, Stages, by_preset, fill_in, max_minutes, settle
from lib import cli
from lib.cli import flag
from lib.preferences.labels import LabelLog, current
from lib.reporting import format_duration, format_mean

PRESETS: dict[str, dict[str, Any]] = {
    # Within an hour on two cores.
    "cpu": {
        "dev": "cpu",
        "v0_steps": 600_000,
        "steps": 200_000,
        "eval_every": 50_000,
        "eval_games": 10,
        "games": 20,
        "finetune_flags": "--algo ppo --lr 1e-4 --kl 1 --critic-warmup 10",
    },
    # The original's budget.
    "gpu": {
        "dev": "cuda",
        "v0_steps": 12_000_000,
        "steps": 2_000_000,
        "eval_every": 250_000,
        "eval_games": 20,
        "games": 30,
        "finetune_flags": "--algo ppo --lr 1e-4 --kl 1 --critic-warmup 20",
    },
}
"""What the flags that depend on --preset are where they are not given."""

ORIGINAL = {0: (460, 580), 1: (900, 1120), 2: (860, 1083), 3: (1820, 1613)}
"""The original's table: points and steps of the best of ten single lives, by version."""
SB3_SCORE = 1721
"""Mean score of Stable-Baselines3's A2C after 10 M steps on the true score (its zoo's benchmark)."""

_V0_EVALUATIONS = 4
_GAME = "SeaquestNoFrameskip-v4"


@dataclass(frozen=True)
class RoundsConfig:
    """How much of everything. Flags that are None by default are filled in by --preset."""

    preset: str = flag(
        default="cpu", choices=tuple(PRESETS), help="cpu: within an hour; gpu: the original's budget"
    )
    out: Path = flag(default=Path("runs/rounds"), help="folder for everything the experiment makes")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    dev: str = flag(default=None, help=by_preset(PRESETS, "device of the networks", "dev"))
    env: str = flag("-e", default=_GAME, help="environment")
    rounds: int = flag(default=3, min=1, help="finetunes, each from the last")
    labels: int = flag(default=100, min=2, help="pairs that the teacher compares in each round")
    teacher: str = flag(default="seaquest", help="who compares; see 02_label_ui.py --teacher")
    error_rate: float = flag(
        default=0.1, min=0, max=1, help="how often the teacher prefers the wrong segment"
    )
    v0_steps: int = flag(default=None, min=1, help=by_preset(PRESETS, "steps of v0 on the score", "v0_steps"))
    steps: int = flag(default=None, min=1, help=by_preset(PRESETS, "steps of each finetune", "steps"))
    segments: int = flag(default=1000, min=4, help="segments recorded of each version's training, about")
    eval_every: int = flag(
        default=None, min=1, help=by_preset(PRESETS, "steps between evaluations of a finetune", "eval_every")
    )
    eval_games: int = flag(default=None, min=1, help=by_preset(PRESETS, "full games of each", "eval_games"))
    games: int = flag(
        default=None, min=2, help=by_preset(PRESETS, "full games behind each row of the table", "games")
    )
    lives: int = flag(
        default=10, min=1, help="single lives of which the best counts, as in the original's table"
    )
    v0_flags: str = flag(default="", metavar="FLAGS", help="further flags of 01_a2c.py for v0")
    fit_flags: str = flag(
        default="--ensemble 3 --frame-stride 10", metavar="FLAGS", help="further flags of 03_reward_train.py"
    )
    finetune_flags: str = flag(
        default=None,
        metavar="FLAGS",
        help=by_preset(PRESETS, "further flags of 01_a2c.py for the finetunes", "finetune_flags"),
    )
    max_minutes: float | None = max_minutes()

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


class Experiment:
    """The folders of one experiment, and its stages in their order."""

    def __init__(self, config: RoundsConfig, stages: Stages) -> None:
        self._config, self._stages, self._out = config, stages, config.out

    def policy(self, version: int) -> Path:
        """The policy of a version: where its training ended, so that no score has a say in it."""
        return self._out / f"v{version}" / "latest.dat"

    def db(self, version: int) -> Path:
        """Segments of a version's training."""
        return self._out / "db" / f"v{version}"

    def reward(self, round: int) -> Path:
        """The reward model that a round's finetune is paid by."""
        return self._out / "rewards" / f"reward-r{round}.dat"

    def measured(self, version: int) -> Path:
        """What was measured of a version."""
        return self._out / "measures" / f"v{version}.json"

    def curves(self, version: int) -> Path:
        """TensorBoard curves of a version's training."""
        return self._out / "runs" / f"v{version}"

    def videos(self, version: int) -> Path:
        """Videos of a version."""
        return self._out / "videos" / f"v{version}"

    def run(self) -> None:
        """All stages that are not done.

        Raises:
          TimeUp, UserError, KeyboardInterrupt: see `Stages.run`.
        """
        config = self._config
        every = max(1, config.v0_steps // _V0_EVALUATIONS)
        self._train(0, config.v0_steps, "--eval-every", every, *shlex.split(config.v0_flags))
        self._watch(0)
        for round in range(1, config.rounds + 1):
            self._label(round)
            self._fit(round)
            self._train(
                round,
                config.steps,
                *("-m", self.policy(round - 1), "-r", self.reward(round), "--finetune"),
                *("--teacher", config.teacher, "--eval-every", config.eval_every),
                *shlex.split(config.finetune_flags),
            )
            self._watch(round)

    def _train(self, version: int, steps: int, *flags: object) -> None:
        config, save = self._config, self.policy(version).parent
        record = f"{min(1.0, config.segments / steps):.3g}"
        self._stages.run(
            f"v{version}",
            f"v{version} learns on " + ("the score" if version == 0 else f"the reward of round {version}"),
            (
                *("01_a2c.py", "-n", f"v{version}", "-e", config.env, "--dev", config.dev),
                *("--seed", config.seed, "--steps", steps, "--save", save),
                *("--db-path", self.db(version), "--record-prob", record),
                *("--eval-games", config.eval_games, "--runs", self.curves(version)),
                *flags,
            ),
            makes=[save, self.db(version), self.curves(version)],
            again=Resumable(("01_a2c.py", "--dev", config.dev), self.curves(version)),
        )

    def _label(self, round: int) -> None:
        config = self._config
        for version, share in enumerate(shares(config.labels, round)):
            wanted = sum(shares(config.labels, k)[version] for k in range(version + 1, round + 1))
            # An attempt that was stopped may have given some of them.
            count = wanted - answered(self.db(version))
            name = f"labels-{round}-v{version}"
            if count > 0 or self._stages.done(name):
                self._stages.run(
                    name,
                    f"round {round}: {share} pairs of v{version}'s play are compared",
                    (
                        *("02_label_ui.py", "-d", self.db(version), "--teacher", config.teacher),
                        *("--count", count, "--error-rate", config.error_rate, "--seed", config.seed + round),
                    ),
                )

    def _fit(self, round: int) -> None:
        config, path = self._config, self.reward(round)
        runs = self._out / "runs" / f"r{round}"
        self._stages.run(
            f"r{round}",
            f"round {round}: a reward model is fitted to all comparisons",
            (
                *("03_reward_train.py", *map(self.db, range(round)), "-n", f"r{round}", "-o", path.parent),
                *("--dev", config.dev, "--seed", config.seed, "--runs", runs),
                *shlex.split(config.fit_flags),
            ),
            makes=[path, runs],
            again=Resumable(("03_reward_train.py", "--dev", config.dev), runs),
        )

    def _watch(self, version: int) -> None:
        config, path, videos = self._config, self.measured(version), self.videos(version)
        judge = ("--reward", self.reward(version)) if version else ()
        self._stages.run(
            f"measures-v{version}",
            f"v{version} is measured: {config.games} full games, {config.lives} single lives",
            (
                *("-m", "experiments.measures", "-m", self.policy(version), "-o", path),
                *("--games", config.games, "--lives", config.lives, "--reference", self.policy(0)),
                *("--dev", config.dev, "--seed", config.seed, *judge),
            ),
            makes=[path],
        )
        self._stages.run(
            f"videos-v{version}",
            f"v{version} plays for the camera",
            (
                *("04_play.py", "-m", self.policy(version), "-n", 1, "-r", videos),
                *("--dev", config.dev, "--seed", config.seed, *judge),
            ),
            makes=[videos],
        )


def answered(db: Path) -> int:
    """How many pairs of a DB have an answer."""
    return sum(label.label is not None for label in current(LabelLog(db / "labels.json").read()))


def table(config: RoundsConfig, measured: Sequence[dict[str, Any]], seconds: float) -> str:
    """The page of results.

    Args:
      config: of the experiment.
      measured: what `experiments.measures` found, v0 first.
      seconds: what the experiment took.
    """
    original = config.env == _GAME
    lines = [
        f"{config.v0_steps:,} steps on the score, then {config.rounds} × {config.steps:,} on what {config.labels} labels a "
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
            str(version * config.labels),
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


def report(config: RoundsConfig, experiment: Experiment, seconds: float) -> str:
    """Writes rounds.md and rounds.svg.

    Returns:
      The page.
    """
    from experiments.curves import KINDS, Line, read_curves, write_chart  # TensorBoard takes long to import

    measured = [json.loads(experiment.measured(version).read_text()) for version in range(config.rounds + 1)]
    titles = {
        "score": "score (± 95 %)",
        "learned": "learned return, each by its own reward model",
        "kl": "KL to the policy that the round began with",
        "preferred": "clips preferred to those that the round began with",
    }
    panels: dict[str, list[Line]] = {title: [] for title in titles.values()}
    began = 0
    for version in range(config.rounds + 1):
        found = read_curves(experiment.curves(version))
        for name, title in titles.items():
            if name in found:
                steps, values = found[name]
                half = found["interval"].values if name == "score" else None
                panels[title].append(Line(steps + began, values, half, KINDS[version % len(KINDS)]))
        began += config.v0_steps if version == 0 else config.steps
    kinds = {KINDS[version]: f"v{version}" for version in range(min(len(KINDS), config.rounds + 1))}
    write_chart(config.out / "rounds.svg", panels, kinds)
    page = table(config, measured, seconds)
    (config.out / "rounds.md").write_text(page)
    return page


def main(argv: Sequence[str] | None = None) -> int:
    config = cli.parse(RoundsConfig, argv, description=(__doc__ or "").splitlines()[0])
    settle(config, config.out, free=("out", "dev", "max_minutes"))
    stages = Stages(config.out, config.max_minutes)
    experiment = Experiment(config, stages)
    if not stages.finish(experiment.run):
        return TIME_IS_UP
    print("\n" + report(config, experiment, stages.seconds))
    print(f"{config.out}/rounds.md, rounds.svg, videos/; curves: tensorboard --logdir {config.out}/runs")
    return 0


if __name__ == "__main__":
    cli.run(main)
