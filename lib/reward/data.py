"""Labelled pairs as arrays: what a fit reads."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lib.cli import UserError
from lib.preferences.labels import RECHECK, Label, LabelLog, answers, current
from lib.preferences.schedule import LEAST_LABELS
from lib.preferences.segment_db import SegmentDB, read_ahead
from lib.preferences.segments import SegmentError
from lib.reward.features import Features
from lib.reward.store import SegmentStore

PREFERENCE1: dict[int | None, float] = {1: 1.0, 2: 0.0, 0: 0.5}
"""μ of the preference loss for each label; null (cannot tell) has none."""


@dataclass(frozen=True)
class Pairs:
    """N labelled pairs over S segments."""

    first: np.ndarray  # int64 [N], index of a segment
    second: np.ndarray  # int64 [N]
    preference1: np.ndarray  # float32 [N], μ
    weight: np.ndarray  # float32 [N], above 0: how much the label counts in a loss

    def __len__(self) -> int:
        return len(self.first)

    def subset(self, index: np.ndarray) -> "Pairs":
        """The pairs at these positions."""
        return Pairs(self.first[index], self.second[index], self.preference1[index], self.weight[index])


@dataclass(frozen=True)
class Labelled:
    """The labels of one or more DBs."""

    pairs: Pairs
    labels: list[Label]
    """The label behind each pair."""
    db_of: np.ndarray
    """int64 `[N]`: which DB, in the order given, each pair is of."""
    problems: list[str]
    """Labels and segments that were left out, one line each."""
    parents: list[dict[str, object]]
    """Each DB's contribution, for the checkpoint."""
    at_random: np.ndarray
    """bool `[N]`: the pairs that may be held out (see `asked_at_random`)."""
    lines: Sequence[int] = ()
    """Of each DB, how many lines of labels.json were read."""


@dataclass(frozen=True, kw_only=True)
class PreferenceData(Labelled):
    """Everything a fit on clips reads from one or more DBs."""

    segments: SegmentStore


class Store(Protocol):
    """Holds the clips or answers that labels name."""

    def load(self, db: SegmentDB, name: str) -> Any:
        """Reads one of a DB, in any thread. Raises SegmentError."""
        ...

    def add(self, db: SegmentDB, name: str, loaded: Any) -> int:
        """Adds what was read and returns its index. Raises UserError."""
        ...

    def policy(self, index: int) -> str:
        """The policy that made it; "" if unknown."""
        ...


def load_preferences(
    dbs: list[Path],
    memory_mb: float,
    num_actions: int | None = None,
    weights: dict[str, float] | None = None,
    only: Collection[str] = (),
    input: str | None = None,
    lines: Sequence[int] | None = None,
    features: Features | None = None,
    steps: int | None = None,
    survived: bool = False,
    half_frames: bool | None = False,
) -> PreferenceData:
    """Reads the labels of some DBs and the segments they name.

    Labels of `null` (cannot tell) are left out. If several people labelled one pair, each of their labels counts.

    Args:
      dbs: folders of segments with a labels.json each.
      memory_mb: budget for decoded segments.
      num_actions: size of the action set, for segments that do not say it.
      weights: how much the labels of a labeller (a person's or a teacher's name) count, 1 by default; labels of weight
        0 are left out.
      only: labellers whose labels to use; empty for all.
      input, features, steps, half_frames: what the network will see; see `SegmentStore`.
      lines: of each DB, how many lines of labels.json to read, as `PreferenceData.lines` of an earlier call has them;
        None for all.
      survived: whether to leave out pairs in which a life is lost.

    Raises:
      UserError: a DB is missing or without labels, a labeller is unknown, or the DBs are of different environments.
    """
    store = SegmentStore(memory_mb, input, features, steps, half_frames)
    found = read_labels(dbs, store, weights, only, lines, fits=store.survived if survived else None)
    if num_actions is not None:
        store.set_num_actions(num_actions)
    return PreferenceData(**vars(found), segments=store)


def read_labels(
    dbs: list[Path],
    store: Store,
    weights: dict[str, float] | None = None,
    only: Collection[str] = (),
    lines: Sequence[int] | None = None,
    group_of: Callable[[str], str] | None = None,
    fits: Callable[[int], bool] | None = None,
) -> Labelled:
    """Reads the labels of some DBs, and what they name into a store.

    Args:
      dbs, weights, only, lines: as for `load_preferences`.
      store: takes what the labels name.
      group_of: of a name, the group within which it may be compared; other labels are left out. None: any two may be.
      fits: of an index in the store, whether labels that name it count. None: all do.

    Raises:
      UserError: as `load_preferences`.
    """
    weights = weights or {}
    problems: list[str] = []
    parents: list[dict[str, object]] = []
    ends: list[tuple[int, int]] = []  # of each pair
    kept, at_random, read = [], [], []
    known: set[str] = set()
    for number, path in enumerate(dbs):
        db = SegmentDB(path)
        said = _read_lines(path, None if lines is None else lines[number], problems)
        read.append(len(said))
        labels = [label for label in current(said) if label.label is not None]
        if not labels:
            raise UserError(
                f"{path}: expected labels in {path / 'labels.json'}, found none; label with 02_label_ui.py"
            )
        known.update(map(labeller_of, labels))
        labels = [
            label
            for label in labels
            if weights.get(labeller_of(label), 1) > 0 and (not only or labeller_of(label) in only)
        ]
        if group_of is not None:
            apart = {label.pair for label in labels if group_of(label.sample1) != group_of(label.sample2)}
            problems += [
                f"{path}: {' and '.join(pair)} answer different prompts; left out" for pair in sorted(apart)
            ]
            labels = [label for label in labels if label.pair not in apart]
        index: dict[str, int] = {}
        named = dict.fromkeys(name for label in labels for name in label.pair)
        for name, loaded in read_ahead(partial(store.load, db), named):
            try:
                index[name] = store.add(db, name, loaded.result())
            except SegmentError as error:
                problems.append(f"{path}: labels of {name} left out: {error}")
        labels = [
            label
            for label in labels
            if all(name in index and (fits is None or fits(index[name])) for name in label.pair)
        ]
        ends.extend((index[label.sample1], index[label.sample2]) for label in labels)
        kept.extend(labels)
        at_random.append(asked_at_random(labels, said))
        policies = Counter(filter(None, map(store.policy, index.values())))
        parents.append(
            {
                "db": str(path),
                "labels": len(labels),
                "labellers": dict(Counter(map(_named, labels)).most_common()),
                "policies": dict(policies.most_common()),
            }
        )
    strangers = sorted((set(weights) | set(only)) - known)
    if strangers:
        raise UserError(
            f"--weight and --only: expected labellers among {', '.join(sorted(known))}, got {', '.join(strangers)}"
        )
    first, second = np.array(ends, np.int64).reshape(-1, 2).T
    pairs = Pairs(
        first,
        second,
        np.array([PREFERENCE1[label.label] for label in kept], np.float32),
        np.array([weights.get(labeller_of(label), 1) for label in kept], np.float32),
    )
    db_of = np.repeat(np.arange(len(dbs)), list(map(len, at_random)))
    return Labelled(pairs, kept, db_of, problems, parents, np.concatenate(at_random), read)


def _read_lines(path: Path, limit: int | None, problems: list[str]) -> list[Label]:
    """The first `limit` lines of a DB's labels.json, all where that is None; adds what was left out to `problems`."""
    log = LabelLog(path / "labels.json")
    try:
        lines = log.read()
    except OSError as error:
        raise UserError(f"{log.path}: cannot be read: {error.strerror or error}") from error
    problems += [f"{path}: {problem}" for problem in log.problems]
    since = len(current(lines)) - len(current(lines[:limit]))
    if since > 0:
        problems.append(f"{path}: {since} labels are newer than the fit")
    return lines[:limit]


def labeller_of(label: Label) -> str:
    """The name of the person or the simulated teacher who gave a label."""
    return label.annotator or label.teacher or "unknown"


def _named(label: Label) -> str:
    """Who gave a label, for the record, which tells teachers from people."""
    return f"{label.teacher} teacher" if label.teacher and not label.annotator else labeller_of(label)


def asked_at_random(labels: Sequence[Label], lines: Sequence[Label]) -> np.ndarray:
    """Which pairs were drawn at random, including those of one moment or prompt, and not chosen by a model.

    Only those can be held out: accuracy on pairs that a model was unsure of says little about its accuracy on others.
    The labeller's first answer records how the pair was chosen; repeat checks and changes do not alter that. A pair that
    anybody rechecked is excluded, because its labels are no longer independent of a model. Labels of
    the original format do not say; it drew its pairs at random.

    Args:
      labels: the N labels of one DB that count.
      lines: every line of its log, in the order of the file.

    Returns:
      bool `[N]`.
    """
    said = answers(lines)
    rechecked = {pair for (pair, _), history in said.items() if any(a.strategy == RECHECK for a in history)}
    return np.array(
        [
            label.pair not in rechecked
            and said[label.pair, label.labeller][0].strategy in (None, "random", "fork")
            for label in labels
        ],
        bool,
    )


def check_enough(pairs: Pairs) -> None:
    """Refuses to fit on too few labels.

    Raises:
      UserError: says how many there are.
    """
    if len(pairs) < LEAST_LABELS:
        raise UserError(
            f"expected at least {LEAST_LABELS} labels to fit on, found {len(pairs)}; label more with 02_label_ui.py"
        )
