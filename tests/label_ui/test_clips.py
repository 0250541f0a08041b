"""Frames reach the browser exactly as recorded."""

import dataclasses
import json
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest

from lib.label_ui.clips import ClipStore, action_names, encode_png, sprite_sheet
from lib.preferences.segments import Segment, SegmentDB, SegmentError, save_segment
from tests.label_ui.dbs import make_db, segment


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


def test_store_serves_only_what_the_db_lists(tmp_path: Path) -> None:
    store = ClipStore(SegmentDB(make_db(tmp_path / "db", 3)))
    id = store.id_of("00/00000000.dat")
    clip = store.clip(id)
    frames = segment(0).frames
    np.testing.assert_array_equal(decode(clip.png), sprite_sheet(frames)[0])
    meta = json.loads(clip.meta)
    assert (meta["steps"], meta["width"], meta["height"]) == (6, 10, 12)
    assert meta["actions"] == segment(0).actions.tolist()
    np.testing.assert_array_equal(decode(store.thumbnail(id).png), frames[3][::2, ::2])
    with pytest.raises(KeyError):
        store.clip("0" * 16)
    fresh = ClipStore(SegmentDB(tmp_path / "db"))
    assert fresh.clip(id) == clip, "ids outlive the process that made them"


def test_continuous_actions_are_shown_as_numbers(tmp_path: Path) -> None:
    plain = segment(0, steps=2)
    assert plain.sidecar is not None
    actions = np.array([[0.31, -1, 0, 0.06, 1], [1, 1, 1, 1, 1]], np.float32)
    sidecar = dataclasses.replace(plain.sidecar, num_actions=5)
    (tmp_path / "db").mkdir()
    save_segment(tmp_path / "db" / "00" / "00000000.dat", Segment(plain.frames, actions, sidecar))
    store = ClipStore(SegmentDB(tmp_path / "db"))
    meta = json.loads(store.clip(store.id_of("00/00000000.dat")).meta)
    assert meta["actions"][0] == "+0.3  −1.0  +0.0  +0.1 …"
    assert meta["names"] == []


def test_what_a_header_says_of_a_clip_stays_short(tmp_path: Path) -> None:
    """Whatever the file says: a browser gives up on headers of many kilobytes."""
    save_segment(tmp_path / "00" / "00000000.dat", segment(0, env_id="x" * 100_000))
    store = ClipStore(SegmentDB(tmp_path))
    assert len(store.clip(store.id_of("00/00000000.dat")).meta) < 4000


def test_store_keeps_its_memory_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.label_ui.clips._CACHE_BYTES", 2000)
    store = ClipStore(SegmentDB(make_db(tmp_path / "db", 8)))
    for i in range(8):
        store.clip(store.id_of(f"{i % 3:02d}/{i:08d}.dat"))
    assert sum(len(clip.png) for clip in store._cache.values()) <= 2000


def test_a_file_that_is_gone_or_broken_is_named(tmp_path: Path) -> None:
    root = make_db(tmp_path / "db", 2)
    (root / "00/00000009.dat").write_bytes(b"\x28\xb5\x2f\xfdnot a segment")
    store = ClipStore(SegmentDB(root))
    with pytest.raises(SegmentError, match=r"00/00000009\.dat"):
        store.clip(store.id_of("00/00000009.dat"))


def test_action_names_are_the_environments_or_none() -> None:
    names = action_names("SeaquestNoFrameskip-v4", 18)
    assert names[:3] == ["NOOP", "FIRE", "UP"]
    assert action_names("SeaquestNoFrameskip-v4", 4) == [], "another action set"
    assert action_names("NoSuchGame-v0", 18) == []
    assert action_names("", 18) == []


def test_a_file_cannot_have_a_module_imported_by_what_it_calls_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    assert action_names("planted:Game-v0", 4) == []
