"""A DB that is kept small loses its oldest segments, and never one that a label names."""

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from lib.envs.world import Step
from lib.preferences.dropping import drop_oldest
from lib.preferences.labels import Label, LabelLog
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB


def filled(db: Path, numbers: range, size: int = 100) -> None:
    """Segments, as far as their names and sizes go, oldest first in two folders."""
    for number in numbers:
        path = db / f"{number % 2:02d}" / f"{number:08d}.dat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))


def numbers(db: Path) -> list[int]:
    return sorted(int(Path(name).stem) for name in SegmentDB(db).names)


def test_the_oldest_go_first_until_there_is_room(tmp_path: Path) -> None:
    filled(tmp_path, range(10))
    assert drop_oldest(tmp_path, 650) == 600
    assert numbers(tmp_path) == [4, 5, 6, 7, 8, 9]
    assert drop_oldest(tmp_path, 650) == 600
    assert numbers(tmp_path) == [4, 5, 6, 7, 8, 9]


def test_of_segments_as_old_as_each_other_the_same_ones_go_in_every_run(tmp_path: Path) -> None:
    """As continuations of one moment are. Sets of texts have another order in each process."""
    names = [f"{env:02d}/00000007.dat" for env in range(20)]
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(bytes(100))
    assert drop_oldest(tmp_path, 1000) == 1000
    assert SegmentDB(tmp_path).names == names[10:]


def test_a_segment_that_any_label_names_stays(tmp_path: Path) -> None:
    """Also one that nobody could tell, and one whose label was taken back: it may be brought back."""
    filled(tmp_path, range(10))
    log = LabelLog(tmp_path / "labels.json")
    log.append(Label("00/00000000.dat", "01/00000003.dat", 1))
    log.append(Label("00/00000002.dat", "01/00000001.dat", None))
    log.append(Label("00/00000002.dat", "00/00000004.dat", 2))
    log.append(Label("00/00000002.dat", "00/00000004.dat", 2, cancelled=True))
    assert drop_oldest(tmp_path, 650) == 600
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 9]
    assert drop_oldest(tmp_path, 0) == 500
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]


def test_nothing_is_dropped_by_somebody_who_cannot_read_the_labels(tmp_path: Path) -> None:
    filled(tmp_path, range(4))
    (tmp_path / "elsewhere").touch()
    os.symlink("elsewhere", tmp_path / "labels.json")
    assert drop_oldest(tmp_path, 0) == 400
    assert numbers(tmp_path) == [0, 1, 2, 3]


def test_a_segment_that_cannot_be_removed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, range(6))
    unlink = Path.unlink

    def stuck(path: Path, missing_ok: bool = False) -> None:
        if path.name == "00000001.dat":
            raise PermissionError
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", stuck)
    assert drop_oldest(tmp_path, 250) == 200
    assert numbers(tmp_path) == [1, 5]
    assert drop_oldest(tmp_path, 0) == 100
    assert numbers(tmp_path) == [1]


@pytest.mark.parametrize("drop", [False, True])
def test_a_recorder_goes_on_where_it_may_drop(tmp_path: Path, drop: bool) -> None:
    rng = np.random.default_rng(0)
    db = tmp_path / "db"
    recorder = SegmentRecorder(db, 2, "X-v0", 3, 1.0, 0, max_mb=0.12, drop_oldest=drop)
    flags = np.zeros((3, 2), bool)
    labelled: list[str] = []
    for _ in range(1000):
        frames = rng.integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)  # some 10 KB a segment
        recorder.before(frames, np.zeros(2, np.int64))
        recorder.after(Step(frames, np.zeros(2, np.float32), *flags))
        if recorder.stored == 6 and not labelled:
            labelled = SegmentDB(db).names[:2]
            LabelLog(db / "labels.json").append(Label(labelled[0], labelled[1], 1))
    size = sum(path.stat().st_size for path in db.glob("*/*.dat"))
    assert labelled
    assert set(labelled) <= set(SegmentDB(db).names)
    if drop:
        assert recorder.stored == 40  # 1,000 steps of two environments
        assert size <= 120_000
        assert max(numbers(db)) > 1800
        assert not recorder.full
    else:
        assert recorder.stored < 20
        assert recorder.full


def test_a_recorder_whose_segments_are_all_labelled_stops(tmp_path: Path) -> None:
    filled(tmp_path, range(4), size=1000)
    log = LabelLog(tmp_path / "labels.json")
    log.append(Label("00/00000000.dat", "01/00000001.dat", 1))
    log.append(Label("00/00000002.dat", "01/00000003.dat", 1))
    recorder = SegmentRecorder(tmp_path, 1, "X-v0", 3, 1.0, 0, max_mb=0.004, drop_oldest=True)
    assert recorder.full
    assert not recorder.recording.any()


def test_no_label_is_written_between_the_look_at_the_labels_and_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, range(4))
    unlink, removed = Path.unlink, []

    def watched(path: Path, missing_ok: bool = False) -> None:
        with open(tmp_path / "labels.json") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    drop_oldest(tmp_path, 200)
    assert len(removed) == 2
