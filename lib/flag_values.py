"""Texts of a command line as values: numbers, choices, KEY=VALUE."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

YES_NO = {True: "yes", False: "no"}

_INTEGER = re.compile(r"([+-]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?)([kKMG]?)")
_SUFFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
_NOUNS = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """What :func:`lib.cli.flag` leaves in a field's metadata for :func:`lib.cli.parse`."""

    names: tuple[str, ...] = ()
    help: str = ""
    group: str | None = None
    choices: tuple[Any, ...] | None = None
    metavar: str | None = None
    positional: bool = False
    nargs: str | int | None = None
    min: float | None = None
    max: float | None = None
    formerly: str | None = None
    of: type | None = None


def unwrap(hint: Any) -> Any:
    """X of ``X | None``; any other annotation as it is."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        if len(inner) == 1:
            return inner[0]
    return hint


def reader(kind: type, spec: Flag) -> Callable[[str], Any]:
    """A function that turns a flag's text into its value, or says why not."""

    def read(text: str) -> Any:
        value: Any
        if kind is int:
            value = _integer(text)
        elif kind is float:
            value = _number(text)
        else:
            value = kind(text) if text or kind is str else None  # Path("") would be the current folder
        expected = beyond(value, kind, spec)
        if not expected:
            return value
        near = difflib.get_close_matches(text, [str(choice) for choice in spec.choices or ()], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"{expected}; got {text!r}{hint}")

    return read


def beyond(value: Any, kind: type, spec: Flag) -> str:
    """What was expected of a value that is none of a flag's choices, out of its bounds or None; "" for any other."""
    if spec.choices is not None:
        listed = ", ".join(str(choice) for choice in spec.choices)
        return "" if value in spec.choices else f"expected one of {listed}"
    low = spec.min is not None and value is not None and value < spec.min
    high = spec.max is not None and value is not None and value > spec.max
    return f"expected {_NOUNS[kind]}{_bounds(spec)}" if value is None or low or high else ""


def _bounds(spec: Flag) -> str:
    if spec.min is not None and spec.max is not None:
        return f" from {spec.min} to {spec.max}"
    if spec.min is not None:
        return f" of at least {spec.min}"
    if spec.max is not None:
        return f" of at most {spec.max}"
    return ""


def _integer(text: str) -> int | None:
    """Reads 12000000, 12_000_000, 1.2e7, 12M or 500k; None for what is not a whole number."""
    match = _INTEGER.fullmatch(text.strip())
    if not match:
        return None
    value = Decimal(match[1].replace("_", "")) * _SUFFIXES[match[2]]
    if value.adjusted() > 18 or value != value.to_integral_value():
        return None
    return int(value)


def _number(text: str) -> float | None:
    """Reads a finite number; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def setting_reader(flag_name: str, config_class: type) -> Callable[[str], tuple[str, Any]]:
    """A function that reads KEY=VALUE as the name and the value of a field."""

    def read(text: str) -> tuple[str, Any]:
        key, equals, value = text.partition("=")
        fields = {field.name: field for field in dataclasses.fields(config_class)}
        field = fields.get(key.replace("-", "_"))
        if field is None or not equals:
            near = difflib.get_close_matches(key.strip(" -").replace("-", "_"), fields, n=1)
            mend = f"write {flag_name} {near[0]}=VALUE" if near else "KEY is a flag without its dashes"
            said = f"no flag is called {key!r}" if equals else f"expected KEY=VALUE, got {text!r}"
            raise argparse.ArgumentTypeError(f"{said}; {mend}")
        hint = unwrap(typing.get_type_hints(config_class)[field.name])
        spec = field.metadata["flag"]
        if hint is bool:
            if value not in YES_NO.values():
                raise argparse.ArgumentTypeError(f"{key}: expected yes or no, got {value!r}")
            return field.name, value == YES_NO[True]
        item = typing.get_args(hint)[0] if typing.get_origin(hint) is list else hint
        try:
            read_value = reader(item, spec)(value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{key}: {error}") from None
        return field.name, read_value if item is hint else [read_value]

    return read


def merged(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Settings as a dict: the last of a key counts, but lists add up."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = [*found.get(name, []), *value] if isinstance(value, list) else value
    return found
