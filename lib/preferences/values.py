"""A clip's value to a simulated teacher: one number, from what a person would see or from the sidecar."""

import numpy as np

from lib.cli import UserError
from lib.envs.control import TRACK, backward_turns, cart_position
from lib.envs.seaquest import (
    FRAME_SHAPE,
    LOW_OXYGEN,
    TOP,
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
            "--teacher: expected clips with recorded scores, got one of the original format; "
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
    """The value of a clip of Seaquest to a player who knows that a submarine needs air.

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
    hidden, below = np.isnan(submarine_depth(frames)), at_surface(frames) == 0
    ran_low = (below & (oxygen(frames) <= LOW_OXYGEN))[refuelled:].any()
    survival = int(counter.refuels[0] + counter.rescues[0] - _losses(hidden) - ran_low)
    return float(_SURVIVAL * survival + _hits(scores, below, hidden) + counter.pickups[0])


AIR = {
    "first diver": 1.0,
    "further diver": 0.3,
    "diver lost": -0.3,
    "climb": 1.0,
    "refuel": 2.0,
    "rescue": 2.0,
    "submarine lost": -2.0,
    "low and deep": -0.5,
    "idle": -1.0,
    "hit": 0.05,
}
"""Weights of the teacher `air`; its docstring gives the reasons."""
_IDLE_STEPS = 15
_LAST_BREATH = 0.02  # oxygen, a unit of 62


def air(segment: Segment) -> float:
    """The value of a clip of Seaquest to a careful player, who also values the way to a refuel.

    Graded, so that clips without a refuel differ too; `seaquest` values refuels alone. The weights, `AIR`, are chosen by
    judgement from the game's rules (lines of the annotated disassembly, DNSDEBRO/Disassemblies on GitHub, Seaquest):

    - A submarine at the surface without a diver is lost, and with one it is filled up for one diver (2033–2058). So the
      first diver on board counts 1, and a further one, good for one more refuel, 0.3. A lost submarine takes a diver
      along (1867–1869): −0.3.
    - Climb: with a diver and half a tank or less, depth at the first such step minus depth at the last, −1 to 1. From
      the sea bed it takes 24 steps, so that a clip can show all of it. Only the first life of a clip counts.
    - A refuel, 2, is worth another 512 steps (2157–2171); so is a rescue of six divers (1528–1603). A lost submarine
      costs as much: it takes 55 steps and one of four lives. One that is hit costs nothing in a clip that begins with a
      climb due, below the surface with half a tank or less and a diver: to stay there loses it as surely, only later, so
      that a climb which meets a shark is no worse than none. One that runs out of air does cost.
    - To end a clip in the lower half of the water with the bar flashing (16 of 64 units), −0.5: the climb is overdue.
    - To spend 15 steps (one second) with more than half a tank where no oxygen is used up (heights 13 to 19;
      2105–2109), −1: a game can last for ever there and come to nothing. Steps until the bar has filled up, and 15 more,
      are free.
    - A hit as in `seaquest`, 0.05: an untaught player makes about ten to a tank of air, so air comes first.

    The teacher calls clips alike that differ by less than two hits, and cannot tell half of the pairs that differ by less
    than a further diver, which is mostly by hits alone: a labeller looks for the rare clips, and passing costs no label.

    Reads the pictures, and of the sidecar only the score.

    Raises:
      UserError: the frames are not of Seaquest's size, or the segment has no record of its score.
    """
    _check_seaquest(segment, "air")
    scores, frames = _scores(segment), segment.frames
    counter, counts = SurfaceCounter(1), []
    for frame in frames:
        counter.push(frame[None])
        counts.append(counter.aboard[0])
    aboard, depth, tank = np.array(counts), submarine_depth(frames), oxygen(frames)

    before, after, hidden = aboard[:-1], aboard[1:], np.isnan(depth)
    first_life = np.cumsum(hidden) == 0
    climbing = depth[first_life & (aboard > 0) & (tank <= 0.5)]
    climb_is_due = aboard[0] > 0 and tank[0] <= 0.5 and at_surface(frames)[0] == 0
    hit_on_the_way = climb_is_due and hidden.any() and tank[hidden.argmax() - 1] > _LAST_BREATH
    filled = np.flatnonzero(np.diff(tank) > 0)
    rested = np.arange(len(frames)) > (filled[-1] + 1 + _IDLE_STEPS if len(filled) else -1)
    seen = {
        "first diver": np.count_nonzero((before == 0) & (after == 1)),
        "further diver": np.count_nonzero((before > 0) & (after == before + 1)),
        # A diver is lost as the next life begins, and set ashore by a submarine in sight.
        "diver lost": np.count_nonzero((after < before) & hidden[:-1]),
        "climb": climbing[0] - climbing[-1] if len(climbing) else 0.0,
        "refuel": counter.refuels[0],
        "rescue": counter.rescues[0],
        "submarine lost": _losses(hidden) - hit_on_the_way,
        "low and deep": tank[-1] <= LOW_OXYGEN and depth[-1] > 0.5,
        "idle": np.count_nonzero(rested & (depth < TOP) & (tank > 0.5)) >= _IDLE_STEPS,
        "hit": _hits(scores, at_surface(frames) == 0, hidden),
    }
    return float(sum(AIR[name] * float(count) for name, count in seen.items()))


def _losses(hidden: np.ndarray) -> int:
    """How many submarines vanish, of steps at which none is in sight, bool `[T]`."""
    return int(np.count_nonzero(hidden & ~np.concatenate([[False], hidden[:-1]])))


def _hits(scores: np.ndarray, below: np.ndarray, hidden: np.ndarray) -> int:
    """Steps below the surface that score and that the submarine survives: no ramming, no tally of a rescue."""
    # A step's score is what its action led to, which the next frame shows.
    survived = ~np.concatenate([hidden[1:], hidden[-1:]])
    return int(np.count_nonzero((scores > 0) & below & survived))


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
            f"teacher {teacher}: expected clips of {game} with its observations, got one of {env_id}; "
            f"record a DB with 01_a2c.py --env"
        )
    return segment.observations


_SURVIVAL = 10 * MAX_STEPS
"""Outweighs everything else that can happen in the longest clip."""


def _check_seaquest(segment: Segment, teacher: str) -> None:
    height, width, _ = shape = segment.frames.shape[1:]
    if shape != FRAME_SHAPE:
        raise UserError(f"teacher {teacher}: expected Seaquest's 210×160 frames, got {height}×{width}")
