"""Answers on disk, and files of strangers in their place."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from lib.cli import UserError
from lib.preferences.answers import MAX_TOKENS, Answer, holds_answers, load_answer, read_answer, save_answer
from lib.preferences.prompts import MAX_TEXT, Message
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError, save_segment
from tests.label_ui.dbs import segment

NAME = "07/00000003.dat"
ANSWER = Answer(
    prompt="Why?\n<b>שלום</b>",
    text="Because 🙂.",
    finished=True,
    prompt_tokens=np.array([1, 5], np.int64),
    tokens=np.array([9, 8, 2], np.int64),
    log_probs=np.array([-0.5, -2.25, -0.125], np.float32),
    tokenizer="abc",
    policy="models/x",
    origin={"seed": "0"},
)


@pytest.fixture
def db(tmp_path: Path) -> SegmentDB:
    save_answer(tmp_path / NAME, ANSWER)
    return SegmentDB(tmp_path)


def test_an_answer_comes_back_as_it_was(db: SegmentDB) -> None:
    found = load_answer(db, NAME)
    for field in dataclasses.fields(Answer):
        was, came = getattr(ANSWER, field.name), getattr(found, field.name)
        assert np.array_equal(was, came) if isinstance(was, np.ndarray) else was == came, field.name
    assert db.names == [NAME]
    with pytest.raises(FileExistsError):
        save_answer(db.root / NAME, ANSWER)
    assert [path.name for path in (db.root / "07").iterdir()] == ["00000003.dat"]


def test_a_dialogue_is_written_as_messages_and_read_again(tmp_path: Path) -> None:
    asked = Message("system", "Be brief."), Message("user", "Why?")
    save_answer(tmp_path / NAME, dataclasses.replace(ANSWER, prompt=asked))
    assert load_answer(SegmentDB(tmp_path), NAME).prompt == asked
    plain = json.loads(zstandard.ZstdDecompressor().decompress((tmp_path / NAME).read_bytes()[9:]))
    assert plain["prompt"] == [message._asdict() for message in asked]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": (Message("user", "Why?"), Message("assistant", "Because."))},
        {"text": "x" * (MAX_TEXT + 1)},
        {"text": "\ud800"},
        {"log_probs": np.zeros(2, np.float32)},
        {"log_probs": np.full(3, np.nan, np.float32)},
        {"tokens": np.array([-1, 0, 0])},
        {"origin": {str(i): "" for i in range(21)}},
    ],
)
def test_what_would_not_load_is_not_saved(changes: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match="not saved"):
        save_answer(tmp_path / NAME, dataclasses.replace(ANSWER, **changes))  # type: ignore[arg-type]
    assert not (tmp_path / "07").exists()


def _packed(content: bytes) -> bytes:
    return b"answer 1\n" + zstandard.ZstdCompressor().compress(content)


def _plain(**changes: object) -> bytes:
    plain: dict[str, object] = {
        **{"prompt": "p", "text": "t", "finished": True, "prompt_tokens": [], "tokens": [1]},
        **{"log_probs": [-1.0], "tokenizer": "", "policy": "", "origin": {}},
    }
    return json.dumps(plain | changes).encode()


def test_hostile_files_are_refused_by_name(db: SegmentDB) -> None:
    path = db.root / NAME
    bomb = zstandard.ZstdCompressor().compress(bytes(2**28))
    for content in (
        b"",
        b"answer 1\n",
        b"answer 2\n" + _packed(_plain())[9:],
        b"answer 1\n" + bomb,
        _packed(_plain()) + b"x",
        _packed(b"[" * 100_000),
        _packed(b"\xff\xfe"),
        _packed(b'"text"'),
        _packed(b"{}"),
        _packed(_plain(log_probs=[float("nan")])),
        _packed(_plain(log_probs=[float("-inf")])),
        _packed(_plain(log_probs=[True])),
        _packed(_plain(log_probs=[0.5])),
        _packed(_plain(tokens=[1.0])),
        _packed(_plain(tokens=[True])),
        _packed(_plain(tokens=[2**40])),
        _packed(_plain(tokens=[1] * (MAX_TOKENS + 1), log_probs=[-1] * (MAX_TOKENS + 1))),
        _packed(_plain(text="é" * MAX_TEXT)),
        _packed(_plain(text="\ud800")),
        _packed(_plain(prompt=[])),
        _packed(_plain(prompt=[{"role": "tool", "content": "x"}])),
        _packed(_plain(prompt=[{"role": "user", "content": "\ud800"}])),
        _packed(_plain(prompt={})),
        _packed(_plain(finished=1)),
        _packed(_plain(origin={"a": 1})),
        _packed(_plain(tokens=[10**400])),
    ):
        path.write_bytes(content)
        with pytest.raises(SegmentError) as refused:
            load_answer(db, NAME)
        assert NAME in str(refused.value)
        assert "\n" not in str(refused.value)
    path.write_bytes(_packed(_plain()))
    assert load_answer(db, NAME).text == "t"
    for name in ("../x/00000000.dat", "/etc/passwd", "07/../07/00000003.dat", "07/x.dat"):
        with pytest.raises(SegmentError, match="not a segment's name"):
            load_answer(db, name)


@pytest.mark.slow
def test_10_000_mutated_files_load_or_are_refused(db: SegmentDB) -> None:
    """Of the packed file, where the checksum tells, and of the JSON in it, where only the checks do."""
    rng, path = np.random.default_rng(0), db.root / NAME
    packed = path.read_bytes()
    plain = zstandard.ZstdDecompressor().decompress(packed[9:])
    loaded, lines = 0, {0}
    for number in range(10_000):
        inside = number % 2 == 0
        data = bytearray(plain if inside else packed)
        for _ in range(rng.integers(1, 4)):
            kind, at = rng.integers(4), int(rng.integers(len(data)))
            if kind == 0:
                data[at] = rng.integers(256)
            elif kind == 1:
                del data[at : at + int(rng.integers(1, 9))]
            elif kind == 2:
                data[at:at] = rng.bytes(int(rng.integers(1, 9)))
            else:
                data[at:at] = bytes(rng.choice([b'"', b"[", b"]", b"{", b",", b"-", b"1e9", b"null", b"NaN"]))
            data = data or bytearray(b"x")
        path.unlink()  # ext4 writes a file that is cut short at once to the disk
        path.write_bytes(_packed(bytes(data)) if inside else bytes(data))
        try:
            found = read_answer(path, NAME)
        except SegmentError as refused:
            lines.add(str(refused).count("\n"))
        else:
            loaded += 1
            assert len(found.log_probs) == len(found.tokens)
            assert np.isfinite(found.log_probs).all()
            assert isinstance(found.text, str)
    assert lines == {0}
    assert loaded > 100


def test_a_db_holds_clips_or_answers_but_not_both(db: SegmentDB, tmp_path: Path) -> None:
    assert holds_answers(db)
    (db.root / "07" / "00000004.dat").write_bytes(b"")  # damaged, and of neither kind
    db.refresh()
    assert holds_answers(db)
    save_segment(db.root / "08" / "00000000.dat", segment(0))
    db.refresh()
    with pytest.raises(
        UserError, match=r"found both \(08/00000000.dat is a clip, 07/00000003.dat an answer\)"
    ):
        holds_answers(db)
    with pytest.raises(SegmentError, match="a clip among answers"):
        load_answer(db, "08/00000000.dat")
    (db.root / NAME).unlink()
    db.refresh()
    assert not holds_answers(db)
