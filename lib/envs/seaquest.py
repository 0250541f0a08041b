"""Probes: what a person reads off Seaquest's picture, as functions over frames. They never feed a model."""

import numpy as np

_YELLOW = (187, 187, 53)
_SURFACE_ROW, _DEEPEST_ROW = 46, 141  # of the submarine's top
_LEAST_PIXELS = 12  # fewer are debris of an explosion or a shot
_WATER_ROWS = slice(_SURFACE_ROW, 165)  # below the spare submarines, above the oxygen bar


def submarine_depth(frames: np.ndarray) -> np.ndarray:
    """How deep the submarine is.

    Args:
      frames: uint8 `[..., 210, 160, 3]`, RGB.

    Returns:
      float32 `[...]`: 0 at the surface, 1 on the sea bed; NaN where no submarine is in sight (it blinks away after
      a hit and between lives).
    """
    water = frames[..., _WATER_ROWS, :, :]
    red, green, blue = _YELLOW
    body = (water[..., 0] == red) & (water[..., 1] == green) & (water[..., 2] == blue)
    top = body.any(-1).argmax(-1)
    depth = np.clip(top / (_DEEPEST_ROW - _SURFACE_ROW), 0, 1)
    return np.where(body.sum((-2, -1)) >= _LEAST_PIXELS, depth, np.nan).astype(np.float32)


def submarine_midwater(frames: np.ndarray) -> np.ndarray:
    """How near to mid-water the submarine is: 1 half-way down, 0 at the surface and on the sea bed.

    Takes and returns what `submarine_depth` does.
    """
    return 1 - 2 * np.abs(submarine_depth(frames) - 0.5)
