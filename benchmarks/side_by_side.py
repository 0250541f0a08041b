"""A training and a fit at once on one machine, as `make online` has them, against one after the other."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.report import Row, Target
from benchmarks.setup import Setup

_CLIPS, _LABELS = 24, 60
_STAGES = "train", "fit"


def at_once(setup: Setup) -> list[Row]:
    from benchmarks.reward_fit import labelled_db

    db = labelled_db(setup.folder / "db", _CLIPS, _LABELS)
    found: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    for _ in range(setup.repeats):
        alone = {stage: _rates([stage], setup, db)[stage] for stage in _STAGES}
        both = _rates(_STAGES, setup, db)
        for stage in _STAGES:
            found[stage].append(both[stage] / alone[stage])
    shares = {stage: median(values) for stage, values in found.items()}
    together = [train + fit for train, fit in zip(*found.values(), strict=True)]
    note = ", ".join(f"{stage} keeps {share:.0%} of its speed" for stage, share in shares.items())
    target = Target(0.8, least=True, of_ratio=False)
    title = "a training and a fit at once, work of both against one after the other"
    rows = [Row("at-once", title, "×", median(together), repeats=setup.repeats, target=target, note=note)]
    least = Target(1 / 3, least=True, of_ratio=False)
    title = "the slower of the two, against its speed alone"
    worst = min(shares.values())
    return [*rows, Row("at-once-least", title, "×", worst, repeats=setup.repeats, target=least)]


def _rates(stages: Sequence[str], setup: Setup, db: Path) -> dict[str, float]:
    """Work a second of each stage while all of these run, each in a process of its own as a user starts it."""
    workers = {}
    for stage in stages:
        command = [sys.executable, "-m", "benchmarks.side_by_side", stage, str(setup.folder / stage), str(db)]
        workers[stage] = subprocess.Popen(
            [*command, str(setup.seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    for worker in workers.values():
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return {stage: float(worker.communicate()[0]) for stage, worker in workers.items()}


def _work(stage: str, folder: Path, db: Path, seconds: float) -> None:
    """What a process does: gets ready, waits for a word, works, and says how much it did a second."""
    folder.mkdir(exist_ok=True)
    piece = _train(folder) if stage == "train" else _fit(folder, db)
    next(piece)
    print("ready", flush=True)
    sys.stdin.readline()
    began, made = time.perf_counter(), 0
    for count in piece:
        made += count
        if time.perf_counter() - began >= seconds:
            break
    print(made / (time.perf_counter() - began), flush=True)
    os._exit(0)  # what ends in order would take a while


def _train(folder: Path) -> Iterator[int]:
    """Steps of each few updates."""
    from benchmarks.ours import Training, train_config

    training = Training(train_config(folder, "cpu", None))
    while True:
        yield training()


def _fit(folder: Path, db: Path) -> Iterator[int]:
    """Pairs of each batch."""
    import numpy as np

    from lib.memory import keep_freed_memory
    from lib.reward.clips import ClipMember, Clips
    from lib.reward.config import FitConfig

    keep_freed_memory()
    config = FitConfig(dbs=[db], name="fit", out=folder, runs=folder / "runs")
    clips = Clips(config)
    everything = np.arange(len(clips.data.pairs))
    member = ClipMember(clips, everything, everything, 0)
    member.pairs = member.pairs.subset(everything[:8])

    while True:
        member.train_epoch()
        yield len(member.pairs)


if __name__ == "__main__":
    _work(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
