"""Whether speed costs learning: the score after equal steps, with the defaults and in plain fp32.

Compares full games after each training run, seed by seed. Takes hours at the size that counts, so it is not part of
`make bench`.

    .venv/bin/python -m benchmarks.learning --steps 200k --seeds 3 [--games 30] [--dev cuda]
"""

import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quiet import train_quietly
from benchmarks.report import Row, Target, markdown, provenance, write
from lib import cli
from lib.agent.config import TrainConfig
from lib.checkpoints import load_checkpoint
from lib.cli import UserError, flag
from lib.devices import has_fast_bf16, resolve_bf16, resolve_device
from lib.files import make_folder
from lib.reporting import format_duration, format_mean, mean_interval


@dataclass(frozen=True)
class LearningConfig:
    """What to train, and how to judge it."""

    steps: int = flag(default=200_000, min=1, help="steps of each run")
    seeds: int = flag(default=3, min=2, help="runs of each kind")
    games: int = flag(default=30, min=1, help="full games to evaluate a run")
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")
    ours: dict[str, Any] = flag(
        default={}, of=TrainConfig, help="more flags of 01_a2c.py for ours, such as algo=ppo"
    )
    theirs: dict[str, Any] = flag(
        default={"bf16": False}, of=TrainConfig, help="flags of the plain loop (default: the same in fp32)"
    )
    out: Path = flag(default=Path("benchmarks/results"), help="folder for the results")


def final_score(config: LearningConfig, seed: int, changes: dict[str, Any], folder: Path) -> float:
    """Mean score of full games at the end of one run.

    Args:
      config: steps, games and device.
      seed: of the run.
      changes: fields of its `TrainConfig`.
      folder: for its files.

    Raises:
      UserError: the run failed.
      KeyboardInterrupt: it was stopped.
    """
    given: dict[str, Any] = {
        "name": "learning",
        "dev": config.dev,
        "steps": config.steps,
        "seed": seed,
        "eval_every": config.steps,
        "eval_games": config.games,
        "save": folder / "save",
        "runs": folder,
    }
    if twice := min(given.keys() & changes.keys(), default=None):
        raise UserError(f"{twice}: it is set for ours and theirs alike; leave it out")
    checkpoint = train_quietly(TrainConfig(**given | changes))
    return mean_interval(load_checkpoint(checkpoint, "policy")["evaluation"]["scores"])[0]


def verdict(ours: list[float], theirs: list[float], title: str) -> Row:
    """Whether ours is not below theirs within its interval.

    Args:
      ours: mean score of each run, one a seed.
      theirs: the same of the plain loop.
      title: of the row.
    """
    mean, (their_mean, half) = mean_interval(ours)[0], mean_interval(theirs)
    return Row(
        "learning",
        title,
        "points",
        mean,
        their_mean,
        mean / their_mean if their_mean else None,
        target=Target(their_mean - half, of_ratio=False),
        note=f"ours {format_mean(ours)}, plain {format_mean(theirs)} (95 % over {len(ours)} seeds: {_list(ours)} and "
        f"{_list(theirs)}); ours should not fall below the plain loop's interval.",
    )


def _list(scores: list[float]) -> str:
    return ", ".join(f"{score:.0f}" for score in scores)


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(LearningConfig, argv, description=(__doc__ or "").splitlines()[0])
    device, origin, began = resolve_device(config.dev), provenance(), time.monotonic()
    make_folder(config.out, "--out")
    one, other = (TrainConfig(**{"name": "learning"} | changes) for changes in (config.ours, config.theirs))
    one, other = (dataclasses.replace(each, bf16=resolve_bf16(each.bf16, device)) for each in (one, other))
    if one == other:
        raise UserError("--ours and --theirs come to the same on this machine; there is nothing to compare")
    ours: list[float] = []
    theirs: list[float] = []
    for seed in range(config.seeds):
        for changes, kept in ((config.ours, ours), (config.theirs, theirs)):
            with tempfile.TemporaryDirectory(prefix="learning-") as folder:
                kept.append(final_score(config, seed, changes, Path(folder)))
            took, shown = format_duration(time.monotonic() - began), cli.shown(changes) or "(defaults)"
            print(f"{took:>6}  seed {seed} {shown}: {kept[-1]:.1f}", file=sys.stderr, flush=True)
    title = f"Score after {config.steps:,} steps, {config.games} full games a run: "
    title += f"{cli.shown(config.ours) or 'defaults'} against {cli.shown(config.theirs) or 'defaults'}"
    if not has_fast_bf16(device):
        title += " (no bf16 on this machine: fp32 either way)"
    row = verdict(ours, theirs, title)
    print(markdown([row], origin))
    print(f"written to {write([row], origin, config.out, 'learning')}", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
