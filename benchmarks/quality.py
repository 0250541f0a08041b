"""How good a reward model gets with how many labels: our recipe, the original's, and ours with one change.

Segments are split once per seed into segments for training pairs and segments for test pairs. A simulated teacher answers
the training pairs, with errors; the test pairs are decided by what the teacher values, without error, and ties are left
out. Every recipe is fitted to the same labels: the first 100 of the 300 are those of the fit to 100. Fits use the
functions behind 03_reward_train.py.

Each fit is recorded when it ends and not repeated, so a stopped run continues, and several processes may share the work
(`--seeds 0 2 4` beside `--seeds 1 3`). The table covers all recorded fits on this DB with these settings.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quiet import fit_quietly
from lib import cli
from lib.checkpoints import storable
from lib.cli import UserError, flag
from lib.files import make_folder
from lib.preferences.labels import Label
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import Teacher, make_teacher
from lib.reporting import format_mean
from lib.reward.config import FitConfig
from lib.reward.data import PREFERENCE1, Pairs, PreferenceData
from lib.reward.features import policy_features
from lib.reward.model import RewardModel
from lib.reward.split import split_by_segment
from lib.reward.store import SegmentStore

ORIGINAL = {"loss": "original", "lr": 1e-4, "batch_size": 64, "dropout": 0.5, "l2": 0.0, "half_frames": False}
"""Besides, the original splits by pair, so that a held-out clip may have been fitted in another pair."""

_PLAIN = {"l2": 0.0, "half_frames": False}
_OBSERVATION = {"l2": 0.0, "input": "observation"}

_FEATURES = Path("examples/seaquest/v0.dat")

RECIPES: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, half frames": {"half_frames": True},
    "ours, whole frames": {"half_frames": False},
    "features": {"features": _FEATURES},
    "features, ensemble 3": {"features": _FEATURES, "ensemble": 3},
    "original": ORIGINAL,
    "plain": _PLAIN,
    "plain, dropout 0.5": {**_PLAIN, "dropout": 0.5},
    "plain, shift 4": {**_PLAIN, "shift": 4},
    "plain, noise 0.05": {**_PLAIN, "noise": 0.05},
    "plain, ensemble 3": {**_PLAIN, "ensemble": 3},
    "observation": _OBSERVATION,
    "observation, l2": {"input": "observation"},
    "observation, shift 4": {**_OBSERVATION, "shift": 4},
    "observation, dropout 0.5": {**_OBSERVATION, "dropout": 0.5},
    "observation, ensemble 3": {**_OBSERVATION, "ensemble": 3},
}
"""What each recipe changes in the defaults of 03_reward_train.py."""

_SETTINGS = ("db", "error_rate", "frame_stride", "test_pairs")
"""Fits are compared only where these are the same."""
_TEST_SHARE = 0.25
_TEST_STRIDE = 2
_DRAWS_PER_LABEL = 100


@dataclass(frozen=True)
class QualityConfig:
    """What to fit."""

    db: Path = flag("-d", help="clips with recorded scores, of policies from random to good")
    teacher: str = flag(default="score", help="who labels; see 02_label_ui.py --teacher")
    error_rate: float = flag(default=0.1, min=0, max=1, help="how often the teacher prefers the wrong clip")
    labels: list[int] = flag(default=[50, 100, 300, 1000], nargs="+", help="numbers of labels to fit to")
    seeds: list[int] = flag(default=[0, 1, 2, 3, 4], nargs="+", help="seeds of split, labels and fit")
    recipes: list[str] = flag(
        default=["ours", "original"], nargs="+", help=f"recipes to compare: {'; '.join(RECIPES)}"
    )
    frame_stride: int = flag(default=10, min=1, help="--frame-stride of every fit, including the original's")
    test_pairs: int = flag(default=2000, min=10, help="pairs to test on")
    memory_mb: int = flag(default=3000, min=0, help="memory for decoded clips")
    out: Path = flag(default=Path("quality-out"), help="folder for the figures")

    def __post_init__(self) -> None:
        for name in self.recipes:
            if name not in RECIPES:
                raise UserError(f"--recipes {name}: expected some of {'; '.join(RECIPES)}")


class Task:
    """The segments of one seed: those to label, and those to test on.

    Args:
      db: the segments.
      value: of each segment, what the teacher values, float64 `[K]`.
      names: of each segment.
      seed: of the split and of all pairs.
      test_pairs: how many to draw for testing; ties among them are left out.

    Raises:
      UserError: all of them are ties.
    """

    def __init__(
        self, db: SegmentDB, names: list[str], value: np.ndarray, seed: int, test_pairs: int
    ) -> None:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(names))
        cut = round(_TEST_SHARE * len(names))
        self.db, self.names, self.value, self.rng = db, names, value, rng
        self.test_segments, self._train_segments = np.sort(order[:cut]), np.sort(order[cut:])
        test = np.stack([rng.choice(self.test_segments, 2, replace=False) for _ in range(test_pairs)])
        self.test = test[value[test[:, 0]] != value[test[:, 1]]]
        if not len(self.test):
            raise UserError(f"{db.root}: expected clips that the teacher tells apart, found none to test on")

    def labels(self, count: int, teacher: Teacher, mean: float) -> list[tuple[int, int, int]]:
        """Different pairs of the training segments with the teacher's answers; those it cannot tell are skipped."""
        found: dict[tuple[int, int], int] = {}
        draws = 0
        while len(found) < count:
            draws += 1
            if draws > _DRAWS_PER_LABEL * count:
                raise UserError(
                    f"{self.db.root}: expected {count} pairs that the teacher can tell, found {len(found)}"
                )
            first, second = (int(end) for end in self.rng.choice(self._train_segments, 2, replace=False))
            if (first, second) in found or (second, first) in found:
                continue
            said = teacher.answer(self.value[first], self.value[second], self.rng, mean)
            if said is not None:
                found[first, second] = said
        return [(first, second, said) for (first, second), said in found.items()]

    def data(
        self, labels: Sequence[tuple[int, int, int]], memory_mb: float, config: FitConfig
    ) -> PreferenceData:
        """Labels as a fit takes them."""
        features = None if config.features is None else policy_features(config.features)
        store = SegmentStore(memory_mb, config.input, features, half_frames=config.half_frames)
        index = {
            segment: store.add(self.db, self.names[segment], self.db.load(self.names[segment]))
            for segment in sorted({end for first, second, _ in labels for end in (first, second)})
        }
        pairs = Pairs(
            np.array([index[first] for first, _, _ in labels]),
            np.array([index[second] for _, second, _ in labels]),
            np.array([PREFERENCE1[said] for *_, said in labels], np.float32),
            np.ones(len(labels), np.float32),
        )
        kept = [Label(self.names[a], self.names[b], said, strategy="random") for a, b, said in labels]
        every = np.ones(len(labels), bool)
        return PreferenceData(pairs, kept, np.zeros(len(labels), np.int64), [], [], every, segments=store)

    def accuracy(self, model: RewardModel) -> float:
        """Share of the test pairs in which the model prefers the better one."""
        returns = np.zeros(len(self.names))
        for at in self.test_segments:
            segment = self.db.load(self.names[at])
            returns[at] = model.rewards_along(segment.frames, segment.actions, segment.observations)[
                ::_TEST_STRIDE
            ].sum()
        prefers = returns[self.test[:, 0]] > returns[self.test[:, 1]]
        return float((prefers == (self.value[self.test[:, 0]] > self.value[self.test[:, 1]])).mean())


def split(recipe: str, pairs: Pairs, config: FitConfig) -> tuple[np.ndarray, np.ndarray]:
    """Pairs to fit to and to stop by."""
    if recipe != "original":
        return split_by_segment(pairs, config.held_out, config.seed)
    order = np.random.default_rng(config.seed).permutation(len(pairs))
    cut = round(config.held_out * len(pairs))
    return np.sort(order[cut:]), np.sort(order[:cut])


def measure(config: QualityConfig) -> Path:
    """Runs the missing fits and makes the table of all.

    Raises:
      UserError: the DB or a flag is wrong.
    """
    db = SegmentDB(config.db)
    names = db.names
    if len(names) < 40:
        raise UserError(f"{config.db}: expected at least 40 clips, found {len(names)}")
    teacher = make_teacher(config.teacher, config.error_rate)
    value = np.array([teacher.value(db.load(name)) for name in names])
    make_folder(config.out, "--out")
    results = config.out / f"{config.teacher}.jsonl"
    settings = {name: getattr(config, name) for name in _SETTINGS} | {"db": str(config.db.resolve())}
    settings |= fit_defaults()
    done = {(r["recipe"], r["labels"], r["seed"]) for r in read_rows(results, settings)}
    for count in sorted(config.labels):
        for seed in config.seeds:
            task = Task(db, names, value, seed, config.test_pairs)
            labels = task.labels(max(config.labels), teacher, float(value.mean()))[:count]
            for recipe in config.recipes:
                if (recipe, count, seed) in done:
                    continue
                row = {"recipe": recipe, "labels": count, "seed": seed, **settings}
                row |= _fit_and_test(config, task, labels, recipe, seed)
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)
    table = config.out / f"{config.teacher}.md"
    table.write_text(_table(read_rows(results, settings)))
    print(table.read_text())
    return table


def _fit_and_test(
    config: QualityConfig, task: Task, labels: Sequence[tuple[int, int, int]], recipe: str, seed: int
) -> dict[str, float]:
    changes = {"frame_stride": config.frame_stride, **RECIPES[recipe]}
    fit_config = FitConfig(dbs=[config.db], name=recipe, out=config.out, seed=seed, **changes)
    data = task.data(labels, config.memory_mb, fit_config)
    train, test = split(recipe, data.pairs, fit_config)
    fitted = fit_quietly(fit_config, data, train, test)
    return {
        "accuracy": task.accuracy(fitted.model),
        "held_out_accuracy": fitted.best.accuracy,
        "epochs": len(fitted.history),
    }


def fit_defaults() -> dict[str, Any]:
    """The defaults of 03_reward_train.py, as a setting: fits by those of another version are not of one kind with today's."""
    config = FitConfig(dbs=[Path("db")], name="defaults", out=Path("rewards"))
    return {"defaults": json.loads(json.dumps(storable(config)))}


def read_rows(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The fits with these settings recorded so far."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if settings.items() <= row.items()]


def _table(rows: list[dict[str, Any]]) -> str:
    """Accuracy by recipe and number of labels; recipes that are no more come last."""
    found = [((row["recipe"],), row["labels"], row["accuracy"]) for row in rows]
    names = [*RECIPES, *(row["recipe"] for row in rows)]
    return accuracy_table(("recipe",), sorted(found, key=lambda fit: names.index(fit[0][0])))


def accuracy_table(heads: Sequence[str], found: Sequence[tuple[tuple[str, ...], int, float]]) -> str:
    """Accuracies by number of labels in Markdown, mean ± 95 % over the seeds.

    Args:
      heads: of the columns that name a row.
      found: of each fit the names of its row, its number of labels, and its accuracy. Rows keep this order.
    """
    cells: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, count, accuracy in found:
        cells[row][count].append(accuracy)
    counts = sorted({count for _, count, _ in found})
    lines = [
        f"| {' | '.join([*heads, *(f'{count} labels' for count in counts)])} |",
        "|" + "---|" * (len(heads) + len(counts)),
    ]
    for row, by_count in cells.items():
        lines.append(f"| {' | '.join([*row, *(_cell(by_count[count]) for count in counts)])} |")
    return "\n".join(lines) + "\n"


def _cell(accuracies: list[float]) -> str:
    percent = [100 * accuracy for accuracy in accuracies]
    return f"{format_mean(percent)} % ({len(percent)})" if percent else ""


def main(argv: Sequence[str] | None = None) -> None:
    measure(cli.parse(QualityConfig, argv, description=__doc__))


if __name__ == "__main__":
    cli.run(main)
