"""Makes the files in examples/: a policy with its weights in half the bytes, and a few clips of a DB.

.venv/bin/python -m experiments.examples -o examples/seaquest --name v0 -m MODEL
.venv/bin/python -m experiments.examples -o examples/seaquest --db-path DB --clips 100
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from lib import cli
from lib.checkpoints import load_checkpoint, save_checkpoint
from lib.cli import UserError, flag
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import save_segment


@dataclass(frozen=True)
class ExamplesConfig:
    """What to take, and where to put it."""

    out: Path = flag("-o", help="folder of the example")
    model: Path | None = flag("-m", default=None, help="policy or reward checkpoint to take")
    name: str = flag("-n", default="v0", help="name of its copy, OUT/NAME.dat")
    db_path: Path | None = flag(default=None, help="DB to take clips from; they go to OUT/db")
    clips: int = flag(default=100, min=2, help="number of clips")

    def __post_init__(self) -> None:
        if self.model is None and self.db_path is None:
            raise UserError("expected a policy to take or a DB, got neither: add -m MODEL or --db-path DB")


def halve(source: Path, target: Path) -> None:
    """Copies a policy or reward checkpoint, with its lineage, weights as float16.

    Raises:
      UserError: there is no readable checkpoint, or the copy cannot be written.
    """
    found = load_checkpoint(source)
    kind, config, parents = (found.pop(key) for key in ("kind", "config", "parents"))
    save_checkpoint(target, kind, _halved(found), _without_folders(config), _without_folders(parents))


def _halved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.half() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _halved(item) for key, item in value.items()}
    return [_halved(item) for item in value] if isinstance(value, list) else value


def _without_folders(value: Any) -> Any:
    """Files of this machine by their names alone."""
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def take_clips(source: Path, target: Path, count: int) -> int:
    """Copies clips of a DB, equally many for each reason for recording, as far as there are enough.

    Returns:
      How many there were to copy, at most `count`.

    Raises:
      UserError: there is no such DB, or already something in the copy's place.
    """
    db = SegmentDB(source)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name in db.names:
        sidecar = db.load(name).sidecar
        by_reason["" if sidecar is None else sidecar.reason].append(name)
    try:
        target.mkdir(parents=True)
    except FileExistsError as error:
        raise UserError(f"{target}: expected no such folder yet; remove it first") from error
    turns = zip_longest(*by_reason.values())
    taken = [name for turn in turns for name in turn if name is not None][:count]
    for name in taken:
        segment = db.load(name)
        if segment.sidecar is not None:
            origin = _without_folders(segment.sidecar.origin)
            segment = dataclasses.replace(
                segment, sidecar=dataclasses.replace(segment.sidecar, origin=origin)
            )
        save_segment(target / name, segment)
    return len(taken)


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(ExamplesConfig, argv, description=(__doc__ or "").splitlines()[0])
    if config.model is not None:
        target = config.out / f"{config.name}.dat"
        halve(config.model, target)
        print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")
    if config.db_path is not None:
        print(f"{config.out / 'db'}: {take_clips(config.db_path, config.out / 'db', config.clips)} clips")


if __name__ == "__main__":
    cli.run(main)
