"""Labelled pairs as arrays: what a fit reads, and how it is split."""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.cli import UserError
from lib.envs.observation import grey_resize_cpu, stacked_clip
from lib.preferences.labels import RECHECK, Label, LabelLog, answers, current
from lib.preferences.schedule import LEAST_LABELS
from lib.preferences.segments import Segment, SegmentDB, SegmentError, Sidecar

_CONSTANT = 1e-6  # a standard deviation that is a rounding error

PREFERENCE1 = {1: 1.0, 2: 0.0, 0: 0.5}
"""μ of the preference loss for each label; a pair that nobody could tell apart (null) has none."""


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


class SegmentStore:
    """The segments of a fit, each once: decoded and held as uint8 up to a budget, read from disk past it.

    Args:
      memory_mb: the budget.
      input: what the network will see, one of `lib.reward.model.INPUTS`; that is what is held. None: the vectors that
        the policy observed, where the first segment has any, else frames.

    Attributes:
      input: the same, not None once there is a segment.
      continuous: whether an action is `num_actions` numbers.
      observation_size: D of the vectors that the network will see; None where it sees pictures.
    """

    def __init__(self, memory_mb: float, input: str | None = None) -> None:
        self._budget = memory_mb * 1e6
        self.input = input
        self.continuous = False
        self.observation_size: int | None = None
        self._sources: list[tuple[SegmentDB, str]] = []
        self._held: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._sidecars: list[Sidecar | None] = []
        self._lengths: list[int] = []
        self.frame_shape: tuple[int, int, int] | None = None
        self.num_actions = 0
        self._num_actions_said: int | None = None
        self.env_id = ""

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, db: SegmentDB, name: str, segment: Segment) -> int:
        """Takes a segment in and returns its index.

        Raises:
          UserError: it is of another environment or action set than those before it.
        """
        shape, env_id = segment.frames.shape[1:], "" if segment.sidecar is None else segment.sidecar.env_id
        if self.frame_shape is None:
            self.frame_shape = shape
            self.input = self.input or ("frame" if segment.observations is None else "observation")
            self.continuous = segment.continuous
            self.observation_size = segment.observation_size if self.input == "observation" else None
        if segment.continuous != self.continuous or (
            self.input == "observation" and segment.observation_size != self.observation_size
        ):
            raise UserError(
                f"{name}: expected actions and observations like those of the segments before it, got others; "
                f"fit one model per environment"
            )
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
        if segment.sidecar is None:
            here = segment.actions.shape[1] if segment.continuous else int(segment.actions.max()) + 1
            self.num_actions = max(self.num_actions, here)
        else:
            said = segment.sidecar.num_actions
            if self._num_actions_said not in (None, said):
                raise UserError(
                    f"{name}: expected a segment of {self._num_actions_said} actions like those before it, got one "
                    f"of {said}; the same number would mean another action: fit one model per action set"
                )
            self._num_actions_said = said
            self.num_actions = max(self.num_actions, said)
        self._sources.append((db, name))
        self._sidecars.append(segment.sidecar)
        self._lengths.append(len(segment.actions))
        self._hold(len(self._sources) - 1, segment)
        return len(self._sources) - 1

    def _hold(self, index: int, segment: Segment) -> None:
        seen = self._seen(segment)
        if seen.nbytes <= self._budget:
            self._budget -= seen.nbytes
            self._held[index] = seen, segment.actions

    def _seen(self, segment: Segment) -> np.ndarray:
        if self.input == "frame":
            return segment.frames
        if segment.observations is not None:
            return segment.observations
        return grey_resize_cpu(np.ascontiguousarray(segment.frames))

    def get(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Frames uint8 `[T, H, W, 3]`, actions int64 `[T]` or float32 `[T, A]`, and where a network sees such vectors
        observations float32 `[T, D]` of a segment."""
        if self.input == "frame" and index in self._held:
            return *self._held[index], None
        segment = self._load(index)
        return segment.frames, segment.actions, segment.observations

    def _load(self, index: int) -> Segment:
        db, name = self._sources[index]
        try:
            return db.load(name)
        except SegmentError as error:
            raise UserError(
                f"a segment that was there when the fit began cannot be read any more: {error}; put it back and go on "
                "with --resume, or give more --memory-mb, which holds segments in memory"
            ) from error

    def inputs(self, index: int, stride: int = 1, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """What the network sees of every `stride`-th step of a segment, beginning with step `offset`.

        Returns:
          Frames uint8 `[N, H, W, 3]` or observations uint8 `[N, 4, 84, 84]` or float32 `[N, D]`, and actions int64 `[N]`
          or float32 `[N, A]`.
        """
        if index in self._held:
            seen, actions = self._held[index]
        else:
            segment = self._load(index)
            seen, actions = self._seen(segment), segment.actions
        if self.input == "observation" and self.observation_size is None:
            seen = stacked_clip(seen)
        steps = slice(offset, None, stride)
        return seen[steps], actions[steps]

    def observation_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each number of the vectors observed, float32 `[D]`; 1 where it never changes."""
        seen = np.concatenate([self.inputs(index)[0] for index in range(len(self))]).astype(float)
        std = seen.std(0)
        return seen.mean(0).astype(np.float32), np.where(std > _CONSTANT, std, 1).astype(np.float32)

    def length(self, index: int) -> int:
        """T, the steps of a segment."""
        return self._lengths[index]

    def source(self, index: int) -> tuple[SegmentDB, str]:
        """Where a segment lies: its DB and its name there."""
        return self._sources[index]

    def sidecar(self, index: int) -> Sidecar | None:
        """What was recorded beside a segment; None for one of the original format. Never for a model's eyes."""
        return self._sidecars[index]


@dataclass(frozen=True)
class PreferenceData:
    """Everything a fit reads from one or more DBs."""

    segments: SegmentStore
    pairs: Pairs
    labels: list[Label]
    """The label behind each pair."""
    db_of: np.ndarray
    """int64 `[N]`: which DB, in the order given, each pair is of."""
    problems: list[str]
    """Labels and segments that were left out, one line each."""
    parents: list[dict[str, object]]
    """What each DB contributed, for the checkpoint."""
    at_random: np.ndarray | None = None
    """bool `[N]`: the pairs that may be held out (see `asked_at_random`); None for all."""


def load_preferences(
    dbs: list[Path],
    memory_mb: float,
    num_actions: int | None = None,
    weights: dict[str, float] | None = None,
    only: Collection[str] = (),
    input: str | None = None,
) -> PreferenceData:
    """Reads the labels of some DBs and the segments they name.

    Labels of `null` (cannot tell) are left out. Where several people labelled one pair, each of their labels
    counts.

    Args:
      dbs: folders of segments with a labels.json each.
      memory_mb: budget for decoded segments.
      num_actions: size of the action set, where the segments do not say it.
      weights: how much the labels of a labeller (a person's or a teacher's name) count; 1 where nothing is said,
        and labels of weight 0 are left out.
      only: the labellers whose labels to take; empty for all.
      input: what the network will see; see `SegmentStore`.

    Raises:
      UserError: a DB is missing or without labels, a labeller is unknown, or the DBs are of different environments.
    """
    weights = weights or {}
    store = SegmentStore(memory_mb, input)
    problems: list[str] = []
    parents: list[dict[str, object]] = []
    first, second, kept, db_of, at_random = [], [], [], [], []
    known: set[str] = set()
    for number, path in enumerate(dbs):
        db, log = SegmentDB(path), LabelLog(path / "labels.json")
        db.refresh()
        try:
            lines = log.read()
        except OSError as error:
            raise UserError(f"{log.path}: cannot be read: {error.strerror or error}") from error
        labels = [label for label in current(lines) if label.label is not None]
        problems += [f"{path}: {problem}" for problem in log.problems]
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
        index: dict[str, int] = {}
        broken: set[str] = set()
        used = 0
        for label, random in zip(labels, asked_at_random(labels, lines), strict=True):
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
                kept.append(label)
                db_of.append(number)
                at_random.append(random)
                used += 1
        people = Counter(map(_named, kept[len(kept) - used :]))
        sidecars = (store.sidecar(number) for number in index.values())
        policies = Counter(sidecar.policy for sidecar in sidecars if sidecar and sidecar.policy)
        parents.append(
            {
                "db": str(path),
                "labels": used,
                "labellers": dict(people.most_common()),
                "policies": dict(policies.most_common()),
            }
        )
    if num_actions is not None:
        if num_actions < store.num_actions:
            raise UserError(
                f"--num-actions {num_actions}: the segments hold actions up to {store.num_actions - 1}"
            )
        store.num_actions = num_actions
    strangers = sorted((set(weights) | set(only)) - known)
    if strangers:
        raise UserError(
            f"--weight and --only: expected labellers among {', '.join(sorted(known))}, got {', '.join(strangers)}"
        )
    pairs = Pairs(
        np.array(first, np.int64),
        np.array(second, np.int64),
        np.array([PREFERENCE1[label.label] for label in kept if label.label is not None], np.float32),
        np.array([weights.get(labeller_of(label), 1) for label in kept], np.float32),
    )
    numbers = np.array(db_of, np.int64)
    return PreferenceData(store, pairs, kept, numbers, problems, parents, np.array(at_random, bool))


def labeller_of(label: Label) -> str:
    """The name of the person or the simulated teacher who gave a label."""
    return label.annotator or label.teacher or "unknown"


def _named(label: Label) -> str:
    """Who gave a label, for the record: a teacher is not to be taken for a person."""
    return f"{label.teacher} teacher" if label.teacher and not label.annotator else labeller_of(label)


def asked_at_random(labels: Sequence[Label], lines: Sequence[Label] | None = None) -> np.ndarray:
    """Which pairs nobody chose for what a model thinks of them.

    Only those can be held out: a model's accuracy on pairs that were asked because it was unsure of them says
    little about its accuracy on others. How a pair was chosen is said by the labeller's first answer to it, which a
    repeat check or a change leaves as it was. A pair that anybody rechecked is out, whoever labelled it: which of
    its labels stand is then no longer independent of a model. Labels of the original format say nothing; it drew
    its pairs at random.

    Args:
      labels: N labels that hold, of one DB.
      lines: every line of its log in the order of the file; None where no pair was answered twice.

    Returns:
      bool `[N]`.
    """
    said = answers(labels if lines is None else lines)
    rechecked = {pair for (pair, _), history in said.items() if any(a.strategy == RECHECK for a in history)}
    return np.array(
        [
            label.pair not in rechecked and said[label.pair, label.labeller][0].strategy in (None, "random")
            for label in labels
        ],
        bool,
    )


def check_enough(pairs: Pairs) -> None:
    """Refuses to fit on a handful of labels.

    Raises:
      UserError: says how many there are.
    """
    if len(pairs) < LEAST_LABELS:
        raise UserError(
            f"expected at least {LEAST_LABELS} labels to fit on, found {len(pairs)}; label more with 02_label_ui.py"
        )


def split_by_segment(
    pairs: Pairs,
    held_out: float,
    seed: int,
    eligible: np.ndarray | None = None,
    db_of: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Splits pairs so that no segment stands on both sides, which would leak what it looks like.

    Held-out segments are gathered by walking from pair to pair, so that few pairs are torn apart; a pair with
    one segment on either side belongs to neither, and nor does one within the held-out side that is not eligible.

    Args:
      pairs: the labelled pairs.
      held_out: share of the pairs to hold out, of every DB; fewer where fewer are eligible.
      seed: of the walk.
      eligible: bool `[N]`, the pairs that may be held out; None for all.
      db_of: int64 `[N]`, from 0: the DB of each pair; None for one and the same.

    Returns:
      int64 positions of the training pairs and of the held-out pairs, each sorted.

    Raises:
      UserError: too few labels for both sides to have any.
    """
    rng = np.random.default_rng(seed)
    pool = np.arange(len(pairs)) if eligible is None else np.flatnonzero(eligible)
    if not len(pool):
        raise UserError(
            f"none of the {len(pairs)} labels is of a pair drawn at random, and only those can judge a fit; "
            f"label some with 02_label_ui.py --strategy random"
        )
    dbs = np.zeros(len(pairs), np.int64) if db_of is None else db_of
    # Rounded as they add up, so that many small DBs do not all round to nothing.
    shares = np.diff(np.round(held_out * np.cumsum([0, *np.bincount(dbs)]))).astype(int)
    wanted = np.minimum(shares, np.bincount(dbs[pool], minlength=len(shares)))
    if not wanted.any():
        wanted[dbs[pool[0]]] = 1
    inside: set[int] = set()
    for db, count in enumerate(wanted.tolist()):
        inside |= _gather(pairs.subset(pool[dbs[pool] == db]), count, rng)
    held = np.isin(pairs.first, list(inside)), np.isin(pairs.second, list(inside))
    test, train = np.intersect1d(pool, np.flatnonzero(held[0] & held[1])), np.flatnonzero(~held[0] & ~held[1])
    if not len(train) or not len(test):
        raise UserError(
            f"{len(pairs)} labels are too few to fit on some and judge by others that share no clip; label more pairs"
        )
    return train, test


def grown_split(
    pairs: Pairs, held_out: float, seed: int, eligible: np.ndarray, trained: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Splits pairs that have become more, so that no segment ever changes its side.

    A model that goes on from its weights remembers what it was fitted to, and can only be judged by what it never was.
    Of the pairs that no segment of the training side stands in, as many are held out as their share of all wants.

    Args:
      pairs: the labelled pairs.
      held_out: share of the pairs to hold out; fewer where fewer can be.
      seed: of the walk that gathers them.
      eligible: bool `[N]`, the pairs that may be held out.
      trained: bool `[S]`, segments that a model was fitted to.
      held: bool `[S]`, segments that were held out.

    Returns:
      int64 positions of the training pairs and of the held-out pairs, each sorted, as `split_by_segment`.

    Raises:
      UserError: one side would have none.
    """
    ends = np.stack([pairs.first, pairs.second])
    free = eligible & ~trained[ends].any(0)
    wanted = min(round(held_out * len(pairs)), int(free.sum()))
    candidates = pairs.subset(np.flatnonzero(free))
    inside = _gather(candidates, wanted, np.random.default_rng(seed), set(np.flatnonzero(held).tolist()))
    on_side = np.isin(ends, list(inside))
    test, train = np.flatnonzero(free & on_side.all(0)), np.flatnonzero(~on_side.any(0))
    if not len(train) or not len(test):
        raise UserError(
            f"none of the {len(pairs)} labels is left to {'judge by' if len(train) else 'fit to'}"
        )
    return train, test


def _gather(
    candidates: Pairs, wanted: int, rng: np.random.Generator, begin: Collection[int] = ()
) -> set[int]:
    """Segments that have `wanted` of the candidates, or a few more, among themselves, those of `begin` included."""
    neighbours: dict[int, list[int]] = {}
    for position, ends in enumerate(zip(candidates.first, candidates.second, strict=True)):
        for end in map(int, ends):
            neighbours.setdefault(end, []).append(position)

    inside: set[int] = set(begin)
    for start in rng.permutation(len(candidates)):
        if _count_inside(candidates, inside) >= wanted:
            break
        queue = deque([int(candidates.first[start]), int(candidates.second[start])])
        while queue and _count_inside(candidates, inside) < wanted:
            segment = queue.popleft()
            if segment in inside:
                continue
            inside.add(segment)
            for position in neighbours[segment]:
                queue += [int(candidates.first[position]), int(candidates.second[position])]
    return inside


def _count_inside(pairs: Pairs, inside: set[int]) -> int:
    members = list(inside)
    return int((np.isin(pairs.first, members) & np.isin(pairs.second, members)).sum())
