"""How good a reward model for text gets with how many labels, and with which layers of the language model.

A quarter of the prompts is kept for tests, by seed. A simulated teacher, with errors, compares answers to the others; fits are
those of 03_reward_train.py. Test pairs are all pairs of answers to one test prompt, each decided by what the teacher
values, without error, and by judges that no fit has learned from. `people` are viewers: of two reviews, which the fit
takes for answers, the better one is of a film that its author liked.

Each fit is recorded when it ends and not repeated, so a stopped run continues. The table covers all recorded fits.
"""

import contextlib
import io
import itertools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.quality import accuracy_table, fit_defaults, read_rows
from lib import cli
from lib.cli import UserError, flag
from lib.files import make_folder
from lib.preferences.answers import Answer, load_answer, prompt_of
from lib.preferences.labels import TEXT_TEACHERS
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.preferences.text_teachers import JUDGES, value_of
from lib.reporting import format_mean
from lib.reward.config import FitConfig
from lib.text.reward import TextRewardModel
from lib.text.unpack import REVIEWS
from lib.tools.fit_labels import fit_labels

_TEACHERS = tuple(name for name in TEXT_TEACHERS if name != "keyword")
_TEST_SHARE = 0.25
_REVIEWS, _REVIEW_WORDS = 100, 30  # of either kind; of each, the first


@dataclass(frozen=True)
class TextQualityConfig:
    """What to fit."""

    db: Path = flag("-d", help="answers, at least two to a prompt; 01_text.py --answers 4 samples them")
    teacher: str = flag(default="positive", choices=_TEACHERS, help="who labels")
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong answer")
    labels: list[int] = flag(default=[50, 100, 200, 500], nargs="+", help="numbers of labels to fit to")
    seeds: list[int] = flag(default=[0, 1, 2, 3, 4], nargs="+", help="seeds of split, labels and fit")
    cuts: list[int] = flag(
        default=[20], nargs="+", help="layers below the head; see 03_reward_train.py --cut"
    )
    upper: int = flag(default=0, min=0, help="layers above that learn; see 03_reward_train.py --upper")
    pooling: str = flag(default="mean", choices=("last", "mean"), help="of 03_reward_train.py")
    best_db: Path | None = flag(
        default=None,
        help="answers to other prompts, 16 to each, of which each fit chooses the best of 4 and of 16",
    )
    out: Path = flag(default=Path("text-quality-out"), help="folder for the figures")


_BEST_OF = (1, 4, 16)
_FIT = ("labels", "seed", "cut", "upper", "pooling")
"""What tells one fit from another, in a row of the results."""
_SETTINGS = ("db", "error_rate", "best_db")
"""Fits are compared only where these are the same."""


def measure(config: TextQualityConfig) -> Path:
    """Runs the missing fits and makes the table of all.

    Raises:
      UserError: the DB or a flag is wrong.
    """
    make_folder(config.out, "--out")
    results = config.out / f"{config.teacher}.jsonl"
    best_db = config.best_db and str(config.best_db.resolve())
    settings = {"db": str(config.db.resolve()), "error_rate": config.error_rate, "best_db": best_db}
    settings |= fit_defaults()
    done = {tuple(row[key] for key in _FIT) for row in read_rows(results, settings)}
    for seed in config.seeds:
        fits = [
            (count, seed, cut, config.upper, config.pooling)
            for count, cut in itertools.product(sorted(config.labels), config.cuts)
        ]
        with tempfile.TemporaryDirectory() as folder:
            test = _split(config, Path(folder) / "db", seed)
            for fit in fits:
                if fit in done:
                    continue
                row: dict[str, Any] = dict(zip(_FIT, fit, strict=True)) | settings
                row |= _fit_and_test(config, row, test, Path(folder))
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    path = config.out / f"{config.teacher}.md"
    path.write_text(table(read_rows(results, settings)))
    print(path.read_text())
    return path


class _Test(NamedTuple):
    """Answers to prompts that no fit sees."""

    answers: list[Answer]
    decided: dict[str, list[tuple[int, int]]]
    """By judge the pairs that it decides, of answers to one prompt or of reviews: the better one, the other."""
    best: list[Answer]
    """Those of --best-db, prompt after prompt."""


def _split(config: TextQualityConfig, train: Path, seed: int) -> _Test:
    """Copies the answers to label, without their labels; the others are for tests."""
    db = SegmentDB(config.db)
    prompts = sorted({prompt_of(name) for name in db.names})
    if len(prompts) < 8:
        raise UserError(f"{config.db}: expected answers to at least 8 prompts, found {len(prompts)}")
    order = np.random.default_rng(seed).permutation(len(prompts))
    tested = {prompts[at] for at in order[: round(_TEST_SHARE * len(prompts))]}
    for name in db.names:
        if prompt_of(name) not in tested:
            (train / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(config.db / name, train / name)
    names = [name for name in db.names if prompt_of(name) in tested]
    answers = [load_answer(db, name) for name in names]
    decided = {}
    for judge in (config.teacher, *JUDGES):
        value = [*map(value_of(judge), answers)]
        decided[judge] = [
            (one, two)
            for one, two in itertools.permutations(range(len(names)), 2)
            if prompt_of(names[one]) == prompt_of(names[two]) and value[one] > value[two]
        ]
    if not REVIEWS.is_file():
        raise UserError(f"expected reviews in {REVIEWS}, which make model fetches")
    first, reviews = len(answers), json.loads(REVIEWS.read_text())
    for pair in zip(reviews["liked"], reviews["disliked"][:_REVIEWS], strict=False):
        texts = (" ".join(text.split()[:_REVIEW_WORDS]) for text in pair)
        answers += [Answer("What do you think of this film?", text, finished=False) for text in texts]
    decided["people"] = [(at, at + 1) for at in range(first, len(answers), 2)]
    return _Test(answers, decided, [] if config.best_db is None else _answers_to_choose_from(config.best_db))


def _answers_to_choose_from(folder: Path) -> list[Answer]:
    db, most = SegmentDB(folder), max(_BEST_OF)
    for prompt, answers in Counter(map(prompt_of, db.names)).items():
        if answers != most:
            raise UserError(
                f"--best-db {folder}: expected {most} answers to each prompt, found {answers} in {prompt}; "
                f"01_text.py --answers {most} samples them"
            )
    return [load_answer(db, name) for name in sorted(db.names)]


def _fit_and_test(
    config: TextQualityConfig, row: dict[str, Any], test: _Test, folder: Path
) -> dict[str, Any]:
    """The accuracy of a fit by each judge; the pairs are the first of the same sequence, whatever the number of labels."""
    train, count, seed = folder / "db", row["labels"], row["seed"]
    (train / "labels.json").unlink(missing_ok=True)
    given = label_with_teacher(train, config.teacher, count, error_rate=config.error_rate, seed=seed).written
    if given < count:
        raise UserError(
            f"{config.db}: expected {count} pairs that the teacher can tell, found {given}; "
            "sample more answers, or ask for fewer --labels"
        )
    with contextlib.redirect_stdout(io.StringIO()):
        fitted = fit_labels(
            FitConfig(
                dbs=[train],
                name="quality",
                out=folder / "rewards",
                runs=folder / "runs",
                cut=row["cut"],
                upper=config.upper,
                pooling=config.pooling,
                error_rate=min(0.99, 2 * config.error_rate),
                seed=seed,
            )
        )
    paid = fitted.model.rate(test.answers)
    found: dict[str, Any] = {"held_out": fitted.best.accuracy}
    for judge, pairs in test.decided.items():
        found[judge] = float(np.mean([paid[better] > paid[other] for better, other in pairs]))
    if test.best:
        found["best"] = _best(fitted.model, test.best, (config.teacher, *JUDGES))
    return found


def _best(model: TextRewardModel, answers: list[Answer], judges: Sequence[str]) -> dict[str, list[float]]:
    """By judge, the mean value of some answers, and of the best of 4 and of 16 to one prompt, as the model rates them."""
    paid = model.rate(answers)
    found = {}
    for judge in judges:
        value = np.array([*map(value_of(judge), answers)])
        chosen = [paid.reshape(-1, n).argmax(1) for n in _BEST_OF]
        found[judge] = [
            float(np.take_along_axis(value.reshape(-1, n), best[:, None], 1).mean())
            for n, best in zip(_BEST_OF, chosen, strict=True)
        ]
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Accuracy by fit, judge and number of labels, and what judges say of the best of n."""
    fits = [f"cut {row['cut']}, {row['upper']} layers, {row['pooling']}" for row in rows]
    found = [
        ((fit, judge), row["labels"], row[judge])
        for fit, row in zip(fits, rows, strict=True)
        for judge in row.keys() - {*_FIT, *_SETTINGS, "defaults", "held_out", "best"}
    ]
    lines = []
    tried = [(fit, row["labels"], row["best"]) for fit, row in zip(fits, rows, strict=True) if "best" in row]
    for fit, count in sorted({(fit, count) for fit, count, _ in tried}):
        best = [each for *kind, each in tried if kind == [fit, count]]
        for judge in best[0]:
            means = [format_mean(values, 3) for values in zip(*(each[judge] for each in best), strict=True)]
            lines.append(f"| {fit} | {count} ({len(best)} fits) | {judge} | {' | '.join(means)} |\n")
    if lines:
        lines.insert(
            0, "\n| fit | labels | judge | an answer | best of 4 | best of 16 |\n|---|---|---|---|---|---|\n"
        )
    return accuracy_table(("fit", "tested by"), sorted(found)) + "".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    measure(cli.parse(TextQualityConfig, argv, description=__doc__))


if __name__ == "__main__":
    cli.run(main)
