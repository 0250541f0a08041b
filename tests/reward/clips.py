"""Small segments whose quality is their brightness, and databases of them."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lib.preferences.labels import Label, LabelLog
from lib.preferences.segments import FORK, Segment, Sidecar, save_segment


def clip(
    grey: int,
    size: int = 48,
    steps: int = 5,
    env_id: str = "Grey-v0",
    num_actions: int = 4,
    scores: Sequence[float] | None = None,
    seed: int | None = None,
) -> Segment:
    """Frames of one grey, give or take some noise."""
    rng = np.random.default_rng(grey if seed is None else seed)
    frames = rng.integers(max(grey - 20, 0), min(grey + 20, 255) + 1, (steps, size, size, 3)).astype(np.uint8)
    return Segment(
        frames,
        rng.integers(0, num_actions, steps),
        Sidecar(
            np.zeros(steps, np.float32) if scores is None else np.array(scores, np.float32),
            np.zeros(steps, bool),
            np.zeros(steps, bool),
            env_id,
            num_actions,
            "",
            0,
        ),
    )


def save(db: Path, number: int, segment: Segment) -> str:
    """Saves a segment and returns its name."""
    name = f"{number % 3:02d}/{number:08d}.dat"
    save_segment(db / name, segment)
    return name


def add_labels(db: Path, labels: Iterable[tuple[str, str, int | None]], annotator: str | None = None) -> None:
    log = LabelLog(db / "labels.json")
    for sample1, sample2, label in labels:
        log.append(Label(sample1, sample2, label, annotator=annotator))


def grey_db(db: Path, segments: int, labels: int, seed: int = 0) -> Path:
    """A database in which the brighter of two random clips is preferred."""
    rng = np.random.default_rng(seed)
    greys = rng.integers(0, 256, segments)
    db.mkdir(parents=True)
    names = [save(db, i, clip(int(grey), seed=i)) for i, grey in enumerate(greys)]
    pairs = [rng.choice(segments, 2, replace=False) for _ in range(labels)]
    add_labels(
        db,
        (
            (names[a], names[b], 0 if greys[a] == greys[b] else 1 if greys[a] > greys[b] else 2)
            for a, b in pairs
        ),
    )
    return db


def forked_db(db: Path, moments: int) -> Path:
    """A database of four like clips of each moment, which share their number; two pairs of each are labelled."""
    db.mkdir(exist_ok=True)
    for moment in range(moments):
        names = [f"{env:02d}/{moment:08d}.dat" for env in range(4)]
        for name in names:
            segment = clip(100, steps=2)
            assert segment.sidecar is not None
            sidecar = dataclasses.replace(segment.sidecar, reason=f"{FORK}00/{moment:08d}")
            save_segment(db / name, dataclasses.replace(segment, sidecar=sidecar))
        add_labels(db, [(names[0], names[1], 1), (names[2], names[3], 2)])
    return db
