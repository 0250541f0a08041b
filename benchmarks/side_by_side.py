"""Several processes on one machine: a training and a fit at once, as `make online` has them, and two that learn together."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

from benchmarks.report import Row, Target
from benchmarks.setup import Setup

_CLIPS, _LABELS = 24, 60
_STAGES = "train", "fit"
_HALF = {"LOCAL_WORLD_SIZE": "2"}
"""Half of the cores, as torchrun has each of two processes take."""


def at_once(setup: Setup) -> list[Row]:
    from benchmarks.reward_fit import labelled_db

    db = labelled_db(setup.folder / "db", _CLIPS, _LABELS)
    found: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    for _ in range(setup.repeats):
        alone = {stage: _rates({stage: {}}, setup, db)[stage] for stage in _STAGES}
        both = _rates({stage: {} for stage in _STAGES}, setup, db)
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


def together(setup: Setup) -> list[Row]:
    """Two processes that learn together, on half of the cores each, against one process on half of them."""
    efficiency, gains = [], []
    for _ in range(setup.repeats):
        half, all_cores = (_rates({"train": cores}, setup)["train"] for cores in (_HALF, {}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        two = {
            f"train-{rank}": _HALF
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            for rank in range(2)
        }
        rate = _rates(two, setup)["train-0"]
        efficiency.append(rate / half / 2)
        gains.append(rate / all_cores)
    title = "two processes of torchrun, half of the cores each, against twice the speed of one on half of the cores"
    note = f"{median(gains):.2f} of the speed of one process on all {os.cpu_count()} cores, which they share"
    return [Row("ranks", title, "×", median(efficiency), repeats=setup.repeats, note=note)]


def _rates(
    workers_by_name: Mapping[str, Mapping[str, str]], setup: Setup, db: Path = Path()
) -> dict[str, float]:
    """Work a second of some processes that run at once, each started as a user starts it.

    Args:
      workers_by_name: what each has in its environment beside ours; names begin with the stage.
      setup: how long they work, and where they write.
      db: labelled, for fits.
    """
    workers = {}
    for name, environment in workers_by_name.items():
        command = [sys.executable, "-m", "benchmarks.side_by_side", name.partition("-")[0]]
        workers[name] = subprocess.Popen(
            [*command, str(setup.folder / name), str(db), str(setup.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
    for worker in workers.values():
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return {name: float(worker.communicate()[0]) for name, worker in workers.items()}


def _work(stage: str, folder: Path, db: Path, seconds: float) -> None:
    """What a process does: gets ready, waits for a word, works, and says how much it did a second."""
    folder.mkdir(exist_ok=True)
    piece, over = _train(folder) if stage == "train" else (_fit(folder, db), bool)
    next(piece)
    print("ready", flush=True)
    sys.stdin.readline()
    began, made = time.perf_counter(), 0
    for count in piece:
        made += count
        if over(time.perf_counter() - began >= seconds):
            break
    print(made / (time.perf_counter() - began), flush=True)
    os._exit(0)  # what ends in order would take a while


def _train(folder: Path) -> tuple[Iterator[int], Callable[[bool], bool]]:
    """Steps of each few updates, and how the processes that learn together decide that time is up."""
    from benchmarks.ours import Training, train_config

    training = Training(train_config(folder, "cpu", None))
    return iter(training, 0), training.together


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
