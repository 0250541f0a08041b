"""Reading the pickles inside segment files, which come from strangers.

A pickle is vetted before it runs: every opcode is one that a segment needs, every size it claims lies within the
file, and its memo grows no faster than the file. Then the C unpickler runs it. It imports and calls nothing: where a
pickle names a class or a function, and the caller admits that name, a `Made` records what would have been done.
"""

import io
import itertools
import pickle
import pickletools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

# A step of the original takes some 45 opcodes. Each may cost a few hundred bytes, which this keeps below ~300 MB.
_MAX_OPCODES = 1_000_000
# Characters. Longer text can only be an array's bytes written as Latin-1 (protocols 0 to 2).
_MAX_PLAIN_TEXT = 4096

_ADMITTED = """
    PROTO STOP MARK FRAME NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT
    SHORT_BINBYTES BINBYTES BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE
    EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    GLOBAL STACK_GLOBAL INST REDUCE NEWOBJ NEWOBJ_EX BUILD
"""
# Sizes of the opcodes' arguments, negative where the file says it.
_ARGUMENTS = {
    opcode.code.encode("latin-1"): opcode.arg.n if opcode.arg else 0
    for opcode in pickletools.opcodes
    if opcode.name in _ADMITTED.split()
}
_PREFIXES = {  # bytes that say how long an argument is
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_LOOKED_AT = {pickle.STOP, pickle.MARK, pickle.FRAME, pickle.EMPTY_DICT, pickle.LONG_BINPUT, pickle.NEWOBJ}
# Whole opcodes of a fixed size with nothing to look at.
_PLAIN = {code: 1 + size for code, size in _ARGUMENTS.items() if size >= 0 and code not in _LOOKED_AT}


class Refused(Exception):
    """What is wrong with a segment, before its file name is known."""


def printable(text: str, limit: int = 200) -> str:
    """Text from a file, fit for one line of a terminal."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[:limit] + "…"


@dataclass(slots=True, eq=False)
class Made:
    """A name in a pickle, or what a call of that name would have made; without its module."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    """The content that the pickle sets afterwards."""

    def __call__(self, *arguments: object) -> "Made":
        return Made(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _TextKeyed(dict[str, object]):
    """A dict of a pickle. The hash of any other key, such as a deeply nested tuple, could overflow the C stack."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> None:
        if type(key) is not str:
            raise Refused("dict with a key that is not text")
        super().__setitem__(key, value)


def read_pickle(data: bytes, names: Collection[tuple[str, str]] = ()) -> object:
    """What a pickle holds: lists, tuples, numbers, texts, `Made`, dicts by text, and bytes, long ones as views of `data`.

    Args:
      data: the pickle, of any protocol.
      names: what it may mention, as module and name.

    Raises:
      Refused: it mentions anything else, has opcodes that no segment has, or claims more than it holds. Damaged
        pickles may raise any other exception as well.
    """
    return _Unpickler(names, *_vetted(data)).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, names: Collection[tuple[str, str]], file: io.BytesIO, buffers: list[object]) -> None:
        super().__init__(file, buffers=buffers)
        self._names = names

    def find_class(self, module: str, name: str) -> Made:
        if (module, name) not in self._names:
            raise Refused(f"refuses to load {printable(f'{module}.{name}', 120)}")
        return Made(name)


def _vetted(data: bytes) -> tuple[io.BytesIO, list[object]]:
    """A pickle that the C unpickler may run, and the values of its NEXT_BUFFER opcodes.

    These stand for long bytes, as copying them takes longer than all the rest, and for dicts, which become
    `_TextKeyed`. NEWOBJ becomes REDUCE, as a `Made` is no class.

    Raises:
      Refused: an opcode does not belong in a segment, or claims too much.
    """
    view = memoryview(data)
    vetted = io.BytesIO()
    # One frame around all lets the unpickler read it at once; those of the pickle itself go.
    vetted.write(pickle.FRAME + bytes(8))
    buffers: list[object] = []
    place = begin = 0  # of the opcode; of what is not in `vetted` yet

    def replace(end: int, opcode: bytes) -> None:
        nonlocal begin
        vetted.write(view[begin:place])
        vetted.write(opcode)
        begin = end

    for count in itertools.count():
        if place >= len(data):
            raise Refused("is cut off")
        if count == _MAX_OPCODES:
            raise Refused(f"more than {_MAX_OPCODES} pickle opcodes")
        code = data[place : place + 1]
        if code in _PLAIN:
            place += _PLAIN[code]
            continue
        if code == pickle.STOP:
            break
        if code not in _ARGUMENTS:
            raise Refused(
                f"not a segment (byte 0x{code[0]:02x} where a pickle opcode of a segment should be)"
            )
        start, end = _argument(data, place)
        if code in (pickle.BINBYTES, pickle.BYTEARRAY8):
            replace(end, pickle.NEXT_BUFFER)
            buffers.append(view[start:end])
        elif code == pickle.EMPTY_DICT or (code == pickle.MARK and data[end : end + 1] == pickle.DICT):
            end += code == pickle.MARK  # "(d" is protocol 0's empty dict
            replace(end, pickle.NEXT_BUFFER)
            buffers.append(_TextKeyed())
        elif code == pickle.NEWOBJ:
            replace(end, pickle.REDUCE)
        elif code == pickle.FRAME:
            replace(end, b"")
        elif code in (pickle.PUT, pickle.LONG_BINPUT):
            index = int(data[start:end]) if code == pickle.PUT else int.from_bytes(data[start:end], "little")
            if index > count:  # the unpickler makes its memo as large as this
                raise Refused(f"claims a memo of {index} values")
        elif end - start > _MAX_PLAIN_TEXT and not _is_latin(code, view[start:end]):
            raise Refused("long text that is not an array")
        place = end
    if place + 1 < len(data):
        raise Refused("has more data after the segment's end")
    vetted.write(view[begin:])
    size = vetted.tell() - 9
    vetted.seek(1)
    vetted.write(size.to_bytes(8, "little"))
    vetted.seek(0)
    return vetted, buffers


def _argument(data: bytes, place: int) -> tuple[int, int]:
    """Where the argument of the opcode at a place begins and ends."""
    code, start = data[place : place + 1], place + 1
    size = _ARGUMENTS[code]
    if size == pickletools.UP_TO_NEWLINE:
        end = data.find(b"\n", start) + 1
        if end and code in (pickle.GLOBAL, pickle.INST):  # two lines
            end = data.find(b"\n", end) + 1
    else:
        prefix = _PREFIXES.get(size, 0)
        start += prefix
        end = start + (int.from_bytes(data[start - prefix : start], "little") if prefix else size)
    if not start <= end <= len(data):
        raise Refused("is cut off")
    return start, end


def _is_latin(code: bytes, text: memoryview) -> bool:
    """Whether text has no characters above U+00FF: a single one can make it four times as large in memory."""
    if code == pickle.BINUNICODE:
        return bool(np.frombuffer(text, np.uint8).max() <= 0xC3)  # above this, UTF-8 begins such a character
    line = bytes(text)
    return code == pickle.UNICODE and b"\\U" not in line and line.count(b"\\u") == line.count(b"\\u00")


def shape_in(head: bytes) -> tuple[int, ...]:
    """The shape that a segment of ours begins with, read before its frames are given any memory.

    Raises:
      Refused: the head has no shape; damaged heads may raise ValueError as well.
    """
    shape: list[int] | None = None
    for opcode, argument, _ in pickletools.genops(head):
        if argument == "shape":
            shape = []
        elif shape is not None and opcode.name == "TUPLE":
            return tuple(shape)
        elif shape is not None and isinstance(argument, int) and "PUT" not in opcode.name:
            shape.append(argument)
    raise Refused("damaged or not a segment of this project")
