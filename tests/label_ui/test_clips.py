"""Frames reach the browser exactly as recorded."""

import dataclasses
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from lib.label_ui.clips import ClipStore, action_names
from lib.preferences.segments import Segment, SegmentDB, SegmentError, save_segment
from lib.preferences.sprites import sprite_sheet
from tests.label_ui.dbs import make_db, segment


def decode(png: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return image[..., ::-1]


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
