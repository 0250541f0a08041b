"""Frames reach the browser exactly as recorded."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.label_ui.clips import ClipStore
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, save_segment
from lib.preferences.sprites import sprite_sheet
from tests.label_ui.dbs import make_db, segment
from tests.preferences.test_sprites import decode


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
    long = segment(0, steps=10_000, height=1, width=1)
    numbers = np.zeros((10_000, 4), np.float32)
    save_segment(tmp_path / "00" / "00000001.dat", Segment(long.frames, numbers, long.sidecar))
    assert len(ClipStore(SegmentDB(tmp_path)).clip(store.id_of("00/00000001.dat")).meta) < 100_000


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


def meta_of(root: Path, **sidecar: Any) -> dict[str, Any]:
    plain = segment(0)
    assert plain.sidecar is not None
    save_segment(
        root / "00" / "00000000.dat",
        dataclasses.replace(plain, sidecar=dataclasses.replace(plain.sidecar, **sidecar)),
    )
    store = ClipStore(SegmentDB(root))
    return json.loads(store.clip(store.id_of("00/00000000.dat")).meta)


def test_action_names_are_those_of_the_recording(tmp_path: Path) -> None:
    assert meta_of(tmp_path, action_names=("NOOP", "↑", "c", "d"))["names"] == ["NOOP", "↑", "c", "d"]


def test_action_names_too_long_for_a_header_are_left_out(tmp_path: Path) -> None:
    names = tuple("x" * 100 for _ in range(30))
    assert meta_of(tmp_path, num_actions=30, action_names=names)["names"] == []


@pytest.mark.parametrize(
    ("env_id", "num_actions", "names"),
    [
        ("SeaquestNoFrameskip-v4", 18, ["NOOP", "FIRE", "UP"]),
        ("SeaquestNoFrameskip-v4", 4, []),  # another action set
        ("NoSuchGame-v0", 18, []),
        ("", 18, []),
        ("planted:Game-v0", 4, []),
    ],
)
def test_older_recordings_have_the_names_of_the_joystick_or_none(
    tmp_path: Path, env_id: str, num_actions: int, names: list[str]
) -> None:
    assert meta_of(tmp_path, env_id=env_id, num_actions=num_actions)["names"][:3] == names
