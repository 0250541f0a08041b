"""Rows of a benchmark, where they were measured, and how both are written."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.compare import Comparison
from lib.cli import UserError
from lib.files import write_atomic
from lib.provenance import git_commit, now, versions

_CONTENDERS = ("stable_baselines3", "ptan")


@dataclass(frozen=True)
class Target:
    """What a row should reach: a ratio, or a figure where there is no contender."""

    limit: float
    least: bool = True
    """Whether the limit is the least that is admitted, or the most."""
    of_ratio: bool = True


@dataclass(frozen=True)
class Row:
    """One claim, measured. Without `ours` it is not yet measured, and `note` says why."""

    name: str
    title: str
    unit: str = ""
    ours: float | None = None
    theirs: float | None = None
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    repeats: int = 1
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without a target or a measurement."""
        if self.target is None:
            return None
        figure = self.ratio if self.target.of_ratio else self.ours
        if figure is None:
            return None
        return figure >= self.target.limit if self.target.least else figure <= self.target.limit


def compared(
    name: str, title: str, unit: str, comparison: Comparison, target: Target | None = None, note: str = ""
) -> Row:
    """A row from two contenders run in turns; its figures are medians."""
    ours, theirs = median(comparison.ours), median(comparison.theirs)
    return Row(
        name,
        title,
        unit,
        ours,
        theirs,
        comparison.ratio,
        comparison.spread,
        len(comparison.ours),
        target,
        note,
    )


def machine() -> dict[str, Any]:
    """What the benchmark ran on: processor, cores that may be used, memory in GB, GPU, system; no names of hosts."""
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def provenance() -> dict[str, Any]:
    """Machine, versions, commit, time and command of this process."""
    found = dict(versions())
    for package in _CONTENDERS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return {
        "machine": machine(),
        "versions": found,
        "git_commit": git_commit(),
        "date": now(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def markdown(rows: Iterable[Row], origin: dict[str, Any]) -> str:
    """Table, notes and where it was measured, as a page.

    Args:
      rows: in the order of the table.
      origin: from `provenance`.
    """
    rows = list(rows)
    lines = ["| row | what | ours | theirs | ratio (range) | target | met |", "|---|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    notes = [f"- `{row.name}`: {row.note}" for row in rows if row.note]
    if notes:
        lines += ["", *notes]
    on = origin["machine"]
    lines += [
        "",
        f"{on['cpu']}, {on['cores']} cores, {on['memory_gb']} GB, {on['gpu'] or 'no GPU'}; "
        f"{on['torch_threads']} threads of torch. "
        + ", ".join(f"{package} {version or 'missing'}" for package, version in origin["versions"].items())
        + f". Commit {origin['git_commit'] or 'unknown'}, {origin['date']}. `{origin['command']}`",
    ]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    what = row.title + (f" (medians of {row.repeats})" if row.repeats > 1 else "")
    met = {True: "yes", False: "**no**", None: ""}[row.met]
    if row.ours is None:
        return [row.name, what, "not yet measured", "", "", _target(row), met]
    ratio = "" if row.ratio is None else _ratio(row.ratio, row)
    if row.spread is not None:
        ratio += f" ({_ratio(row.spread[0], row)} – {_ratio(row.spread[1], row)})"
    theirs = "" if row.theirs is None else _figure(row.theirs, row.unit)
    return [row.name, what, _figure(row.ours, row.unit), theirs, ratio, _target(row), met]


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    limit = row.target.limit
    figure = _ratio(limit, row) if row.target.of_ratio else f"{limit:g} {row.unit}"
    return f"{'≥' if row.target.least else '≤'} {figure}"


def _ratio(value: float, row: Row) -> str:
    """A share below one in per cent where that is what the target is about, a multiple otherwise."""
    as_share = row.target is not None and row.target.of_ratio and row.target.limit < 1
    return f"{value:.1%}" if as_share else f"{value:.2f}×"


def _figure(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def write(rows: list[Row], origin: dict[str, Any], folder: Path, kind: str) -> Path:
    """Writes `<folder>/<time>-<kind>.md` and, with every figure, the same as `.json`.

    Returns:
      The page.

    Raises:
      UserError: the folder cannot be written to.
    """
    page = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}.md"
    content = {**origin, "rows": [dataclasses.asdict(row) | {"met": row.met} for row in rows]}
    figures = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(page.with_suffix(".json"), figures.encode())
        write_atomic(page, markdown(rows, origin).encode())
    except OSError as error:
        raise UserError(f"--out {folder}: expected a folder to write to: {error.strerror}") from error
    return page
