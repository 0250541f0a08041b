"""Videos can be read back, and the strip says what the model said."""

from pathlib import Path

import av
import numpy as np
import pytest

from lib.agent.video import VideoWriter, with_reward_strip
from lib.cli import UserError
from tests.disk import disk_full_after


def test_frames_come_back_enlarged_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "game.mp4"
    video = VideoWriter(path, 15)
    for t in range(20):
        video.add(np.full((31, 21, 3), (10 * t, 255 - 10 * t, 128), np.uint8))  # ×3 gives odd sides
    assert not path.exists()  # a part of a video never has its name
    video.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["game.mp4"]
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 15
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(pictures) == 20
    assert pictures[0].shape == (94, 64, 3)
    for t, picture in enumerate(pictures):
        assert np.abs(picture[45, 30].astype(int) - (10 * t, 255 - 10 * t, 128)).max() <= 12


def test_a_discarded_video_leaves_nothing(tmp_path: Path) -> None:
    video = VideoWriter(tmp_path / "game.mp4", 15)
    video.add(np.zeros((84, 84, 3), np.uint8))
    video.discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("room", [0, 2000])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, room: int) -> None:
    rng = np.random.default_rng(0)

    def record(video: VideoWriter) -> None:
        for _ in range(50):
            video.add(rng.integers(0, 256, (84, 84, 3), dtype=np.uint8))
        video.close()

    with disk_full_after(room):
        video = VideoWriter(tmp_path / "game.mp4", 15)
        with pytest.raises(UserError, match=r"game\.mp4: could not be written: .*; make room"):
            record(video)
        video.discard()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"game\.mp4: could not begin"):
        VideoWriter(tmp_path / "none" / "game.mp4", 15)


def columns(strip: np.ndarray) -> list[str]:
    """What the strip shows in each column: + above the axis, - below it, . nothing."""
    green = (strip == (90, 200, 120)).all(-1).any(0)
    red = (strip == (230, 110, 90)).all(-1).any(0)
    return ["+" if g else "-" if r else "." for g, r in zip(green, red, strict=True)]


def test_the_strip_shows_the_last_steps_newest_on_the_right() -> None:
    frame = np.full((10, 60, 3), 7, np.uint8)
    picture = with_reward_strip(frame, [1.0, -1.0, -2.0, 3.0, 2.0])
    assert picture.shape == (42, 60, 3)
    assert picture.dtype == np.uint8
    assert (picture[:10] == 7).all()
    assert columns(picture[10:])[-5:] == ["+", "-", "-", "+", "+"]
    assert set(columns(picture[10:, 40:-5])) == {"."}


def test_bars_grow_with_the_reward_up_to_three_standard_deviations() -> None:
    frame = np.zeros((5, 160, 3), np.uint8)

    def height(paid: float) -> int:
        column = with_reward_strip(frame, [0.0] * 20 + [paid])[5:, -1]
        return int(((column == (90, 200, 120)) | (column == (230, 110, 90))).all(-1).sum())

    assert height(0.75) == 5  # 4 rows over the axis, which is the fifth
    assert height(1.5) == 9
    assert height(3.0) == height(1e9) == 16
    assert height(-1.5) == 8
    assert height(-3.0) == height(-1e9) == 16


def test_a_long_game_keeps_the_newest() -> None:
    frame = np.zeros((5, 160, 3), np.uint8)
    strip = with_reward_strip(frame, [-1.0] * 300 + [1.0] * 100)[5:]
    shown = columns(strip)[40:]  # right of the number
    assert shown == ["-"] * 20 + ["+"] * 100
