"""Segments on disk: saving, listing and loading them without trusting the file.

Databases are passed between people, so files are not trusted: sizes and shapes are checked
before memory is given, and the pickle inside is read by `lib.preferences.closed_pickle`.
"""

import contextlib
import math
import os
import pickle
import reprlib
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from lib.cli import UserError
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION, Step
from lib.preferences.closed_pickle import Refused, printable, read_pickle, shape_in
from lib.preferences.original_format import NAMES, frame_and_action

SEGMENT_LENGTH = 50
"""Steps in a segment that the recorder writes; a file may hold another number."""

MAX_STEPS = 10_000
MAX_SIDE = 4096  # pixels
MAX_ACTION_NAME = 100  # characters
MAX_REASON = 100  # characters
RANDOM = "random"
"""The `Sidecar.reason` of segments begun at random."""
FORK = "fork of "
"""What the `Sidecar.reason` of segments begins with that continue from one moment in different ways. The rest is the
environment and step of the moment; the segments share their number."""
MAX_BYTES = 512 * 2**20  # of a file, and of the frames in it

_FORMAT = "segment"
_VERSION = 1
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_HEAD = 4096  # bytes; the shape is among the first hundred
_MAX_COLUMNS = 2**20  # bytes of a segment's pickle beside its arrays: 250 KB at most, and a few texts
MAX_ORIGIN = 20  # texts
_MAX_ROW = 4 * (MAX_ACTIONS + MAX_OBSERVATION)  # bytes of a step's action and observation


class SegmentError(UserError):
    """A segment cannot be used; the message names the file and what is wrong with it, on one line."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Facts about a segment for simulated teachers and charts; never shown to a model."""

    scores: np.ndarray  # float32 [T], the game's own reward of each step
    life_lost: np.ndarray  # bool [T]
    game_over: np.ndarray  # bool [T]
    env_id: str
    num_actions: int  # or how many numbers an action is
    policy: str  # checkpoint the recording policy came from, "" when it has none
    step: int  # training step at which the recording began
    origin: dict[str, str] = field(default_factory=dict)  # the run, seed, commit, … it was recorded by
    action_names: tuple[str, ...] = ()  # num_actions of them, or none where the environment has no names
    reason: str = ""  # why it was recorded: RANDOM, or the event it ends shortly after; "" in older files

    @property
    def of_event(self) -> bool:
        """Whether it was recorded because of an event, so that it is no random sample of the policy's play."""
        return self.reason not in ("", RANDOM) and not self.forked

    @property
    def forked(self) -> bool:
        """Whether other segments continue from its first moment, in different ways."""
        return self.reason.startswith(FORK)

    @property
    def moment(self) -> str:
        """The name of the moment that it forked from, within its DB; "" if it did not."""
        return self.reason if self.forked else ""


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
    def spec(self) -> Spec:
        """What the environment shows and takes.

        The original format does not say how many actions there are: as many as these steps need, at least.
        """
        if self.sidecar is not None:
            count = self.sidecar.num_actions
        else:
            count = self.actions.shape[1] if self.continuous else int(self.actions.max()) + 1
        height, width, _ = self.frames.shape[1:]
        shape = PICTURE_SHAPE if self.observations is None else self.observations.shape[1:]
        return Spec(count, self.continuous, shape, (height, width, 3))

    def as_step(self, steps: slice = slice(None)) -> Step:
        """Some of its steps, as probes read them: as if of so many environments, with no outcome."""
        count = len(self.actions[steps])
        no = np.zeros(count, bool)
        seen = None if self.observations is None else self.observations[steps]
        return Step(self.frames[steps], np.zeros(count, np.float32), no, no, no, seen)


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
    except Refused as bad:
        raise SegmentError(f"{printable(str(path))}: not saved: {bad}") from None
    raw = pickle.dumps(_to_plain(segment), protocol=5)
    data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(raw)
    path.parent.mkdir(exist_ok=True)
    write_new(path, data)
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
            "reason": sidecar.reason,
        },
    }


def _vectors_to_plain(vectors: np.ndarray) -> dict[str, object]:
    return {"shape": vectors.shape, "float32": vectors.astype("<f4").tobytes()}


def write_new(path: Path, data: bytes) -> None:
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
    return load_as(path, str(path))


def load_as(path: Path, name: str) -> Segment:
    """`load_segment`, with the caller's name for the file in errors."""
    try:
        data = read_regular(path, MAX_BYTES)
        segment = (
            _from_plain(_unpack(data)) if data[:4] == _ZSTD_MAGIC else _from_steps(read_pickle(data, NAMES))
        )
        _check(segment)
    except Refused as bad:
        reason = str(bad)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except Exception as error:
        # A damaged pickle can fail in any way; whichever it is, the segment cannot be used.
        reason = f"damaged or not a segment ({type(error).__name__}: {printable(str(error))})"
    else:
        return segment
    raise SegmentError(f"{printable(name)}: {reason}")


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises Refused for any other, OSError."""
    # Without O_NONBLOCK, opening a named pipe would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("not a regular file")
        if status.st_size == 0:
            raise Refused("empty")
        if status.st_size > limit:
            raise Refused(f"{status.st_size} bytes; a segment has at most {limit}")
        return file.read(status.st_size)


def _unpack(data: bytes) -> object:
    size = zstandard.get_frame_parameters(data).content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise Refused("does not say its unpacked size")
    if size > _HEAD:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            shape = shape_in(reader.read(_HEAD))
        _check_shape(shape)
        limit = math.prod(shape) + shape[0] * _MAX_ROW + _MAX_COLUMNS
        if size > limit:
            raise Refused(f"would unpack to {size} bytes; its shape {shape} allows at most {limit}")
    raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    return read_pickle(raw)


def _from_plain(plain: object) -> Segment:
    if not isinstance(plain, dict) or plain.get("format") != _FORMAT:
        raise Refused("not a segment of this project")
    version = _field(plain, "version", int)
    if version != _VERSION:
        raise Refused(f"format version {version}; this program reads version {_VERSION}")
    shape, data = _field(plain, "shape", tuple), plain.get("frames")
    if not isinstance(data, bytes | memoryview):
        raise Refused(f"frames must be bytes, is {type(data).__name__}")
    _check_shape(shape)
    if len(data) != math.prod(shape):
        raise Refused(f"shape {shape} needs {math.prod(shape)} bytes of frames, found {len(data)}")
    steps = shape[0]
    sidecar = plain.get("sidecar")
    if sidecar is not None and not isinstance(sidecar, dict):
        raise Refused("sidecar is not a dict")
    return Segment(
        frames=np.frombuffer(data, np.uint8).reshape(shape),
        actions=_vectors(plain, "actions", steps, MAX_ACTIONS)
        if isinstance(plain.get("actions"), dict)
        else _column(plain, "actions", steps, int, np.int64),
        observations=_vectors(plain, "observations", steps, MAX_OBSERVATION)
        if "observations" in plain
        else None,
        sidecar=None if sidecar is None else _sidecar(sidecar, steps),
    )


def _sidecar(plain: dict[str, Any], steps: int) -> Sidecar:
    origin = plain.get("origin", {})  # older files lack this, as action_names and reason
    return Sidecar(
        scores=_column(plain, "scores", steps, float, np.float32),
        life_lost=_column(plain, "life_lost", steps, bool, np.bool_),
        game_over=_column(plain, "game_over", steps, bool, np.bool_),
        env_id=_field(plain, "env_id", str),
        num_actions=_field(plain, "num_actions", int),
        policy=_field(plain, "policy", str),
        step=_field(plain, "step", int),
        origin=dict(origin) if isinstance(origin, dict) else origin,
        action_names=tuple(_field(plain, "action_names", list)) if "action_names" in plain else (),
        reason=_field(plain, "reason", str) if "reason" in plain else "",
    )


def _field(plain: dict[str, Any], key: str, kind: type) -> Any:
    value = plain.get(key)
    if type(value) is not kind:
        raise Refused(f"{key} must be {kind.__name__}, is {type(value).__name__}")
    return value


def _column(plain: dict[str, Any], key: str, steps: int, kind: type, dtype: type) -> np.ndarray:
    values = _field(plain, key, list)
    if len(values) != steps or any(type(value) is not kind for value in values):
        raise Refused(f"{key} must be a list of {steps} {kind.__name__}")
    with np.errstate(over="ignore"):  # a score too large for float32 becomes infinite, which _check refuses
        return np.array(values, dtype)


def _vectors(plain: dict[str, Any], key: str, steps: int, most: int) -> np.ndarray:
    """float32 [T, at most `most`], over the bytes of the pickle."""
    vectors = plain[key]
    if not isinstance(vectors, dict):
        raise Refused(f"{key} must be dict, is {type(vectors).__name__}")
    shape, data = vectors.get("shape"), vectors.get("float32")
    if (
        type(shape) is not tuple
        or len(shape) != 2
        or any(type(side) is not int for side in shape)
        or shape[0] != steps
        or not 1 <= shape[1] <= most
    ):
        raise Refused(f"{key} must have shape ({steps}, 1 to {most}), not {_brief(shape)}")
    if not isinstance(data, bytes | memoryview) or len(data) != 4 * math.prod(shape):
        raise Refused(f"{key} of shape {shape} must be {4 * math.prod(shape)} bytes")
    # A copy: a view would keep the frames beside it in memory for as long.
    return np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)


def _brief(shape: object) -> str:
    # reprlib, as str() of tuples that hold each other twice grows without bounds.
    return printable(reprlib.repr(shape), 60)


def _from_steps(steps: object) -> Segment:
    """A segment from the original's list of `lib.rlhf.EpisodeStep(obs, act)`."""
    if not isinstance(steps, list):
        raise Refused("not a list of lib.rlhf.EpisodeStep")
    if not 1 <= len(steps) <= MAX_STEPS:
        raise Refused(f"{len(steps)} steps; a segment has 1 to {MAX_STEPS}")
    frames, actions = np.empty(0, np.uint8), []
    for number, step in enumerate(steps):
        frame, action = frame_and_action(step, number)
        if not number:
            # Steps may share one array, so what they unfold to is bounded here, not by the size of the file.
            _check_shape((len(steps), *frame.shape))
            frames = np.empty((len(steps), *frame.shape), np.uint8)
        if frame.shape != frames.shape[1:]:
            raise Refused(f"frame {number} has shape {frame.shape}, frame 0 {frames.shape[1:]}")
        frames[number] = frame
        actions.append(action)
    return Segment(frames=frames, actions=np.array(actions, np.int64), sidecar=None)


def _check_shape(shape: tuple[Any, ...]) -> None:
    if len(shape) != 4 or any(type(side) is not int for side in shape) or shape[3] != 3:
        raise Refused(f"frames must have shape [T, H, W, 3], not {_brief(shape)}")
    if not (1 <= shape[0] <= MAX_STEPS and 1 <= shape[1] <= MAX_SIDE and 1 <= shape[2] <= MAX_SIDE):
        raise Refused(f"shape {_brief(shape)}: T must be 1 to {MAX_STEPS}, H and W 1 to {MAX_SIDE}")
    if math.prod(shape) > MAX_BYTES:
        raise Refused(f"shape {shape} needs more than {MAX_BYTES} bytes of frames")


def _check(segment: Segment) -> None:
    """Check saved and loaded segments by the same rules; raises Refused."""
    _check_shape(segment.frames.shape)
    steps, actions, sidecar = len(segment.frames), segment.actions, segment.sidecar
    if segment.frames.dtype != np.uint8:
        raise Refused(f"frames must be uint8, is {segment.frames.dtype}")
    if segment.observations is not None:
        _check_vectors("observations", segment.observations, steps, MAX_OBSERVATION)
    if sidecar is not None:
        _check_sidecar(sidecar, steps)
    if segment.continuous:
        _check_vectors("actions", actions, steps, MAX_ACTIONS)
        if np.abs(actions).max() > 1:
            raise Refused(f"actions must be −1 to 1, are {actions.min():g} to {actions.max():g}")
        if sidecar is not None and actions.shape[1] != sidecar.num_actions:
            raise Refused(f"actions must be of {sidecar.num_actions} numbers, are of {actions.shape[1]}")
    else:
        _check_column("actions", actions, np.int64, steps)
        most = (MAX_ACTIONS if sidecar is None else sidecar.num_actions) - 1
        if actions.min() < 0 or actions.max() > most:
            raise Refused(f"actions must be 0 to {most}, are {actions.min()} to {actions.max()}")


def _check_sidecar(sidecar: Sidecar, steps: int) -> None:
    _check_column("scores", sidecar.scores, np.float32, steps)
    _check_column("life_lost", sidecar.life_lost, np.bool_, steps)
    _check_column("game_over", sidecar.game_over, np.bool_, steps)
    if not np.isfinite(sidecar.scores).all():
        raise Refused("scores must be finite")
    count = sidecar.num_actions
    if type(count) is not int or not 1 <= count <= MAX_ACTIONS:
        raise Refused(f"num_actions must be 1 to {MAX_ACTIONS}, is {printable(str(count), 40)}")
    if type(sidecar.env_id) is not str or type(sidecar.policy) is not str:
        raise Refused("env_id and policy must be str")
    if type(sidecar.step) is not int or sidecar.step < 0:
        raise Refused("step must be an int of at least 0")
    if not is_origin(sidecar.origin):
        raise Refused(f"origin must be at most {MAX_ORIGIN} short texts by name")
    if not _are_names(sidecar.action_names, count):
        raise Refused(f"action_names must be {count} short texts, or none")
    if type(sidecar.reason) is not str or len(sidecar.reason) > MAX_REASON:
        raise Refused(f"reason must be a text of at most {MAX_REASON} characters")


def _check_column(name: str, column: np.ndarray, dtype: type, steps: int) -> None:
    if column.dtype != dtype:
        raise Refused(f"{name} must be {np.dtype(dtype)}, is {column.dtype}")
    if column.shape != (steps,):
        raise Refused(f"{name} must have shape ({steps},), has {column.shape}")


def is_origin(origin: object) -> bool:
    """Whether this may be the `origin` of a clip or an answer: a few short texts by name."""
    return (
        type(origin) is dict
        and len(origin) <= MAX_ORIGIN
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
        raise Refused(f"{name} must be float32, is {vectors.dtype}")
    if vectors.ndim != 2 or len(vectors) != steps or not 1 <= vectors.shape[1] <= most:
        raise Refused(f"{name} must have shape ({steps}, 1 to {most}), has {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise Refused(f"{name} must be finite")
