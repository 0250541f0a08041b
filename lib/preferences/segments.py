"""Segments on disk: saving, listing and loading them without trusting the file.

Databases are passed between people, so a file is taken for hostile until it has been read: the pickle inside is
run by a small machine that knows the opcodes a segment needs, admits the few names that the original format
mentions (each replaced by a stand-in from this module, so nothing is ever imported), and works within fixed
bounds of memory.
"""

import contextlib
import io
import math
import os
import pickle
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import zstandard

from lib.cli import UserError
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION

SEGMENT_LENGTH = 50
"""Steps in a segment that the recorder writes; a file may hold another number."""

MAX_STEPS = 10_000
MAX_SIDE = 4096  # pixels
MAX_ACTION_NAME = 100  # characters
MAX_BYTES = 512 * 2**20  # of a file, and of the frames in it

_FORMAT = "segment"
_VERSION = 1
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_HEAD = 4096  # bytes; the shape is among the first hundred
_MAX_COLUMNS = 2**20  # bytes of a segment's pickle beside its arrays: 250 KB at most, and a few texts
_MAX_ORIGIN = 20  # texts
_MAX_ROW = 4 * (MAX_ACTIONS + MAX_OBSERVATION)  # bytes of a step's action and observation
_MAX_FRAME = 2**20  # bytes; picklers begin a new frame after 64 KiB, and leave long bytes outside of frames
_FOLDER = re.compile(r"[0-9]{2,}")
_NAME = re.compile(r"[0-9]{2,}/[0-9]+\.dat")
# A step of the original takes some 45 opcodes. Each may cost a few hundred bytes, which this keeps below ~300 MB.
_MAX_OPCODES = 1_000_000
_MAX_PLAIN_TEXT = (
    4096  # characters; longer text can only be an array's bytes written as Latin-1 (protocols 0 to 2)
)
# A folder's modification time is as coarse as its file system's clock (2 s on FAT), so a scan made this soon
# after it may have missed a file that came later within the same tick.
_MTIME_GRAIN_NS = 2_500_000_000


class SegmentError(ValueError):
    """A segment cannot be used; the message names the file and what is wrong with it, on one line."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a simulated teacher or a chart may know about a segment; never shown to a model."""

    scores: np.ndarray  # float32 [T], the game's own reward of each step
    life_lost: np.ndarray  # bool [T]
    game_over: np.ndarray  # bool [T]
    env_id: str
    num_actions: int  # or how many numbers an action is
    policy: str  # checkpoint the recording policy came from, "" when it has none
    step: int  # training step at which the recording began
    origin: dict[str, str] = field(default_factory=dict)  # the run, seed, commit, … it was recorded by
    action_names: tuple[str, ...] = ()  # num_actions of them, or none where the environment has no names


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps of one game. Arrays that were loaded may be read-only."""

    frames: np.ndarray  # uint8 [T, H, W, 3], what a person sees when each action is chosen
    actions: np.ndarray  # int64 [T], or float32 [T, A] in −1 … 1, the bounds of the environment
    sidecar: Sidecar | None  # None for a file of the original format
    observations: np.ndarray | None = None  # float32 [T, D], what the policy saw where that was no picture

    @property
    def continuous(self) -> bool:
        """Whether an action is A numbers."""
        return self.actions.ndim == 2

    @property
    def observation_size(self) -> int | None:
        """D, or None where the policy saw pictures, or nothing is known of it."""
        return None if self.observations is None else self.observations.shape[1]


class _Bad(Exception):
    """What is wrong with a segment, before it is known which file it is."""


def _printable(text: str, limit: int = 200) -> str:
    """Text of a file, made fit for one line of a terminal."""
    clean = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[:limit] + "…"


# --- Saving ---------------------------------------------------------------------------------------------------


def save_segment(path: Path, segment: Segment) -> int:
    """Write a segment; a reader sees the whole file or none, and an existing file is never overwritten.

    Args:
      path: Where to; its folder is made when missing, the database around that folder must exist.
      segment: What to write.

    Returns:
      Bytes written.

    Raises:
      FileExistsError: path exists.
      SegmentError: the segment's arrays have wrong shapes, types or values.
      OSError: the file could not be written (disk full, read-only, no such database); nothing is left behind.
    """
    try:
        _check(segment)
    except _Bad as bad:
        raise SegmentError(f"{_printable(str(path))}: not saved: {bad}") from None
    raw = pickle.dumps(_to_plain(segment), protocol=5)
    data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(raw)
    path.parent.mkdir(exist_ok=True)
    _write_new(path, data)
    return len(data)


def _to_plain(segment: Segment) -> dict[str, object]:
    sidecar = segment.sidecar
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "shape": segment.frames.shape,
        "frames": segment.frames.tobytes(),
        "actions": _vectors_to_plain(segment.actions) if segment.continuous else segment.actions.tolist(),
        **({} if segment.observations is None else {"observations": _vectors_to_plain(segment.observations)}),
        "sidecar": None
        if sidecar is None
        else {
            "scores": sidecar.scores.tolist(),
            "life_lost": sidecar.life_lost.tolist(),
            "game_over": sidecar.game_over.tolist(),
            "env_id": sidecar.env_id,
            "num_actions": sidecar.num_actions,
            "policy": sidecar.policy,
            "step": sidecar.step,
            "origin": dict(sidecar.origin),
            "action_names": list(sidecar.action_names),
        },
    }


def _vectors_to_plain(vectors: np.ndarray) -> dict[str, object]:
    return {"shape": vectors.shape, "float32": vectors.astype("<f4").tobytes()}


def _write_new(path: Path, data: bytes) -> None:
    """Give `data` the name `path`, whole and only if that name is free; raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # no hard links on this file system; each says so with another error number
            _rename_new(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _rename_new(temporary: Path, path: Path) -> None:
    """`os.link` for file systems without hard links: the name is taken by an empty file, then replaced."""
    with open(path, "xb"):
        pass
    try:
        os.replace(temporary, path)
    except OSError:
        path.unlink()
        raise


# --- Loading --------------------------------------------------------------------------------------------------


def load_segment(path: Path) -> Segment:
    """Read a segment of this project (zstd) or of the original (a plain pickle of `lib.rlhf.EpisodeStep`).

    Nothing that the file names is imported or run. Memory stays within a few times `MAX_BYTES` whatever it claims.

    Raises:
      SegmentError: the file is missing, damaged, foreign, too large, or names anything that a segment does not.
    """
    return _load(path, str(path))


def _load(path: Path, name: str) -> Segment:
    try:
        data = _read(path)
        segment = (
            _from_plain(_unpack(data))
            if data[:4] == _ZSTD_MAGIC
            else _from_steps(_Unpickler(data, True).load())
        )
        _check(segment)
    except _Bad as bad:
        reason = str(bad)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except (
        Exception
    ) as error:  # a damaged pickle can fail in any way; whichever it is, the segment is unusable
        reason = f"damaged or no segment ({type(error).__name__}: {_printable(str(error))})"
    else:
        return segment
    raise SegmentError(f"{_printable(name)}: {reason}")


def _read(path: Path) -> bytes:
    # Without O_NONBLOCK, opening a named pipe would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _Bad("not a regular file")
        if status.st_size == 0:
            raise _Bad("empty")
        if status.st_size > MAX_BYTES:
            raise _Bad(f"{status.st_size} bytes; a segment has at most {MAX_BYTES}")
        return file.read(status.st_size)


def _unpack(data: bytes) -> object:
    size = zstandard.get_frame_parameters(data).content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise _Bad("does not say how large it is unpacked")
    if size > _HEAD:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            shape = _shape_in(reader.read(_HEAD))
        _check_shape(shape)
        limit = math.prod(shape) + shape[0] * _MAX_ROW + _MAX_COLUMNS
        if size > limit:
            raise _Bad(f"would unpack to {size} bytes; its shape {shape} makes at most {limit}")
    raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    return _Unpickler(raw, False).load()


def _shape_in(head: bytes) -> tuple[Any, ...]:
    """The shape that a segment begins with, read before its frames are given any memory."""
    unpickler = _Unpickler(head, False)
    try:
        unpickler.load()
    except _Bad:
        raise
    except Exception:  # the head ends in the midst of something
        for level in (*unpickler.metastack, unpickler.stack):
            if "shape" in level[:-1] and type(shape := level[level.index("shape") + 1]) is tuple:
                return shape
    raise _Bad("damaged or not a segment of this project")


def _from_plain(plain: object) -> Segment:
    if not isinstance(plain, dict) or plain.get("format") != _FORMAT:
        raise _Bad("not a segment of this project")
    version = _field(plain, "version", int)
    if version != _VERSION:
        raise _Bad(f"format version {version}; this program reads version {_VERSION}")
    shape, data = _field(plain, "shape", tuple), plain.get("frames")
    if not isinstance(data, bytes | memoryview):
        raise _Bad(f"frames must be bytes, is {type(data).__name__}")
    _check_shape(shape)
    if len(data) != math.prod(shape):
        raise _Bad(f"shape {shape} needs {math.prod(shape)} bytes of frames, found {len(data)}")
    steps = shape[0]
    sidecar = plain.get("sidecar")
    if sidecar is not None and not isinstance(sidecar, dict):
        raise _Bad("sidecar is no dict")
    return Segment(
        frames=np.frombuffer(data, np.uint8).reshape(shape),
        actions=_vectors(plain, "actions", steps, MAX_ACTIONS)
        if isinstance(plain.get("actions"), dict)
        else _column(plain, "actions", steps, int, np.int64),
        observations=_vectors(plain, "observations", steps, MAX_OBSERVATION)
        if "observations" in plain
        else None,
        sidecar=None
        if sidecar is None
        else Sidecar(
            scores=_column(sidecar, "scores", steps, float, np.float32),
            life_lost=_column(sidecar, "life_lost", steps, bool, np.bool_),
            game_over=_column(sidecar, "game_over", steps, bool, np.bool_),
            env_id=_field(sidecar, "env_id", str),
            num_actions=_field(sidecar, "num_actions", int),
            policy=_field(sidecar, "policy", str),
            step=_field(sidecar, "step", int),
            # Older files have neither.
            origin=sidecar.get("origin", {}),
            action_names=tuple(_field(sidecar, "action_names", list)) if "action_names" in sidecar else (),
        ),
    )


def _field(plain: dict[str, Any], key: str, kind: type) -> Any:
    value = plain.get(key)
    if type(value) is not kind:
        raise _Bad(f"{key} must be {kind.__name__}, is {type(value).__name__}")
    return value


def _column(plain: dict[str, Any], key: str, steps: int, kind: type, dtype: type) -> np.ndarray:
    values = _field(plain, key, list)
    if len(values) != steps or any(type(value) is not kind for value in values):
        raise _Bad(f"{key} must be a list of {steps} {kind.__name__}")
    with np.errstate(over="ignore"):  # a score too large for float32 becomes infinite, which _check refuses
        return np.array(values, dtype)


def _vectors(plain: dict[str, Any], key: str, steps: int, most: int) -> np.ndarray:
    """float32 [T, at most `most`], over the bytes of the pickle."""
    vectors = _field(plain, key, dict)
    shape, data = vectors.get("shape"), vectors.get("float32")
    if (
        type(shape) is not tuple
        or len(shape) != 2
        or any(type(side) is not int for side in shape)
        or shape[0] != steps
        or not 1 <= shape[1] <= most
    ):
        raise _Bad(f"{key} must have shape ({steps}, 1 to {most}), not {_printable(str(shape), 60)}")
    if not isinstance(data, bytes | memoryview) or len(data) != 4 * math.prod(shape):
        raise _Bad(f"{key} of shape {shape} must be {4 * math.prod(shape)} bytes")
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False).reshape(shape)


def _from_steps(steps: object) -> Segment:
    """A segment from the original's list of steps."""
    if not isinstance(steps, list) or not all(isinstance(step, _Step) for step in steps):
        raise _Bad("not a list of lib.rlhf.EpisodeStep")
    if not 1 <= len(steps) <= MAX_STEPS:
        raise _Bad(f"{len(steps)} steps; a segment has 1 to {MAX_STEPS}")
    frames, actions = [], []
    for number, step in enumerate(steps):
        if not isinstance(step.obs, _Array) or not isinstance(step.obs.value, np.ndarray):
            raise _Bad(f"step {number} has no frame")
        if step.obs.value.shape != steps[0].obs.value.shape:
            raise _Bad(f"frame {number} has shape {step.obs.value.shape}, frame 0 {steps[0].obs.value.shape}")
        if type(step.act) is not int:
            raise _Bad(f"action {number} must be int, is {type(step.act).__name__}")
        frames.append(step.obs.value)
        actions.append(step.act)
    # Steps may share one array, so what they unfold to is bounded here, not by the size of the file.
    _check_shape((len(frames), *frames[0].shape))
    return Segment(frames=np.stack(frames), actions=np.array(actions, np.int64), sidecar=None)


def _check_shape(shape: tuple[Any, ...]) -> None:
    if len(shape) != 4 or any(type(side) is not int for side in shape) or shape[3] != 3:
        raise _Bad(f"frames must have shape [T, H, W, 3], not {_printable(str(shape), 60)}")
    if not (1 <= shape[0] <= MAX_STEPS and 1 <= shape[1] <= MAX_SIDE and 1 <= shape[2] <= MAX_SIDE):
        raise _Bad(f"shape {_printable(str(shape), 60)}: T must be 1 to {MAX_STEPS}, H and W 1 to {MAX_SIDE}")
    if math.prod(shape) > MAX_BYTES:
        raise _Bad(f"shape {shape} makes more than {MAX_BYTES} bytes of frames")


def _check(segment: Segment) -> None:
    """Hold what is saved and what is loaded to the same rules; raises _Bad."""
    _check_shape(segment.frames.shape)
    steps = segment.frames.shape[0]
    columns: list[tuple[str, np.ndarray, type]] = [("frames", segment.frames, np.uint8)]
    if segment.continuous:
        _check_vectors("actions", segment.actions, steps, MAX_ACTIONS)
        if np.abs(segment.actions).max() > 1:
            raise _Bad(f"actions must be −1 to 1, are {segment.actions.min():g} to {segment.actions.max():g}")
    else:
        columns.append(("actions", segment.actions, np.int64))
    if segment.observations is not None:
        _check_vectors("observations", segment.observations, steps, MAX_OBSERVATION)
    sidecar = segment.sidecar
    if sidecar is not None:
        columns += [
            ("scores", sidecar.scores, np.float32),
            ("life_lost", sidecar.life_lost, np.bool_),
            ("game_over", sidecar.game_over, np.bool_),
        ]
    for name, column, dtype in columns:
        if column.dtype != dtype:
            raise _Bad(f"{name} must be {np.dtype(dtype)}, is {column.dtype}")
        if name != "frames" and column.shape != (steps,):
            raise _Bad(f"{name} must have shape ({steps},), has {column.shape}")
    limit = MAX_ACTIONS
    if sidecar is not None:
        limit = sidecar.num_actions
        if type(limit) is not int or not 1 <= limit <= MAX_ACTIONS:
            raise _Bad(f"num_actions must be 1 to {MAX_ACTIONS}, is {_printable(str(limit), 40)}")
        if not np.isfinite(sidecar.scores).all():
            raise _Bad("scores must be finite")
        if type(sidecar.env_id) is not str or type(sidecar.policy) is not str:
            raise _Bad("env_id and policy must be str")
        if type(sidecar.step) is not int or sidecar.step < 0:
            raise _Bad("step must be an int of at least 0")
        if not _is_origin(sidecar.origin):
            raise _Bad(f"origin must be at most {_MAX_ORIGIN} short texts by name")
        if not _are_names(sidecar.action_names, sidecar.num_actions):
            raise _Bad(f"action_names must be {sidecar.num_actions} short texts, or none")
    if segment.continuous:
        if sidecar is not None and segment.actions.shape[1] != sidecar.num_actions:
            raise _Bad(f"actions must be of {sidecar.num_actions} numbers, are of {segment.actions.shape[1]}")
    elif segment.actions.min() < 0 or segment.actions.max() >= limit:
        raise _Bad(
            f"actions must be 0 to {limit - 1}, are {segment.actions.min()} to {segment.actions.max()}"
        )


def _is_origin(origin: object) -> bool:
    return (
        type(origin) is dict
        and len(origin) <= _MAX_ORIGIN
        and all(type(text) is str and len(text) <= 1000 for part in origin.items() for text in part)
    )


def _are_names(names: object, num_actions: int) -> bool:
    return (
        type(names) is tuple
        and len(names) in (0, num_actions)
        and all(type(name) is str and len(name) <= MAX_ACTION_NAME for name in names)
    )


def _check_vectors(name: str, vectors: np.ndarray, steps: int, most: int) -> None:
    if vectors.dtype != np.float32:
        raise _Bad(f"{name} must be float32, is {vectors.dtype}")
    if vectors.ndim != 2 or len(vectors) != steps or not 1 <= vectors.shape[1] <= most:
        raise _Bad(f"{name} must have shape ({steps}, 1 to {most}), has {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise _Bad(f"{name} must be finite")


# --- The unpickler --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Step:
    """Stands in for the original's EpisodeStep."""

    obs: object = None
    act: object = None


@dataclass(slots=True)
class _Array:
    """Stands in for a numpy array; its value comes with a later opcode."""

    value: np.ndarray | None = None


@dataclass(slots=True)
class _Dtype:
    """Stands in for an integer numpy.dtype; its byte order comes with a later opcode."""

    code: str
    order: str = "="

    def numpy(self) -> np.dtype:
        return np.dtype(self.order + self.code)


@dataclass(frozen=True, slots=True, eq=False)
class _Name:
    """What an admitted name of a pickle becomes: itself, and what a call of it does here."""

    text: str
    call: Callable[..., object] | None = None


def _new_step(*values: object) -> _Step:
    if len(values) not in (0, 2):
        raise _Bad(f"lib.rlhf.EpisodeStep takes obs and act, not {len(values)} values")
    return _Step(*values)


def _reconstructor(kind: object, base: object, state: object) -> _Step:
    """copyreg's: how protocols 0 and 1 make an instance of a plain class or of a named tuple."""
    if kind is not _EPISODE_STEP or base not in (_OBJECT, _TUPLE):
        raise _Bad("copyreg._reconstructor may only make a lib.rlhf.EpisodeStep")
    if base is _TUPLE and isinstance(state, tuple):
        return _new_step(*state)
    return _Step()


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    """numpy's: an empty array, to be filled by BUILD. Any other shape would be an allocation for the asking."""
    if kind is not _NDARRAY or shape != (0,) or code not in (b"b", "b"):
        raise _Bad("numpy's _reconstruct may only make an empty array, to be filled")
    return _Array()


def _frombuffer(raw: object, dtype: object, shape: object, order: object, axes: object = None) -> _Array:
    """numpy's: how protocol 5 makes an array whose elements lie side by side."""
    if order == "K":  # numpy 2.3 and later: in C order once the axes are put in this order
        array = _to_array(raw, dtype, shape, fortran=False)
        if not isinstance(axes, tuple) or sorted(axes) != list(range(array.ndim)):
            raise _Bad("array with a bad order of axes")
        return _Array(array.transpose(axes))
    if order not in ("C", "F"):
        raise _Bad("array with a bad memory order")
    return _Array(_to_array(raw, dtype, shape, fortran=order == "F"))


def _to_array(raw: object, dtype: object, shape: object, fortran: bool) -> np.ndarray:
    """A frame over the bytes of the pickle, without a copy."""
    if not isinstance(dtype, _Dtype) or dtype.code != "u1":
        raise _Bad("frames must be uint8")
    if not isinstance(raw, bytes | memoryview) or not isinstance(shape, tuple) or len(shape) != 3:
        raise _Bad("frames must have shape [H, W, 3]")
    if any(type(side) is not int or not 1 <= side <= MAX_SIDE for side in shape):
        raise _Bad(f"frames must have H and W of 1 to {MAX_SIDE}")
    if math.prod(shape) != len(raw):
        raise _Bad(f"frame of shape {shape} cannot have {len(raw)} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _new_dtype(code: object, align: object = False, copy: object = False) -> _Dtype:
    if code not in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
        raise _Bad(
            f"refuses dtype {_printable(str(code), 40) if isinstance(code, str) else type(code).__name__}"
        )
    return _Dtype(str(code))


def _scalar(dtype: object, raw: object = None) -> int:
    if (
        not isinstance(dtype, _Dtype)
        or not isinstance(raw, bytes | memoryview)
        or len(raw) != dtype.numpy().itemsize
    ):
        raise _Bad("numpy scalar that is no integer")
    return int(np.frombuffer(raw, dtype.numpy())[0])


_EPISODE_STEP = _Name("lib.rlhf.EpisodeStep", _new_step)
_NDARRAY = _Name("numpy.ndarray")
_OBJECT = _Name("object")
_TUPLE = _Name("tuple")
_ADMITTED: dict[tuple[str, str], _Name] = {
    ("lib.rlhf", "EpisodeStep"): _EPISODE_STEP,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Name("numpy.dtype", _new_dtype),
    ("builtins", "object"): _OBJECT,
    ("__builtin__", "object"): _OBJECT,
    ("builtins", "tuple"): _TUPLE,
    ("__builtin__", "tuple"): _TUPLE,
    ("copyreg", "_reconstructor"): _Name("copyreg._reconstructor", _reconstructor),
    ("copy_reg", "_reconstructor"): _Name("copyreg._reconstructor", _reconstructor),
}
for _core in ("numpy.core", "numpy._core"):  # before and since numpy 2
    _ADMITTED[_core + ".multiarray", "_reconstruct"] = _Name("_reconstruct", _reconstruct)
    _ADMITTED[_core + ".multiarray", "scalar"] = _Name("scalar", _scalar)
    _ADMITTED[_core + ".numeric", "_frombuffer"] = _Name("_frombuffer", _frombuffer)


def _build(target: object, state: object) -> None:
    """BUILD: give a new object its content."""
    if isinstance(target, _Step):
        if isinstance(state, tuple) and len(state) == 2 and state[0] is None:
            state = state[1]  # a class with __slots__
        if isinstance(state, dict):
            target.obs, target.act = state.get("obs"), state.get("act")
        elif isinstance(state, list | tuple) and len(state) == 2:  # a frozen dataclass with __slots__
            target.obs, target.act = state
        else:
            raise _Bad("lib.rlhf.EpisodeStep with a bad state")
    elif isinstance(target, _Array):
        if not isinstance(state, tuple) or len(state) != 5:
            raise _Bad("array with a bad state")
        target.value = _to_array(state[4], state[2], state[1], fortran=state[3] is True or state[3] == 1)
    elif isinstance(target, _Dtype):
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("|", "<", ">", "="):
            raise _Bad("dtype with a bad state")
        if state[2:5] != (None, None, None):
            raise _Bad("refuses a dtype with fields")
        target.order = state[1]
    else:
        raise _Bad(f"pickle sets the state of a {type(target).__name__}")


class _Dispatch(dict[int, Callable[[Any], None]]):
    """Opcodes of one load: the known ones, each of which uses up some of a budget."""

    def __init__(self, opcodes: dict[int, Callable[[Any], None]]) -> None:
        super().__init__(opcodes)
        self.left = _MAX_OPCODES

    def __getitem__(self, opcode: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise _Bad(f"more than {_MAX_OPCODES} pickle opcodes")
        return super().__getitem__(opcode)

    def __missing__(self, opcode: int) -> NoReturn:
        raise _Bad(f"not a segment (byte 0x{opcode:02x} where a pickle opcode of a segment should be)")


# The C unpickler allocates a memo as large as a file asks for; in the one in Python it is a dict.
_PythonUnpickler: Any = pickle._Unpickler  # type: ignore[attr-defined,unused-ignore]


class _Unpickler(_PythonUnpickler):  # type: ignore[misc,unused-ignore]
    """Reads a pickle of plain values, or with `original` also the names of the original format."""

    def __init__(self, data: bytes, original: bool) -> None:
        self._data = memoryview(data)
        self._file = io.BytesIO(data)
        super().__init__(self._file)
        self.dispatch = _Dispatch(self.opcodes)
        self._room = MAX_BYTES
        self._admitted: dict[tuple[str, str], _Name] = {}
        if original:
            self._admitted = _ADMITTED | {("_codecs", "encode"): _Name("_codecs.encode", self._encode)}

    def load(self) -> object:
        value = super().load()
        if self._file.read(1):
            raise _Bad("has more after the segment's end")
        return value

    def find_class(self, module: str, name: str) -> _Name:
        found = self._admitted.get((module, name))
        if found is None:
            raise _Bad(f"refuses to load {_printable(f'{module}.{name}', 120)}")
        return found

    def _encode(self, text: object, encoding: object) -> bytes:
        """codecs.encode: bytes in protocols 0 to 2. One text may be encoded many times, hence the budget."""
        if not isinstance(text, str) or encoding != "latin1":
            raise _Bad("_codecs.encode may only turn text into latin1")
        self._room -= len(text)
        if self._room < 0:
            raise _Bad(f"more than {MAX_BYTES} bytes of arrays")
        return text.encode("latin1")

    def _call(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        if not isinstance(function, _Name) or function.call is None or type(arguments) is not tuple:
            raise _Bad("pickle calls what is no function of a segment")
        self.append(function.call(*arguments))

    def _instance(self) -> None:
        module = self.readline()[:-1].decode("utf-8")
        name = self.readline()[:-1].decode("utf-8")
        self.find_class(module, name)
        raise _Bad(f"pickle calls {_printable(f'{module}.{name}', 120)} the way of protocol 0")

    def _set_state(self) -> None:
        state = self.stack.pop()
        _build(self.stack[-1], state)

    def _long_text(self) -> None:
        size = int.from_bytes(self.read(4), "little")
        raw = self.read(size)
        # Characters above U+00FF start with a byte above 0xC3. One of them can make the text four times as large.
        if size > _MAX_PLAIN_TEXT and np.frombuffer(raw, np.uint8).max() > 0xC3:
            raise _Bad("long text that is no array")
        self.append(str(raw, "utf-8"))

    def _line_text(self) -> None:
        raw = self.readline()[:-1]
        if len(raw) > _MAX_PLAIN_TEXT and (b"\\U" in raw or raw.count(b"\\u") != raw.count(b"\\u00")):
            raise _Bad("long text that is no array")
        self.append(str(raw, "raw-unicode-escape"))

    def _bytes(self) -> None:
        self._append_bytes(int.from_bytes(self.read(4), "little"))

    def _bytearray(self) -> None:
        # The one in the standard library allocates the claimed size before it looks at what is there.
        self._append_bytes(int.from_bytes(self.read(8), "little"))

    def _append_bytes(self, size: int) -> None:
        if self._unframer.current_frame is not None:
            self.append(self.read(size))
            return
        # Long bytes lie outside of pickle frames. New memory for a copy of them takes longer than all the rest.
        place = self._file.tell()
        self.append(self._data[place : place + size])
        self._file.seek(min(place + size, len(self._data)))

    def _frame(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        if size > _MAX_FRAME:  # it would be copied
            raise _Bad(f"claims a pickle frame of {size} bytes")
        self._unframer.load_frame(size)

    def _append(self) -> None:
        value = self.stack.pop()
        self._target(list).append(value)

    def _appends(self) -> None:
        values = self.pop_mark()
        self._target(list).extend(values)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items_of(self._target(dict), [key, value])

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._set_items_of(self._target(dict), items)

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items_of(self.stack[-1], items)

    def _set_items_of(self, target: dict[str, object], items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str:  # hashing a deeply nested tuple overflows the C stack
                raise _Bad("dict with a key that is no text")
            target[key] = value

    def _target(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise _Bad(f"pickle puts items into a {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    opcodes: dict[int, Callable[[Any], None]] = {
        opcode[0]: _PythonUnpickler.dispatch[opcode[0]]
        for opcode in (
            *(
                pickle.PROTO,
                pickle.STOP,
                pickle.MARK,
                pickle.NONE,
                pickle.NEWTRUE,
                pickle.NEWFALSE,
            ),
            *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1),
            *(pickle.FLOAT, pickle.BINFLOAT, pickle.SHORT_BINBYTES, pickle.SHORT_BINUNICODE),
            *(pickle.EMPTY_LIST, pickle.LIST, pickle.EMPTY_DICT),
            *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
            *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
            *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.GLOBAL, pickle.STACK_GLOBAL),
        )
    } | {
        pickle.FRAME[0]: _frame,
        pickle.REDUCE[0]: _call,
        pickle.NEWOBJ[0]: _call,
        pickle.INST[0]: _instance,
        pickle.BUILD[0]: _set_state,
        pickle.BINUNICODE[0]: _long_text,
        pickle.UNICODE[0]: _line_text,
        pickle.BINBYTES[0]: _bytes,
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _dict,
    }


# --- The database ---------------------------------------------------------------------------------------------


class SegmentDB:
    """The segments under a folder, `<env index, 2 digits>/<step>.dat`, while others may be adding to it.

    Args:
      root: The database's folder; it may be empty yet.

    Raises:
      UserError: root is no folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        # What a folder held, and when it had last changed; see _scan.
        self._folders: dict[str, tuple[int, frozenset[str]]] = {}
        self._names: list[str] | None = None
        if not root.is_dir():
            raise UserError(
                f"{root}: no such folder; expected a segment database, recorded with 01_a2c.py --db-path"
            )

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all these segments are there at this moment, whatever the last look found."""
        return all((self.root / name).exists() for name in names)

    def refresh(self) -> int:
        """Look for new segments; a folder is read again only if it has changed since.

        Returns:
          How many names are new since the last look (all of them at the first).

        Raises:
          UserError: the database's folder is gone or cannot be read.
        """
        folders = {}
        try:
            for folder in os.listdir(self.root):
                if _FOLDER.fullmatch(folder) and not (self.root / folder).is_symlink():
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a file, or gone by now
                        folders[folder] = self._scan(folder)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot read the segment database: {error.strerror}") from None
        known: frozenset[str] = frozenset(self._names or ())
        changed = (
            self._names is None
            or folders.keys() != self._folders.keys()
            or any(folders[folder][1] is not self._folders[folder][1] for folder in folders)
        )
        self._folders = folders
        if not changed:
            return 0
        self._names = sorted(name for _, names in folders.values() for name in names)
        return len(set(self._names) - known)

    def _scan(self, folder: str) -> tuple[int, frozenset[str]]:
        """What a folder holds: its modification time in ns (-1: too young to be relied on), its segments' names."""
        path = self.root / folder
        changed, names = path.stat().st_mtime_ns, self._folders.get(folder)
        if names is not None and names[0] == changed:
            return names
        if abs(time.time_ns() - changed) < _MTIME_GRAIN_NS:
            changed = -1
        with os.scandir(path) as entries:
            held = frozenset(
                name
                for e in entries
                if _NAME.fullmatch(name := f"{folder}/{e.name}") and e.is_file(follow_symlinks=False)
            )
        if names is not None and names[1] == held:
            held = names[1]
        return changed, held

    @property
    def names(self) -> list[str]:
        """Names of the segments as of the last `refresh`, like "00/00001234.dat", sorted."""
        if self._names is None:
            self.refresh()
        return list(self._names or ())

    def load(self, name: str) -> Segment:
        """Load one segment by its name, such as a label gives it.

        Raises:
          SegmentError: as `load_segment`; also when the name is none of a segment or leads out of the database.
        """
        if not _NAME.fullmatch(name):
            raise SegmentError(
                f"{_printable(name)}: not a segment's name (expected one like 00/00001234.dat)"
            )
        path = self.root / name
        try:
            inside = path.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links
            inside = False
        if not inside:
            raise SegmentError(f"{name}: leads out of the segment database {self.root}")
        return _load(path, f"{self.root.name}/{name}")
