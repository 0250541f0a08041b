"""Bookkeeping shared by every stage: where results come from, checkpoints, run folders, and what a run goes on from.

torch is imported where it is used, so that ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
import time
import typing
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lib.cli import UserError, as_flag, former_names, parse
from lib.files import remove_stale, write_atomic

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 1
KINDS = ("policy", "reward", "trainer")
STATE = "state.dat"
"""Name of the file in a run's folder that the run can be gone on from."""
_PACKAGES = ("torch", "numpy", "gymnasium", "ale-py")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}")
_LINEAGE = ("config", "parents", "versions", "git_commit", "created", "steps", "results", "version")
_LINEAGE_BYTES = 1 << 20  # of all that a checkpoint's ancestors say; a generation takes some 5,000
_LINEAGE_DEPTH = 100  # of dicts and lists; a generation takes two
_LINEAGE_TEXT = 1000  # characters

Config = TypeVar("Config")


# --- provenance ------------------------------------------------------------------------------------------------


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes; "" for one that is not installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


@functools.cache
def git_commit() -> str:
    """Full hash of the commit this code lies in, with "-dirty" when tracked files differ from it.

    Returns:
      "" where git or the repository is missing; never raises.
    """
    # GIT_DIR and its kin are set inside hooks and would name another repository than the code's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Reading must not take index.lock away from a commit that is under way. `git describe --dirty` takes it all the same.
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    head = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or head is None:
        return ""
    changed = any(not line.startswith("#") for line in done.stdout.splitlines())
    return head[1] + ("-dirty" if changed else "")


def now() -> str:
    """The time in UTC as ISO 8601 with seconds, as checkpoints and configurations carry it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- checkpoints -----------------------------------------------------------------------------------------------


def save_checkpoint(
    path: Path, kind: str, payload: Mapping[str, Any], config: Any, parents: Mapping[str, Any]
) -> None:
    """Writes a checkpoint that ``torch.load(weights_only=True)`` reads, atomically.

    The file holds one dict: kind, format_version, config, parents, versions, git_commit, created, and the keys of
    payload. Tensors are stored on the CPU; arrays become tensors, paths become text, dataclasses become dicts.

    Args:
      path: The file; its folder is made when missing.
      kind: One of KINDS.
      payload: What the kind needs, such as {"state_dict": …}.
      config: The stage's configuration, a dataclass or a dict.
      parents: What it came from: databases, label count, parent checkpoints.

    Raises:
      UserError: The file cannot be written.
      TypeError: A value is of a type that such a file cannot hold; the message names its key.
      ValueError: The kind is unknown, or payload has a key of the header.
    """
    import torch

    if kind not in KINDS:
        raise ValueError(f"expected a kind of {', '.join(KINDS)}; got {kind!r}")
    header = {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "config": config,
        "parents": parents,
        "versions": versions(),
        "git_commit": git_commit(),
        "created": now(),
    }
    clash = header.keys() & payload.keys()
    if clash:
        raise ValueError(f"payload may not have the header's keys {sorted(clash)}")
    content = _storable({**header, **payload}, "")
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise UserError(
            f"{path}: the {kind} checkpoint could not be written: {error.strerror}; "
            "make room or name a folder that can be written"
        ) from error


def _storable(value: Any, where: str) -> Any:
    """Turns a value into what weights_only loading admits: tensors, and Python's own plain types."""
    import numpy as np
    import torch

    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, torch.Tensor):
        # A copy, since a view would drag its whole storage into the file.
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_storable(key, where): _storable(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_storable(item, f"{where}[{at}]") for at, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(f"checkpoint{where}: a {type(value).__name__} cannot be stored in a checkpoint")


def load_checkpoint(path: Path, kind: str) -> dict[str, Any]:
    """Reads a checkpoint without ever running what it may hold (``weights_only=True``).

    Args:
      path: The file.
      kind: One of KINDS: what the caller needs.

    Returns:
      The dict :func:`save_checkpoint` wrote, tensors on the CPU. A bare state_dict, every value a tensor, comes back
      as {"kind": kind, "bare": True, "state_dict": …}: such a file does not say what it is.

    Raises:
      UserError: The file is missing, empty, damaged, hostile, of another kind or of a later format; the line
        names it, what was expected and what came.
    """
    import torch

    path = Path(path)
    expected = f"{path}: expected a {kind} checkpoint"
    if path.is_dir():
        raise UserError(f"{expected}, got a folder; name one of the .dat files in it")
    if not path.exists():
        raise UserError(f"{expected}, but there is no such file; check the path")
    if not path.is_file():
        raise UserError(f"{expected}, got something that is no regular file")
    try:
        size = path.stat().st_size
        _check_archive(path, size, expected)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{expected}, but it cannot be read: {error.strerror}") from error
    except Exception as error:  # torch raises nearly every kind of exception for a damaged file
        asked = re.search(r"\bGLOBAL (\S{1,100})", str(error))
        if asked:
            reason = f"a file that asks to run {asked[1]}, which no checkpoint needs; nothing of it was run"
        else:
            reason = "a damaged file, or one of another program; copy or train it again"
        raise UserError(f"{expected}, got {reason}") from error
    return _check_content(content, kind, expected, size)


def _check_archive(path: Path, size: int, expected: str) -> None:
    """Refuses, before torch looks at it, a file that is no checkpoint or that would unpack to far more than it is.

    Raises:
      UserError: With the reason.
      zipfile.BadZipFile, OSError: The file is damaged.
    """
    if size == 0:
        raise UserError(f"{expected}, got an empty file; copy or train it again")
    with open(path, "rb") as file:
        start = file.read(2)
    if start != b"PK":
        came = "a plain pickle, which could run code and was not opened" if start[:1] == b"\x80" else "a file"
        raise UserError(f"{expected}, got {came} that PyTorch's torch.save (1.6 or later) did not write")
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > size:  # torch.save does not compress
        raise UserError(
            f"{expected}, got one that claims {claimed} bytes inside {size}; it was not written by torch.save"
        )


def _check_content(content: Any, kind: str, expected: str, size: int) -> dict[str, Any]:
    """Checks what a checkpoint says about itself."""
    import torch

    if not isinstance(content, dict) or not content:
        raise UserError(f"{expected}, got a file that holds {_describe(content)}")
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        return {"kind": kind, "bare": True, "state_dict": dict(content)}
    came, version = content.get("kind"), content.get("format_version")
    if came not in KINDS or type(version) is not int or version < 1:
        raise UserError(f"{expected}, got a file that holds {_describe(content)}")
    if came != kind:
        raise UserError(f"{expected}, got a {came} checkpoint; name a {kind} one")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{expected} of format {FORMAT_VERSION} at most, got format {version}; "
            "it comes from a later version of this code: update the checkout"
        )
    return content


def check_weights(state: Any, source: str) -> dict[str, torch.Tensor]:
    """Refuses what is no state_dict of plain, finite numbers, so that a network can be asked to take it.

    Args:
      state: What a checkpoint has where its weights should be.
      source: Its file, for the message.

    Returns:
      The state.

    Raises:
      UserError: It is none; says what came.
    """
    import torch

    if not isinstance(state, dict) or not state:
        raise UserError(f"{source}: expected weights by name, got {_describe(state) if state else 'none'}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise UserError(
                f"{source}: expected weights by name, got a {type(value).__name__} as {str(name)[:40]}"
            )
        plain = value.layout == torch.strided and value.device.type != "meta" and not value.is_complex()
        # What unfolds from less memory than it claims would be copied at its full size.
        if not plain or value.untyped_storage().nbytes() < value.numel() * value.element_size():
            raise UserError(f"{source}: expected plain numbers as weights, {name} has others")
        if not bool(value.isfinite().all()):
            raise UserError(
                f"{source}: {name} has weights that are no finite numbers; take an earlier checkpoint"
            )
    return state


def _describe(content: Any) -> str:
    if isinstance(content, dict) and content:
        return "a dict with the keys " + ", ".join(sorted(str(key)[:20] for key in content)[:5])
    return f"an empty {type(content).__name__}" if not content else f"a {type(content).__name__}"


def lineage(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of how it came about, for a child to keep, so that this outlives the file.

    Args:
      content: As `load_checkpoint` returns it, from a file that may say anything.

    Returns:
      Its configuration, parents (with what they say of theirs), versions, commit, time, steps, results and its own
      version, as far as it has them: dicts, lists, texts and numbers, of a bounded size and depth. What lies beyond is left out.
    """
    room = _LINEAGE_BYTES

    def kept(value: Any, depth: int) -> Any:
        """A copy, or _LEFT_OUT."""
        nonlocal room
        room -= 16 + (len(value) if isinstance(value, str) else 0)
        if room < 0 or depth > _LINEAGE_DEPTH:
            return _LEFT_OUT
        if isinstance(value, Mapping):
            items = (
                (kept(key, depth), kept(item, depth + 1)) for key, item in value.items() if _is_scalar(key)
            )
            return {key: item for key, item in items if _LEFT_OUT not in (key, item)}
        if isinstance(value, (list, tuple)):
            return [item for item in (kept(item, depth + 1) for item in value) if item is not _LEFT_OUT]
        return value if value is None or _is_scalar(value) else _LEFT_OUT

    return dict(kept({key: content[key] for key in _LINEAGE if key in content}, 0))


_LEFT_OUT = object()


def _is_scalar(value: Any) -> bool:
    """Whether it is a number, or a text of a length that a name or a path may have."""
    if isinstance(value, int):
        return value.bit_length() <= 64
    return isinstance(value, float) or (isinstance(value, str) and len(value) <= _LINEAGE_TEXT)


# --- run folders -----------------------------------------------------------------------------------------------


def make_run_dir(root: Path, stage: str, name: str) -> Path:
    """Makes a new folder for a run: ``<root>/<YYYYmmdd-HHMMSS>-<stage>-<name>``, local time.

    Args:
      root: Where runs live, usually "runs"; made when missing.
      stage: Such as "a2c" or "reward".
      name: The user's name for the run.

    Returns:
      The folder, which did not exist before; "-2", "-3", … is added when two runs start in one second.

    Raises:
      UserError: The name cannot be part of a file's name, or the folder cannot be made.
    """
    check_name(name)
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{stage}-{name}"
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        attempt = 1
        while True:
            run_dir = Path(root) / (stem if attempt == 1 else f"{stem}-{attempt}")
            try:
                run_dir.mkdir()
            except FileExistsError:
                attempt += 1
            else:
                return run_dir
    except OSError as error:
        raise UserError(
            f"{root}: the run's folder could not be made here: {error.strerror}; name a folder that can be written"
        ) from error


def check_name(name: str) -> str:
    """Refuses a run's name that could not stand in a file's name.

    Returns:
      The name.

    Raises:
      UserError: The name has characters other than letters, digits and ``. _ + = -``, starts with one of these,
        or is longer than 100.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"-n {name!r}: expected a name of 1 to 100 letters, digits and . _ + = -, starting with a letter or digit"
        )
    return name


def write_config(run_dir: Path, config: Any, resumed: bool = False) -> None:
    """Writes ``config.json``: the configuration, the command line, and what the code was.

    Args:
      run_dir: The run's folder.
      config: A dataclass or a dict; paths become text.
      resumed: The run goes on: what the file says of its beginning stays, and ``resumed`` lists what it went on with.

    Raises:
      UserError: The file cannot be written, or read where the run goes on.
    """
    made_by = {
        "command": sys.argv,
        "versions": versions(),
        "git_commit": git_commit(),
        "created": now(),
    }
    content = {"config": _storable(config, ""), **made_by}
    if resumed:
        before = _read_config(run_dir)
        content = {**before, "config": content["config"], "resumed": [*before.get("resumed", []), made_by]}
    path = Path(run_dir) / "config.json"
    try:
        write_atomic(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"{path}: could not be written: {error.strerror}") from error


# --- going on with a run ---------------------------------------------------------------------------------------


def parse_resumable(
    config_class: type[Config],
    may_differ: Collection[str],
    argv: Sequence[str] | None = None,
    description: str | None = None,
) -> Config:
    """`lib.cli.parse` for a stage with ``--resume RUN``: the run's own flags then stand for all that are not given.

    Args:
      config_class: As in `parse`; has a field ``resume``.
      may_differ: Fields that may have another value than the run began with.
      argv: As in `parse`.
      description: As in `parse`.

    Returns:
      An instance of config_class.

    Raises:
      UserError: There is no such run, it is of another stage, or a flag differs that may not; the line names it.
      SystemExit: As in `parse`.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    run_dir = _resumed(args)
    if run_dir is None:
        return parse(config_class, args, description)
    hints = typing.get_type_hints(config_class)
    began_with = _read_config(run_dir)["config"]
    for old, new in former_names(config_class).items():
        if old in began_with:
            began_with[new] = began_with.pop(old)
    unknown = began_with.keys() - hints.keys()
    if unknown:
        raise UserError(
            f"--resume {run_dir}: expected a run of this script and version, but it has "
            f"{as_flag(min(unknown))}, which is no flag here"
        )
    fields = dataclasses.fields(config_class)  # type: ignore[arg-type]  # any dataclass
    made: list[tuple[str, Any, Any]] = []
    for field in fields:
        defaults: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
        if field.name in began_with:
            value = began_with[field.name] = _with_paths(began_with[field.name], hints[field.name])
            defaults = {"default_factory": value.copy} if isinstance(value, list) else {"default": value}
        made.append(
            (
                field.name,
                hints[field.name],
                dataclasses.field(kw_only=True, metadata=field.metadata, **defaults),
            )
        )
    began = dataclasses.make_dataclass(config_class.__name__, made, bases=(config_class,), frozen=True)
    given: Any = parse(began, args, description)
    for name, value in began_with.items():
        if name not in (*may_differ, "resume") and getattr(given, name) != value:
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise UserError(
                f"--resume {run_dir}: {as_flag(name)} cannot change, the run began with {shown}; "
                f"only {', '.join(map(as_flag, may_differ))} may differ"
            )
    return config_class(**{field.name: getattr(given, field.name) for field in fields})


def _resumed(args: Sequence[str]) -> Path | None:
    """The value of --resume in a command line."""
    found = None
    for at, arg in enumerate(args):
        if arg == "--":
            break
        if arg.startswith("--resume="):
            found = Path(arg.removeprefix("--resume="))
        elif arg == "--resume" and at + 1 < len(args) and not args[at + 1].startswith("-"):
            found = Path(args[at + 1])
    return found


def _read_config(run_dir: Path) -> dict[str, Any]:
    """The content of a run's config.json.

    Raises:
      UserError: There is none that can be read.
    """
    path = Path(run_dir) / "config.json"
    expected = f"--resume {run_dir}: expected a run's folder with a config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{expected}: {error.strerror}; name a folder under runs/") from error
    except ValueError as error:
        raise UserError(f"{expected}, and that file is damaged: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{expected}, and that file is of another program")
    return content


def _with_paths(value: Any, hint: Any) -> Any:
    """A value as the field had it before JSON made text of its paths."""
    if value is None or (hint is not Path and Path not in typing.get_args(hint)):
        return value
    return [Path(item) for item in value] if isinstance(value, list) else Path(value)


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keeps a run to one process at a time; the system lets go of it with the process, however that ends.

    Raises:
      UserError: Another process has it.
    """
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--resume {run_dir}: this run is still going on in another process; stop that first"
            ) from None
        except OSError:  # a file system without locks
            pass
        remove_stale(run_dir)
        yield
    finally:
        os.close(folder)


def save_state(
    run_dir: Path, stage: str, payload: Mapping[str, Any], config: Any, parents: Mapping[str, Any]
) -> None:
    """Writes all that a run needs to go on, over what it wrote before; that stays until the new file is whole.

    Args:
      run_dir: The run's folder.
      stage: The script whose run it is.
      payload: As in `save_checkpoint`.
      config: The stage's configuration.
      parents: As in `save_checkpoint`.

    Raises:
      UserError: The file cannot be written; the state before is still there.
    """
    save_checkpoint(Path(run_dir) / STATE, "trainer", {"stage": stage, **payload}, config, parents)


def load_state(run_dir: Path, stage: str) -> dict[str, Any] | None:
    """What `save_state` wrote last, tensors on the CPU; None where the run ended before it first did.

    Raises:
      UserError: The file cannot be read, or is of another stage.
    """
    path = Path(run_dir) / STATE
    if not path.exists():
        return None
    state = load_checkpoint(path, "trainer")
    if state.get("stage") != stage:
        raise UserError(
            f"--resume {run_dir}: expected a run of {stage}, got one of {state.get('stage')}; take that script"
        )
    return state


class Every:
    """Says when so many minutes have passed.

    Args:
      minutes: How many.
      clock: Seconds from any origin.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = 60 * minutes, clock
        self.restart()

    def restart(self) -> None:
        """Counts from now on."""
        self._since = self._clock()

    def due(self) -> bool:
        """Whether they have passed."""
        return self._clock() - self._since >= self._seconds
