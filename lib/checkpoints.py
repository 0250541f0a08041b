"""Checkpoint files: what `torch.load(weights_only=True)` reads, written atomically, checked when read.

torch is imported where it is used, so that ``--help`` is instant.
"""

from __future__ import annotations

import dataclasses
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lib.cli import UserError
from lib.files import write_atomic
from lib.provenance import made_by

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 1
KINDS = ("policy", "reward", "trainer")


def save_checkpoint(
    path: Path, kind: str, payload: Mapping[str, Any], config: Any, parents: Mapping[str, Any]
) -> None:
    """Writes a checkpoint atomically.

    The file holds one dict: kind, format_version, config, parents, versions, git_commit, created, and the keys of
    payload. Tensors are stored on the CPU; arrays become tensors, paths text, dataclasses dicts.

    Args:
      path: The file; its folder is made when missing.
      kind: One of KINDS.
      payload: What the kind needs, such as {"state_dict": …}.
      config: The stage's configuration, a dataclass or a dict.
      parents: What it came from: databases, label count, parent checkpoints.

    Raises:
      UserError: The file cannot be written.
      TypeError: A value is of a type that such a file cannot hold; the message names its key.
    """
    import torch

    header = {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "config": config,
        "parents": parents,
        **made_by(),
    }
    content = storable({**header, **payload})

    def write(file: BinaryIO) -> None:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # PyTorch's writer fails over what it could not write
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, write)
    except OSError as error:
        raise UserError(
            f"{path}: the {kind} checkpoint could not be written: {error.strerror}; "
            "make room or name a folder that can be written"
        ) from error


def storable(value: Any, where: str = "") -> Any:
    """A value in the types that weights_only loading admits: tensors and Python's plain types; `where` it is, for the error."""
    import numpy as np
    import torch

    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, torch.Tensor):
        value = value.detach()
        whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        # A view would drag its whole storage into the file. Others may be as large as a replay, so they are not copied.
        return value if whole and value.device.type == "cpu" else value.to("cpu", copy=True)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {storable(key, where): storable(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [storable(item, f"{where}[{at}]") for at, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(f"checkpoint{where}: a {type(value).__name__} cannot be stored in a checkpoint")


def load_checkpoint(path: Path, kind: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint without ever running what it may hold (``weights_only=True``).

    Args:
      path: The file.
      kind: The kind that the caller needs, one of KINDS; None takes any.

    Returns:
      The dict :func:`save_checkpoint` wrote, tensors on the CPU. A bare state_dict, every value a tensor, comes back
      as {"kind": kind, "bare": True, "state_dict": …}: such a file does not say what it is.

    Raises:
      UserError: The file is missing, empty, damaged, hostile, of another kind or of a later format.
    """
    import torch

    expected = f"{path}: expected a {kind + ' ' if kind else ''}checkpoint"
    if path.is_dir():
        raise UserError(f"{expected}, got a folder; name one of the .dat files in it")
    if not path.exists():
        raise UserError(f"{expected}, but there is no such file; check the path")
    if not path.is_file():
        raise UserError(f"{expected}, got something other than a regular file")
    try:
        _check_archive(path, expected)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{expected}, but it cannot be read: {error.strerror}") from error
    except Exception as error:  # torch raises nearly every kind of exception for a damaged file
        asked = re.search(r"\bGLOBAL (\S{1,100})", str(error))
        if asked:
            reason = f"a file that asks to run {asked[1]}, which no checkpoint needs; nothing was run"
        else:
            reason = "a damaged file, or one from another program; copy or train it again"
        raise UserError(f"{expected}, got {reason}") from error
    return _check_content(content, kind, expected)


def _check_archive(path: Path, expected: str) -> None:
    """Refuses, before torch opens it, a file that is not a checkpoint or would unpack to more than its size.

    Raises:
      UserError: With the reason.
      zipfile.BadZipFile, OSError: The file is damaged.
    """
    size = path.stat().st_size
    if size == 0:
        raise UserError(f"{expected}, got an empty file; copy or train it again")
    with open(path, "rb") as file:
        start = file.read(2)
    if start != b"PK":
        came = (
            "a plain pickle, which could run code, so it was not opened" if start[:1] == b"\x80" else "a file"
        )
        raise UserError(f"{expected}, got {came} that PyTorch's torch.save (1.6 or later) did not write")
    with zipfile.ZipFile(path) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > size:  # torch.save does not compress
        raise UserError(
            f"{expected}, got one that claims {claimed} bytes inside {size}; it was not written by torch.save"
        )


def _check_content(content: Any, kind: str | None, expected: str) -> dict[str, Any]:
    """Checks what a checkpoint says about itself."""
    import torch

    if not isinstance(content, dict) or not content:
        raise UserError(f"{expected}, got a file that holds {_describe(content)}")
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        return {"kind": kind, "bare": True, "state_dict": dict(content)}
    came, version = content.get("kind"), content.get("format_version")
    if came not in KINDS or type(version) is not int or version < 1:
        raise UserError(f"{expected}, got a file that holds {_describe(content)}")
    if kind not in (None, came):
        raise UserError(f"{expected}, got a {came} checkpoint; name a {kind} one")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{expected} of format {FORMAT_VERSION} at most, got format {version}; "
            "it comes from a later version of this code: update the checkout"
        )
    return content


def check_weights(state: Any, source: str) -> dict[str, torch.Tensor]:
    """Refuses anything but a state_dict of plain, finite numbers, before a network loads it.

    Args:
      state: What a checkpoint holds as its weights.
      source: Its file, for the message.

    Returns:
      The state.

    Raises:
      UserError: With what came instead.
    """
    import torch

    if not isinstance(state, dict) or not state:
        raise UserError(
            f"{source}: expected weights by name, got {'none' if state is None else _describe(state)}"
        )
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
            raise UserError(f"{source}: {name} has weights that are not finite; take an earlier checkpoint")
    return state


def _describe(content: Any) -> str:
    if isinstance(content, dict):
        keys = ", ".join(sorted(str(key)[:20] for key in content)[:5])
        return f"a dict with the keys {keys}" if content else "an empty dict"
    return f"a {type(content).__name__}"
