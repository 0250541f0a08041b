"""Preferences carried between DBs: labels, the segments they name, and names that two DBs gave to different clips."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.cli import UserError
from lib.preferences import labels
from lib.preferences.dropping import drop_oldest
from lib.preferences.labels import Label, LabelLog, answers, current
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, save_segment
from lib.preferences.transfer import copy_preferences


def clip(segment: Segment, grey: int) -> Segment:
    return dataclasses.replace(segment, frames=np.full_like(segment.frames, grey))


def make_db(root: Path, segment: Segment, greys: dict[str, int]) -> LabelLog:
    root.mkdir()
    for name, grey in greys.items():
        save_segment(root / name, clip(segment, grey))
    return LabelLog(root / "labels.json")


def grey_of(root: Path, name: str) -> int:
    return int(SegmentDB(root).load(name).frames[0, 0, 0, 0])


A, B, C = "00/00000001.dat", "00/00000002.dat", "01/00000007.dat"


def test_labels_go_along_with_the_segments_that_they_name_and_no_others(
    tmp_path: Path, segment: Segment
) -> None:
    log = make_db(tmp_path / "from", segment, {A: 1, B: 2, C: 3})
    log.append(Label(A, B, 2, annotator="ada", time=5.0, response_ms=900, left=1, strategy="random"))
    copied = copy_preferences(tmp_path / "from", tmp_path / "new" / "folder")
    assert (copied.labels, copied.segments, copied.problems) == (1, 2, [])
    target = tmp_path / "new" / "folder"
    assert LabelLog(target / "labels.json").read() == log.read()
    assert SegmentDB(target).names == [A, B]
    assert [grey_of(target, name) for name in (A, B)] == [1, 2]


def test_copying_again_adds_what_is_new_and_nothing_twice(tmp_path: Path, segment: Segment) -> None:
    log = make_db(tmp_path / "from", segment, {A: 1, B: 2, C: 3})
    said = Label(A, B, 1, annotator="ada")
    target = tmp_path / "to"
    log.append(said)
    assert copy_preferences(tmp_path / "from", target).labels == 1
    # Without times the third line looks like the first; were it left out, the second would hold.
    log.append(dataclasses.replace(said, label=2))
    log.append(said)
    assert copy_preferences(tmp_path / "from", target).labels == 2
    again = copy_preferences(tmp_path / "from", target)
    assert (again.labels, again.segments) == (0, 0)
    assert current(LabelLog(target / "labels.json").read()) == [said]
    log.append(Label(A, B, 1, annotator="ada", cancelled=True))
    log.append(Label(B, C, 0, annotator="ada"))
    again = copy_preferences(tmp_path / "from", target)
    assert (again.labels, again.segments) == (2, 1)
    assert answers(LabelLog(target / "labels.json").read()) == answers(log.read())


def test_code_that_has_changed_meanwhile_copies_nothing_twice(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line names the commit it was written down by: of a copy, the one that copied."""
    log, target = make_db(tmp_path / "from", segment, {A: 1, B: 2}), tmp_path / "to"
    log.append(Label(A, B, 1, annotator="ada", commit="aaa"))
    monkeypatch.setattr(labels, "git_commit", lambda: "bbb")
    assert copy_preferences(tmp_path / "from", target).labels == 1
    LabelLog(target / "labels.json").append(Label(A, B, 2, annotator="ada", time=9.0))
    monkeypatch.setattr(labels, "git_commit", lambda: "ccc")
    assert copy_preferences(tmp_path / "from", target).labels == 0
    assert [label.label for label in current(LabelLog(target / "labels.json").read())] == [2]


def test_dbs_are_merged_though_they_gave_one_name_to_two_clips(tmp_path: Path, segment: Segment) -> None:
    one = make_db(tmp_path / "one", segment, {A: 1, B: 2})
    two = make_db(tmp_path / "two", segment, {A: 10, B: 2, C: 3})
    one.append(Label(A, B, 1, annotator="ada"))
    two.append(Label(A, B, 1, annotator="bob"))
    two.append(Label(C, A, 2, annotator="bob"))
    for _ in range(2):
        copied = copy_preferences(tmp_path / "two", tmp_path / "one")
    assert (copied.labels, copied.segments) == (0, 0)
    ada, *bobs = one.read()
    assert (ada.sample1, ada.sample2) == (A, B)
    greys = [(grey_of(tmp_path / "one", b.sample1), grey_of(tmp_path / "one", b.sample2)) for b in bobs]
    assert greys == [(10, 2), (3, 10)]
    # 1 and 2 were taken, by another clip and by its own other half.
    assert SegmentDB(tmp_path / "one").names == [A, B, "00/00000003.dat", C]
    assert bobs[0].sample2 == B


def test_like_clips_of_one_db_stay_two(tmp_path: Path, segment: Segment) -> None:
    """The first takes the second's name, as the target has given its own away."""
    log = make_db(tmp_path / "from", segment, {A: 1, B: 1})
    log.append(Label(A, B, 0, annotator="ada"))
    make_db(tmp_path / "to", segment, {A: 9})
    assert copy_preferences(tmp_path / "from", tmp_path / "to").segments == 2
    copied = copy_preferences(tmp_path / "from", tmp_path / "to")
    assert (copied.labels, copied.segments) == (0, 0)
    (label,) = LabelLog(tmp_path / "to" / "labels.json").read()
    assert label.pair == (B, "00/00000003.dat")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, segment: Segment) -> None:
    make_db(tmp_path / "from", segment, {A: 1, B: 2}).append(Label(A, B, 1))
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "00").touch()
    with pytest.raises(FileExistsError):
        copy_preferences(tmp_path / "from", tmp_path / "to")


def test_no_label_names_a_segment_that_a_recording_has_dropped_meanwhile(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, target = make_db(tmp_path / "from", segment, {A: 1, B: 2, C: 3}), tmp_path / "to"
    log.append(Label(A, B, 1))
    log.append(Label(A, C, 1))
    append = LabelLog.append

    def drop_first(self: LabelLog, *args: Any) -> bool:
        drop_oldest(target, 0)
        return append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(LabelLog, "append", drop_first)
        copied = copy_preferences(tmp_path / "from", target)
    assert (copied.labels, len(copied.problems)) == (0, 2)
    assert not LabelLog(target / "labels.json").read()
    assert copy_preferences(tmp_path / "from", target).labels == 2


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path, segment: Segment) -> None:
    log = make_db(tmp_path / "from", segment, {A: 1, B: 2})
    (tmp_path / "from" / "00" / "00000009.dat").write_bytes(b"no segment")
    log.append(Label(A, "00/00000009.dat", 1))
    log.append(Label("../../../etc/passwd", B, 1))
    log.append(Label(A, C, 1))
    log.append(Label(A, B, 1))
    with log.path.open("a") as file:
        file.write('{"sample1": "torn')
    copied = copy_preferences(tmp_path / "from", tmp_path / "to")
    assert (copied.labels, copied.segments) == (1, 2)
    assert len(copied.problems) == 4
    text = "\n".join(copied.problems)
    for part in ("line 5: torn", "00/00000009.dat", "passwd: not a segment's name", f"{C}: cannot be read"):
        assert part in text
    assert SegmentDB(tmp_path / "to").names == [A, B]


def test_a_db_is_not_copied_to_itself_nor_from_nowhere(tmp_path: Path, segment: Segment) -> None:
    make_db(tmp_path / "db", segment, {A: 1})
    with pytest.raises(UserError, match="got the same one twice"):
        copy_preferences(tmp_path / "db", tmp_path / "db" / "." / ".." / "db")
    with pytest.raises(UserError, match="no such folder"):
        copy_preferences(tmp_path / "nowhere", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_clips_of_two_environments_are_not_mixed(tmp_path: Path, segment: Segment) -> None:
    assert segment.sidecar is not None
    other = dataclasses.replace(segment, sidecar=dataclasses.replace(segment.sidecar, env_id="Other-v0"))
    make_db(tmp_path / "from", segment, {A: 1, B: 2}).append(Label(A, B, 2))
    make_db(tmp_path / "to", other, {C: 3})
    with pytest.raises(UserError, match=f"to: holds clips of Other-v0, not of {segment.sidecar.env_id}"):
        copy_preferences(tmp_path / "from", tmp_path / "to")
    assert SegmentDB(tmp_path / "to").names == [C]
