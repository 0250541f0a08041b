"""Run folders, and what a run needs to resume."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import re
import sys
import time
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lib.checkpoints import load_checkpoint, save_checkpoint, storable
from lib.cli import UserError, as_flag, former_names, parse
from lib.files import make_folder, remove_stale, write_atomic
from lib.provenance import made_by

STATE = "state.dat"
"""The file in a run's folder that holds the state needed to resume."""
_MAX_CONFIG = 1 << 20  # bytes of a config.json
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}")

Config = TypeVar("Config")


def make_run_dir(root: Path, stage: str, name: str) -> Path:
    """Makes a new folder for a run: ``<root>/<YYYYmmdd-HHMMSS>-<stage>-<name>``, local time.

    Args:
      root: Where runs live, usually "runs"; made when missing.
      stage: Such as "a2c" or "reward".
      name: The user's name for the run.

    Returns:
      The folder; "-2", "-3", … is added when two runs start in one second.

    Raises:
      UserError: The name cannot be part of a file's name, or the folder cannot be made.
    """
    check_name(name)
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{stage}-{name}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for attempt in itertools.count(1):
            run_dir = root / (stem if attempt == 1 else f"{stem}-{attempt}")
            with contextlib.suppress(FileExistsError):
                run_dir.mkdir()
                break
        return run_dir
    except OSError as error:
        raise UserError(
            f"{root}: the run's folder could not be made here: {error.strerror}; name a folder that can be written"
        ) from error


def check_name(name: str) -> str:
    """Refuses a run's name that could not be part of a file's name.

    Returns:
      The name.

    Raises:
      UserError: It has other characters than letters, digits and ``. _ + = -``, starts with one of these, or is
        longer than 100.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"-n {name!r}: expected a name of 1 to 100 letters, digits and . _ + = -, starting with a letter or digit"
        )
    return name


def write_config(run_dir: Path, config: Any, resumed: bool = False) -> None:
    """Writes ``config.json``: the configuration, the command line, versions and commit.

    Args:
      run_dir: The run's folder.
      config: A dataclass or a dict; paths become text.
      resumed: Keep what the file says of the run's start, and add this command line to its list ``resumed``.

    Raises:
      UserError: The file cannot be written, or read where the run resumes.
    """
    this = {"command": sys.argv, **made_by()}
    content = {"config": storable(config), **this}
    if resumed:
        before = read_config(run_dir)
        content = {**before, "config": content["config"], "resumed": [*before.get("resumed", []), this]}
    path = run_dir / "config.json"
    try:
        write_atomic(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"{path}: could not be written: {error.strerror}") from error


_WHERE = ("out", "dev", "max_minutes")
"""Fields that say where and for how long something runs, not what it is."""


def settle(config: Any, *free: str, begun: bool = True) -> None:
    """Makes the folder of several stages, or checks that it is that of this very configuration.

    Args:
      config: a dataclass with the folder as `out`; kept in `<out>/config.json`, with each command line that continued.
      free: fields that may change from command to command, beside those of `_WHERE`.
      begun: whether anything was made so far; otherwise another configuration takes the place of the one before.

    Raises:
      UserError: the folder is that of another configuration or holds something else, or cannot be written to.
    """
    out: Path = config.out

    def decisive(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in (*_WHERE, *free)}

    fields = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    settled = (out / "config.json").exists()
    if settled:
        before, now = decisive(read_config(out)["config"]), decisive(fields)
        if before.keys() != now.keys():
            raise UserError(f"{out} was begun by another version of this code; name another --out")
        for name in now:
            if begun and before[name] != now[name]:
                raise UserError(
                    f"{as_flag(name)}: {out} was begun with {before[name]!r}, got {now[name]!r}; repeat its "
                    "flags, or name another --out"
                )
    else:
        make_folder(out, "--out")
        if found := next(out.iterdir(), None):  # stages remove what they are about to make
            raise UserError(
                f"--out {out}: expected a new folder or one that this command made, but it holds {found.name}; name another --out"
            )
    write_config(out, fields, resumed=settled and begun)


def read_config(run_dir: Path) -> dict[str, Any]:
    """What `write_config` wrote.

    Raises:
      UserError: There is no such file, or it is damaged, too large or from another program.
    """
    path = run_dir / "config.json"
    expected = f"{run_dir}: expected a run's folder with a config.json"
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_MAX_CONFIG))
    except OSError as error:
        raise UserError(f"{expected}: {error.strerror}; name a folder under runs/") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{expected}, and that file is damaged: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
        raise UserError(f"{expected}, and that file belongs to another program")
    return content


# --- resume ----------------------------------------------------------------------------------------------------


def parse_resumable(
    config_class: type[Config],
    may_differ: Collection[str],
    argv: Sequence[str] | None = None,
    description: str | None = None,
) -> Config:
    """`lib.cli.parse` for a script with ``--resume RUN``: flags that are not given keep the run's values.

    Args:
      config_class: As in `parse`; has a field ``resume``.
      may_differ: Fields that may differ from what the run began with.
      argv: As in `parse`.
      description: As in `parse`.

    Returns:
      An instance of config_class.

    Raises:
      UserError: There is no such run, it is of another script, or a flag differs that may not; the line names it.
      SystemExit: As in `parse`.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    run_dir = _resumed(args)
    if run_dir is None:
        return parse(config_class, args, description)
    try:
        began_with = read_config(run_dir)["config"]
    except UserError as error:
        raise UserError(f"--resume {error}") from error
    for old, new in former_names(config_class).items():
        if old in began_with:
            began_with[new] = began_with.pop(old)
    hints = typing.get_type_hints(config_class)
    unknown = began_with.keys() - hints.keys()
    if unknown:
        raise UserError(
            f"--resume {run_dir}: expected a run of this script and version, but it has "
            f"{as_flag(min(unknown))}, which is not a flag here"
        )
    fields = dataclasses.fields(config_class)  # type: ignore[arg-type]  # any dataclass
    made: list[tuple[str, Any, Any]] = []
    for field in fields:
        defaults: dict[str, Any] = {"default": field.default, "default_factory": field.default_factory}
        if field.name in began_with:
            value = began_with[field.name] = _with_paths(began_with[field.name], hints[field.name])
            defaults = {"default_factory": value.copy} if isinstance(value, list) else {"default": value}
        metadata = {**field.metadata, "default": field.default}  # which says whether there is a --no-…
        again = dataclasses.field(kw_only=True, metadata=metadata, **defaults)
        made.append((field.name, hints[field.name], again))
    began = dataclasses.make_dataclass(config_class.__name__, made, bases=(config_class,), frozen=True)
    given: Any = parse(began, args, description)
    for name, value in began_with.items():
        if name not in (*may_differ, "resume") and getattr(given, name) != value:
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise UserError(
                f"--resume {run_dir}: {as_flag(name)} cannot change: the run began with {shown}; "
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


def _with_paths(value: Any, hint: Any) -> Any:
    """A field's value, before JSON turned its paths into text."""
    if value is None or (hint is not Path and Path not in typing.get_args(hint)):
        return value
    return [Path(item) for item in value] if isinstance(value, list) else Path(value)


@contextlib.contextmanager
def locked(run_dir: Path, flag: str = "--resume") -> Iterator[None]:
    """Keeps other processes off a run, whose folder a flag names; the lock ends with the process, even on kill -9.

    Raises:
      UserError: Another process has the run.
    """
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{flag} {run_dir}: another process is still running it; stop that first"
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
    """Writes the state needed to resume, atomically over the one before.

    Args:
      run_dir: The run's folder.
      stage: The script whose run it is.
      payload: As in `save_checkpoint`.
      config: The stage's configuration.
      parents: As in `save_checkpoint`.

    Raises:
      UserError: The file cannot be written; the earlier state is still there.
    """
    save_checkpoint(run_dir / STATE, "trainer", {"stage": stage, **payload}, config, parents)


def load_state(run_dir: Path, stage: str) -> dict[str, Any] | None:
    """What `save_state` wrote last, tensors on the CPU; None if the run ended before that.

    Raises:
      UserError: The file cannot be read, or is of another stage.
    """
    path = run_dir / STATE
    if not path.exists():
        return None
    state = load_checkpoint(path, "trainer")
    if state.get("stage") != stage:
        raise UserError(
            f"--resume {run_dir}: expected a run of {stage}, got one of {state.get('stage')}; use that script"
        )
    return state


class Timer:
    """A timer that is due after so many minutes.

    Args:
      minutes: How many.
      clock: Seconds from any origin.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = 60 * minutes, clock
        self.restart()

    def restart(self) -> None:
        """Counts from now."""
        self._since = self._clock()

    def due(self) -> bool:
        """Whether the time has passed."""
        return self._clock() - self._since >= self._seconds
