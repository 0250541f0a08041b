"""Clips inside a page: frames as one lossless picture in a data URI, played on a canvas beside their reward curve."""

import base64
import json
import math
from collections.abc import Sequence
from html import escape

import cv2
import numpy as np

from lib.envs.world import STEPS_PER_SECOND
from lib.preferences.sprites import encode_png, sprite_sheet
from lib.reward.report.plot import Plot

_MAX_FRAMES = 200
_MAX_SIDE = 320
"""Pixels of a frame."""
_MAX_BYTES = 250_000
"""Of a clip; Seaquest takes some 25 KB, and what takes more than this is no flat game graphics."""
_STRIP_FRAMES, _STRIP_SIDE, _STRIP_GAP = 10, 120, 2
_LOSSY = 60
"""WebP quality."""


def film_strip(frames: np.ndarray) -> np.ndarray:
    """Ten frames of a clip, evenly spaced from the first to the last and side by side, for where nothing can play it.

    Args:
      frames: uint8 `[T, H, W, 3]`.

    Returns:
      uint8 `[h + 2, 10·(w + 2), 3]` with h, w such that a frame has 120 pixels a side at most; grey between them.
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


def clip(
    title: str,
    source: str,
    frames: np.ndarray,
    curve: np.ndarray,
    scale: tuple[float, float],
    curve_name: str,
    scores: np.ndarray | None = None,
    others: Sequence[np.ndarray] = (),
) -> str:
    """A figure that plays: picture, curve with a cursor, a button and a slider.

    Args:
      title: what matters about it.
      source: where it comes from.
      frames: uint8 `[T, H, W, 3]`; long clips lose frames, large ones pixels.
      curve: float `[T]`, what is drawn below it.
      scale: lower and upper end of the curve's axis.
      curve_name: what the curve shows, with its unit.
      scores: float `[T]`, told beside the curve.
      others: more curves, `[T]` each, drawn thin behind it.
    """
    every = math.ceil(len(frames) / _MAX_FRAMES)
    shown = frames[::every]
    shrink = max(1, math.ceil(max(shown.shape[1:3]) / _MAX_SIDE))
    shown = shown[:, ::shrink, ::shrink]
    sheet, columns = sprite_sheet(shown)
    steps, height, width, _ = shown.shape
    last = max(1, len(frames) - 1)
    plot = Plot(title, (0, last), scale, "step", curve_name, 264, 140, y_ticks=3)
    if scale[0] < 0 < scale[1]:
        plot.level(0)
    for other in others:
        plot.line(range(len(other)), other.tolist(), "thin")
    plot.line(range(len(curve)), curve.tolist(), "one")
    plot.cursor(0)
    content = {
        "steps": steps,
        "columns": columns,
        "every": every,
        "length": len(frames),
        "rate": STEPS_PER_SECOND / every,
        "from": round(plot.across(0), 2),
        "to": round(plot.across(last), 2),
        "signed": scale[0] < 0,
        "curve": [round(float(value), 3) for value in curve],
        "scores": None if scores is None else [round(float(value), 3) for value in scores],
    }
    return (
        f'<figure class="clip" data-clip="{escape(json.dumps(content, separators=(",", ":")))}">'
        f'<figcaption><strong>{escape(title)}</strong><span class="muted">{escape(source)}</span></figcaption>'
        f'<canvas width="{width}" height="{height}" role="img" aria-label="{escape(f"clip {source}")}"></canvas>'
        f'<img hidden alt="" src="{data_uri(sheet)}">'
        f"{plot.svg()}"
        f'<div class="controls"><button type="button" class="button">Play</button>'
        f'<input type="range" min="0" max="{steps - 1}" value="0" aria-label="step of the clip">'
        f"<output></output></div></figure>"
    )
