"""What a clip is worth to a simulated teacher: one number, from what a person would see or from the sidecar."""

import numpy as np

from lib.cli import UserError
from lib.envs.control import TRACK, backward_turns, cart_position
from lib.envs.seaquest import (
    LOW_OXYGEN,
    SurfaceCounter,
    at_surface,
    oxygen,
    submarine_depth,
    submarine_midwater,
)
from lib.preferences.segments import MAX_STEPS, Segment


def score(segment: Segment) -> float:
    """The game's score gained over the segment.

    Raises:
      UserError: the segment has no record of its score.
    """
    return float(_scores(segment).sum())


def myopic_score(segment: Segment, gamma: float) -> float:
    """The score with more weight on what came last, Σ γ^(T−t) rₜ: a person remembers the end of a clip best.

    Raises:
      UserError: the segment has no record of its score.
    """
    scores = _scores(segment)
    return float(scores @ gamma ** np.arange(len(scores) - 1, -1, -1.0))


def _scores(segment: Segment) -> np.ndarray:
    """float64 `[T]`."""
    if segment.sidecar is None:
        raise UserError(
            "--teacher: expected segments with recorded scores, got one of the original format; "
            "record a DB with 01_a2c.py --db-path"
        )
    return segment.sidecar.scores.astype(float)


def midwater(segment: Segment) -> float:
    """How near to mid-water Seaquest's submarine kept, 0 (surface or sea bed) to 1 (half-way) on average.

    Raises:
      UserError: the frames are not of Seaquest's size.
    """
    _check_seaquest(segment, "midwater")
    seen = submarine_midwater(segment.frames)
    return 0.0 if np.isnan(seen).all() else float(np.nanmean(seen))


def seaquest(segment: Segment) -> float:
    """How good a clip of Seaquest is in the eyes of a player who knows that a submarine needs air.

    First comes survival: +1 for surfacing for air with a diver on board, another +1 where all six were rescued;
    −1 for every submarine lost; −1 where one below the surface ran low on air (the bar flashes) and did not refuel
    within the clip. Only between clips that are alike in this do shots on target and divers picked up count,
    1 each. A shot on target is a step below the surface that scores and that the submarine survives: ramming pays too,
    and so does the tally of a rescue.

    Reads the pictures, and of the sidecar only the score. A clip that begins at the surface while the bar fills does
    not show whether a life or a refuel began there, and counts as neither.

    Raises:
      UserError: the frames are not of Seaquest's size, or the segment has no record of its score.
    """
    _check_seaquest(segment, "seaquest")
    scores, frames = _scores(segment), segment.frames
    counter = SurfaceCounter(1)
    refuelled = 0  # step of the last refuel
    for t, frame in enumerate(frames):
        before = counter.refuels[0]
        counter.push(frame[None])
        if counter.refuels[0] > before:
            refuelled = t
    out_of_sight = np.isnan(submarine_depth(frames))
    lost = np.count_nonzero(out_of_sight & ~np.concatenate([[False], out_of_sight[:-1]]))
    below = at_surface(frames) == 0
    ran_low = (below & (oxygen(frames) <= LOW_OXYGEN))[refuelled:].any()
    # A step's score is what its action led to, which the next frame shows.
    survived = ~np.concatenate([out_of_sight[1:], out_of_sight[-1:]])
    hits = np.count_nonzero((scores > 0) & below & survived)

    survival = int(counter.refuels[0] + counter.rescues[0] - lost - ran_low)
    return float(_SURVIVAL * survival + hits + counter.pickups[0])


def left(segment: Segment) -> float:
    """How far to the left CartPole's cart kept while the pole stood: 1 at the left end of the track, −1 at the right.

    A clip in which the pole falls, or the cart leaves the track, counts 2 less: less than any in which neither does.

    Raises:
      UserError: the segment is not of CartPole, or has no record of its observations.
    """
    observations = _observations(segment, "left", "CartPole")
    fell = segment.sidecar is not None and segment.sidecar.life_lost.any()
    return float(-cart_position(observations).mean() / TRACK - 2 * fell)


def backflip(segment: Segment) -> float:
    """How many times Hopper's torso turned over backwards, in turns: the paper's backflip. Best in `HopperFlip-v0`.

    Raises:
      UserError: the segment is not of Hopper, or has no record of its observations.
    """
    return backward_turns(_observations(segment, "backflip", "Hopper"))


def _observations(segment: Segment, teacher: str, game: str) -> np.ndarray:
    """float32 `[T, D]`."""
    env_id = "the original format" if segment.sidecar is None else segment.sidecar.env_id
    if segment.observations is None or game not in env_id:
        raise UserError(
            f"teacher {teacher}: expected segments of {game} with its observations, got one of {env_id}; "
            f"record a DB with 01_a2c.py --env"
        )
    return segment.observations


_SURVIVAL = 10 * MAX_STEPS
"""Outweighs whatever else can be done in the longest of clips."""


def _check_seaquest(segment: Segment, teacher: str) -> None:
    height, width, _ = segment.frames.shape[1:]
    if (height, width) != (210, 160):
        raise UserError(f"teacher {teacher}: expected Seaquest's 210×160 frames, got {height}×{width}")
