"""Clips inside a page: frames as one picture in a data URI, played on a canvas above a curve of rewards."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from lib.envs.world import STEPS_PER_SECOND
from lib.preferences.sprites import encode_png, sprite_sheet

_MAX_FRAMES = 200
_MAX_SIDE = 320
"""Pixels of a frame."""
_MAX_BYTES = 250_000
"""Of a lossless clip. Flat game graphics stay below: Seaquest takes some 20 KB."""
_STRIP_FRAMES, _STRIP_SIDE, _STRIP_GAP = 10, 120, 2
_LOSSY = 60
"""WebP quality."""


def film_strip(frames: np.ndarray) -> np.ndarray:
    """Ten frames of a clip side by side, evenly spaced from the first to the last, for where clips cannot play.

    Args:
      frames: uint8 `[T, H, W, 3]`.

    Returns:
      uint8 `[h + 2, 10·(w + 2), 3]`, grey between frames; h and w are at most 120.
    """
    frames = frames[np.linspace(0, len(frames) - 1, _STRIP_FRAMES).round().astype(int)]
    scale = min(1.0, _STRIP_SIDE / max(frames.shape[1:3]))
    height, width = (max(1, round(side * scale)) for side in frames.shape[1:3])
    shown = [cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA) for frame in frames]
    strip = np.full((height + _STRIP_GAP, _STRIP_FRAMES, width + _STRIP_GAP, 3), 128, np.uint8)
    strip[:height, :, :width] = np.stack(shown, axis=1)
    return strip.reshape(height + _STRIP_GAP, -1, 3)


def data_uri(sheet: np.ndarray) -> str:
    """uint8 `[H, W, 3]` as a picture: PNG where that is small, as flat game graphics are, else lossy WebP."""
    kind, encoded = "png", encode_png(sheet)
    if len(encoded) > _MAX_BYTES:
        bgr = cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR)
        kind, encoded = "webp", cv2.imencode(".webp", bgr, [cv2.IMWRITE_WEBP_QUALITY, _LOSSY])[1].tobytes()
    return f"data:image/{kind};base64," + base64.b64encode(encoded).decode()


@dataclass(frozen=True)
class PageClip:
    """A clip on a page: frames that play above a curve."""

    title: str
    """The point of the clip."""
    source: str
    """Its source."""
    curve_name: str
    """What the curve shows, with its unit."""
    picture: str
    """The sprite sheet, as a data URI."""
    playback: dict[str, object]
    """For static/report.js: the layout of frames on the sheet, and the text at each step."""


def clip(
    title: str,
    source: str,
    frames: np.ndarray,
    curve: np.ndarray,
    scale: tuple[float, float],
    curve_name: str,
    scores: np.ndarray | None = None,
    others: Sequence[np.ndarray] = (),
) -> PageClip:
    """A clip and its curve. Long clips lose frames, large ones pixels.

    Args:
      title: what matters about it.
      source: where it comes from.
      frames: uint8 `[T, H, W, 3]`.
      curve: float `[T]`.
      scale: lower and upper end of the curve's axis.
      curve_name: what the curve shows, with its unit.
      scores: float `[T]`, shown with the step.
      others: more curves, float `[T]` each, drawn thin.
    """
    every = math.ceil(len(frames) / _MAX_FRAMES)
    shrink = math.ceil(max(frames.shape[1:3]) / _MAX_SIDE)
    shown = frames[::every, ::shrink, ::shrink]
    sheet, columns = sprite_sheet(shown)
    steps, height, width, _ = shown.shape
    playback = {
        "steps": steps,
        "width": width,
        "height": height,
        "columns": columns,
        "every": every,
        "rate": STEPS_PER_SECOND / every,
        "scale": scale,
        "curve": _rounded(curve),
        "others": [_rounded(other) for other in others],
        "scores": None if scores is None else _rounded(scores),
    }
    return PageClip(title, source, curve_name, data_uri(sheet), playback)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in np.nan_to_num(values)]  # JSON has no NaN
