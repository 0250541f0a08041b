"""Clips as sprite sheets: all frames of a clip in one lossless picture, which a browser plays frame by frame.

Atari frames have some 30 colours, so an indexed PNG is exact and small: 50 frames in 15 to 25 KB.
"""

import io
import math

import cv2
import numpy as np
from PIL import Image

from lib.preferences.segments import SegmentError

_MAX_SIDE = 8192
"""Pixels: tablets refuse larger images."""
_WIDTH = 4096
"""Width in pixels that a sheet may always have. The wider, the smaller the file: a line of pixels is most
like the same line of the next frame, which comes soonest when frames lie side by side."""
_LEVEL = 4
"""zlib level: 6 saves a tenth of the bytes for 2 ms more, 9 a third for 10 to 20."""


def sprite_sheet(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """Lays frames out row by row on one sheet.

    Args:
      frames: uint8 [T, H, W, 3].

    Returns:
      The sheet, uint8 [R·H, C·W, 3], black where frames ran out, and C, the number of columns.

    Raises:
      SegmentError: The sheet would be larger than browsers can show.
    """
    steps, height, width, _ = frames.shape
    square = math.ceil(math.sqrt(steps * height / width))
    columns = min(steps, max(square, _WIDTH // width))
    rows = math.ceil(steps / columns)
    if columns * width > _MAX_SIDE or rows * height > _MAX_SIDE:
        raise SegmentError(
            f"{steps} frames of {width}×{height} pixels are more than a browser can show at once"
        )
    sheet = np.zeros((rows * columns, height, width, 3), np.uint8)
    sheet[:steps] = frames
    grid = sheet.reshape(rows, columns, height, width, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(rows * height, columns * width, 3), columns


def encode_png(image: np.ndarray) -> bytes:
    """Encodes an image as PNG, lossless: with a palette up to 256 colours, in 24-bit colour beyond.

    Pillow would look for a palette at 15 times the cost; OpenCV writes none, and takes three times as long.

    Args:
      image: uint8 [H, W, 3].
    """
    codes = cv2.cvtColor(image, cv2.COLOR_RGB2RGBA).view(np.uint32).reshape(-1)
    # Game graphics are runs of one colour, some forty pixels long: only the first pixel of a run is looked up.
    starts = np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])
    firsts = codes[starts]
    colours = np.unique(firsts)
    if len(colours) > 256:
        picture = Image.fromarray(image)
    else:
        runs = np.searchsorted(colours, firsts).astype(np.uint8)
        index = np.repeat(runs, np.diff(starts, append=len(codes)))
        picture = Image.fromarray(index.reshape(image.shape[:2]))
        picture.putpalette(colours.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=_LEVEL)
    return file.getvalue()
