"""Training and finetuning beside the emulator alone, and where the time goes: of most interest on a GPU.

Needs no other training library, which GPU machines often lack.
"""

import contextlib
import dataclasses

import torch

from benchmarks.compare import alternate
from benchmarks.ours import Emulator, Stopwatch, Training, finetune_files, ours_by_default
from benchmarks.report import Row, Target, compared
from benchmarks.setup import Setup
from lib.agent.config import TrainConfig

ORIGINAL_STEPS = 12e6


def against_emulator(setup: Setup) -> list[Row]:
    """On the CPU, for orientation: which share of the emulator's speed training reaches, and where the rest goes."""
    return _beside_emulator(
        "train-emulator", "A2C training, recording on", setup, ours_by_default(setup), None
    )


def on_gpu(setup: Setup) -> list[Row]:
    """Training and finetuning on a GPU, against the emulator alone; with where the time goes."""
    titles = "A2C training on a GPU, recording on", "Finetuning with a reward model on a GPU, recording on"
    names, targets = ("gpu-train", "gpu-finetune"), (Target(0.8), Target(0.7))
    if not torch.cuda.is_available():
        return [
            Row(name, title + ", against the emulator alone", target=target, note="no CUDA device here.")
            for name, title, target in zip(names, titles, targets, strict=True)
        ]
    if not setup.dev.startswith("cuda"):
        setup = dataclasses.replace(setup, dev="cuda")
    configs = ours_by_default(setup), ours_by_default(setup, **finetune_files(setup.folder))
    rows = []
    for name, title, target, config in zip(names, titles, targets, configs, strict=True):
        rows += _beside_emulator(name, title, setup, config, target)
    return rows


def _beside_emulator(
    name: str, title: str, setup: Setup, config: TrainConfig, target: Target | None
) -> list[Row]:
    with contextlib.closing(Training(config)) as ours, contextlib.closing(Emulator(config)) as emulator:
        result = alternate(ours, emulator, setup.repeats, setup.seconds)
    row = compared(name, f"{title}, against the emulator alone", "steps/s", result, target)
    assert row.ours is not None
    minutes = ORIGINAL_STEPS / row.ours / 60
    note = f"{config.num_envs} environments; 12 M steps in {minutes:.0f} minutes without evaluations; "
    return [dataclasses.replace(row, note=note + anatomy(config))]


def anatomy(config: TrainConfig, pieces: int = 10) -> str:
    """Where the time of training goes, as shares; on a GPU, also the share in which the GPU is busy.

    The shares are those of the main thread: "emulator" is time spent waiting for it, "policy and
    observation" includes waiting for the device, and "the rest" is the curves.
    """
    watch = Stopwatch()
    with contextlib.closing(Training(config, watch)) as training:
        training()
        watch.seconds.clear()
        whole = Stopwatch()
        for _ in range(pieces):
            whole.around("all", training)()
        shares = dict(watch.seconds)
        busy = f"GPU busy {_gpu_busy(training, pieces)}; " if config.dev.startswith("cuda") else ""
    total = whole.seconds["all"]
    collect, learn = shares.pop("collect"), shares.pop("update")
    shares["policy and observation"] = collect - sum(shares.values())
    shares |= {"update": learn, "the rest": total - collect - learn}
    parts = sorted(shares.items(), key=lambda share: -share[1])
    return busy + "time: " + ", ".join(f"{label} {seconds / total:.0%}" for label, seconds in parts) + "."


def _gpu_busy(training: Training, pieces: int) -> str:
    """Share of the time in which anything ran on the GPU, from a trace."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]):  # the first trace loads the tracer
        training()
    watch = Stopwatch()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(pieces):
            watch.around("all", training)()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or []
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    if not spans:
        return "unknown (the profiler saw nothing)"
    return f"{covered(spans) / 1e6 / watch.seconds['all']:.0%}"


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, -float("inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
