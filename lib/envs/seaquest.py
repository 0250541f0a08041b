"""Probes: what a person reads off Seaquest's picture, as functions over frames. They never feed a model."""

import numpy as np

_SUBMARINE = (187, 187, 53)
_SURFACE_ROW = 46
_DEEPEST_ROW = 141
_LEAST_PIXELS = 12  # fewer are debris of an explosion or a shot
_BODY_ROWS = slice(_SURFACE_ROW, 165)  # below the spare submarines, above the oxygen bar


def submarine_depth(frames: np.ndarray) -> np.ndarray:
    """How deep the submarine is: 0 at the surface, 1 on the sea bed.

    Args:
      frames: uint8 `[..., 210, 160, 3]`, RGB.

    Returns:
      float32 `[...]`; NaN where no submarine is in sight (it blinks away after a hit and between lives).
    """
    water = frames[..., _BODY_ROWS, :, :]
    red, green, blue = _SUBMARINE
    body = (water[..., 0] == red) & (water[..., 1] == green) & (water[..., 2] == blue)
    pixels = body.sum((-2, -1))
    top = body.any(-1).argmax(-1)
    depth = top.astype(np.float32) / (_DEEPEST_ROW - _SURFACE_ROW)
    return np.where(pixels >= _LEAST_PIXELS, np.clip(depth, 0, 1), np.nan).astype(np.float32)
