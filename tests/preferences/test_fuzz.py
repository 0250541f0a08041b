"""Ten thousand mutated segment files: each is refused in one line or read, and nothing runs, opens or grows meanwhile."""

import collections
import pickle
import random
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from lib.preferences.segments import Segment, SegmentError, _to_plain, load_segment, save_segment
from tests.preferences.test_segments import original

FILES = 10_000
MiB = 2**20
# Pieces of pickles that would run something if they were run, in the spellings of several protocols.
HOSTILE = [
    b"cos\nsystem\n(S'touch mark'\ntR",
    b"(ios\nsystem\n",
    b"c__builtin__\neval\n(S'1'\ntR0",
    b"\x8c\x02os\x8c\x06system\x93\x8c\x0atouch mark\x85R",
    b"cbuiltins\n__import__\n(S'antigravity'\ntR",
    b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"B\xff\xff\xff\xff",
    b"r\xff\xff\xff\xff",
    b"\x8b\xff\xff\xff\x7f",
    b"(" * 50,
    b"2" * 50,
]


class Watch:
    """Notes what the interpreter is asked to run, import or open. A hook cannot be taken out again, so it can be shut."""

    def __init__(self) -> None:
        self.open = False
        self.seen: collections.Counter[str] = collections.Counter()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.open and not (event == "open" and isinstance(args[0], int)):  # a descriptor was opened before
            self.seen[f"open {args[0]}" if event == "open" else event] += 1

    @contextmanager
    def over(self) -> Iterator[None]:
        self.open = True
        try:
            yield
        finally:
            self.open = False


def small(rng: np.random.Generator) -> Segment:
    """So small that most mutations hit the structure."""
    return Segment(rng.integers(0, 256, (2, 2, 1, 3), dtype=np.uint8), np.array([3, 1]), None)


def mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed))
        end = min(len(changed), place + rng.randint(1, 12))
        kind = rng.randrange(5)
        if kind == 0:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place] = rng.randrange(256)
        elif kind == 2:
            changed[place:end] = b"" if end - place < len(changed) else b"x"
        elif kind == 3:
            changed[place:place] = changed[place:end] * rng.randint(1, 3)
        else:
            changed[place:place] = rng.choice(
                [b"R", b"b", b"\x81", b"s", b"u", b"e", b"(", b"0", b"h\0", b"}", b"\x86"]
            )
    return bytes(changed)


def spliced(data: bytes, rng: random.Random) -> bytes:
    """With a hostile piece somewhere, over what was there or before it."""
    place, piece = rng.randrange(len(data)), rng.choice(HOSTILE)
    return data[:place] + piece + data[place + rng.choice((0, len(piece))) :]


def files(rng: random.Random, whole: bytes, inner: bytes, old: list[bytes]) -> Iterator[bytes]:
    """Mutations of both formats, outside and inside the compression; every fourth is spliced, every fifth cut."""
    pack = zstandard.ZstdCompressor(level=1).compress
    for number in range(FILES):
        change = spliced if number % 4 == 0 else mutated
        kind = number % 3
        source = whole if kind == 0 else inner if kind == 1 else old[number % len(old)]
        data = change(source, rng)
        if number % 5 == 0:
            data = data[: rng.randrange(len(data))]
        yield pack(data) if kind == 1 else data


@pytest.mark.slow
def test_ten_thousand_mutated_files(
    tmp_path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = small(np.random.default_rng(0))
    save_segment(tmp_path / "whole.dat", tiny)
    whole = (tmp_path / "whole.dat").read_bytes()
    inner = pickle.dumps(_to_plain(segment), 5)
    old = [original(tiny.frames, [np.int64(3), 1], protocol) for protocol in range(6)]
    path, watch = tmp_path / "mutated.dat", Watch()
    outcomes: collections.Counter[str] = collections.Counter()
    messages: collections.deque[str] = collections.deque(maxlen=1)
    load_segment(tmp_path / "whole.dat")  # what is imported late is imported now
    tracemalloc.start()
    try:
        for number, data in enumerate(files(random.Random(1), whole, inner, old)):
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            begun = tracemalloc.get_traced_memory()[0]
            try:
                with watch.over():
                    loaded = load_segment(path)
            except SegmentError as error:
                outcomes["refused"] += 1
                messages.append(str(error))
            else:
                outcomes["read"] += 1
                assert loaded.frames.ndim == 4, number
                assert len(loaded.frames) == len(loaded.actions), number
            assert all(one.startswith(f"{path}: ") and one.isprintable() for one in messages), messages
            assert tracemalloc.get_traced_memory()[1] - begun < 24 * MiB, f"file {number}"
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert outcomes["refused"] > FILES / 2
    assert outcomes["read"] > FILES / 100, "some mutations mean nothing, or the test would prove nothing"
    assert watch.seen.pop(f"open {path}") == FILES
    ran = {
        event
        for event in watch.seen
        if event.split(".")[0] in {"import", "exec", "compile", "os", "subprocess"}
    }
    assert ran == set(), watch.seen
    assert not [event for event in watch.seen if event.startswith("open")], watch.seen
    assert grown < 8 * MiB, "nothing of the files is kept"
    assert not (tmp_path / "mark").exists()


def test_the_watch_hears_what_runs(tmp_path: Path) -> None:
    """The pieces do run something in an unpickler that lets them."""
    watch = Watch()
    with watch.over(), open(tmp_path / "x", "wb"):
        pickle.loads(b"c__builtin__\neval\n(S'1'\ntR.")
    assert watch.seen[f"open {tmp_path / 'x'}"] == 1
    assert watch.seen["exec"] == 1
