"""Segments of continuous actions and vector observations: files, hostile ones, looks and teachers."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from lib.cli import UserError
from lib.envs.spec import Spec
from lib.preferences.looks import look_of
from lib.preferences.segments import Segment, SegmentError, Sidecar, load_segment, save_segment
from lib.preferences.teachers import make_teacher
from lib.preferences.values import backflip, left


def segment(
    steps: int = 6,
    size: int | None = 4,
    numbers: int | None = 2,
    env_id: str = "CartPole-v1",
    fell: bool = False,
    seed: int = 0,
) -> Segment:
    rng = np.random.default_rng(seed)
    lost = np.zeros(steps, bool)
    lost[-1] = fell
    sidecar = Sidecar(np.ones(steps, np.float32), lost, lost.copy(), env_id, numbers or 2, "", 0)
    actions = (
        rng.integers(0, 2, steps)
        if numbers is None
        else rng.uniform(-1, 1, (steps, numbers)).astype(np.float32)
    )
    seen = None if size is None else rng.standard_normal((steps, size)).astype(np.float32)
    return Segment(np.full((steps, 8, 9, 3), 7, np.uint8), actions, sidecar, seen)


@pytest.mark.parametrize(("size", "numbers"), [(4, 2), (4, None), (None, 2), (4096, 1024)])
def test_comes_back_as_it_was(tmp_path: Path, size: int | None, numbers: int | None) -> None:
    (tmp_path / "db").mkdir()
    before = segment(50, size, numbers)
    save_segment(tmp_path / "db" / "00" / "1.dat", before)
    after = load_segment(tmp_path / "db" / "00" / "1.dat")
    assert (after.continuous, after.spec.observation_size) == (numbers is not None, size)
    assert after.actions.dtype == before.actions.dtype
    assert np.array_equal(after.actions, before.actions)
    assert np.array_equal(after.frames, before.frames)
    if before.observations is None:
        assert after.observations is None
    else:
        assert after.observations is not None
        assert after.observations.dtype == np.float32
        assert np.array_equal(after.observations, before.observations)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"actions": np.full((6, 2), 1.5, np.float32)}, "actions must be −1 to 1"),
        ({"actions": np.full((6, 2), np.nan, np.float32)}, "actions must be finite"),
        ({"actions": np.zeros((6, 3), np.float32)}, "actions must be of 2 numbers, are of 3"),
        ({"actions": np.zeros((6, 2))}, "actions must be float32, is float64"),
        ({"observations": np.zeros((5, 4), np.float32)}, r"observations must have shape \(6, 1 to 4096\)"),
        ({"observations": np.zeros((6, 5000), np.float32)}, r"observations must have shape \(6, 1 to 4096\)"),
        ({"observations": np.full((6, 4), np.inf, np.float32)}, "observations must be finite"),
    ],
)
def test_what_is_no_such_segment_is_not_saved(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    whole = segment()
    parts = {name: getattr(whole, name) for name in ("frames", "actions", "sidecar", "observations")}
    with pytest.raises(SegmentError, match=says):
        save_segment(tmp_path / "1.dat", Segment(**{**parts, **changes}))
    assert not list(tmp_path.iterdir())


def write(path: Path, **changes: Any) -> Path:
    """A file as a stranger may make it."""
    save_segment(path, segment())
    plain = pickle.loads(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
    path.write_bytes(zstandard.ZstdCompressor().compress(pickle.dumps({**plain, **changes}, protocol=5)))
    return path


def vectors(shape: Any, data: Any = None) -> dict[str, Any]:
    return {"shape": shape, "float32": bytes(4 * math.prod(shape)) if data is None else data}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observations": vectors((6, 4), b"abc")}, r"observations of shape \(6, 4\) must be 96 bytes"),
        ({"observations": vectors((6, 10**9), b"")}, r"observations must have shape \(6, 1 to 4096\)"),
        ({"observations": vectors((7, 4))}, r"observations must have shape \(6, 1 to 4096\)"),
        ({"observations": vectors((6, -4), b"")}, r"observations must have shape"),
        ({"observations": vectors((6, 0))}, r"observations must have shape"),
        ({"observations": vectors((6, True), bytes(24))}, r"observations must have shape"),
        ({"observations": {"shape": [6, 4]}}, r"observations must have shape"),
        ({"observations": [0.0] * 24}, "observations must be dict, is list"),
        ({"observations": vectors((6, 4), b"\xff" * 96)}, "observations must be finite"),
        ({"actions": vectors((6, 2), np.full((6, 2), 2, "<f4").tobytes())}, "actions must be −1 to 1"),
        ({"actions": vectors((6, 2000))}, r"actions must have shape \(6, 1 to 1024\)"),
        ({"actions": vectors((6, 3))}, "actions must be of 2 numbers, are of 3"),
        ({"rest": bytes(30_000_000)}, "would unpack to .* bytes; its shape"),
    ],
)
def test_hostile_columns_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SegmentError, match=says):
        load_segment(write(tmp_path / "1.dat", **changes))


def test_a_look_at_continuous_actions_is_their_means_and_deviations() -> None:
    whole = segment()
    _, shares = look_of(whole)
    np.testing.assert_allclose(shares, [*whole.actions.mean(0), *whole.actions.std(0)], rtol=1e-6)


def cart(at: float, fell: bool = False, env_id: str = "CartPole-v1") -> Segment:
    whole = segment(numbers=None, fell=fell, env_id=env_id)
    assert whole.observations is not None
    whole.observations[:, 0] = at
    return whole


def test_left_prefers_the_cart_further_left_and_any_that_stands() -> None:
    assert left(cart(-1.2)) == pytest.approx(0.5)
    assert left(cart(2.4)) == pytest.approx(-1)
    assert left(cart(-2.4, fell=True)) == pytest.approx(-1)
    order = [left(clip) for clip in (cart(-2), cart(-1), cart(1), cart(-2, fell=True), cart(1, fell=True))]
    assert order == sorted(order, reverse=True)
    assert make_teacher("left").compare(left(cart(0.01)), left(cart(0.02))) == 0


def test_backflip_counts_turns_backwards() -> None:
    angle = np.linspace(1, 1 - 2 * np.pi, 6)
    whole = segment(size=11, numbers=3, env_id="Hopper-v5")
    assert whole.observations is not None
    whole.observations[:, 1] = angle
    assert backflip(whole) == pytest.approx(1)
    whole = segment(size=12, numbers=3, env_id="HopperFlip-v0")
    assert whole.observations is not None
    whole.observations[:, 1], whole.observations[:, -1] = np.sin(angle), np.cos(angle)
    assert backflip(whole) == pytest.approx(1)


@pytest.mark.parametrize("teacher", [left, backflip])
def test_teachers_who_read_observations_refuse_what_has_none(teacher: Any) -> None:
    for wrong in (
        segment(size=None),
        cart(0, env_id="Pendulum-v1"),
        Segment(np.zeros((1, 1, 1, 3), np.uint8), np.zeros(1, np.int64), None),
    ):
        with pytest.raises(
            UserError, match=f"teacher {teacher.__name__}: expected clips of .* with its observations"
        ):
            teacher(wrong)


def test_what_a_segment_shows_and_takes() -> None:
    pictures = segment(size=None, numbers=None)
    assert pictures.spec == Spec(2, frame_shape=(8, 9, 3))
    assert segment().spec == Spec(2, True, (4,), (8, 9, 3))
    unknown = Segment(pictures.frames, np.array([0, 3, 1, 2, 0, 0]), None)
    assert unknown.spec == Spec(4, frame_shape=(8, 9, 3))
