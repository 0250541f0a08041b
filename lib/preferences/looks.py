"""Small descriptions of what clips look like, and which clips differ from those asked about so far."""

from collections.abc import Iterable, Sequence

import numpy as np

from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError

_HELD = 20_000  # looks kept in memory, about 1 KB each
_MOMENTS, _SIDE = 5, 12  # a look: so many thumbnails of so many grey cells a side


def look_of(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """A small description of what a segment looks like; needs no model.

    Returns:
      uint8 [5 · 12 · 12], grey thumbnails (cell means) of five moments from the first to the last, and float32 [A],
      the share of each action up to the highest that occurs, or [2A], mean and deviation of each number of an action.
    """
    steps, height, width = segment.frames.shape[:3]
    grey = segment.frames[np.linspace(0, steps - 1, _MOMENTS).astype(int)].mean(axis=3)
    for axis, side in ((1, height), (2, width)):
        edges = np.arange(_SIDE + 1) * side // _SIDE
        # Where the picture has fewer pixels than cells, reduceat repeats them.
        sums = np.add.reduceat(grey, edges[:-1], axis=axis)
        grey = sums / np.maximum(np.diff(edges), 1).reshape((-1, 1) if axis == 1 else -1)
    if segment.continuous:
        shares = np.concatenate([segment.actions.mean(0), segment.actions.std(0)])
    else:
        shares = np.bincount(segment.actions) / steps
    return np.rint(grey).astype(np.uint8).ravel(), shares.astype(np.float32)


class Looks:
    """The looks of segments, read once and kept."""

    def __init__(self, db: SegmentDB) -> None:
        self._db = db
        self._held: dict[str, tuple[np.ndarray, np.ndarray] | None] = {}

    def of(self, names: Iterable[str], reads: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The looks of the names that can be read; of those not yet kept only the first `reads`."""
        found = {}
        for name in names:
            if name not in self._held:
                if not reads:
                    continue
                reads -= 1
                if len(self._held) >= _HELD:
                    del self._held[next(iter(self._held))]
                try:
                    self._held[name] = look_of(self._db.load(name))
                except SegmentError:
                    self._held[name] = None
            look = self._held[name]
            if look is not None:
                found[name] = look
        return found


def features(
    looks: Sequence[tuple[np.ndarray, np.ndarray]], others: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Points whose distances measure how different segments are.

    Pictures and actions count the same: each is scaled so that two of `looks` lie √½ apart (root mean square), and
    1 together. The middle of `looks` is the origin.

    Args:
      looks: of K segments, as by `look_of`.
      others: of L more, measured on the same scale.

    Returns:
      float32 [K, D] and [L, D].
    """
    both = [*looks, *others]
    pictures = np.stack([picture for picture, _ in both]).astype(np.float32)
    actions = np.zeros((len(both), max(len(shares) for _, shares in both)), np.float32)
    for row, (_, shares) in zip(actions, both, strict=True):
        row[: len(shares)] = shares
    blocks = []
    for block in (pictures, actions):
        ours = block[: len(looks)]
        spread = 2 * np.sqrt(ours.var(axis=0).sum())
        blocks.append((block - ours.mean(axis=0)) / (spread or 1))
    points = np.concatenate(blocks, axis=1)
    return points[: len(looks)], points[len(looks) :]


def distances(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Euclidean distances of float [K, D] and [L, D]: float [K, L]."""
    squares = (one**2).sum(1)[:, None] + (two**2).sum(1) - 2 * one @ two.T
    return np.sqrt(np.maximum(squares, 0))


def k_centre_pairs(
    points: np.ndarray, centres: np.ndarray, pairs: Sequence[tuple[int, int]], count: int
) -> list[tuple[int, float]]:
    """Greedy k-centre (Gonzalez 1985), two centres at a time: always the pair whose segments add most.

    A segment adds its distance to the nearest centre; of a pair, the farther one becomes a centre before the other
    is measured. Where there are no centres yet, distances are those to the origin.

    Args:
      points: float [K, D].
      centres: float [L, D], what has been asked about.
      pairs: positions of points.
      count: how many to choose.

    Returns:
      Position of a pair and what its segments add on average, best first; as many as asked for or there are.
    """
    nearest = distances(points, centres if len(centres) else np.zeros_like(points[:1])).min(axis=1)
    apart = distances(points, points)
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    chosen: list[tuple[int, float]] = []
    left = np.ones(len(pairs), bool)
    while len(chosen) < count and left.any():
        lower = np.minimum(np.minimum(nearest[first], nearest[second]), apart[first, second])
        added = (np.maximum(nearest[first], nearest[second]) + lower) / 2
        best = int(np.where(left, added, -1).argmax())
        chosen.append((best, float(added[best])))
        left[best] = False
        nearest = np.minimum(nearest, np.minimum(apart[first[best]], apart[second[best]]))
    return chosen
