#!/usr/bin/env python3
"""How good a reward model of text gets with how many labels, and with which layers of the language model.

A quarter of the prompts is kept for tests, by seed. A simulated teacher, with errors, compares answers to the others; fits are
those of 03_reward_train.py. Test pairs are all pairs of answers to one test prompt, each decided by what the teacher
values, without error, and by judges that no fit has learned from.

Each fit is recorded when it ends and not repeated, so a stopped run continues. The table covers all recorded fits.
"""

import contextlib
import io
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lib import cli
from lib.cli import UserError, flag
from lib.label_ui.config import LabelConfig
from lib.label_ui.simulated import give_labels
from lib.preferences.answers import load_answer, prompt_of
from lib.preferences.segment_db import SegmentDB
from lib.preferences.text_teachers import JUDGES, value_of
from lib.reporting import mean_interval
from lib.reward.config import FitConfig
from lib.reward.stage import fit_labels

_TEST_SHARE = 0.25


@dataclass(frozen=True)
class TextQualityConfig:
    """What to fit."""

    db: Path = flag("-d", help="answers, at least two to a prompt; 01_text.py --answers 4 samples them")
    teacher: str = flag(default="positive", help="who labels; see 02_label_ui.py --teacher")
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong answer")
    labels: list[int] = flag(default=[50, 100, 200, 500], nargs="+", help="numbers of labels to fit to")
    seeds: list[int] = flag(default=[0, 1, 2, 3, 4], nargs="+", help="seeds of split, labels and fit")
    cuts: list[int] = flag(
        default=[20], nargs="+", help="layers below the head; see 03_reward_train.py --cut"
    )
    upper: int = flag(default=0, min=0, help="layers above that learn; see 03_reward_train.py --upper")
    pooling: str = flag(default="mean", choices=("last", "mean"), help="of 03_reward_train.py")
    out: Path = flag(default=Path("benchmarks/results/text-quality"), help="folder for the figures")


def measure(config: TextQualityConfig) -> Path:
    """Runs the missing fits and makes the table of all.

    Raises:
      UserError: the DB or a flag is wrong.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    results = config.out / f"{config.teacher}.jsonl"
    kept = ("labels", "seed", "cut", "upper", "pooling")
    done = {tuple(row[key] for key in kept) for row in _read(results)}
    for seed in config.seeds:
        with tempfile.TemporaryDirectory() as folder:
            train, test = _split(config.db, Path(folder) / "db", seed)
            for count, cut in itertools.product(sorted(config.labels), config.cuts):
                row: dict[str, Any] = dict(
                    zip(kept, (count, seed, cut, config.upper, config.pooling), strict=True)
                )
                if tuple(row.values()) in done:
                    continue
                row |= _fit_and_test(config, row, train, test, Path(folder))
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    path = config.out / f"{config.teacher}.md"
    path.write_text(table(_read(results)))
    print(path.read_text())
    return path


def _split(source: Path, train: Path, seed: int) -> tuple[Path, list[str]]:
    """Copies the answers to label, without their labels, and names those to test on."""
    db = SegmentDB(source)
    db.refresh()
    prompts = sorted({prompt_of(name) for name in db.names})
    if len(prompts) < 8:
        raise UserError(f"{source}: expected answers to at least 8 prompts, found {len(prompts)}")
    order = np.random.default_rng(seed).permutation(len(prompts))
    tested = {prompts[at] for at in order[: round(_TEST_SHARE * len(prompts))]}
    for name in db.names:
        if prompt_of(name) not in tested:
            (train / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, train / name)
    return train, [name for name in db.names if prompt_of(name) in tested]


def _fit_and_test(
    config: TextQualityConfig, row: dict[str, Any], train: Path, test: list[str], folder: Path
) -> dict[str, float]:
    """The accuracy of a fit by each judge, and its minutes; the labels are the first of the same sequence."""
    count, seed = row["labels"], row["seed"]
    with contextlib.redirect_stdout(io.StringIO()):
        (train / "labels.json").unlink(missing_ok=True)
        give_labels(
            LabelConfig(
                db_path=train, teacher=config.teacher, count=count, error_rate=config.error_rate, seed=seed
            )
        )
        fitted = fit_labels(
            FitConfig(
                dbs=[train],
                name="quality",
                out=folder / "rewards",
                runs=folder / "runs",
                cut=row["cut"],
                upper=config.upper,
                pooling=config.pooling,
                error_rate=0.2,
                seed=seed,
            )
        )
    db = SegmentDB(config.db)
    answers = [load_answer(db, name) for name in test]
    paid = fitted.model.rate(answers)
    found = {"held_out": fitted.best.accuracy}
    for judge in (config.teacher, *JUDGES):
        value = np.array([value_of(judge)(answer) for answer in answers])
        pairs = [
            (one, two)
            for one, two in itertools.combinations(range(len(test)), 2)
            if prompt_of(test[one]) == prompt_of(test[two]) and value[one] != value[two]
        ]
        found[judge] = float(
            np.mean([(paid[one] > paid[two]) == (value[one] > value[two]) for one, two in pairs])
        )
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    """Accuracy by fit, judge and number of labels, in %, mean ± 95 % over the seeds."""
    cells: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in rows:
        fit = f"cut {row['cut']}, {row['upper']} layers, {row['pooling']}"
        for judge in [
            key for key in row if key not in ("labels", "seed", "cut", "upper", "pooling", "held_out")
        ]:
            cells[fit, judge, row["labels"]].append(100 * row[judge])
    counts = sorted({count for *_, count in cells})
    lines = [
        f"| fit | tested by | {' | '.join(f'{count} labels' for count in counts)} |",
        "|---|---|" + "---:|" * len(counts),
    ]
    for fit, judge in dict.fromkeys((fit, judge) for fit, judge, _ in cells):
        texts = [_cell(cells.get((fit, judge, count), [])) for count in counts]
        lines.append(f"| {fit} | {judge} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _cell(accuracies: list[float]) -> str:
    if len(accuracies) < 2:
        return f"{accuracies[0]:.1f} (1)" if accuracies else ""
    mean, half = mean_interval(accuracies)
    return f"{mean:.1f} ± {half:.1f} ({len(accuracies)})"


def main(argv: Sequence[str] | None = None) -> None:
    measure(cli.parse(TextQualityConfig, argv, description=__doc__))


if __name__ == "__main__":
    cli.run(main)
