"""The value of each part of the recipe: finetunes of one v0 on one set of labels, adding one part each time, several seeds.

    .venv/bin/python -m experiments.ablation [--preset gpu] [--seeds 3] [--v0 MODEL --db DB] [--max-minutes 9]

Ends in ablation.md and ablation.svg; results.jsonl has a line for each finished run.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
from online import record_prob

if TYPE_CHECKING:
    from experiments.curves import Curve

PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {
        "dev": "cpu",
        "v0_steps": 500_000,
        "steps": 200_000,
        "eval_every": 25_000,
        "lr": 3e-4,  # the original's 7e-5 does next to nothing in so few steps
    },
    "gpu": {
        "dev": "cuda",
        "v0_steps": 12_000_000,
        "steps": 2_000_000,
        "eval_every": 200_000,
        "lr": 7e-5,
    },
}
"""Defaults of the flags that depend on --preset."""

FITS: dict[str, dict[str, Any]] = {
    "original": {
        **{"loss": "original", "lr": 1e-4, "batch_size": 64, "dropout": 0.5},
        **{"l2": 0.0, "half_frames": False},
    },
    "single": {},
    "ensemble": {"ensemble": 3},
}
"""Fields of `FitConfig` by the name of the fit."""

WINDOW = 3
"""Evaluations in a row whose mean is called the score at that place: one alone says as much about luck."""


_NUM_ENVS = 64
"""What A2C and PPO both had by default when the published tables were made."""


class Arm(NamedTuple):
    """One recipe."""

    title: str
    fit: str
    """Key of FITS."""
    kl: bool = True
    """Whether the finetune pays for its KL to v0."""
    ppo: bool = False
    original_reward: bool = False


ARMS = {
    "original": Arm(
        "original: sign of a sliding z-score, two-column BCE", "original", kl=False, original_reward=True
    ),
    "standardised": Arm("+ preference loss, standardised reward", "single", kl=False),
    "kl": Arm("+ KL penalty to v0", "single"),
    "ensemble": Arm("+ ensemble of 3", "ensemble"),
    "ppo": Arm("PPO in place of A2C", "ensemble", ppo=True),
    "no-kl": Arm("PPO without the KL penalty", "ensemble", kl=False, ppo=True),
}
"""What is compared; each but the last adds a part to the one before."""


@dataclass(frozen=True)
class AblationConfig:
    """What to compare, at which budget. What is None by default depends on --preset."""

    preset: str = flag(
        group="most used", default="cpu", choices=tuple(PRESETS), help="size of the experiment"
    )
    out: Path = flag(default=Path("runs/ablation"), help="folder for everything the experiment makes")
    arms: list[str] = flag(default=list(ARMS), choices=tuple(ARMS), metavar="ARM", help="recipes to compare")
    seeds: int = flag(default=3, min=1, help="runs of each recipe, each with its own fit and finetune")
    env: str = flag("-e", default="SeaquestNoFrameskip-v4", help="environment")
    v0: Path | None = flag(
        default=None, help="policy that all recipes start from, with --db (default: train one)"
    )
    db: Path | None = flag(
        default=None, help="clips to label, with --v0; they are copied without their labels"
    )
    dev: str = flag(default=None, help=by_preset(PRESETS, "device of the networks", "dev"))
    max_minutes: float | None = max_minutes()

    v0_steps: int = flag(
        group="task and data",
        default=None,
        min=1,
        help=by_preset(PRESETS, "steps of v0, where it is trained here", "v0_steps"),
    )
    segments: int = flag(
        default=1000, min=4, help="approximate number of clips recorded during the training of v0"
    )
    labels: int = flag(default=300, min=2, help="pairs that the teacher compares, the same for all recipes")
    teacher: str = flag(
        default="seaquest", help="who compares, and judges fresh clips; see 02_label_ui.py --teacher"
    )
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong clip")

    steps: int = flag(
        group="algorithm", default=None, min=1, help=by_preset(PRESETS, "steps of each finetune", "steps")
    )
    lr: float = flag(default=None, min=0, help=by_preset(PRESETS, "learning rate of A2C", "lr"))
    ppo_lr: float = flag(default=1e-4, min=0, help="learning rate of PPO")
    frame_stride: int = flag(default=10, min=1, help="--frame-stride of every fit")
    kl_penalty: dict[str, Any] = flag(
        default={"kl": 1.0},
        of=TrainConfig,
        formerly="leash",
        help="flags of 01_a2c.py for the KL penalty, if a recipe has one",
    )

    eval_every: int = flag(
        group="evaluation",
        default=None,
        min=1,
        help=by_preset(PRESETS, "steps between its evaluations", "eval_every"),
    )
    games: int = flag(default=20, min=2, help="full games per evaluation")

    train_v0: dict[str, Any] = flag(
        group="flags of the scripts",
        default={},
        of=TrainConfig,
        formerly="v0_flags",
        help="more flags of 01_a2c.py for v0",
    )
    finetune: dict[str, Any] = flag(
        default={}, of=TrainConfig, formerly="train_flags", help="more flags of 01_a2c.py for every finetune"
    )

    def __post_init__(self) -> None:
        fill_in(self, PRESETS)
        if (self.v0 is None) != (self.db is None):
            raise UserError(
                "--v0 and --db go together: clips of the policy's own training; give both or none"
            )


class Ablation:
    """The stages of one ablation."""

    def __init__(self, config: AblationConfig, pipeline: Pipeline) -> None:
        self._config, self._pipeline, self._out = config, pipeline, config.out
        self._v0 = config.v0 or self._out / "v0" / "latest.dat"
        self._db = self._out / "db"

    def run(self) -> None:
        """All stages that are not done, seed by seed, so that the first seed of all recipes is there soonest.

        Raises:
          TimeUp, UserError, KeyboardInterrupt: see `Pipeline.run`.
        """
        config = self._config
        if config.db is None:
            self._train_v0()
        elif not self._db.exists():
            copy = self._out / ".db"  # under another name until it is whole
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(config.db, copy, ignore=shutil.ignore_patterns("labels.json"))
            copy.rename(self._db)
        self._pipeline.label(
            "labels",
            f"{config.teacher} compares {config.labels} pairs",
            self._db,
            config.teacher,
            config.labels,
            config.error_rate,
            seed=0,
        )
        for seed in range(config.seeds):
            for name in config.arms:
                reward = self._fit(ARMS[name].fit, seed)
                self._finetune(name, seed, reward)
                self.collect()

    def curves(self, arm: str, seed: int) -> Path:
        """TensorBoard curves of a run."""
        return self._out / "runs" / f"{arm}-{seed}"

    def collect(self) -> list[dict[str, Any]]:
        """Writes the results of all finished runs to results.jsonl.

        Returns:
          A row of each, see `summary`, with its `arm` and `seed`.
        """
        from experiments.curves import read_curves  # TensorBoard takes long to import

        rows = [
            {"arm": arm, "seed": seed, **summary(read_curves(self.curves(arm, seed)))}
            for arm in ARMS
            for seed in range(self._config.seeds)
            if self._pipeline.done(f"{arm}-{seed}")
        ]
        write_lines(self._out / "results.jsonl", rows)
        return rows

    def _train_v0(self) -> None:
        config = self._config
        given: dict[str, Any] = {
            "name": "v0",
            "env": config.env,
            "dev": config.dev,
            "num_envs": _NUM_ENVS,
            "steps": config.v0_steps,
            "eval_every": config.v0_steps,
            "eval_games": config.games,
            "save": self._v0.parent,
            "db_path": self._db,
            "record_prob": record_prob(config.segments, config.v0_steps),
            "runs": self._out / "runs" / "v0",
        }
        self._pipeline.train("v0", "v0 learns on the score", TrainConfig(**given | config.train_v0))

    def _fit(self, name: str, seed: int) -> Path:
        config = self._config
        given: dict[str, Any] = {
            "dbs": [self._db],
            "name": f"{name}-{seed}",
            "out": self._out / "rewards",
            "dev": config.dev,
            "seed": seed,
            "frame_stride": config.frame_stride,
            "runs": self._out / "runs" / f"reward-{name}-{seed}",
        }
        return self._pipeline.fit(
            f"reward-{name}-{seed}", f"seed {seed}: reward model, {name}", FitConfig(**given | FITS[name])
        )

    def _finetune(self, name: str, seed: int, reward: Path) -> None:
        config, arm = self._config, ARMS[name]
        given: dict[str, Any] = {
            "name": f"{name}-{seed}",
            "env": config.env,
            "dev": config.dev,
            "seed": seed,
            "model": self._v0,
            "reward": reward,
            "finetune": True,
            "algo": "ppo" if arm.ppo else "a2c",
            "num_envs": _NUM_ENVS,
            "lr": config.ppo_lr if arm.ppo else config.lr,
            "steps": config.steps,
            "eval_every": config.eval_every,
            "eval_games": config.games,
            "teacher": config.teacher,
            "save": self._out / "policies" / f"{name}-{seed}",
            "runs": self.curves(name, seed),
        }
        training = TrainConfig(**given | (config.kl_penalty if arm.kl else {}) | config.finetune)
        stage, title = f"{name}-{seed}", f"seed {seed}: {arm.title}"
        if arm.original_reward:
            from experiments.original_reward import train_on_original_reward  # which imports PyTorch

            self._pipeline.train(
                stage, title, training, "-m experiments.original_reward", train_on_original_reward
            )
        else:
            self._pipeline.train(stage, title, training)


def summary(curves: "dict[str, Curve]") -> dict[str, float | None]:
    """Results of a finetune.

    Args:
      curves: of its evaluations, the first before any training.

    Returns:
      `start`: score of the first evaluation. `best`, `end`: the highest and the last mean of three evaluations in a
      row, the first included, so a run that only declines scores below 1. `kept`: end / best, None where best is not
      above 0. `highest`, `last`: the best and the last single evaluation. And the last value of every other measure.
    """
    score = curves["score"].values
    size = min(WINDOW, len(score))
    means = np.convolve(score, np.full(size, 1 / size), mode="valid")
    best, end = float(means.max()), float(means[-1])
    return {
        "start": float(score[0]),
        "best": best,
        "end": end,
        "kept": end / best if best > 0 else None,
        "highest": float(score.max()),
        "last": float(score[-1]),
        **{
            name: float(curves[name].values[-1])
            for name in ("steps", "preferred", "agreement", "learned", "kl", "refuels", "rescues")
            if name in curves
        },
    }


_COLUMNS = {
    "start": ("score at the start", 0),
    "best": ("best", 0),
    "end": ("end", 0),
    "kept": ("end ÷ best", 2),
    "preferred": ("preferred to v0", 2),
    "refuels": ("refuels", 2),
    "learned": ("learned return", 0),
    "kl": ("KL to v0", 3),
}


def table(config: AblationConfig, rows: Sequence[dict[str, Any]], seconds: float) -> str:
    """The page of results: means over the seeds ± 95 %, then every run.

    Args:
      config: of the ablation.
      rows: of `Ablation.collect`.
      seconds: what it took.
    """
    columns = {name: shown for name, shown in _COLUMNS.items() if any(name in row for row in rows)}
    head = f"{' | '.join(title for title, _ in columns.values())} |"
    rule = "---|" * len(columns)
    lines = [
        f"{config.steps:,} steps of finetuning on {config.labels} labels by `{config.teacher}`, {config.error_rate:.0%} of "
        f"them wrong; the same v0, clips and labels for all, fit and finetune by seed. Evaluations of {config.games} full "
        f"games every {config.eval_every:,} steps; best and end are means of {WINDOW} evaluations in a row, the one "
        f"before the finetune included, the rest is of the last one. {format_duration(seconds)} in all.",
        "",
        f"| recipe | seeds | {head}",
        f"|---|---|{rule}",
    ]
    for name, arm in ARMS.items():
        found = [row for row in rows if row["arm"] == name]
        if found:
            cells = [_over_seeds(found, column, digits) for column, (_, digits) in columns.items()]
            lines.append(f"| {arm.title} | {len(found)} | {' | '.join(cells)} |")
    lines += ["", f"| run | seed | {head}", f"|---|---|{rule}"]
    for row in rows:
        cells = [_over_seeds([row], column, digits) for column, (_, digits) in columns.items()]
        lines.append(f"| {row['arm']} | {row['seed']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _over_seeds(rows: Sequence[dict[str, Any]], column: str, digits: int) -> str:
    values = [row[column] for row in rows if row.get(column) is not None]
    return format_mean(values, digits) if values else "–"


def chart(path: Path, curves: "dict[str, list[dict[str, Curve]]]") -> None:
    """Writes an SVG of the evaluations, means over the seeds with their 95 % intervals.

    Args:
      path: the file.
      curves: of the seeds, by arm.
    """
    from experiments.curves import COLOURS, Line, write_chart
    from lib.reporting import mean_interval

    titles = {
        "score": "score",
        "learned": "learned return, each by its own reward model",
        "preferred": "clips preferred to those of v0",
        "kl": "KL to v0",
    }
    panels: dict[str, list[Line]] = {title: [] for title in titles.values()}
    kinds = dict(zip(curves, COLOURS, strict=False))
    for arm, runs in curves.items():
        for name, title in titles.items():
            present = [run[name] for run in runs if name in run]
            if present:
                steps = present[0].steps[: min(len(curve.steps) for curve in present)]
                seeds = [curve.values[: len(steps)] for curve in present]
                means, halves = zip(
                    *(mean_interval(values) for values in zip(*seeds, strict=True)), strict=True
                )
                panels[title].append(Line(steps, means, halves, kinds[arm]))
    write_chart(path, panels, {kind: arm for arm, kind in kinds.items()})


def main(argv: Sequence[str] | None = None) -> int:
    config = cli.parse(AblationConfig, argv, description=(__doc__ or "").splitlines()[0])
    for name, path in (("--v0", config.v0), ("--db", config.db)):
        if path is not None and not path.exists():  # before anything is made
            raise UserError(f"{name} {path}: no such file or folder; check the path")
    # The same experiment may later have more seeds and more recipes.
    settle(config, "seeds", "arms")
    pipeline = Pipeline(config.out, config.max_minutes)
    ablation = Ablation(config, pipeline)
    status = 0
    try:
        ablation.run()
    except TimeUp:
        status = TIME_IS_UP
    rows = ablation.collect()
    if rows:
        from experiments.curves import read_curves

        given = usable(LabelLog(config.out / "db" / "labels.json").read())
        page = table(replace(config, labels=given), rows, pipeline.seconds)
        (config.out / "ablation.md").write_text(page)
        chart(
            config.out / "ablation.svg",
            {
                arm: [read_curves(ablation.curves(arm, row["seed"])) for row in rows if row["arm"] == arm]
                for arm in dict.fromkeys(row["arm"] for row in rows)
            },
        )
        print(f"\n{page}\n{config.out}/ablation.md, ablation.svg, results.jsonl")
    return status


if __name__ == "__main__":
    cli.run(main)
