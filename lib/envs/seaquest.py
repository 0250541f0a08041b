"""What a person reads off Seaquest's picture, as functions of frames. They measure behaviour and never feed a model.

Rows, columns and colours were read off the emulator's frames and checked against its memory: oxygen at address 102
(0 to 64), divers at 62, height of the submarine at 97 (13 at the surface, 108 on the sea bed).
"""

import numpy as np

FRAME_SHAPE = (210, 160, 3)
_YELLOW = (187, 187, 53)
_DIVER = (66, 72, 200)  # one that swims
_SURFACE_ROW, _DEEPEST_ROW = 46, 141  # of the submarine's top
_LEAST_PIXELS = 12  # of a submarine or a diver; fewer are debris of an explosion or a shot
_WATER_ROWS = slice(_SURFACE_ROW, 165)  # below the spare submarines, above the oxygen bar
_SURFACE = 1.5 / (_DEEPEST_ROW - _SURFACE_ROW)  # depth: the submarine bobs by one row

_PANEL = (142, 142, 142)
_BAR_ROW, _BAR = 172, slice(49, 111)
_EMPTY = (163, 57, 21)  # what is left is light, or black where the bar flashes
_DIVER_ROWS, _DIVER_PIXELS = slice(178, 187), 8  # a diver has 17
_FIRST_ICON, _ICON_WIDTH, _ICONS = 58, 8, 6  # of divers

LOW_OXYGEN = 16 / 62
"""The game flashes the bar from here down."""
TOP = 6.5 / (_DEEPEST_ROW - _SURFACE_ROW)
"""Depth above which no oxygen is used up (heights 13 to 19), so that one may hover there for ever."""


def _is(pixels: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Where `[..., 3]` pixels have a colour, bool `[...]`."""
    red, green, blue = colour
    same: np.ndarray = (pixels[..., 0] == red) & (pixels[..., 1] == green) & (pixels[..., 2] == blue)
    return same


def _panel_shows(frames: np.ndarray) -> np.ndarray:
    """Whether the panel with bar and divers is in the picture, bool `[...]`."""
    beside = [_BAR.start - 3, _BAR.stop + 3]  # an empty bar is one pixel longer on either side
    return np.all(_is(frames[..., _BAR_ROW, beside, :], _PANEL), axis=-1)


def submarine_depth(frames: np.ndarray) -> np.ndarray:
    """How deep the submarine is.

    Args:
      frames: uint8 `[..., 210, 160, 3]`, RGB.

    Returns:
      float32 `[...]`: 0 at the surface, 1 on the sea bed; NaN where no submarine is in sight (it blinks after a hit and
      between lives).
    """
    water = frames[..., _WATER_ROWS, :, :]
    body = _is(water, _YELLOW)
    top = body.any(-1).argmax(-1)
    depth = np.clip(top / (_DEEPEST_ROW - _SURFACE_ROW), 0, 1)
    return np.where(body.sum((-2, -1)) >= _LEAST_PIXELS, depth, np.nan).astype(np.float32)


def submarine_midwater(frames: np.ndarray) -> np.ndarray:
    """How near to mid-water the submarine is: 1 half-way down, 0 at the surface and on the sea bed.

    Takes and returns what `submarine_depth` does.
    """
    return 1 - 2 * np.abs(submarine_depth(frames) - 0.5)


def at_surface(frames: np.ndarray) -> np.ndarray:
    """Whether the submarine is at the surface: 1 or 0, NaN where no submarine is in sight; see `submarine_depth`."""
    depth = submarine_depth(frames)
    return np.where(np.isnan(depth), np.nan, depth < _SURFACE).astype(np.float32)


def oxygen(frames: np.ndarray) -> np.ndarray:
    """How much of the oxygen bar is left.

    A life begins with an empty bar that fills within 33 steps; a hit empties it at once. All values from 62 to 64 of the
    game's own count look full.

    Args:
      frames: uint8 `[..., 210, 160, 3]`, RGB.

    Returns:
      float32 `[...]`: 0 to 1; NaN where the panel is not in the picture.
    """
    left = 1 - _is(frames[..., _BAR_ROW, _BAR, :], _EMPTY).mean(-1)
    return np.where(_panel_shows(frames), left, np.nan).astype(np.float32)


def air_below(frames: np.ndarray) -> np.ndarray:
    """As `oxygen`, but NaN also at the surface, where the bar fills, and where no submarine is in sight."""
    return np.where(at_surface(frames) == 0, oxygen(frames), np.nan).astype(np.float32)


def divers(frames: np.ndarray) -> np.ndarray:
    """How many divers the submarine carries.

    Six divers blink: half of their frames show, and read, none.

    Args:
      frames: uint8 `[..., 210, 160, 3]`, RGB.

    Returns:
      float32 `[...]`: 0 to 6; NaN where the panel is not in the picture.
    """
    places = slice(_FIRST_ICON, _FIRST_ICON + _ICONS * _ICON_WIDTH)
    lit = ~_is(frames[..., _DIVER_ROWS, places, :], _PANEL)
    pixels = lit.reshape(*lit.shape[:-1], _ICONS, _ICON_WIDTH).sum((-3, -1))
    count = (pixels >= _DIVER_PIXELS).sum(-1)
    return np.where(_panel_shows(frames), count, np.nan).astype(np.float32)


def diver_aboard(frames: np.ndarray) -> np.ndarray:
    """Whether a diver is on board: 1 or 0, NaN where the panel is not in the picture; see `divers`."""
    return np.sign(divers(frames))


def diver_in_sight(frames: np.ndarray) -> np.ndarray:
    """Whether a diver swims by, bool `[...]`, for uint8 `[..., 210, 160, 3]`."""
    found: np.ndarray = _is(frames[..., _WATER_ROWS, :, :], _DIVER).sum((-2, -1)) >= _LEAST_PIXELS
    return found


_COUNTED = ("refuels", "rescues", "pickups", "alarms", "shortages", "sightings")
_IN_A_ROW = 25  # steps, for an alarm, a shortage and a sighting


class _InARow:
    """Tells of every 25th step in a row at which something holds, in B games."""

    def __init__(self, games: int) -> None:
        self._steps = np.zeros(games, np.int64)

    def push(self, holds: np.ndarray) -> np.ndarray:
        """Takes in whether it holds now, bool `[B]`; returns whether this is such a step, bool `[B]`."""
        self._steps = np.where(holds, self._steps + 1, 0)
        return holds & (self._steps % _IN_A_ROW == 0)


class SurfaceCounter:
    """Counts refuels, rescues, pickups, alarms, shortages and sightings in B games, from their frames alone.

    A refuel is a visit to the surface from below on which the oxygen bar rises. Filling up at the start of a life does
    not count, and a visit without a diver ends in a lost life before the bar moves. A rescue is a visit on which six
    divers are set ashore one by one; the refuel that follows counts as well. A pickup is one more diver on board. An
    alarm goes off at every 25th step in a row at which the submarine could refuel and should: below the surface with
    half a tank or less and a diver on board. A shortage is every 25th step in a row at which it could not: likewise, with
    nobody on board. A sighting is every 25th step in a row at which a diver swims by and none is on board.

    Attributes:
      refuels, rescues, pickups, alarms, shortages, sightings: int64 `[B]`.
      aboard: divers on board now, float `[B]`: as `divers`, but six divers that blink stay six; NaN at first.
    """

    def __init__(self, games: int) -> None:
        self.refuels, self.rescues, self.pickups = (np.zeros(games, np.int64) for _ in range(3))
        self.alarms, self.shortages, self.sightings = (np.zeros(games, np.int64) for _ in range(3))
        self._alarm, self._shortage, self._sighting = (_InARow(games) for _ in range(3))
        self._from_below = np.zeros(games, bool)  # was below the surface in this life, not refuelled since
        self._oxygen = np.full(games, np.nan)
        self.aboard = np.full(games, np.nan)

    def push(self, frames: np.ndarray) -> None:
        """Take in the next frame of every game, uint8 `[B, 210, 160, 3]`; others show nothing."""
        if frames.shape[1:] != FRAME_SHAPE:
            return
        depth, oxygen_now, divers_now = submarine_depth(frames), oxygen(frames), divers(frames)
        alive, surface = ~np.isnan(depth), depth < _SURFACE
        self._from_below = alive & (self._from_below | ~surface)
        # Six divers blink. No other way leads from several to none within a step.
        blinks = (divers_now == 0) & (self.aboard > 1)
        aboard = np.where(blinks, self.aboard, divers_now)

        self.pickups += aboard == self.aboard + 1
        self.rescues += self._from_below & surface & (self.aboard == 6) & (aboard == 5)
        rises = self._from_below & surface & (oxygen_now > self._oxygen)
        self.refuels += rises
        self._from_below &= ~rises
        low = alive & ~surface & (oxygen_now <= 0.5)
        self.alarms += self._alarm.push(low & (aboard > 0))
        self.shortages += self._shortage.push(low & (aboard == 0))
        near = alive & ~surface & (aboard == 0)
        near[near] = diver_in_sight(frames[near])
        self.sightings += self._sighting.push(near)
        self._oxygen, self.aboard = oxygen_now, aboard

    def counts(self) -> dict[str, np.ndarray]:
        """The counts so far by name, float64 `[B]`."""
        return {name: getattr(self, name).astype(float) for name in _COUNTED}
