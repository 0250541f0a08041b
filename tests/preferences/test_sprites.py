"""Sprite sheets and PNG files hold frames exactly."""

import struct

import cv2
import numpy as np
import pytest

from lib.preferences.segments import SegmentError
from lib.preferences.sprites import encode_png, sprite_sheet


def decode(png: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image[..., ::-1]


def colour_type(png: bytes) -> int:
    assert png[12:16] == b"IHDR"
    return int(struct.unpack(">IIBB", png[16:26])[3])


@pytest.mark.parametrize(
    ("colours", "kind"), [(1, 3), (2, 3), (30, 3), (256, 3), (257, 2), (5000, 2)], ids=str
)
def test_png_is_exact_and_has_a_palette_up_to_256_colours(colours: int, kind: int) -> None:
    rng = np.random.default_rng(colours)
    codes = rng.choice(1 << 24, colours, replace=False)
    palette = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)
    index = np.concatenate([np.arange(colours), rng.integers(0, colours, 120 * 90 - colours)])
    image = palette[index].reshape(120, 90, 3)
    png = encode_png(image)
    np.testing.assert_array_equal(decode(png), image)
    assert colour_type(png) == kind


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_neighbours_that_differ_in_one_channel_stay_apart(channel: int) -> None:
    image = np.zeros((3, 5, 3), np.uint8)
    image[0, 4, channel] = 1  # and the next line begins with another colour
    image[1, 1:3, channel] = 2
    image[2, :, channel] = 255
    png = encode_png(image)
    np.testing.assert_array_equal(decode(png), image)
    assert colour_type(png) == 3


@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_sprite_sheet_holds_every_frame_in_order(steps: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (steps, 21, 16, 3), dtype=np.uint8)
    sheet, columns = sprite_sheet(frames)
    for step, frame in enumerate(frames):
        y, x = step // columns * 21, step % columns * 16
        np.testing.assert_array_equal(sheet[y : y + 21, x : x + 16], frame)


@pytest.mark.parametrize("size", [(210, 160), (84, 84), (480, 640), (768, 1024)], ids=str)
def test_fifty_frames_of_usual_sizes_fit_on_a_sheet(size: tuple[int, int]) -> None:
    frames = np.broadcast_to(np.zeros((), np.uint8), (50, *size, 3))
    assert max(sprite_sheet(frames)[0].shape) <= 8192


def test_a_sheet_too_large_for_a_browser_is_refused() -> None:
    frames = np.broadcast_to(np.zeros((), np.uint8), (200, 2000, 2000, 3))
    with pytest.raises(SegmentError, match="more than a browser"):
        sprite_sheet(frames)
