"""Several processes on one machine: a training and a fit at once, as `make online` has them, and two that learn together."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.report import Row, Target
from benchmarks.setup import Setup
from benchmarks.site import free_port
from lib.devices import half_of_the_cores

_CLIPS, _LABELS = 24, 60
_STAGES = "train", "fit"
_HALF = {"LOCAL_WORLD_SIZE": "2"}
"""Half of the cores, as torchrun has each of two processes take."""


def at_once(setup: Setup) -> list[Row]:
    """A training run and a fit at once, on half of the cores each, against each alone on all of them."""
    from benchmarks.reward_fit import labelled_db

    db = labelled_db(setup.folder / "db", _CLIPS, _LABELS)
    found: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    # Alone each takes all cores, at once half of them, as `make online` gives it.
    kinds = [(stage, threads) for threads in ({}, half_of_the_cores()) for stage in _STAGES]
    with _workers(kinds, setup, db) as workers:
        whole, halves = workers[:2], workers[2:]
        for _ in range(setup.repeats):
            alone = [_rates([worker])[0] for worker in whole]
            for stage, rate, undisturbed in zip(_STAGES, _rates(halves), alone, strict=True):
                found[stage].append(rate / undisturbed)
    shares = {stage: median(values) for stage, values in found.items()}
    together = [train + fit for train, fit in zip(*found.values(), strict=True)]
    note = ", ".join(f"{stage} keeps {share:.0%} of its speed" for stage, share in shares.items())
    target = Target(0.8, least=True, of_ratio=False)
    title = "a training run and a fit at once, work of both against one after the other"
    rows = [Row("at-once", title, "×", median(together), repeats=setup.repeats, target=target, note=note)]
    least = Target(1 / 3, least=True, of_ratio=False)
    title = "the slower of the two, against its speed alone"
    worst = min(shares.values())
    return [*rows, Row("at-once-least", title, "×", worst, repeats=setup.repeats, target=least)]


def together(setup: Setup) -> list[Row]:
    """Two processes that learn together, on half of the cores each, against one process on half of them."""
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [_HALF | group | {"RANK": str(rank)} for rank in range(2)]
    efficiency, gains = [], []
    with _workers([("train", environment) for environment in (_HALF, {}, *ranks)], setup) as workers:
        half, full, *two = workers
        for _ in range(setup.repeats):
            rate = _rates(two)[0]
            efficiency.append(rate / _rates([half])[0] / 2)
            gains.append(rate / _rates([full])[0])
    title = "two processes of torchrun, half of the cores each, against twice the speed of one on half of the cores"
    note = f"{median(gains):.2f} of the speed of one process on all {os.cpu_count()} cores, which they share"
    return [Row("ranks", title, "×", median(efficiency), repeats=setup.repeats, note=note)]


@contextlib.contextmanager
def _workers(
    wanted: Sequence[tuple[str, Mapping[str, str]]], setup: Setup, db: Path = Path()
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that work when told to, each started as a user starts it; all are ready.

    They are kept, because starting one takes many times as long as a turn.

    Args:
      wanted: "train" or "fit", and what the process has in its environment beside ours.
      setup: how long a turn is, and where they write.
      db: labelled, for fits.
    """
    with contextlib.ExitStack() as stack:
        workers = []
        for number, (stage, environment) in enumerate(wanted):
            folder = setup.folder / f"{stage}-{number}"
            worker = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.processes", stage, folder, db, str(setup.seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | environment,
            )
            workers.append(stack.enter_context(worker))
            stack.callback(worker.kill)
        for worker in workers:
            assert _line(worker) == "ready"
        yield workers


def _rates(workers: Iterable[subprocess.Popen[str]]) -> list[float]:
    """Work a second of some workers in one turn, while the others wait."""
    workers = list(workers)
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [float(_line(worker)) for worker in workers]


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def _work(stage: str, folder: Path, db: Path, seconds: float) -> None:
    """What a worker does: gets ready, and for each word works one turn and says how much it did a second."""
    folder.mkdir()
    piece, over = _train(folder) if stage == "train" else (_fit(folder, db), bool)
    next(piece)
    print("ready", flush=True)
    for _ in sys.stdin:
        began, made = time.perf_counter(), 0
        for count in piece:
            made += count
            if over(time.perf_counter() - began >= seconds):
                break
        print(made / (time.perf_counter() - began), flush=True)


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
