"""Splits pairs into those for fitting and those for evaluation, without a segment on both sides."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lib.cli import UserError
from lib.reward.data import Pairs

Unit = tuple[str, str]
"""What must not be on both sides of a split: a DB and the name of a clip or of the moment that clips fork from; or "" and a
prompt."""


def by_unit(pairs: Pairs, units: Sequence[Unit]) -> tuple[Pairs, list[Unit]]:
    """The pairs with units in place of segments, for splits that hold out whole units.

    Args:
      units: of each of the S segments.

    Returns:
      The pairs, and the name of each unit.
    """
    names = list(dict.fromkeys(units))
    number = {unit: at for at, unit in enumerate(names)}
    of = np.array([number[unit] for unit in units], np.int64)
    return dataclasses.replace(pairs, first=of[pairs.first], second=of[pairs.second]), names


def split_by_segment(
    pairs: Pairs,
    held_out: float,
    seed: int,
    eligible: np.ndarray | None = None,
    db_of: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Splits pairs so that no segment is on both sides, which would leak what it looks like.

    Held out are pairs whose segments are in few others, so that few pairs are torn apart. Left out are pairs with one
    segment on each side, and pairs of held-out segments that are not eligible.

    Args:
      pairs: the labelled pairs.
      held_out: share of the pairs to hold out, of every DB; fewer if fewer are eligible.
      seed: chooses among pairs that tear equally few.
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
    ends = np.stack([pairs.first, pairs.second])
    inside = np.zeros(ends.max() + 1, bool)
    for db, count in enumerate(wanted.tolist()):
        inside = _gather(pairs, pool[dbs[pool] == db], count, rng, inside)
    test, train = (
        np.intersect1d(pool, np.flatnonzero(inside[ends].all(0))),
        np.flatnonzero(~inside[ends].any(0)),
    )
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
      seed: chooses among pairs that tear equally few.
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
    inside = _gather(pairs, np.flatnonzero(free), wanted, np.random.default_rng(seed), held)
    test, train = np.flatnonzero(free & inside[ends].all(0)), np.flatnonzero(~inside[ends].any(0))
    if not len(train) or not len(test):
        raise UserError(
            f"none of the {len(pairs)} labels is left to {'judge by' if len(train) else 'fit to'}"
        )
    return train, test


def _gather(
    pairs: Pairs, candidates: np.ndarray, wanted: int, rng: np.random.Generator, inside: np.ndarray
) -> np.ndarray:
    """Holds out segments until `wanted` of the candidates, or a few more, are among them.

    The next pair is always one that takes the fewest pairs from the training side.

    Args:
      pairs: all labelled pairs.
      candidates: int64, positions of those that may be held out.
      wanted: how many of them to hold out.
      rng: chooses among equals.
      inside: bool `[S]`, segments that are held out already.

    Returns:
      bool `[S]`, the held-out segments.
    """
    ends = np.stack([pairs.first, pairs.second])
    inside, candidates = inside.copy(), rng.permutation(candidates)
    while True:
        waiting = candidates[~inside[ends[:, candidates]].all(0)]
        if not len(waiting) or len(candidates) - len(waiting) >= wanted:
            return inside
        first, second = ends[:, ~inside[ends].any(0)]  # pairs on the training side
        count = np.bincount(np.concatenate([first, second[second != first]]), minlength=len(inside))
        one, other = ends[:, waiting]
        taken = count[one] + np.where(one == other, 0, count[other] - 1)
        inside[ends[:, waiting[taken.argmin()]]] = True
