"""How many labels a reward model needs for an accuracy, by the strategy that chooses the pairs.

A simulated teacher labels in rounds, as a person would: random pairs first; then, every round, an ensemble is fitted to
all labels so far and the strategy chooses the next pairs, by that ensemble if it needs one. It is what 02_label_ui.py
--teacher and 03_reward_train.py do. After each fit the reward model is tested on pairs of segments that are never
labelled: drawn at random, answered without error, ties left out. Strategies share the test and the first labels of a
seed.

Each run of a strategy and a seed is recorded when it ends and not repeated, so a stopped benchmark continues, and
several processes may share the work (`--strategies random` beside `--strategies disagreement`).

    python -m benchmarks.strategies --db DB --seeds 5
"""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality import fit_defaults, read_rows
from benchmarks.quiet import fit_quietly
from lib import cli
from lib.cli import UserError, flag
from lib.files import make_folder, write_atomic
from lib.preferences.labels import STRATEGIES
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.preferences.teachers import label_with_teacher, make_teacher
from lib.reporting import format_mean
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.model import RewardModel
from lib.reward.rater import ModelRater
from lib.reward.split import split_by_segment

_TEST_SHARE = 0.25
_MOST_TEST_SEGMENTS = 200
_SETTINGS = (
    *("teacher", "error_rate", "labels", "round", "random_share", "test_pairs"),
    *("ensemble", "frame_stride", "epochs", "input"),
)
"""Runs are compared only where these are the same."""


@dataclass(frozen=True)
class BenchmarkConfig:
    """What to compare, on what."""

    db: Path = flag("-d", help="clips with recorded scores")
    seeds: int = flag(default=3, min=1, help="runs of each strategy, with seeds 0, 1, 2, …")
    labels: int = flag(default=300, min=10, help="total number of labels")
    round: int = flag(default=50, min=10, help="labels per round; those of the first round are random")
    strategies: list[str] = flag(
        default=list(STRATEGIES), choices=tuple(STRATEGIES), help="strategies to compare"
    )
    random_share: float = flag(
        default=0.2, min=0.01, max=1, help="share of random pairs among those of a strategy"
    )
    teacher: str = flag(default="score", help="who labels; see 02_label_ui.py --teacher")
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong one")
    accuracy: float = flag(
        default=0.7, min=0.5, max=1, help="accuracy for which the number of labels needed is reported"
    )
    test_pairs: int = flag(default=1000, min=10, help="pairs to test on")
    ensemble: int = flag(default=3, min=2, help="members of the reward model")
    frame_stride: int = flag(default=10, min=1, help="--frame-stride of the fits")
    epochs: int = flag(default=100, min=1, help="--epochs of the fits")
    input: str = flag(default="frame", choices=("frame", "observation"), help="--input of the fits")
    dev: str = flag(default="cpu", help="device of the fits")
    out: Path = flag(default=Path("benchmarks/results"), help="folder for the figures")

    def __post_init__(self) -> None:
        if self.labels % self.round:
            raise UserError(f"--labels {self.labels}: expected a multiple of the {self.round} of --round")


@dataclass(frozen=True)
class Test:
    """Pairs to test on, and segments that may be labelled."""

    train: list[str]
    """Segments that pairs are chosen from."""
    pairs: list[tuple[str, str]]
    """Pairs of other segments, the better one first."""


def draw_test(db: SegmentDB, teacher: str, pairs: int, seed: int) -> Test:
    """Splits the segments of a DB and draws test pairs among a quarter of them.

    Raises:
      UserError: the teacher prefers none of the test segments to another, or cannot value them.
    """
    rng = np.random.default_rng(seed)
    judge = make_teacher(teacher, error_rate=0.0)
    order = [db.names[i] for i in rng.permutation(len(db.names))]
    cut = min(round(_TEST_SHARE * len(order)), _MOST_TEST_SEGMENTS)
    values: dict[str, float] = {}
    for name in order[:cut]:
        try:
            values[name] = judge.value(db.load(name))
        except SegmentError as error:
            print(f"left out: {error}")
    names = sorted(values)
    decided: list[tuple[str, str]] = []
    for _ in range(20 * pairs if len(names) > 1 else 0):
        one, two = (names[i] for i in rng.choice(len(names), 2, replace=False))
        if values[one] != values[two]:
            decided.append((one, two) if values[one] > values[two] else (two, one))
        if len(decided) == pairs:
            break
    if not decided:
        raise UserError(f"{db.root}: expected clips that teacher {teacher} tells apart, found none")
    return Test(sorted(order[cut:]), decided)


def accuracy(model: RewardModel, db: SegmentDB, pairs: Sequence[tuple[str, str]]) -> float:
    """Share of the pairs whose first clip, the better one, has the higher return."""
    rater = ModelRater(model, db)
    paid = {name: float(rater.curve(name).sum()) for name in {name for pair in pairs for name in pair}}
    return float(np.mean([paid[better] > paid[worse] for better, worse in pairs]))


def fit_members(config: BenchmarkConfig, db: Path, seed: int) -> RewardModel:
    """An ensemble fitted to all labels of a DB, as 03_reward_train.py would.

    Raises:
      UserError: the labels cannot be fitted.
      KeyboardInterrupt: it was stopped.
    """
    flags = FitConfig(
        dbs=[db],
        dev=config.dev,
        name="round",
        out=db,
        ensemble=config.ensemble,
        frame_stride=config.frame_stride,
        epochs=config.epochs,
        input=config.input,
        seed=seed,
    )
    clips = Clips(flags)
    train, test = split_by_segment(clips.units()[0], flags.held_out, seed, clips.data.at_random)
    return fit_quietly(flags, clips.data, train, test).model


def run(config: BenchmarkConfig, db: SegmentDB, strategy: str, seed: int, folder: Path) -> list[float]:
    """One strategy and one seed, in an empty folder.

    Returns:
      The accuracy after each round.
    """
    test = draw_test(db, config.teacher, config.test_pairs, seed)
    for name in test.train:
        (folder / name).parent.mkdir(exist_ok=True)
        try:
            os.link(db.root / name, folder / name)
        except OSError:  # another file system
            shutil.copyfile(db.root / name, folder / name)
    train = SegmentDB(folder)
    rater: ModelRater | None = None
    accuracies: list[float] = []
    for number in range(config.labels // config.round):
        blind = number == 0 or (rater is None and "rater" in STRATEGIES[strategy])
        given = label_with_teacher(
            folder,
            config.teacher,
            config.round,
            error_rate=config.error_rate,
            seed=1000 * seed + number,
            strategy="random" if blind else strategy,
            rater=rater,
            random_share=config.random_share,
        ).written
        if given < config.round:
            raise UserError(
                f"{config.db}: expected {config.round} more pairs that the teacher can tell after "
                f"{number * config.round} labels, found {given}; record more clips, or ask for fewer --labels"
            )
        try:
            model = fit_members(config, folder, seed)
        except UserError as error:  # too few labels: a model that knows nothing is right half the time
            print(f"{strategy}, seed {seed}, {(number + 1) * config.round} labels: {error}", flush=True)
            accuracies.append(0.5)
            continue
        rater = ModelRater(model, train)
        accuracies.append(accuracy(model, db, test.pairs))
        print(
            f"{strategy}, seed {seed}, {(number + 1) * config.round} labels: {accuracies[-1]:.1%}", flush=True
        )
    return accuracies


def labels_needed(accuracies: Sequence[float], wanted: float, labels_a_round: int) -> int | None:
    """Labels after the first round that reached the accuracy; None where no round did."""
    for number, reached in enumerate(accuracies, start=1):
        if reached >= wanted:
            return number * labels_a_round
    return None


def table(config: BenchmarkConfig, runs: Sequence[dict[str, Any]]) -> str:
    """Markdown: accuracy by labels and labels needed, mean ± 95 % interval over the seeds, a row a strategy."""
    counts = [config.round * (number + 1) for number in range(config.labels // config.round)]
    flags = " ".join(f"--{key.replace('_', '-')} {getattr(config, key)}" for key in (*_SETTINGS, "accuracy"))
    lines = [
        "Accuracy in % on pairs of clips that were never labelled, mean ± 95 % interval over the seeds.",
        "",
        f"`python -m benchmarks.strategies --db {config.db.name} {flags}`",
        "",
        f"| strategy | seeds | {' | '.join(f'{count} labels' for count in counts)} "
        f"| labels to reach {config.accuracy:.0%} |",
        "|---" * (len(counts) + 3) + "|",
    ]
    for strategy in STRATEGIES:
        curves = [run["accuracies"] for run in runs if run["strategy"] == strategy]
        if not curves:
            continue
        needed = [labels_needed(curve, config.accuracy, config.round) for curve in curves]
        reached = [count for count in needed if count is not None]
        said = format_mean(reached, 0) if reached else "not reached"
        if 0 < len(reached) < len(curves):
            said += f", in {len(reached)} of {len(curves)} runs"
        cells = [format_mean((100 * curve[at] for curve in curves), 1) for at in range(len(counts))]
        lines.append(f"| {strategy} | {len(curves)} | {' | '.join(cells)} | {said} |")
    return "\n".join(lines) + "\n"


def measure(config: BenchmarkConfig) -> Path:
    """Runs what is missing and makes the table of all.

    Raises:
      UserError: the DB or a flag is wrong.
    """
    db = SegmentDB(config.db)
    train = len(db.names) - min(round(_TEST_SHARE * len(db.names)), _MOST_TEST_SEGMENTS)
    if train * (train - 1) // 2 < config.labels:
        raise UserError(
            f"{config.db}: expected enough clips for {config.labels} labels, found {len(db.names)}"
        )
    make_folder(config.out, "--out")
    results = config.out / f"strategies-{config.db.name}.json"
    settings = {key: getattr(config, key) for key in _SETTINGS} | {"db": str(config.db.resolve())}
    settings |= fit_defaults()
    for seed in range(config.seeds):
        for strategy in config.strategies:
            if any(
                (row["strategy"], row["seed"]) == (strategy, seed) for row in read_rows(results, settings)
            ):
                continue
            with tempfile.TemporaryDirectory() as folder:
                accuracies = run(config, db, strategy, seed, Path(folder))
            row = {"strategy": strategy, "seed": seed, "accuracies": accuracies, **settings}
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    written = results.with_suffix(".md")
    write_atomic(written, table(config, read_rows(results, settings)).encode())
    print(written.read_text())
    return written


def main(argv: Sequence[str] | None = None) -> None:
    measure(cli.parse(BenchmarkConfig, argv, description=__doc__))


if __name__ == "__main__":
    cli.run(main)
