"""Labels: what is acknowledged is on disk, whole and once, whoever else writes, and whatever is in the file."""

import dataclasses
import errno
import fcntl
import json
import logging
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lib.cli import UserError
from lib.preferences import labels as labels_module
from lib.preferences.labels import UNDO, Label, LabelLog, answers, current
from lib.provenance import git_commit
from tests.disk import disk_full_after

A, B, C = "00/00000001.dat", "00/00000002.dat", "01/00000003.dat"
FULL = Label(
    A,
    B,
    1,
    "ann",
    "score",
    {"error_rate": 0.0, "beta": 2.5},
    1763700000.25,
    812,
    2,
    "unsure about this",
    "random",
    True,
    True,
    "vote-1",
    git_commit() or None,
)


@pytest.fixture
def log(tmp_path: Path) -> LabelLog:
    return LabelLog(tmp_path / "labels.json")


def test_round_trip(log: LabelLog) -> None:
    labels = [
        Label(A, B, 1),
        FULL,
        Label(A, C, 0),
        Label(B, C, None, annotator="Zoë <b>\n"),
        Label(A, B, 2, time=5),
    ]
    for label in labels:
        log.append(label)
    assert log.read() == labels
    assert LabelLog(log.path).read() == labels
    assert log.problems == []


def test_a_line_has_the_names_of_the_fields_and_leaves_out_what_is_not_said(log: LabelLog) -> None:
    log.append(Label(A, B, None, teacher="score"))
    log.append(FULL)
    first, second = log.path.read_text().splitlines()
    made_by = {"commit": FULL.commit} if FULL.commit else {}
    assert json.loads(first) == {"sample1": A, "sample2": B, "label": None, "teacher": "score", **made_by}
    assert (
        json.loads(second)
        == {name: said for name, said in dataclasses.asdict(FULL).items() if name != "commit"} | made_by
    )


def test_a_line_says_which_code_wrote_it_whatever_its_label_said(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels_module, "git_commit", lambda: "c0ffee")
    log.append(Label(A, B, 1, commit="older"))
    (label,) = log.read()
    assert label.commit == "c0ffee"
    assert label == Label(A, B, 1), "what was said is the same"
    monkeypatch.setattr(labels_module, "git_commit", lambda: "")
    log.append(Label(A, B, 2))
    assert "commit" not in json.loads(log.path.read_text().splitlines()[1])


def test_no_file_is_no_label(log: LabelLog) -> None:
    assert log.read() == []
    assert log.problems == []
    assert not log.path.exists()


def test_the_originals_file_loads(log: LabelLog) -> None:
    """Three keys a line; where a pair is repeated the last line wins."""
    lines = [(A, B, 1), (A, C, 2), (B, A, 2), (B, C, 0), (A, C, 1)]
    log.path.write_text(
        "".join(json.dumps({"sample1": a, "sample2": b, "label": n}) + "\n" for a, b, n in lines)
    )
    assert log.read() == [Label(a, b, n) for a, b, n in lines]
    assert log.problems == []
    assert current(log.read()) == [Label(B, A, 2), Label(B, C, 0), Label(A, C, 1)]


def test_nothing_is_said_of_keys_of_other_tools(log: LabelLog) -> None:
    log.path.write_text(json.dumps({"sample1": A, "sample2": B, "label": 2, "mood": {"x": [1]}}) + "\r\n")
    assert log.read() == [Label(A, B, 2)]
    assert log.problems == []


BAD_LINES = [
    b'{"sample1": "00/00000001.dat", "sample2": "00/000',
    b"not JSON",
    b"\x89PNG\x00\xff",
    b"[1, 2]",
    b"null",
    b"[" * 5000,
    b"9" * 5000,
    b'{"sample1": "a", "sample2": "b", "label": 1, "x": "' + b"y" * 70_000 + b'"}',
    b'{"sample1": "a", "sample2": "b"}',
    b'{"sample1": "a", "label": 1}',
    b'{"sample1": "", "sample2": "b", "label": 1}',
    b'{"sample1": 5, "sample2": "b", "label": 1}',
    b'{"sample1": "\\ud800", "sample2": "b", "label": 1}',
]
BAD_FIELDS: list[dict[str, Any]] = [
    *({"label": value} for value in (3, -1, 1.0, True, "1", [1])),
    *({"left": value} for value in (0, 3, True, "1", 1.0)),
    *({"time": value} for value in ("now", 1e12, float("nan"), float("inf"), True, 10**400)),
    *({"response_ms": value} for value in (-1, 1.5, "1", True, 10**400)),
    *(
        {key: value}
        for key in ("annotator", "teacher", "flag", "strategy", "id")
        for value in (1, ["a"], False, "\ud800")
    ),
    *({key: value} for key in ("repeat", "cancelled") for value in (1, "yes", None)),
]
BAD_LINES += [json.dumps({"sample1": A, "sample2": B, "label": 1} | wrong).encode() for wrong in BAD_FIELDS]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:90].decode("latin1"))
def test_a_bad_line_is_left_out_counted_and_warned_of_once(
    log: LabelLog, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = b'{"sample1": "a", "sample2": "b", "label": 1}\n'
    log.path.write_bytes(good + b"\n" + line + b"\n  \n" + good)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert log.read() == [Label("a", "b", 1)] * 2
            assert len(log.problems) == 1
            assert log.problems[0].startswith("labels.json line 3: ")
            assert log.problems[0].isprintable()
    assert [record.getMessage() for record in caplog.records] == log.problems


@pytest.mark.parametrize("wrong", BAD_FIELDS, ids=str)
def test_a_bad_label_is_not_written(log: LabelLog, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="label not saved: "):
        log.append(dataclasses.replace(Label(A, B, 1), **wrong))
    assert not log.path.exists()


def test_a_line_that_cannot_be_read_back_is_not_written(log: LabelLog) -> None:
    with pytest.raises(ValueError, match="expected at most"):
        log.append(Label(A, B, 1, flag="x" * 70_000))
    assert not log.path.exists()


def test_reading_on_is_as_reading_anew_whatever_became_of_the_file(log: LabelLog) -> None:
    """The file grows, is torn, mended, edited in its midst, cut, emptied and put back between two reads."""
    rng = random.Random(3)
    lines = [json.dumps({"sample1": A, "sample2": B, "label": n % 3, "time": n}).encode() for n in range(40)]
    lines += [*BAD_LINES, b"", b" ", b"\xef\xbb\xbf"]
    content = b""
    for _ in range(400):
        kind = rng.randrange(10)
        if kind < 6:
            content += rng.choice(lines) + (b"\n" if rng.random() < 0.8 else b"")
        elif kind == 6:
            content = content[: rng.randrange(len(content) + 1)]
        elif kind == 7:
            at = rng.randrange(len(content) + 1)
            content = content[:at] + rng.choice(lines) + b"\n" + content[at:]
        elif kind == 8:
            content = content[rng.randrange(len(content) + 1) :] if rng.random() < 0.3 else content
        else:
            content = (b"\xef\xbb\xbf" if rng.random() < 0.5 else b"") + content
        log.path.write_bytes(content)
        fresh = LabelLog(log.path)
        assert log.read() == fresh.read()
        assert log.problems == fresh.problems


def test_lines_that_were_read_are_not_parsed_again(log: LabelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = labels_module._parse

    def counting(line: bytes) -> Label | str:
        parsed.append(line)
        return parse(line)

    monkeypatch.setattr(labels_module, "_parse", counting)
    for number in range(5):
        log.append(Label(A, B, 1, time=number))
        assert len(log.read()) == number + 1
    assert len(parsed) == 5


def test_a_torn_last_line_does_not_swallow_the_next(log: LabelLog) -> None:
    log.append(Label(A, B, 1))
    whole = log.path.read_bytes()
    for length in range(1, len(whole)):
        log.path.write_bytes(whole + whole[:length])
        log.append(Label(A, C, 2))
        labels = log.read()
        assert labels[0] == Label(A, B, 1)
        assert labels[-1] == Label(A, C, 2)
        complete = length == len(whole) - 1  # only the line break is missing
        assert len(labels) == 2 + complete
        assert len(log.problems) == 1 - complete
    assert b"\n\n" not in log.path.read_bytes()


def test_a_line_read_while_it_is_written_is_there_at_the_next_read(log: LabelLog) -> None:
    log.append(Label(A, B, 1))
    whole = log.path.read_bytes()
    for cut in range(1, len(whole)):
        log.path.write_bytes(whole + whole[:cut])
        assert log.read()[0] == Label(A, B, 1)
        log.path.write_bytes(whole + whole)
        assert log.read() == [Label(A, B, 1)] * 2
        assert log.problems == []


def test_two_writers_and_a_torn_line_read_what_a_new_reader_reads(log: LabelLog) -> None:
    rng, logs = random.Random(0), [log, LabelLog(log.path)]
    for number in range(200):
        one = rng.choice(logs)
        match rng.randrange(5):
            case 0 | 1 | 2:
                one.append(Label(A, B, rng.randrange(3), id=f"{number:012d}"))
            case 3:
                one.read()
            case 4:
                with log.path.open("ab") as file:
                    file.write(b'{"sample1": "torn' + b"\n" * rng.randrange(2))
        if rng.random() < 0.5:
            fresh = LabelLog(log.path)
            assert one.read() == fresh.read()
            assert one.problems == fresh.problems


def test_changes_made_by_hand_are_read(log: LabelLog) -> None:
    log.append(Label(A, B, 1))
    log.append(Label(A, C, 1))
    log.read()
    status = log.path.stat()
    log.path.write_text(log.path.read_text().replace('"label": 1', '"label": 2'))
    os.utime(log.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert log.read() == [Label(A, B, 2), Label(A, C, 2)]
    log.path.write_text("\ufeff" + log.path.read_text().splitlines()[1])
    assert log.read() == [Label(A, C, 2)]
    log.path.unlink()
    assert log.read() == []


# --- What holds now ---------------------------------------------------------------------------------------------


def test_the_last_line_of_a_pair_wins_in_either_order() -> None:
    assert current([Label(A, B, 1), Label(B, A, 1), Label(A, C, 0)]) == [Label(B, A, 1), Label(A, C, 0)]
    assert current([Label(A, B, 1), Label(A, C, 0), Label(A, B, None)]) == [Label(A, C, 0), Label(A, B, None)]
    assert current([]) == []


def test_the_order_of_lines_counts_and_not_the_clock() -> None:
    assert current([Label(A, B, 1, time=2000.0), Label(A, B, 2, time=1000.0)]) == [
        Label(A, B, 2, time=1000.0)
    ]


def test_undo() -> None:
    said, undone = Label(A, B, 1), Label(B, A, 1, cancelled=True)
    assert current([said, undone]) == []
    assert current([said, undone, Label(A, B, 2)]) == [Label(A, B, 2)]
    assert current([undone]) == []
    assert current([said, Label(A, C, 1, cancelled=True)]) == [said]


def test_answers_are_all_that_was_said_and_not_taken_back() -> None:
    first, repeat, changed = Label(A, B, 1), Label(B, A, 1, repeat=True), Label(A, B, 0)
    again = dataclasses.replace(repeat, id=f"{UNDO}1")  # the change undone
    taken_back = dataclasses.replace(first, id=f"{UNDO}2", cancelled=True)
    key = ((A, B), (None, None))
    assert answers([first, repeat, changed]) == {key: [first, repeat, changed]}
    assert answers([first, repeat, changed, again]) == {key: [first, again]}
    assert answers([first, taken_back]) == {}
    assert answers([first, taken_back, changed]) == {key: [changed]}
    assert answers([first, repeat, dataclasses.replace(repeat, cancelled=True)]) == {}
    # The line that was undone is torn; what holds is known all the same.
    assert answers([again]) == {key: [again]}
    other = Label(A, B, 2, annotator="ann")
    assert answers([first, other, repeat]) == {key: [first, repeat], ((A, B), ("ann", None)): [other]}


def test_the_last_answer_is_the_one_that_holds() -> None:
    rng = random.Random(0)
    for _ in range(200):
        lines: list[Label] = []
        for number in range(rng.randrange(12)):
            pair, who = rng.choice([(A, B), (B, A), (A, C)]), rng.choice(["ann", "bob"])
            lines.append(Label(*pair, rng.choice([0, 1, 2, None]), annotator=who, id=str(number)))
            held = answers(lines[:-1]).get((lines[-1].pair, lines[-1].labeller), [])
            if held and rng.random() < 0.3:  # as the page undoes
                back = held[-2] if len(held) > 1 else dataclasses.replace(held[-1], cancelled=True)
                lines[-1] = dataclasses.replace(back, id=f"{UNDO}{number}")
            elif held and rng.random() < 0.2:  # and deletes
                lines[-1] = dataclasses.replace(held[-1], cancelled=True, id=f"d-{number}")
        last = [history[-1] for history in answers(lines).values()]
        assert sorted(map(repr, last)) == sorted(map(repr, current(lines)))


def test_labellers_do_not_touch_each_others_labels() -> None:
    ann, bob = Label(A, B, 1, annotator="ann"), Label(A, B, 2, annotator="bob")
    machine, person = Label(A, B, 0, teacher="score"), Label(A, B, 1, annotator="score")
    assert current([ann, bob, machine, person]) == [ann, bob, machine, person]
    undone = dataclasses.replace(ann, cancelled=True)
    assert current([ann, bob, machine, person, undone]) == [bob, machine, person]
    assert current([ann, bob, dataclasses.replace(ann, label=0)]) == [bob, dataclasses.replace(ann, label=0)]


# --- What real machines do --------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from lib.preferences.labels import Label, LabelLog
log = LabelLog(Path(sys.argv[1]))
for number in range(100):
    log.append(Label("00/%08d.dat" % number, "00/9.dat", number % 3, annotator=sys.argv[2], flag="x" * (number * 40)))
"""


def test_four_processes_write_at_once(log: LabelLog) -> None:
    log.path.write_bytes(b'{"torn')
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(log.path), name], cwd=root)
        for name in ("a", "b", "c", "d")
    ]
    while any(writer.poll() is None for writer in writers):
        log.read()
    assert [writer.returncode for writer in writers] == [0] * 4
    labels = log.read()
    assert log.problems == ["labels.json line 1: torn or not JSON; left out"]
    assert len(labels) == 400
    assert Counter(label.annotator for label in labels) == dict.fromkeys("abcd", 100)
    for name in "abcd":
        mine = [label for label in labels if label.annotator == name]
        assert [label.sample1 for label in mine] == [f"00/{number:08d}.dat" for number in range(100)]


def test_a_writer_waits_for_the_lock(log: LabelLog) -> None:
    """Else the look at the last line and the write could fall on both sides of another writer's."""
    log.append(Label(A, B, 1))
    with open(log.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready = WRITER.replace("for number", "print('ready', flush=True)\nfor number", 1)
        writer = subprocess.Popen(
            [sys.executable, "-c", ready, str(log.path), "a"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.3)
        assert len(log.read()) == 1
    assert writer.wait(600) == 0
    assert len(log.read()) == 101


@pytest.mark.parametrize("room", [0, 1, 30])
@pytest.mark.parametrize("torn", [b"", b'{"sam'])
def test_a_full_disk_raises_and_leaves_the_file_as_it_was(log: LabelLog, torn: bytes, room: int) -> None:
    log.append(Label(A, B, 1))
    before = log.path.read_bytes() + torn
    log.path.write_bytes(before)
    with disk_full_after(len(before) + room), pytest.raises(OSError, match=r"space|large"):
        log.append(Label(A, C, 2))
    assert log.path.read_bytes() == before
    log.append(Label(A, C, 2))
    assert log.read() == [Label(A, B, 1), Label(A, C, 2)]


def test_a_label_that_does_not_reach_the_disk_is_not_acknowledged(
    log: LabelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log.append(Label(A, B, 1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            log.append(Label(A, C, 2))
    assert log.read() == [Label(A, B, 1)]


def test_each_label_is_one_write_and_then_synced(log: LabelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    write, fsync = os.write, os.fsync

    def note_write(fd: int, data: bytes) -> int:
        done.append("write")
        return write(fd, data)

    def note_fsync(fd: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "write", note_write)
    monkeypatch.setattr(os, "fsync", note_fsync)
    log.append(Label(A, B, 1))
    assert done == ["write", "sync labels.json", f"sync {log.path.parent.name}"]
    done.clear()
    log.append(Label(A, B, 2))
    assert done == ["write", "sync labels.json"]


def test_a_database_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LabelLog(tmp_path / "db" / "labels.json").append(Label(A, B, 1))
    assert os.listdir(tmp_path) == []


def test_a_file_that_memory_could_not_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(UserError, match=r"labels\.json: 1099511627776 bytes, expected at most"):
        LabelLog(path).read()


def test_no_link_folder_or_pipe_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious\n")
    (tmp_path / "link").symlink_to("victim")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        log = LabelLog(tmp_path / name)
        with pytest.raises(UserError, match="expected a file of labels"):
            log.append(Label(A, B, 1))
        with pytest.raises(UserError, match="expected a file of labels"):
            log.read()
    assert (tmp_path / "victim").read_text() == "precious\n"


@pytest.mark.parametrize(
    "parameters",
    [[0.1], {"error_rate": "0.1"}, {"error_rate": True}, {"beta": math.inf}, {"seed": -(10**400)}],
)
def test_parameters_are_numbers_by_name(log: LabelLog, parameters: Any) -> None:
    with pytest.raises(ValueError, match="parameters must be numbers by name"):
        log.append(Label("a", "b", 1, teacher="noisy", parameters=parameters))


def test_a_label_whose_segments_are_gone_is_not_written(tmp_path: Path) -> None:
    """They are looked for when whoever drops segments has to wait."""
    log = LabelLog(tmp_path / "labels.json")

    def gone() -> bool:
        with open(log.path) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False

    assert not log.append(Label("00/1.dat", "00/2.dat", 1), gone)
    assert log.append(Label("00/3.dat", "00/4.dat", 2), lambda: True)
    assert [label.sample1 for label in log.read()] == ["00/3.dat"]


def test_another_users_labels_are_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LabelLog(tmp_path / "labels.json")

    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(log, "_open", denied)  # root may read everything
    with pytest.raises(UserError, match=r"labels\.json: cannot be read: Permission denied$"):
        log.read()
