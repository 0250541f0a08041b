"""Size of segments on play of a trained policy, and how long one takes to load."""

import time
from pathlib import Path
from statistics import mean, median

from benchmarks.original import read_original_segment, write_original_segment
from benchmarks.ours import record_segments
from benchmarks.quiet import train_quietly
from benchmarks.report import Row, Target
from benchmarks.setup import Setup
from lib.agent.config import TrainConfig
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import load_segment
from lib.reporting import format_count


def train_policy(folder: Path, steps: int, dev: str) -> Path:
    """Trains a policy by the defaults of 01_a2c.py; returns its checkpoint."""
    config = TrainConfig(
        name="policy", dev=dev, steps=steps, eval_every=steps, eval_games=1, save=folder / "v0", runs=folder
    )
    return train_quietly(config)


def size_and_loading(setup: Setup) -> list[Row]:
    steps = 5_000 if setup.quick else 150_000
    policy = train_policy(setup.folder, steps, setup.dev)
    db = setup.folder / "segments"
    record_segments(db, 20 if setup.quick else 150, setup.dev, policy)
    return rows([db / name for name in SegmentDB(db).names], setup, steps)


def rows(paths: list[Path], setup: Setup, steps: int) -> list[Row]:
    """Size of these segments and the time to load them, beside the original's format.

    Args:
      paths: segments.
      setup: how often to measure.
      steps: of training, of the policy whose play they are; for the note.
    """
    sizes = [path.stat().st_size / 1e3 for path in paths]
    plain = setup.folder / "plain.dat"
    write_original_segment(plain, paths[0])

    load_segment(paths[0])
    times, their_times = [], []
    for _ in range(setup.repeats):
        began = time.perf_counter()
        for path in paths:
            load_segment(path)
        times.append((time.perf_counter() - began) / len(paths) * 1e3)
        began = time.perf_counter()
        for _ in range(10):
            read_original_segment(plain)
        their_times.append((time.perf_counter() - began) / 10 * 1e3)
    their_size = plain.stat().st_size / 1e3
    played = f"{len(paths)} segments of a policy trained for {format_count(steps)} steps"
    return [
        Row(
            "segment-size",
            "A 50-step segment, on average, against the original's pickle",
            "KB",
            mean(sizes),
            their_size,
            their_size / mean(sizes),
            target=Target(60, least=False, of_ratio=False),
            note=f"{played}; {min(sizes):.0f} to {max(sizes):.0f} KB.",
        ),
        Row(
            "segment-load",
            "Loading and decoding a segment, against the original's pickle",
            "ms",
            median(times),
            median(their_times),
            median(their_times) / median(times),
            repeats=len(times),
            target=Target(5, least=False, of_ratio=False),
            note="from the page cache; the original's runs whatever the file says, ours checks it.",
        ),
    ]
