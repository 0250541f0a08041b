"""Labelled pairs as arrays: what a fit reads, and how it is split."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.cli import UserError
from lib.preferences.labels import LabelLog, current
from lib.preferences.segments import Segment, SegmentDB, SegmentError

PREFERENCE1 = {1: 1.0, 2: 0.0, 0: 0.5}
"""μ of the preference loss for each label; a pair that nobody could tell apart (null) has none."""


@dataclass(frozen=True)
class Pairs:
    """N labelled pairs over S segments."""

    first: np.ndarray  # int64 [N], index of a segment
    second: np.ndarray  # int64 [N]
    preference1: np.ndarray  # float32 [N], μ

    def __len__(self) -> int:
        return len(self.first)

    def subset(self, index: np.ndarray) -> "Pairs":
        """The pairs at these positions."""
        return Pairs(self.first[index], self.second[index], self.preference1[index])


class SegmentStore:
    """The segments of a fit, each once: decoded and held as uint8 up to a budget, read from disk past it."""

    def __init__(self, memory_mb: float) -> None:
        self._budget = memory_mb * 1e6
        self._sources: list[tuple[SegmentDB, str]] = []
        self._held: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.frame_shape: tuple[int, int, int] | None = None
        self.num_actions = 0
        self.env_id = ""

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, db: SegmentDB, name: str, segment: Segment) -> int:
        """Takes a segment in and returns its index.

        Raises:
          UserError: it is of another environment than those before it.
        """
        shape, env_id = segment.frames.shape[1:], "" if segment.sidecar is None else segment.sidecar.env_id
        if self.frame_shape is None:
            self.frame_shape = shape
        if shape != self.frame_shape:
            raise UserError(
                f"{name}: expected frames of {'×'.join(map(str, self.frame_shape[:2]))} pixels like the segments "
                f"before it, got {'×'.join(map(str, shape[:2]))}; fit one model per environment"
            )
        if env_id and self.env_id and env_id != self.env_id:
            raise UserError(
                f"{name}: a segment of {env_id} among those of {self.env_id}; fit one model per environment"
            )
        self.env_id = self.env_id or env_id
        actions = int(segment.actions.max()) + 1 if segment.sidecar is None else segment.sidecar.num_actions
        self.num_actions = max(self.num_actions, actions)
        self._sources.append((db, name))
        self._hold(len(self._sources) - 1, segment)
        return len(self._sources) - 1

    def _hold(self, index: int, segment: Segment) -> None:
        if segment.frames.nbytes <= self._budget:
            self._budget -= segment.frames.nbytes
            self._held[index] = segment.frames, segment.actions

    def get(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Frames uint8 `[T, H, W, 3]` and actions int64 `[T]` of a segment."""
        if index in self._held:
            return self._held[index]
        db, name = self._sources[index]
        segment = db.load(name)
        return segment.frames, segment.actions


@dataclass(frozen=True)
class PreferenceData:
    """Everything a fit reads from one or more DBs."""

    segments: SegmentStore
    pairs: Pairs
    problems: list[str]
    """Labels and segments that were left out, one line each."""
    parents: list[dict[str, object]]
    """What each DB contributed, for the checkpoint."""


def load_preferences(dbs: list[Path], memory_mb: float, num_actions: int | None = None) -> PreferenceData:
    """Reads the labels of some DBs and the segments they name.

    Labels of `null` (cannot tell) are left out. Where several people labelled one pair, each of their labels
    counts.

    Args:
      dbs: folders of segments with a labels.json each.
      memory_mb: budget for decoded segments.
      num_actions: size of the action set, where the segments do not say it.

    Raises:
      UserError: a DB is missing or without labels, or the DBs are of different environments.
    """
    store = SegmentStore(memory_mb)
    problems: list[str] = []
    parents: list[dict[str, object]] = []
    first, second, preference1 = [], [], []
    for path in dbs:
        db, log = SegmentDB(path), LabelLog(path / "labels.json")
        db.refresh()
        labels = [label for label in current(log.read()) if label.label is not None]
        problems += [f"{path}: {problem}" for problem in log.problems]
        if not labels:
            raise UserError(
                f"{path}: expected labels in {path / 'labels.json'}, found none; label with 02_label_ui.py"
            )
        index: dict[str, int] = {}
        broken: set[str] = set()
        used = 0
        for label in labels:
            for name in label.pair:
                if name in index or name in broken:
                    continue
                try:
                    index[name] = store.add(db, name, db.load(name))
                except SegmentError as error:
                    broken.add(name)
                    problems.append(f"{path}: labels of {name} left out: {error}")
            if label.sample1 in index and label.sample2 in index and label.label is not None:
                first.append(index[label.sample1])
                second.append(index[label.sample2])
                preference1.append(PREFERENCE1[label.label])
                used += 1
        labellers = sorted({label.annotator or label.teacher or "unknown" for label in labels})
        parents.append({"db": str(path), "labels": used, "labellers": labellers})
    if num_actions is not None:
        if num_actions < store.num_actions:
            raise UserError(
                f"--num-actions {num_actions}: the segments hold actions up to {store.num_actions - 1}"
            )
        store.num_actions = num_actions
    pairs = Pairs(np.array(first, np.int64), np.array(second, np.int64), np.array(preference1, np.float32))
    return PreferenceData(store, pairs, problems, parents)


def split_by_segment(pairs: Pairs, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits pairs so that no segment stands on both sides, which would leak what it looks like.

    Held-out segments are gathered by walking from pair to pair, so that few pairs are torn apart; a pair with
    one segment on either side belongs to neither.

    Args:
      pairs: the labelled pairs.
      held_out: share of the pairs to hold out.
      seed: of the walk.

    Returns:
      int64 positions of the training pairs and of the held-out pairs, each sorted.

    Raises:
      UserError: too few labels for both sides to have any.
    """
    rng = np.random.default_rng(seed)
    wanted = max(1, round(held_out * len(pairs)))
    neighbours: dict[int, list[int]] = {}
    for position, ends in enumerate(zip(pairs.first, pairs.second, strict=True)):
        for end in map(int, ends):
            neighbours.setdefault(end, []).append(position)

    inside: set[int] = set()
    for start in rng.permutation(len(pairs)):
        queue = deque([int(pairs.first[start]), int(pairs.second[start])])
        while queue and _count_inside(pairs, inside) < wanted:
            segment = queue.popleft()
            if segment in inside:
                continue
            inside.add(segment)
            for position in neighbours[segment]:
                queue += [int(pairs.first[position]), int(pairs.second[position])]
        if _count_inside(pairs, inside) >= wanted:
            break
    held = np.isin(pairs.first, list(inside)), np.isin(pairs.second, list(inside))
    test, train = np.flatnonzero(held[0] & held[1]), np.flatnonzero(~held[0] & ~held[1])
    if not len(train) or not len(test):
        raise UserError(
            f"{len(pairs)} labels are too few to fit on some and judge by others that share no clip; label more pairs"
        )
    return train, test


def _count_inside(pairs: Pairs, inside: set[int]) -> int:
    members = list(inside)
    return int((np.isin(pairs.first, members) & np.isin(pairs.second, members)).sum())
