"""Small databases for tests of the page."""

from pathlib import Path

import numpy as np

from lib.preferences.labels import Label, LabelLog
from lib.preferences.segments import Segment, Sidecar, save_segment


def segment(
    seed: int, steps: int = 6, height: int = 12, width: int = 10, env_id: str = "", colours: int = 20
) -> Segment:
    rng = np.random.default_rng(seed)
    palette = rng.integers(0, 256, (colours, 3), dtype=np.uint8)
    return Segment(
        frames=palette[rng.integers(0, colours, (steps, height, width))],
        actions=rng.integers(0, 4, steps),
        sidecar=Sidecar(
            scores=np.zeros(steps, np.float32),
            life_lost=np.zeros(steps, bool),
            game_over=np.zeros(steps, bool),
            env_id=env_id,
            num_actions=4,
            policy="",
            step=seed,
        ),
    )


def make_db(root: Path, count: int, first: int = 0) -> Path:
    """A folder with `count` segments of 6 steps; names differ from those of a smaller `first`."""
    root.mkdir(exist_ok=True)
    for i in range(first, first + count):
        save_segment(root / f"{i % 3:02d}" / f"{i:08d}.dat", segment(i))
    return root


def lines(root: Path) -> list[Label]:
    return LabelLog(root / "labels.json").read()
