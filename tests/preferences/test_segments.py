"""Segments: both formats in and out, and files that are damaged, foreign, enormous or hostile."""

import codecs
import collections
import contextlib
import copyreg
import dataclasses
import errno
import io
import os
import pickle
import struct
import sys
import threading
import tracemalloc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from lib.cli import UserError
from lib.preferences import closed_pickle, segments
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, load_segment, save_segment
from tests.disk import disk_full_after

PROTOCOLS = range(6)
MiB = 2**20


def assert_same(a: Segment, b: Segment) -> None:
    assert a.frames.dtype == np.uint8
    assert a.actions.dtype == np.int64
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.actions, b.actions)
    assert (a.sidecar is None) == (b.sidecar is None)
    if a.sidecar is not None and b.sidecar is not None:
        for field in dataclasses.fields(a.sidecar):
            got, expected = getattr(a.sidecar, field.name), getattr(b.sidecar, field.name)
            np.testing.assert_array_equal(got, expected, err_msg=field.name)
            assert getattr(got, "dtype", None) == getattr(expected, "dtype", None), field.name


def write(folder: Path, data: bytes) -> Path:
    path = folder / "00000001.dat"
    path.unlink(
        missing_ok=True
    )  # some file systems flush a file that is overwritten, thousands of times here
    path.write_bytes(data)
    return path


def reason(folder: Path, data: bytes) -> str:
    """Why a file with this content is refused: one line that names it."""
    path = write(folder, data)
    with pytest.raises(SegmentError) as caught:
        load_segment(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message) < 500 + len(str(path))
    return message.removeprefix(f"{path}: ")


@contextlib.contextmanager
def memory(limit: int) -> Iterator[None]:
    """Fails when more than `limit` bytes are allocated meanwhile (also if they are never touched)."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak / MiB:.0f} MiB"


# --- The original's format, made the way the original made it ---------------------------------------------------


@dataclasses.dataclass
class Plain:
    obs: Any
    act: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    obs: Any
    act: Any


@dataclasses.dataclass(slots=True)
class Slots:
    obs: Any
    act: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    obs: Any
    act: Any


class OldSlots:
    __slots__ = ("act", "obs")

    def __init__(self, obs: Any, act: Any) -> None:
        self.obs, self.act = obs, act


class Called:
    def __init__(self, obs: Any, act: Any) -> None:
        self.obs, self.act = obs, act

    def __reduce__(self) -> Any:
        return type(self), (self.obs, self.act)


Tuple = collections.namedtuple("Tuple", ["obs", "act"])
KINDS = [Plain, Frozen, Slots, FrozenSlots, OldSlots, Called, Tuple]


def original(
    frames: np.ndarray,
    actions: list[Any],
    protocol: int,
    kind: Any = Plain,
    dumps: Callable[..., bytes] = pickle.dumps,
) -> bytes:
    """The pickle that the original wrote, in whose process the class was lib.rlhf.EpisodeStep."""
    named = type("EpisodeStep", (), {})  # what the pickler looks up must be the class itself
    module = types.ModuleType("lib.rlhf")
    kept = kind.__module__, kind.__qualname__
    named = kind
    named.__module__, named.__qualname__ = "lib.rlhf", "EpisodeStep"
    module.EpisodeStep = named  # type: ignore[attr-defined]
    sys.modules["lib.rlhf"] = module
    try:
        return dumps([kind(frame, action) for frame, action in zip(frames, actions, strict=True)], protocol)
    finally:
        del sys.modules["lib.rlhf"]
        kind.__module__, kind.__qualname__ = kept


def as_numpy_1(data: bytes) -> bytes:
    """The same pickle with the names that numpy had before version 2 (small: within one pickle frame)."""
    for module in (b"multiarray", b"numeric"):
        new, old = b"numpy._core." + module, b"numpy.core." + module
        data = data.replace(b"\x8c" + bytes([len(new)]) + new, b"\x8c" + bytes([len(old)]) + old)
        data = data.replace(b"c" + new + b"\n", b"c" + old + b"\n")
    if data[0] == 0x80 and data[1] >= 4:
        data = data[:3] + struct.pack("<Q", len(data) - 11) + data[11:]
    return data


FRAMES = np.random.default_rng(3).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
ACTIONS = [0, 17, 3, 3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_original_loads(tmp_path: Path, kind: Any, protocol: int) -> None:
    if kind in (Slots, OldSlots) and protocol < 2:
        pytest.skip("Python cannot pickle __slots__ with this protocol")
    for dumps in (pickle.dumps, pickle._dumps):  # type: ignore[attr-defined]
        data = original(FRAMES, ACTIONS, protocol, kind, dumps)
        assert b"EpisodeStep" in data
        loaded = load_segment(write(tmp_path, data))
        assert_same(loaded, Segment(FRAMES, np.array(ACTIONS), None))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_original_of_numpy_1_loads(tmp_path: Path, protocol: int) -> None:
    data = as_numpy_1(original(FRAMES, [np.int64(a) for a in ACTIONS], protocol))
    assert b"numpy._core" not in data
    assert b"numpy.core" in data
    assert_same(load_segment(write(tmp_path, data)), Segment(FRAMES, np.array(ACTIONS), None))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i4", "u4", "<i8", ">i8", "u8"])
def test_original_with_numpy_actions_loads(tmp_path: Path, dtype: str, protocol: int) -> None:
    data = original(FRAMES, list(np.array(ACTIONS, dtype)), protocol)
    np.testing.assert_array_equal(load_segment(write(tmp_path, data)).actions, ACTIONS)


def test_original_with_actions_of_another_byte_order(tmp_path: Path) -> None:
    data = original(FRAMES[:1], [np.int32(1)], 2)
    assert load_segment(write(tmp_path, data)).actions[0] == 1
    swapped = data.replace(b"X\x01\0\0\0<", b"X\x01\0\0\0>")
    assert "are 16777216 to 16777216" in reason(tmp_path, swapped)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "axes", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0), (1, 2, 0, 3), (0, 3, 1, 2), (0, 2, 3, 1), (0, 3, 2, 1)]
)
def test_original_keeps_the_pixels_in_place_whatever_the_memory_order(
    tmp_path: Path, axes: tuple[int, ...], protocol: int
) -> None:
    memory_shape = [0] * 4
    for axis, place in enumerate(axes):
        memory_shape[axis] = FRAMES.shape[place]
    frames = np.empty(memory_shape, np.uint8).transpose(np.argsort(axes))
    frames[...] = FRAMES
    loaded = load_segment(write(tmp_path, original(frames, ACTIONS, protocol)))
    np.testing.assert_array_equal(loaded.frames, FRAMES)


def test_original_of_full_size_and_read_only_frames(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 210, 160, 3), dtype=np.uint8)
    frames.flags.writeable = False
    for protocol in PROTOCOLS:
        loaded = load_segment(write(tmp_path, original(frames, [1, 2, 3], protocol)))
        np.testing.assert_array_equal(loaded.frames, frames)


@pytest.mark.parametrize(
    ("frames", "actions", "expected"),
    [
        (FRAMES.astype(object), ACTIONS, "refuses dtype O8"),
        (FRAMES.astype(np.float32), ACTIONS, "refuses dtype f4"),
        (FRAMES.astype(np.int8), ACTIONS, "frames must be uint8"),
        (FRAMES[..., 0], ACTIONS, "frames must have shape"),
        (FRAMES[..., :2], ACTIONS, "frames must have shape"),
        (FRAMES[:0], [], "0 steps"),
        ([FRAMES[0], FRAMES[1, :3]], [0, 1], "frame 1 has shape (3, 5, 3), frame 0 (6, 5, 3)"),
        ([FRAMES[0], None], [0, 1], "step 1 has no frame"),
        (FRAMES, [0, 1, 2, -1], "actions must be 0 to"),
        (FRAMES, [0, 1, 2, 10**6], "actions must be 0 to"),
        (FRAMES, [0, 1, 2, 2**70], "OverflowError"),
        (FRAMES, [0, 1, 2, "3"], "action 3 must be int, is str"),
        (FRAMES, [0, 1, 2, None], "action 3 must be int, is NoneType"),
        (FRAMES, [0, 1, 2, True], "action 3 must be int, is bool"),
    ],
)
def test_original_with_wrong_content_is_refused(
    tmp_path: Path, frames: np.ndarray, actions: list[Any], expected: str
) -> None:
    for protocol in PROTOCOLS:
        assert expected in reason(tmp_path, original(frames, actions, protocol))


@pytest.mark.parametrize("value", [[1, 2], {"obs": 1}, (), "text", 5, None, [FRAMES[0]]])
def test_other_pickles_are_refused(tmp_path: Path, value: object) -> None:
    for protocol in PROTOCOLS:
        assert "not a list of lib.rlhf.EpisodeStep" in reason(tmp_path, pickle.dumps(value, protocol))


# --- Our format -------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path, segment: Segment) -> None:
    path = tmp_path / "00" / "00001234.dat"
    written = save_segment(path, segment)
    assert written == path.stat().st_size
    assert_same(load_segment(path), segment)
    assert os.listdir(path.parent) == [path.name]


def test_round_trip_without_sidecar_and_from_scattered_memory(tmp_path: Path, segment: Segment) -> None:
    frames = np.asfortranarray(segment.frames)[::-1]
    segment = Segment(frames, segment.actions[::-1], None)
    save_segment(tmp_path / "1.dat", segment)
    assert_same(load_segment(tmp_path / "1.dat"), segment)


@pytest.mark.parametrize("steps", [1, 2, 50, 64, 66, 67, 68, 69, 70, 120, 5000, 10_000])
def test_round_trip_of_any_length(tmp_path: Path, steps: int) -> None:
    """Small ones have all or some of their columns in the part that is looked at for the shape."""
    flags = np.arange(steps) % 3 == 0
    frames = np.random.default_rng(1).integers(0, 256, (steps, 4, 5, 3), dtype=np.uint8)
    sidecar = segments.Sidecar(np.arange(steps, dtype=np.float32) / 8, flags, ~flags, "x", 18, "", 0)
    segment = Segment(frames, np.arange(steps) % 18, sidecar)
    save_segment(tmp_path / "1.dat", segment)
    assert_same(load_segment(tmp_path / "1.dat"), segment)


def test_round_trip_at_every_size_around_the_head(tmp_path: Path) -> None:
    for width in range(12, 29):
        frames = np.zeros((50, 1, width, 3), np.uint8)
        for policy in range(3):
            flags = np.zeros(50, np.bool_)
            sidecar = segments.Sidecar(flags.astype(np.float32), flags, flags, "x", 18, "p" * policy, 0)
            path = tmp_path / f"{width}-{policy}.dat"
            save_segment(path, Segment(frames, np.zeros(50, np.int64), sidecar))
            assert load_segment(path).frames.shape == frames.shape


def test_on_disk_a_pickle_of_builtins_compressed_with_its_size(tmp_path: Path, segment: Segment) -> None:
    """Any program can read it: the format is promised in the documentation."""
    save_segment(tmp_path / "1.dat", segment)
    data = (tmp_path / "1.dat").read_bytes()
    raw = zstandard.ZstdDecompressor().decompress(data)
    assert zstandard.get_frame_parameters(data).content_size == len(raw)
    assert raw[:2] == b"\x80\x05"
    plain = pickle.loads(raw)
    assert list(plain) == ["format", "version", "shape", "frames", "actions", "sidecar"]
    assert plain["format"] == "segment"
    assert plain["version"] == 1
    assert plain["shape"] == segment.frames.shape
    assert plain["frames"] == segment.frames.tobytes()
    assert plain["actions"] == [0, 1, 2, 3, 4, 5]
    assert plain["sidecar"]["scores"] == [0, 20, -1, 0.5, 0, 7]
    assert plain["sidecar"]["life_lost"] == [False, False, True, False, False, False]


def plain_of(segment: Segment) -> dict[str, Any]:
    return dict(segments._to_plain(segment))


def packed(value: object, protocol: int = 5) -> bytes:
    return zstandard.ZstdCompressor().compress(pickle.dumps(value, protocol))


WRONG: list[tuple[str, Callable[[dict[Any, Any]], object], str]] = [
    ("format", lambda p: p.update(format="other"), "not a segment of this project"),
    ("no format", lambda p: p.pop("format"), "not a segment of this project"),
    ("newer", lambda p: p.update(version=2), "format version 2; this program reads version 1"),
    ("version type", lambda p: p.update(version="1"), "version must be int"),
    ("no shape", lambda p: p.pop("shape"), "shape must be tuple"),
    ("shape rank", lambda p: p.update(shape=(6, 5, 12)), "[T, H, W, 3]"),
    ("shape channels", lambda p: p.update(shape=(6, 5, 3, 4)), "[T, H, W, 3]"),
    ("shape float", lambda p: p.update(shape=(6.0, 5, 4, 3)), "[T, H, W, 3]"),
    ("shape bool", lambda p: p.update(shape=(True, 30, 4, 3)), "[T, H, W, 3]"),
    ("shape negative", lambda p: p.update(shape=(-6, -5, 4, 3)), "T must be 1 to 10000"),
    ("shape empty", lambda p: p.update(shape=(0, 5, 4, 3), frames=b"", actions=[]), "T must be 1 to 10000"),
    (
        "shape long",
        lambda p: p.update(shape=(10_001, 1, 1, 3), frames=b"\0" * 30_003),
        "T must be 1 to 10000",
    ),
    ("shape wide", lambda p: p.update(shape=(1, 1, 4097, 3), frames=b"\0" * 12_291), "H and W 1 to 4096"),
    ("shape huge", lambda p: p.update(shape=(9999, 4096, 4096, 3)), "more than 536870912 bytes"),
    ("shape other", lambda p: p.update(shape=(6, 5, 5, 3)), "needs 450 bytes of frames, found 360"),
    ("frames type", lambda p: p.update(frames="x" * 360), "frames must be bytes"),
    ("actions short", lambda p: p["actions"].pop(), "actions must be a list of 6 int"),
    ("actions float", lambda p: p.update(actions=[0.0] * 6), "actions must be a list of 6 int"),
    ("actions bool", lambda p: p.update(actions=[True] * 6), "actions must be a list of 6 int"),
    ("actions negative", lambda p: p.update(actions=[0, 0, 0, 0, 0, -1]), "actions must be 0 to 17"),
    ("actions other set", lambda p: p.update(actions=[0, 0, 0, 0, 0, 18]), "actions must be 0 to 17"),
    ("actions huge", lambda p: p.update(actions=[0, 0, 0, 0, 0, 2**63]), "OverflowError"),
    ("sidecar type", lambda p: p.update(sidecar=[1]), "sidecar is not a dict"),
    ("scores text", lambda p: p["sidecar"].update(scores=["1"] * 6), "scores must be a list of 6 float"),
    ("scores nan", lambda p: p["sidecar"].update(scores=[float("nan")] * 6), "scores must be finite"),
    ("scores large", lambda p: p["sidecar"].update(scores=[1e300] * 6), "scores must be finite"),
    ("lives int", lambda p: p["sidecar"].update(life_lost=[1] * 6), "life_lost must be a list of 6 bool"),
    ("over short", lambda p: p["sidecar"].update(game_over=[True]), "game_over must be a list of 6 bool"),
    ("env type", lambda p: p["sidecar"].update(env_id=3), "env_id must be str"),
    ("no actions", lambda p: p["sidecar"].update(num_actions=0), "num_actions must be 1 to"),
    ("many actions", lambda p: p["sidecar"].update(num_actions=10**9), "num_actions must be 1 to"),
    ("origin type", lambda p: p["sidecar"].update(origin=["v0"]), "origin must be at most 20 short texts"),
    ("origin nested", lambda p: p["sidecar"].update(origin={"a": {"b": "c"}}), "origin must be"),
    ("origin long", lambda p: p["sidecar"].update(origin={"a": "x" * 1001}), "origin must be"),
    ("origin many", lambda p: p["sidecar"].update(origin={str(n): "" for n in range(21)}), "origin must be"),
    ("names type", lambda p: p["sidecar"].update(action_names="NOOP"), "action_names must be list, is str"),
    (
        "names few",
        lambda p: p["sidecar"].update(action_names=["NOOP"]),
        "action_names must be 18 short texts",
    ),
    ("names nested", lambda p: p["sidecar"].update(action_names=[["a"]] * 18), "action_names must be"),
    ("names long", lambda p: p["sidecar"].update(action_names=["x" * 101] * 18), "action_names must be"),
    ("reason type", lambda p: p["sidecar"].update(reason=["random"]), "reason must be str, is list"),
    ("reason long", lambda p: p["sidecar"].update(reason="x" * 101), "reason must be a text of at most 100"),
    ("step negative", lambda p: p["sidecar"].update(step=-1), "step must be"),
    ("key", lambda p: p.setdefault(1, 2), "dict with a key that is not text"),
]


@pytest.mark.parametrize(("change", "expected"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_content_is_refused(
    tmp_path: Path, segment: Segment, change: Callable[[dict[Any, Any]], object], expected: str
) -> None:
    plain = plain_of(segment)
    assert_same(load_segment(write(tmp_path, packed(plain))), segment)
    change(plain)
    assert expected in reason(tmp_path, packed(plain))


@pytest.mark.parametrize(
    ("field", "value", "missing"),
    [
        ("origin", {"run": "runs/1-a2c-v0", "seed": "3", "git_commit": "c0ffee"}, {}),
        ("action_names", tuple(f"ACTION{number}" for number in range(18)), ()),
        ("reason", "refuel", ""),
    ],
)
def test_what_older_files_lack_is_kept_and_may_be_missing(
    tmp_path: Path, segment: Segment, field: str, value: object, missing: object
) -> None:
    assert segment.sidecar is not None
    changes: dict[str, Any] = {field: value}
    told = dataclasses.replace(segment, sidecar=dataclasses.replace(segment.sidecar, **changes))
    save_segment(tmp_path / "1.dat", told)
    plain = plain_of(told)
    del plain["sidecar"][field]
    older = write(tmp_path, packed(plain))
    for path, whole, held in ((tmp_path / "1.dat", told, value), (older, segment, missing)):
        loaded = load_segment(path)
        assert_same(loaded, whole)
        assert getattr(loaded.sidecar, field) == held


def test_unknown_keys_are_tolerated(tmp_path: Path, segment: Segment) -> None:
    plain = plain_of(segment)
    plain["note"] = ["a", {"b": 1.5}, None]
    assert_same(load_segment(write(tmp_path, packed(plain))), segment)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"frames": np.zeros((6, 5, 4, 1), np.uint8)}, "[T, H, W, 3]"),
        ({"frames": np.zeros((6, 5, 4, 3), np.float32)}, "frames must be uint8"),
        ({"actions": np.zeros(5, np.int64)}, "actions must have shape (6,)"),
        ({"actions": np.zeros(6, np.int32)}, "actions must be int64"),
        ({"actions": np.full(6, -1)}, "actions must be 0 to"),
    ],
)
def test_a_wrong_segment_is_not_saved(
    tmp_path: Path, segment: Segment, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SegmentError) as caught:
        save_segment(tmp_path / "00" / "1.dat", dataclasses.replace(segment, **changes))
    assert expected in str(caught.value)
    assert "1.dat" in str(caught.value)
    assert os.listdir(tmp_path) == []


# --- Saving -----------------------------------------------------------------------------------------------------


def no_links(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.fixture(params=["hard links", "no hard links"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no hard links":
        monkeypatch.setattr(os, "link", no_links)


@pytest.mark.usefixtures("file_system")
def test_saving_never_overwrites(tmp_path: Path, segment: Segment) -> None:
    path = tmp_path / "1.dat"
    save_segment(path, segment)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        save_segment(path, dataclasses.replace(segment, actions=segment.actions * 0))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["1.dat"]


@pytest.mark.usefixtures("file_system")
def test_of_two_recorders_of_one_name_one_wins(tmp_path: Path, segment: Segment) -> None:
    path = tmp_path / "1.dat"
    start = threading.Barrier(8)
    won: list[int] = []

    def save(number: int) -> None:
        mine = dataclasses.replace(segment, actions=np.full(6, number))
        start.wait()
        with contextlib.suppress(FileExistsError):
            save_segment(path, mine)
            won.append(number)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert load_segment(path).actions[0] == won[0]
    assert os.listdir(tmp_path) == ["1.dat"]


@pytest.mark.usefixtures("file_system")
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, segment: Segment) -> None:
    with disk_full_after(200), pytest.raises(OSError, match="too large"):
        save_segment(tmp_path / "1.dat", segment)
    assert os.listdir(tmp_path) == []
    save_segment(tmp_path / "1.dat", segment)
    assert_same(load_segment(tmp_path / "1.dat"), segment)


def test_a_failing_rename_leaves_nothing_behind(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "replace", no_links)
    with pytest.raises(PermissionError):
        save_segment(tmp_path / "1.dat", segment)
    assert os.listdir(tmp_path) == []


def test_a_deleted_database_is_not_made_again(tmp_path: Path, segment: Segment) -> None:
    with pytest.raises(FileNotFoundError):
        save_segment(tmp_path / "db" / "00" / "1.dat", segment)
    assert os.listdir(tmp_path) == []


def test_a_reader_never_sees_a_part(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file is written its name is not there, and the database does not list the temporary one."""
    seen = []
    link = os.link

    def look(source: Path, target: Path) -> None:
        seen.append((target.exists(), SegmentDB(tmp_path).names, len(os.listdir(tmp_path / "00"))))
        link(source, target)

    monkeypatch.setattr(os, "link", look)
    save_segment(tmp_path / "00" / "1.dat", segment)
    assert seen == [(False, [], 1)]
    assert SegmentDB(tmp_path).names == ["00/1.dat"]


# --- Damage -----------------------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match=r"1\.dat: cannot be read: No such file"):
        load_segment(tmp_path / "1.dat")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.dat")
    with pytest.raises(SegmentError, match="not a regular file"):
        load_segment(tmp_path / "1.dat")
    with pytest.raises(SegmentError, match=r"not a regular file|Is a directory"):
        load_segment(tmp_path)


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(SegmentError) as caught:
        load_segment(tmp_path / "a\nb\x1b[31m.dat")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0",
        b'{"sample1": "00/1.dat", "sample2": "00/2.dat", "label": 1}\n',
        b"[1, 2]\n",
        b"PK\x03\x04\x14\0\0\0",
        b"\x1f\x8b\x08\0\0\0\0\0",
        b"\0" * 1000,
        b"\xff" * 1000,
        b".",
        b"N.",
        b"hello\n",
        zstandard.ZstdCompressor().compress(b""),
        zstandard.ZstdCompressor().compress(b"hello"),
        zstandard.ZstdCompressor().compress(b"hello" * 10_000),
        b"\x28\xb5\x2f\xfd",
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, data: bytes) -> None:
    assert reason(tmp_path, data)


def test_truncated_anywhere(tmp_path: Path, segment: Segment) -> None:
    save_segment(tmp_path / "whole.dat", segment)
    files = [(tmp_path / "whole.dat").read_bytes()]
    files += [original(FRAMES[:2, :1, :1], ACTIONS[:2], protocol) for protocol in PROTOCOLS]
    for data in files:
        assert load_segment(write(tmp_path, data))
        for length in range(len(data)):
            assert reason(tmp_path, data[:length])


def test_more_after_the_end_is_refused(tmp_path: Path, segment: Segment) -> None:
    save_segment(tmp_path / "whole.dat", segment)
    assert reason(tmp_path, (tmp_path / "whole.dat").read_bytes() + b"x")
    assert "more data after" in reason(tmp_path, original(FRAMES, ACTIONS, 4) + b"x")


def test_a_flipped_bit_never_changes_a_pixel(tmp_path: Path, segment: Segment) -> None:
    save_segment(tmp_path / "whole.dat", segment)
    data = (tmp_path / "whole.dat").read_bytes()
    refused = 0
    for bit in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            loaded = load_segment(write(tmp_path, bytes(flipped)))
        except SegmentError:
            refused += 1
        else:  # a bit that has no meaning
            assert_same(loaded, segment)
    assert refused > len(data)


# --- Files that claim to be huge --------------------------------------------------------------------------------


def zeros(begin: bytes, size: int) -> bytes:
    """A zstd file of `size` bytes: `begin`, then zeros."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(level=1).stream_writer(out, size=size, closefd=False) as writer:
        writer.write(begin)
        left, chunk = size - len(begin), bytes(4 * MiB)
        while left:
            left -= writer.write(chunk[:left])
    return out.getvalue()


def beginning(shape: tuple[int, ...], frames: int) -> bytes:
    """A pickle up to its frames, of which it claims to have so many bytes."""
    whole = pickle.dumps({"format": "segment", "version": 1, "shape": shape, "frames": b"x"}, 3)
    return whole[: whole.rindex(b"C\x01x")] + b"B" + struct.pack("<I", frames)


def test_a_bomb_of_zeros_is_refused(tmp_path: Path) -> None:
    bomb = zeros(b"", 2**28)
    assert len(bomb) < MiB
    with memory(4 * MiB):
        assert reason(tmp_path, bomb)


def test_a_bomb_that_begins_like_a_segment_is_refused(tmp_path: Path) -> None:
    bomb = zeros(beginning((50, 210, 160, 3), 2**28), 2**28)
    with memory(4 * MiB):
        assert "would unpack to 268435456 bytes" in reason(tmp_path, bomb)


def test_a_header_that_lies_about_the_size_is_refused(tmp_path: Path) -> None:
    frames = np.random.default_rng(2).integers(0, 256, (50, 60, 40, 3), dtype=np.uint8)
    path = tmp_path / "whole.dat"
    save_segment(path, Segment(frames, np.zeros(50, np.int64), None))
    data = path.read_bytes()
    true = zstandard.get_frame_parameters(data).content_size
    place = data.index(struct.pack("<I", true), 5, 12)
    for claimed in (true - 1, true + 1, true + 1000, 5000, 100, 0, 2**31, 2**32 - 1):
        lying = data[:place] + struct.pack("<I", claimed) + data[place + 4 :]
        assert zstandard.get_frame_parameters(lying).content_size == claimed
        with memory(8 * MiB):
            assert reason(tmp_path, lying)


def test_a_size_that_is_not_told_is_refused(tmp_path: Path, segment: Segment) -> None:
    raw = pickle.dumps(plain_of(segment), 5)
    data = zstandard.ZstdCompressor(write_content_size=False).compress(raw)
    assert "does not say its unpacked size" in reason(tmp_path, data)


def test_a_file_larger_than_any_segment_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "1.dat"
    with open(path, "wb") as file:
        file.truncate(segments.MAX_BYTES + 1)  # takes no room on disk
    with memory(MiB), pytest.raises(SegmentError, match="a segment has at most"):
        load_segment(path)


HUGE: dict[str, bytes] = {
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
    "bytearray within bounds": b"\x80\x05\x96" + struct.pack("<Q", 400 * MiB) + b"x.",
    "bytes": b"\x80\x04B" + struct.pack("<I", 2**32 - 1) + b"x.",
    "long bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "text": b"\x80\x04X" + struct.pack("<I", 2**32 - 1) + b"x.",
    "long text": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"].",
    "integer": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "memo": b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".",
    "memo in text": b"]p99999999999\n.",
    "digits": b"I" + b"9" * MiB + b"\n.",
    "wide text": b"\x80\x04X" + struct.pack("<I", 4 * MiB + 4) + b"x" * 4 * MiB + "😀".encode() + b".",
    "wide text in a line": b"V" + b"x" * 4 * MiB + b"\\U0001f600\n.",
    "wide text in a line 2": b"V" + b"x" * 4 * MiB + b"\\u1234\n.",
    "array": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000\ntC\x01btR.",
}


@pytest.mark.parametrize("name", HUGE)
def test_what_claims_to_be_huge_gets_no_memory(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, HUGE[name])
    with memory(24 * MiB):
        assert reason(tmp_path, HUGE[name])
    assert path.stat().st_size < 10 * MiB


def nested(depth: int) -> dict[str, bytes]:
    return {
        "tuples by marks": b"(" * depth + b"t" * depth + b".",
        "key": b"\x80\x02})" + b"\x85" * depth + b"Ns.",
        "keys": b"\x80\x02}()" + b"\x85" * depth + b"Nu.",
        "keys of old": b"\x80\x02()" + b"\x85" * depth + b"Nd.",
        "tuple": b"\x80\x02)" + b"\x85" * depth + b".",
    }


@pytest.mark.parametrize("name", nested(1))
def test_what_is_nested_gets_neither_memory_nor_the_stack(tmp_path: Path, name: str) -> None:
    assert reason(tmp_path, nested(200_000)[name])  # `hash` of so many would overflow the C stack
    with memory(2 * MiB):  # watched, so many would take ten times as long
        assert reason(tmp_path, nested(20_000)[name])


def test_the_number_of_opcodes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "more than 1000000 pickle opcodes" in reason(tmp_path, b"\x80\x02(" + b"]" * 1_000_100 + b"l.")
    needed = original(FRAMES, ACTIONS, 0)
    monkeypatch.setattr(closed_pickle, "_MAX_OPCODES", 100)
    assert "more than 100 pickle opcodes" in reason(tmp_path, needed)


def test_steps_that_share_a_frame_do_not_multiply_it(tmp_path: Path) -> None:
    frame = np.zeros((1000, 1000, 3), np.uint8)
    data = original([frame] * 200, [0] * 200, 2)  # type: ignore[arg-type]  # 600 MB
    assert len(data) < 10 * MiB
    with memory(40 * MiB):
        assert "more than 536870912 bytes" in reason(tmp_path, data)


def test_text_encoded_again_and_again_does_not_multiply_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_BYTES", 16 * MiB)
    text, shape = "x" * 3 * 512**2, (512, 512, 3)

    class Encoded:
        def __reduce__(self) -> Any:
            return codecs.encode, (text, "latin1")

    class Frame:
        def __reduce__(self) -> Any:
            filled = (1, shape, np.dtype("u1"), False, Encoded())
            return np.empty(0, np.uint8).__reduce__()[0], (np.ndarray, (0,), b"b"), filled

    def data(steps: int) -> bytes:
        return original([Frame() for _ in range(steps)], [0] * steps, 2)  # type: ignore[arg-type]

    assert load_segment(write(tmp_path, data(4))).frames.shape == (4, *shape)
    assert len(data(100)) < MiB
    with memory(40 * MiB):
        assert "more than 16777216 bytes of frames" in reason(tmp_path, data(100))
    with memory(40 * MiB):
        alone = pickle.dumps([Encoded() for _ in range(100)], 2)
        assert "not a list of lib.rlhf.EpisodeStep" in reason(tmp_path, alone)


def test_tuples_that_hold_each_other_twice_are_not_written_out(tmp_path: Path, segment: Segment) -> None:
    """Written out, 40 of them are a terabyte."""
    shape: object = (1, 1)
    for _ in range(40):
        shape = (shape, shape)
    for change in ({"shape": shape}, {"observations": {"shape": shape, "float32": b""}}):
        with memory(16 * MiB):
            assert "must have shape" in reason(tmp_path, packed(plain_of(segment) | change))
    step = pickle.dumps([shape], 2)
    with memory(16 * MiB):
        assert "not a list of lib.rlhf.EpisodeStep" in reason(tmp_path, step)
    step = original([shape], [shape], 4)  # type: ignore[arg-type]
    with memory(16 * MiB):
        assert "step 0 has no frame" in reason(tmp_path, step)


def test_too_many_steps_are_refused(tmp_path: Path) -> None:
    frame = np.zeros((1, 1, 3), np.uint8)
    most = original([frame] * 10_000, [0] * 10_000, 4)  # type: ignore[arg-type]
    assert load_segment(write(tmp_path, most)).frames.shape == (10_000, 1, 1, 3)
    more = original([frame] * 10_001, [0] * 10_001, 4)  # type: ignore[arg-type]
    assert "10001 steps" in reason(tmp_path, more)


# --- Hostile pickles --------------------------------------------------------------------------------------------


class Touch:
    """Unpickling it runs a shell command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


class Evaluate(Touch):
    def __reduce__(self) -> Any:
        return eval, (f"open({str(self.marker)!r}, 'w')",)


class SetState(Touch):
    """Runs when its state is set rather than when it is made."""

    def __reduce__(self) -> Any:
        return Box, (), Touch(self.marker)


class Extended(Touch):
    def __reduce__(self) -> Any:
        return copyreg.__newobj_ex__, (Box, (), {"x": Touch(self.marker)})  # type: ignore[attr-defined]


class Box:
    pass


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Touch, ["posix.system"]),
        (Evaluate, ["builtins.eval", "__builtin__.eval"]),
        (SetState, [f"{__name__}.Box"]),
        (Extended, ["__newobj_ex__", "functools.partial", f"{__name__}.Box"]),
    ],
)
def test_hostile_pickles_are_refused_by_name_and_nothing_runs(
    tmp_path: Path, segment: Segment, kind: type[Touch], names: list[str], compressed: bool, protocol: int
) -> None:
    marker = tmp_path / "marker"
    bad = kind(marker)
    plain = plain_of(segment)
    if compressed:
        first = [bad, [bad], {"a": bad}, {"frames": bad}, {"sidecar": {"scores": [bad]}}, {"z": [{"y": bad}]}]
        values = [value | plain | value if isinstance(value, dict) else value for value in first]
        files = [packed(value, protocol) for value in values]
    else:
        files = [pickle.dumps(value, protocol) for value in (bad, [bad], {"a": bad}, (bad,))]
        files += [original([bad], [0], protocol), original(FRAMES[:1], [bad], protocol)]  # type: ignore[arg-type]
    for data in files:
        message = reason(tmp_path, data)
        assert message.startswith("refuses to load ")
        assert any(name in message for name in names), message
        assert not marker.exists()


def test_the_hostile_pickles_are_hostile(tmp_path: Path) -> None:
    for kind in (Touch, Evaluate, SetState):
        marker = tmp_path / kind.__name__
        with contextlib.suppress(pickle.UnpicklingError):
            pickle.loads(pickle.dumps(kind(marker)))
        assert marker.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "exec"),
        ("builtins", "getattr"),
        ("builtins", "__import__"),
        ("__builtin__", "eval"),
        ("subprocess", "Popen"),
        ("numpy", "load"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy._core.numeric", "fromfile"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("_codecs", "decode"),
        ("codecs", "encode"),
        ("copyreg", "__newobj__"),
        ("copyreg", "add_extension"),
        ("lib.rlhf", "EpisodeSteps"),
        ("lib.rlhf", "EpisodeStep.__init__"),
        ("lib.cli", "UserError"),
        ("lib.preferences.segments", "_Step"),
        ("torch", "load"),
    ],
)
def test_names_are_refused_however_they_are_spelled(tmp_path: Path, module: str, name: str) -> None:
    m, n = module.encode(), name.encode()
    spellings = [
        b"c" + m + b"\n" + n + b"\n.",
        b"(c" + m + b"\n" + n + b"\n(tRt.",
        b"(i" + m + b"\n" + n + b"\n.",
        b"\x80\x04\x8c" + bytes([len(m)]) + m + b"\x8c" + bytes([len(n)]) + n + b"\x93.",
    ]
    for data in spellings:
        for file in (data, zstandard.ZstdCompressor().compress(data)):
            assert reason(tmp_path, file) == f"refuses to load {module}.{name}"


def test_our_format_admits_no_name_at_all(tmp_path: Path) -> None:
    data = original(FRAMES, ACTIONS, 4)
    load_segment(write(tmp_path, data))
    refused = reason(tmp_path, zstandard.ZstdCompressor().compress(data))
    assert refused == "refuses to load lib.rlhf.EpisodeStep"


def test_a_refused_name_is_printed_on_one_short_line(tmp_path: Path) -> None:
    message = reason(tmp_path, b"\x80\x04X\xff\x0f\0\0" + b"\x1b[2J\n" * 819 + b"\x8c\x01x\x93.")
    assert message.startswith("refuses to load ?[2J?")


EPISODE_STEP = b"clib.rlhf\nEpisodeStep\n"
BENT: dict[str, bytes] = {
    "call of an array": b"cnumpy\nndarray\n(I5\ntR.",
    "call of a list": b"](tR.",
    "call with a list": EPISODE_STEP + b"]R.",
    "one value": b"(" + EPISODE_STEP + b"(NtRl.",
    "step of a step": b"(ccopyreg\n_reconstructor\n(cnumpy\nndarray\ncbuiltins\nobject\nNtRl.",
    "state of a list": b"]}b.",
    "state of a name": EPISODE_STEP + b"}b.",
    "bad state": b"(" + EPISODE_STEP + b")RI5\nbl.",
    "items into a step": EPISODE_STEP + b")R(NNu.",
    "append to a tuple": b")Na.",
    "append to a step": EPISODE_STEP + b")RNa.",
    "append to nothing": b"Na.",
    "odd items": b"\x80\x02}(X\x01\0\0\0au.",
    "object dtype": b"cnumpy\ndtype\n(X\x01\0\0\0OI0\nI1\ntR.",
    "dtype of fields": b"cnumpy\ndtype\n(X\x02\0\0\0u1I0\nI1\ntR(I3\nX\x01\0\0\0|N(X\x01\0\0\0at}I1\nI1\nI0\ntb.",
    "array never filled": b"("
    + EPISODE_STEP
    + b"(cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\x01btRI0\ntRl.",
    "array of another kind": b"cnumpy.core.multiarray\n_reconstruct\n(clib.rlhf\nEpisodeStep\n(I0\ntC\x01btR.",
    "scalar without a dtype": b"cnumpy.core.multiarray\nscalar\n(I0\nC\x01btR.",
    "other encoding": b"c_codecs\nencode\n(X\x01\0\0\0aX\x05\0\0\0rot13tR.",
    "persistent": b"Px\n.",
    "extension": b"\x82\x01.",
    "pop": b"NN0.",
    "set": b"\x80\x04\x8f.",
    "next buffer": b"\x80\x05\x97.",
    "protocol": b"\x80\x09N.",
}


REASONS = {
    "call of a list": "'list' object is not callable",
    "call with a list": "argument list must be a tuple",
    "state of a list": "'list' object has no attribute",
    "items into a step": "'Made' object does not support item assignment",
    "append to a tuple": "'tuple' object has no attribute 'append'",
    "append to a step": "'Made' object has no attribute 'append'",
    "append to nothing": "stack underflow",
    "odd items": "odd number of items",
    "array never filled": "step 0 has no frame",
    "persistent": "byte 0x50 where a pickle opcode of a segment should be",
    "extension": "byte 0x82 where a pickle opcode of a segment should be",
    "pop": "byte 0x30 where a pickle opcode of a segment should be",
    "set": "byte 0x8f where a pickle opcode of a segment should be",
    "next buffer": "byte 0x97 where a pickle opcode of a segment should be",
    "protocol": "unsupported pickle protocol: 9",
}
"""Of those that do not come to their end; what the others make is no list of steps."""


@pytest.mark.parametrize("name", BENT)
def test_pickles_bent_out_of_shape_are_refused(tmp_path: Path, name: str) -> None:
    assert REASONS.get(name, "not a list of lib.rlhf.EpisodeStep") in reason(tmp_path, BENT[name])


def test_vectors_do_not_keep_the_frames_in_memory(tmp_path: Path, segment: Segment) -> None:
    seen = np.zeros((len(segment.actions), 3), np.float32)
    save_segment(tmp_path / "s.dat", dataclasses.replace(segment, observations=seen))
    loaded = load_segment(tmp_path / "s.dat").observations
    assert loaded is not None
    while isinstance(loaded.base, np.ndarray):
        loaded = loaded.base
    assert loaded.base is None, "a view of the whole file"


# --- The database -----------------------------------------------------------------------------------------------


def test_database_lists_new_segments(tmp_path: Path, segment: Segment) -> None:
    database = SegmentDB(tmp_path)
    assert database.names == []
    database.refresh()
    assert database.names == []
    for name in ("01/00000002.dat", "00/00000030.dat", "00/00000004.dat"):
        save_segment(tmp_path / name, segment)
    assert database.names == []
    database.refresh()
    assert database.names == ["00/00000004.dat", "00/00000030.dat", "01/00000002.dat"]
    save_segment(tmp_path / "100" / "123456789.dat", segment)
    (tmp_path / "00" / "00000030.dat").unlink()
    database.refresh()
    assert database.names == ["00/00000004.dat", "01/00000002.dat", "100/123456789.dat"]
    assert_same(database.load("100/123456789.dat"), segment)


def test_database_ignores_everything_else(tmp_path: Path, segment: Segment) -> None:
    save_segment(tmp_path / "00" / "00000001.dat", segment)
    for name in (
        "labels.json",
        "00/.00000002.dat.77-ab.tmp",
        "00/x.dat",
        "00/00000003.dat.bak",
        "00/٣.dat",
        "notes",
    ):
        (tmp_path / name).write_bytes(b"x")
    for name in ("0/1.dat", "ab/1.dat", "00/sub/1.dat", ".00/1.dat", "00/00000009.dat/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "07").write_bytes(b"a file where a folder is expected")
    assert SegmentDB(tmp_path).names == ["00/00000001.dat"]


def test_database_reads_a_folder_again_only_when_it_changed(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    scandir = os.scandir

    def count(path: Path) -> Any:
        read.append(path.name)
        return scandir(path)

    for name in ("00/1.dat", "01/1.dat"):
        save_segment(tmp_path / name, segment)
    for folder in ("00", "01"):
        os.utime(tmp_path / folder, (1e9, 1e9))
    monkeypatch.setattr(os, "scandir", count)
    database = SegmentDB(tmp_path)
    database.refresh()
    assert sorted(read) == ["00", "01"]
    database.refresh()
    assert sorted(read) == ["00", "01"]
    save_segment(tmp_path / "01" / "2.dat", segment)
    database.refresh()
    assert database.names == ["00/1.dat", "01/1.dat", "01/2.dat"]
    assert sorted(read) == ["00", "01", "01"]


def test_database_sees_a_change_within_one_tick_of_the_clock(tmp_path: Path, segment: Segment) -> None:
    save_segment(tmp_path / "00" / "1.dat", segment)
    tick = (tmp_path / "00").stat().st_mtime_ns
    database = SegmentDB(tmp_path)
    assert database.names == ["00/1.dat"]
    save_segment(tmp_path / "00" / "2.dat", segment)
    os.utime(tmp_path / "00", ns=(tick, tick))
    database.refresh()
    assert database.names == ["00/1.dat", "00/2.dat"]


def test_database_that_is_missing_or_goes_away(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such folder.*--db-path"):
        SegmentDB(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError):
        SegmentDB(tmp_path / "file")
    (tmp_path / "db").mkdir()
    database = SegmentDB(tmp_path / "db")
    (tmp_path / "db").rmdir()
    with pytest.raises(UserError, match="cannot read the DB"):
        database.refresh()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../secret/00/1.dat",
            "../00/1.dat",
            "00/../../secret/00/1.dat",
            "/etc/passwd",
            "00/1.dat\0",
            "00//1.dat",
        ),
        *(
            "",
            ".",
            "..",
            "labels.json",
            "00/1.dat/",
            "./00/1.dat",
            "00\\1.dat",
            "00/1.dat\n",
            "00/x.dat",
            "٠٠/1.dat",
        ),
    ],
)
def test_database_loads_only_segments_names(tmp_path: Path, segment: Segment, name: str) -> None:
    for folder in ("db/00", "secret/00"):
        (tmp_path / folder).mkdir(parents=True)
        save_segment(tmp_path / folder / "1.dat", segment)
    database = SegmentDB(tmp_path / "db")
    with pytest.raises(SegmentError, match="not a segment's name") as caught:
        database.load(name)
    assert str(caught.value).isprintable()
    (tmp_path / "00").mkdir()
    save_segment(tmp_path / "00" / "1.dat", segment)
    with pytest.raises(SegmentError, match="not a segment's name"):
        database.load(name)


def test_database_does_not_follow_links_out(tmp_path: Path, segment: Segment) -> None:
    root, outside = tmp_path / "db", tmp_path / "outside"
    for folder in (root / "00", outside):
        folder.mkdir(parents=True)
    save_segment(outside / "1.dat", segment)
    save_segment(root / "00" / "5.dat", segment)
    (root / "00" / "1.dat").symlink_to(outside / "1.dat")
    (root / "00" / "2.dat").symlink_to("../../outside/1.dat")
    (root / "00" / "3.dat").symlink_to("3.dat")
    (root / "00" / "4.dat").symlink_to("5.dat")
    (root / "01").symlink_to(outside)
    database = SegmentDB(root)
    assert database.names == ["00/5.dat"]
    for name in ("00/1.dat", "00/2.dat", "01/1.dat"):
        with pytest.raises(SegmentError, match="leads out of the DB"):
            database.load(name)
    with pytest.raises(SegmentError, match=r"leads out of the DB|Too many levels of symbolic links"):
        database.load("00/3.dat")
    assert_same(database.load("00/4.dat"), segment)


def test_database_under_a_link_works(tmp_path: Path, segment: Segment) -> None:
    (tmp_path / "db").mkdir()
    save_segment(tmp_path / "db" / "00" / "1.dat", segment)
    (tmp_path / "link").symlink_to("db")
    assert_same(SegmentDB(tmp_path / "link").load("00/1.dat"), segment)


def test_database_names_the_file_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "1.dat").write_bytes(b"")
    with pytest.raises(SegmentError, match=r"00/1\.dat: empty$"):
        SegmentDB(tmp_path).load("00/1.dat")
