"""The learned reward by what an environment's probes see."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.envs.make import Choice, Scale, choice, scales
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError
from lib.reward.model import RewardModel

MOST_SEGMENTS = 200
_MOST_TRIED = 200  # frames that every action is tried in


def some_segments(model: RewardModel, dbs: Sequence[Path]) -> Iterator[Segment]:
    """At most 200 segments of some DBs, labelled or not and evenly spaced, that the model can rate."""
    sources = [(db, name) for db in map(SegmentDB, dbs) for name in db.names]
    chosen = np.unique(np.linspace(0, len(sources) - 1, min(len(sources), MOST_SEGMENTS)).astype(int))
    for db, name in (sources[at] for at in chosen):
        try:
            segment = db.load(name)
        except SegmentError:
            continue
        if model.spec.difference(model.spec_of(segment)) is None:
            yield segment


@dataclass(frozen=True)
class Paid:
    """The reward of steps of one kind."""

    mean: float
    """Standardised learned reward a step; NaN without steps."""
    steps: int

    @property
    def shade(self) -> str:
        """The class of its colour on the page, from `less4` (−1.5 or below) to `more4`; "" near 0."""
        level = 0 if not self.steps else round(min(4.0, abs(self.mean) / 1.5 * 4))
        return f"{'more' if self.mean > 0 else 'less'}{level}" if level else ""


def _paid(rewards: np.ndarray) -> Paid:
    return Paid(float(rewards.mean()) if len(rewards) else np.nan, len(rewards))


@dataclass(frozen=True)
class Division:
    """The intervals of one scale."""

    name: str
    intervals: list[str]


@dataclass(frozen=True)
class Chosen:
    """The reward of the actions that a situation calls for, and of all others."""

    situation: str
    action: str
    played: tuple[Paid, Paid]
    """In the steps of the clips, of the action that was played."""
    tried: tuple[Paid, Paid] | None
    """Each action in the same frames; None where the model sees no actions."""


@dataclass(frozen=True)
class PaidFor:
    """The mean learned reward by what the probes see."""

    rows: Division
    columns: Division
    parts: Division
    """Of each column; a scale that an environment does not have is one interval without a name."""
    cells: list[list[list[Paid]]]
    """By row, column and part."""
    segments: int
    steps: int
    unseen: int
    """Steps in no cell, because a probe had nothing to read."""
    chosen: Chosen | None


def paid_for(model: RewardModel, env_id: str, segments: Iterable[Segment]) -> PaidFor | None:
    """Rates segments, and sorts their steps by what the environment's probes see.

    Args:
      model: the reward model.
      env_id: the environment, by which its probes are known; it may be "".
      segments: that the model can rate.

    Returns:
      None if the environment has no suitable probes, or they read nothing off these segments.
    """
    found, asks = scales(env_id), choice(env_id)
    if not found:
        return None
    rewards: list[np.ndarray] = []
    values: list[list[np.ndarray]] = [[] for _ in found]
    answers: list[tuple[np.ndarray, np.ndarray]] = []  # rewards, and whether the action is what is asked for
    frames: list[np.ndarray] = []
    names: tuple[str, ...] = ()
    for segment in segments:
        step = segment.as_step()
        paid = model.rewards_along(segment.frames, segment.actions, segment.observations)
        rewards.append(paid)
        for scale, column in zip(found, values, strict=True):
            column.append(scale.read(step))
        if asks and segment.sidecar and segment.sidecar.action_names and not segment.continuous:
            names = segment.sidecar.action_names
            here = asks.applies(step)
            answers.append((paid[here], _begin(names, asks.action)[segment.actions[here]]))
            frames.append(segment.frames[here])
    if not rewards:
        return None
    all_rewards = np.concatenate(rewards)
    divided = [_divide(scale, np.concatenate(column)) for scale, column in zip(found, values, strict=True)]
    divided += [(Division("", [""]), np.zeros(len(all_rewards), int))] * (3 - len(divided))
    (rows, row), (columns, column_of), (parts, part) = divided
    seen = int(((row >= 0) & (column_of >= 0) & (part >= 0)).sum())
    if not seen:
        return None
    cells = [
        [
            [
                _paid(all_rewards[(row == r) & (column_of == c) & (part == p)])
                for p in range(len(parts.intervals))
            ]
            for c in range(len(columns.intervals))
        ]
        for r in range(len(rows.intervals))
    ]
    return PaidFor(
        *(rows, columns, parts, cells, len(rewards), len(all_rewards), len(all_rewards) - seen),
        None if asks is None or not names else _chosen(model, asks, names, answers, np.concatenate(frames)),
    )


def _begin(names: Sequence[str], start: str) -> np.ndarray:
    return np.array([name.startswith(start) for name in names], bool)


def _divide(scale: Scale, values: np.ndarray) -> tuple[Division, np.ndarray]:
    """The intervals of a scale, and that of each of N values, int64 `[N]`; −1 for NaN."""
    here = values[~np.isnan(values)]
    edges = list(scale.edges)
    if not edges and len(here):
        edges = [edge for edge in np.unique(np.quantile(here, [0.25, 0.5, 0.75])) if edge > here.min()]
    names = list(scale.names)
    if not names:
        shown = [f"{edge:.2g}".replace("-", "−") for edge in edges]
        between = [f"{low} to {high}" for low, high in itertools.pairwise(shown)]
        names = [f"below {shown[0]}", *between, f"from {shown[-1]}"] if shown else ["all"]
    return Division(scale.name, names), np.where(np.isnan(values), -1, np.digitize(values, edges))


def _chosen(
    model: RewardModel,
    asks: Choice,
    names: Sequence[str],
    answers: Sequence[tuple[np.ndarray, np.ndarray]],
    frames: np.ndarray,
) -> Chosen:
    wanted = _begin(names, asks.action)
    rewards, right = (np.concatenate(column) for column in zip(*answers, strict=True))
    played = _paid(rewards[right]), _paid(rewards[~right])
    tried = None
    if model.input == "frame" and len(frames):
        shown = frames[:: -(-len(frames) // _MOST_TRIED)]
        each = np.stack([model.rewards(shown, np.full(len(shown), action)) for action in range(len(names))])
        tried = _paid(each[wanted].ravel()), _paid(each[~wanted].ravel())
    return Chosen(asks.name, asks.action, played, tried)
