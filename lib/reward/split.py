"""Splits pairs into those for fitting and those for evaluation, without a segment on both sides."""

from collections import deque
from collections.abc import Collection

import numpy as np

from lib.cli import UserError
from lib.reward.data import Pairs


def split_by_segment(
    pairs: Pairs,
    held_out: float,
    seed: int,
    eligible: np.ndarray | None = None,
    db_of: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Splits pairs so that no segment is on both sides, which would leak what it looks like.

    A walk from pair to pair gathers the held-out segments, so that few pairs are torn apart. Left out are pairs with
    one segment on each side, and pairs of held-out segments that are not eligible.

    Args:
      pairs: the labelled pairs.
      held_out: share of the pairs to hold out, of every DB; fewer if fewer are eligible.
      seed: of the walk.
      eligible: bool `[N]`, the pairs that may be held out; None for all.
      db_of: int64 `[N]`, from 0: the DB of each pair; None for a single one.

    Returns:
      int64 positions of the training pairs and of the held-out pairs, each sorted.

    Raises:
      UserError: too few labels for two sides.
    """
    rng = np.random.default_rng(seed)
    pool = np.arange(len(pairs)) if eligible is None else np.flatnonzero(eligible)
    if not len(pool):
        raise UserError(
            f"none of the {len(pairs)} labels is on a pair drawn at random, and only such pairs can judge a "
            "fit; label some with 02_label_ui.py --strategy random"
        )
    dbs = np.zeros(len(pairs), np.int64) if db_of is None else db_of
    # Rounds the running total, so that many small DBs do not all round to 0.
    shares = np.diff(np.round(held_out * np.cumsum([0, *np.bincount(dbs)]))).astype(int)
    wanted = np.minimum(shares, np.bincount(dbs[pool], minlength=len(shares)))
    if not wanted.any():
        wanted[dbs[pool[0]]] = 1
    inside: set[int] = set()
    for db, count in enumerate(wanted.tolist()):
        inside |= _gather(pairs.subset(pool[dbs[pool] == db]), count, rng)
    held = np.isin(pairs.first, list(inside)), np.isin(pairs.second, list(inside))
    test, train = np.intersect1d(pool, np.flatnonzero(held[0] & held[1])), np.flatnonzero(~held[0] & ~held[1])
    if not len(train) or not len(test):
        raise UserError(
            f"{len(pairs)} labels are too few to fit on some and judge by others without a common clip; "
            "label more pairs"
        )
    return train, test


def grown_split(
    pairs: Pairs, held_out: float, seed: int, eligible: np.ndarray, trained: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Splits a growing set of pairs so that no segment ever changes sides.

    A model that starts from older weights remembers their training segments, and must be evaluated on others.
    The held-out pairs are chosen among those without a training segment.

    Args:
      pairs: the labelled pairs.
      held_out: share of all pairs to hold out; fewer if fewer can be.
      seed: of the walk that gathers them.
      eligible: bool `[N]`, the pairs that may be held out.
      trained: bool `[S]`, segments that any model was fitted to.
      held: bool `[S]`, segments that were ever held out.

    Returns:
      int64 positions of the training pairs and of the held-out pairs, each sorted, as `split_by_segment`.

    Raises:
      UserError: one side would have none.
    """
    ends = np.stack([pairs.first, pairs.second])
    free = eligible & ~trained[ends].any(0)
    wanted = min(round(held_out * len(pairs)), int(free.sum()))
    candidates = pairs.subset(np.flatnonzero(free))
    inside = _gather(candidates, wanted, np.random.default_rng(seed), set(np.flatnonzero(held).tolist()))
    on_side = np.isin(ends, list(inside))
    test, train = np.flatnonzero(free & on_side.all(0)), np.flatnonzero(~on_side.any(0))
    if not len(train) or not len(test):
        raise UserError(
            f"none of the {len(pairs)} labels is left to {'judge by' if len(train) else 'fit to'}"
        )
    return train, test


def _gather(
    candidates: Pairs, wanted: int, rng: np.random.Generator, begin: Collection[int] = ()
) -> set[int]:
    """Segments that contain `wanted` of the candidates, or a few more, among themselves, including those of `begin`."""
    neighbours: dict[int, list[int]] = {}
    for position, ends in enumerate(zip(candidates.first, candidates.second, strict=True)):
        for end in map(int, ends):
            neighbours.setdefault(end, []).append(position)

    inside: set[int] = set(begin)
    for start in rng.permutation(len(candidates)):
        if _count_inside(candidates, inside) >= wanted:
            break
        queue = deque([int(candidates.first[start]), int(candidates.second[start])])
        while queue and _count_inside(candidates, inside) < wanted:
            segment = queue.popleft()
            if segment in inside:
                continue
            inside.add(segment)
            for position in neighbours[segment]:
                queue += [int(candidates.first[position]), int(candidates.second[position])]
    return inside


def _count_inside(pairs: Pairs, inside: set[int]) -> int:
    members = list(inside)
    return int((np.isin(pairs.first, members) & np.isin(pairs.second, members)).sum())
