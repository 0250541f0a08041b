"""Speed, as a table: every row measured side by side in one run.

    .venv/bin/python -m benchmarks.run [--quick] [--only ROW …] [--dev cuda] [--out FOLDER]

Prints the table and writes it, with machine and versions, as a page and as JSON.
"""

import importlib
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Row, markdown, provenance, write
from benchmarks.setup import Setup
from lib import cli
from lib.cli import flag
from lib.devices import resolve_device
from lib.files import make_folder
from lib.reporting import format_duration

BENCHMARKS: dict[str, tuple[str, str]] = {
    "train-sb3": ("benchmarks.training", "against_sb3"),
    "train-sb3-processes": ("benchmarks.training", "against_sb3_processes"),
    "train-original": ("benchmarks.training", "against_original"),
    "train-emulator": ("benchmarks.emulator", "against_emulator"),
    "finetune": ("benchmarks.training", "finetuning"),
    "updates": ("benchmarks.replay", "updates_against_sb3"),
    "relabel": ("benchmarks.replay", "relabelling"),
    "recording": ("benchmarks.training", "recording_cost"),
    "segments": ("benchmarks.segments", "size_and_loading"),
    "fit": ("benchmarks.reward_fit", "against_original"),
    "at-once": ("benchmarks.processes", "at_once"),
    "ranks": ("benchmarks.processes", "together"),
    "help": ("benchmarks.startup", "help_of_scripts"),
    "startup-page": ("benchmarks.startup", "first_page"),
    "label-page": ("benchmarks.label_page", "key_presses"),
    "text": ("benchmarks.text", "against_whole_models"),
    "gpu": ("benchmarks.emulator", "on_gpu"),
}
"""Module and function of what --only takes; some make several rows of the table."""
LEFT_OUT_WHEN_QUICK = "train-sb3-processes", "train-emulator", "label-page", "text"


@dataclass(frozen=True)
class BenchConfig:
    """How to measure."""

    quick: bool = flag(
        default=False,
        help=f"shorter turns, smaller data, no {', '.join(LEFT_OUT_WHEN_QUICK)}: two or three minutes, not fifteen",
    )
    only: list[str] = flag(
        default=[],
        choices=tuple(BENCHMARKS),
        metavar="ROW",
        help=f"measure only these: {', '.join(BENCHMARKS)}",
    )
    dev: str = flag(default="cpu", help="device of the networks, on both sides: cpu, cuda, cuda:1")
    num_envs: int | None = flag(
        default=None, min=1, help="number of our environments (default: that of 01_a2c.py)"
    )
    out: Path = flag(default=Path("benchmarks/results"), help="folder for the results")


def main(argv: Sequence[str] | None = None) -> int:
    config = cli.parse(BenchConfig, argv, description=(__doc__ or "").splitlines()[0])
    resolve_device(config.dev)
    make_folder(config.out, "--out")
    origin = provenance()
    rows: list[Row] = []
    failed = 0
    began = time.monotonic()
    left_out = LEFT_OUT_WHEN_QUICK if config.quick else ()
    for name in config.only or [name for name in BENCHMARKS if name not in left_out]:
        print(f"{format_duration(time.monotonic() - began):>6}  {name} …", file=sys.stderr, flush=True)
        try:
            rows += measure(name, config)
        except Exception as error:  # a failure must not lose the other rows
            traceback.print_exc()
            failed += 1
            rows.append(Row(name, f"`{name}` failed", note=cli.one_line(f"{type(error).__name__}: {error}")))
        except KeyboardInterrupt:  # nor must a request to stop
            if not rows:
                raise
            failed += 1
            rows.append(Row(name, f"`{name}` was stopped"))
            break
    print(markdown(rows, origin))
    page = write(rows, origin, config.out, "quick" if config.quick else "bench")
    print(f"{format_duration(time.monotonic() - began)}; written to {page}", file=sys.stderr)
    return 1 if failed else 0


def measure(name: str, config: BenchConfig) -> list[Row]:
    """The rows of one benchmark, in a temporary folder of its own."""
    module, function = BENCHMARKS[name]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        setup = Setup(
            Path(folder),
            config.dev,
            config.quick,
            repeats=5,
            seconds=0.4 if config.quick else 3.0,
            num_envs=config.num_envs,
        )
        rows: list[Row] = getattr(importlib.import_module(module), function)(setup)
    return rows


if __name__ == "__main__":
    cli.run(main)
