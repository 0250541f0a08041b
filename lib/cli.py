"""Command lines made from dataclasses, and errors that fit on one line.

A script describes its flags as a dataclass whose fields are made with :func:`flag`, reads them with :func:`parse`
and is started with :func:`run`. Imports only the standard library, so that ``--help`` is instant.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import importlib.util
import os
import re
import select
import shutil
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

if sys.version_info < (3, 11):  # noqa: UP036  # here, since scripts import this first, and older Pythons can read it
    print(
        f"{Path(sys.argv[0]).name}: error: expected Python 3.11 or later, but {sys.executable} is "
        f"{'.'.join(map(str, sys.version_info[:3]))}; type .venv/bin/python, which make install makes",
        file=sys.stderr,
    )
    sys.exit(2)

from lib.flag_values import YES_NO, Flag, beyond, merged, reader, setting_reader, unwrap

Config = TypeVar("Config")

_METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
_HELP_WIDTH = 100  # columns


class UserError(Exception):
    """An error that the user can fix: one line that says what was expected, what came and what to do.

    A script prints it on stderr as ``NAME: error: LINE`` and exits with status 2; see :func:`run`.
    """


def flag(
    *names: str,
    default: Any = dataclasses.MISSING,
    help: str = "",
    group: str | None = None,
    choices: Sequence[Any] | None = None,
    metavar: str | None = None,
    positional: bool = False,
    nargs: str | int | None = None,
    min: float | None = None,
    max: float | None = None,
    formerly: str | None = None,
    of: type | None = None,
) -> Any:
    """Describes one command-line flag as a field of a configuration dataclass.

    The field ``num_envs: int`` becomes ``--num-envs``; its annotation says how the text is read: int, float, str,
    Path, bool, ``X | None`` or ``list[X]``. A bool is a switch: ``--x`` when it is False by default, ``--x`` and
    ``--no-x`` when it is True or None.

    Args:
      names: More names, such as "-n" or "--dev".
      default: Value when the flag is not given; without one the flag is required. A list is copied.
      help: One sentence for --help, which adds the default.
      group: Heading in --help of this field and those after it, up to the next field with a group.
      choices: The valid values.
      metavar: Name of the value in --help.
      positional: The value is given without a flag's name.
      nargs: How many values a list takes, as in argparse; "+" for flags and "*" for positionals otherwise. Flags add to the list, unless
        it is a number above 1: then the last one counts.
      min: Smallest valid number.
      max: Largest valid number.
      formerly: The field's old name. ``--old-name`` still works, without being listed in --help, and so do the
        configurations of old runs.
      of: A dataclass of flags. The field is then a dict of some of its fields, given as ``--x KEY=VALUE …``.

    Returns:
      A keyword-only dataclasses.field, so required flags may follow optional ones.
    """
    allowed = None if choices is None else tuple(choices)
    spec = Flag(names, help, group, allowed, metavar, positional, nargs, min, max, formerly, of)
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, kw_only=True, metadata={"flag": spec})
    return dataclasses.field(default=default, kw_only=True, metadata={"flag": spec})


def former_names(config_class: type) -> dict[str, str]:
    """Today's field names by their old ones (`formerly` of :func:`flag`)."""
    specs = {field.name: field.metadata["flag"] for field in dataclasses.fields(config_class)}
    return {spec.formerly: name for name, spec in specs.items() if spec.formerly}


def check(config: Any) -> None:
    """Refuses values of a configuration, which a program may have made, that its flags would refuse.

    Raises:
      UserError: the first one's flag, what was expected and what came.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), unwrap(hints[field.name])
        kind = typing.get_args(hint)[0] if isinstance(value, list) else hint
        for one in value if isinstance(value, list) else [value]:
            expected = "" if one is None else beyond(one, kind, field.metadata["flag"])
            if expected:
                raise UserError(f"{as_flag(field.name)}: {expected}; got {one!r}")


def parse(
    config_class: type[Config],
    argv: Sequence[str] | None = None,
    description: str | None = None,
    prog: str | None = None,
) -> Config:
    """Reads a command line into a configuration dataclass.

    Args:
      config_class: A dataclass whose fields are made with :func:`flag`.
      argv: Arguments without the program's name; sys.argv[1:] when None.
      description: First lines of --help.
      prog: The program's name; the script's file name when None.

    Returns:
      An instance of config_class. Its defaults and ``__post_init__`` apply as usual; a UserError raised there is
      reported like any other bad flag.

    Raises:
      SystemExit: With status 2 after one line on stderr when the arguments do not fit; 0 after --help.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    parser = _Parser(prog=prog, description=description, args=args)
    section = None
    hints = {name: unwrap(hint) for name, hint in typing.get_type_hints(config_class).items()}
    actions, required = [], []
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]  # any dataclass
        spec = field.metadata["flag"]
        if section is None or spec.group:
            section = parser.add_argument_group(spec.group or "flags")
        action = _add(section, field, spec, hints[field.name])
        actions.append(action)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(action)
    (section or parser).add_argument("-h", "--help", action="help", help="show this help")
    parser.usage = " ".join(["%(prog)s", *map(_in_usage, required), "[flags]"])

    namespace, unknown = parser.parse_known_intermixed_args(args)
    if unknown:
        parser.error(_unknown(actions, unknown))
    given = {name: value for name, value in vars(namespace).items() if value not in (None, [])}
    missing = [_display(action) for action in required if action.dest not in given]
    if missing:
        parser.error(f"expected {', '.join(missing)}, got none; see --help")
    for name, value in given.items():
        if typing.get_origin(hints[name]) is dict:
            given[name] = merged(value)
    try:
        return config_class(**given)
    except UserError as error:
        parser.error(str(error))


def run(main: Callable[[None], int | None]) -> NoReturn:
    """Calls a script's main function and ends the process with its status.

    A UserError or a package that is not installed becomes one line on stderr and status 2, Ctrl-C one line and 130.
    If the reader of our output is gone (``… | head``), the script ends quietly with 141, as a shell reports SIGPIPE.
    Other exceptions are bugs and keep their traceback.

    Args:
      main: Takes the arguments without the program's name, here None for those of sys.argv; returns a status or None
        for 0.

    Raises:
      SystemExit: Always, unless main failed with an exception that is a bug.
    """
    prog = Path(sys.argv[0]).name
    try:
        try:
            status = main(None) or 0
        finally:
            sys.stdout.flush()
    except UserError as error:
        print(f"{prog}: error: {one_line(str(error))}", file=sys.stderr)
        status = 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "lib":
            raise  # a bug
        status = _say_not_installed(error.name)
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        status = 130
    except BrokenPipeError:
        if not _reader_left():
            raise  # a bug: some other pipe broke
        # The interpreter flushes again at exit; let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


def expect_package(package: str) -> None:
    """Ends a program that has not reached `run` where a package is missing, with the same line."""
    if importlib.util.find_spec(package) is None:
        sys.exit(_say_not_installed(package))


def _say_not_installed(package: str) -> int:
    """Says what to type if a package is missing, usually because this is not the Python of `make install`."""
    root = Path(__file__).parents[1]
    python = root / ".venv" / "bin" / "python"
    script, module = sys.argv[0], sys.modules["__main__"].__spec__
    if module is not None:
        script = f"-m {module.name}"
    if script == "-m":  # the module is not found yet
        script = " ".join(sys.orig_argv[sys.orig_argv.index("-m") :][:2])
    what = f"expected a Python with the packages of requirements.txt, but {sys.executable} has no {package}"
    mend = f"type make install in {root}"
    if python.exists() and Path(sys.prefix) != python.parents[1]:
        mend = f"type {python} {script} …, or activate that environment first"
    print(f"{Path(script.removeprefix('-m ')).name}: error: {what}; {mend}", file=sys.stderr)
    return 2


def _reader_left() -> bool:
    """Whether the reader of our standard output is gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def one_line(text: str) -> str:
    """Makes any text fit for one line of a terminal: line ends become spaces, control characters are escaped."""
    joined = " ".join(text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined).strip()


class _Help(argparse.HelpFormatter):
    """Lists each flag with its value once: ``-n, --name NAME``."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _HELP_WIDTH) - 2
        super().__init__(prog, max_help_position=31, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{action.option_strings[0].removeprefix('--')}"
        if not names or action.nargs == 0:
            return names or super()._format_action_invocation(action)
        return f"{names} {action.metavar}{' ...' * (action.nargs == '+')}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one line each."""

    def __init__(self, *, args: list[str], **options: Any) -> None:
        super().__init__(
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
            formatter_class=_Help,
            **options,
        )
        self._args = args

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ", "", message)
        match = re.fullmatch(r"(\S+): expected (?:one|at least one|\d+) arguments?", message)
        if match:
            message = self._no_value(match[1])
        match = re.fullmatch(r"(\S+): ignored explicit argument (.*)", message)
        if match:
            message = f"{match[1]}: expected no value, got {match[2]}; give the flag alone"
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")

    def _no_value(self, display: str) -> str:
        """The message for a flag without its value."""
        names = display.split("/")
        for at, arg in enumerate(self._args[:-1]):
            if arg in names and self._args[at + 1].startswith("-"):
                mend = f"if that is the value, write {names[-1]}={self._args[at + 1]}"
                return f"{display}: expected a value, got {self._args[at + 1]!r}; {mend}"
        return f"{display}: expected a value, got none; write {names[-1]} VALUE"


def _add(
    section: argparse._ArgumentGroup, field: dataclasses.Field[Any], spec: Flag, hint: Any
) -> argparse.Action:
    """Adds a field's flag, and its old name, to a section of the help."""
    item = typing.get_args(hint)[0] if typing.get_origin(hint) is list else hint
    default = field.default_factory() if callable(field.default_factory) else field.default
    text = _percent(spec.help + _default_note(default))
    options: dict[str, Any] = {"dest": field.name, "help": text}
    if spec.of is not None:
        options |= {
            "type": setting_reader(as_flag(field.name), spec.of),
            "metavar": "KEY=VALUE",
            "nargs": "+",
            "action": "extend",
        }
    elif item is bool:
        own = field.metadata.get("default", default)
        options["action"] = "store_true" if own is False else argparse.BooleanOptionalAction
    else:
        listed = "{" + ",".join(map(str, spec.choices)) + "}" if spec.choices else _METAVARS[item]
        options |= {"type": reader(item, spec), "metavar": spec.metavar or listed}
        if spec.positional:
            # A missing one is reported later, so that a mistyped flag is named first.
            options["nargs"] = spec.nargs or ("?" if item is hint else "*")
            return section.add_argument(options.pop("dest"), **options)
        if item is not hint:
            options |= {"nargs": spec.nargs or "+", "action": "store" if _at_once(spec) else "extend"}
    if spec.formerly:
        section.add_argument(as_flag(spec.formerly), **options | {"help": argparse.SUPPRESS})
    return section.add_argument(*spec.names, as_flag(field.name), **options)


def words(config: Any) -> list[str]:
    """The shortest command line that `parse` reads as this configuration."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    given = {name: getattr(config, name) for name in fields}
    for name in fields:
        rest = {key: value for key, value in given.items() if key != name}
        with contextlib.suppress(UserError, TypeError):  # TypeError: it is required
            if type(config)(**rest) == config:
                given = rest
    specs = {name: field.metadata["flag"] for name, field in fields.items()}
    # Positionals first: a flag with several values would take them.
    found = [str(part) for name in given if specs[name].positional for part in _parts(given[name])]
    for name, value in given.items():
        flag_name = specs[name].names[0] if specs[name].names else as_flag(name)
        if isinstance(value, bool):
            found.append(flag_name if value else f"--no-{as_flag(name)[2:]}")
        elif isinstance(value, dict):
            found += [flag_name, *_parts(value)]
        elif _at_once(specs[name]):
            found += [flag_name, *map(str, value)]
        elif not specs[name].positional:
            for text in map(str, _parts(value)):
                # argparse would take a negative number for a flag.
                found += [f"{as_flag(name)}={text}"] if text.startswith("-") else [flag_name, text]
    return found


def _at_once(spec: Flag) -> bool:
    """Whether a list takes so many values and no others, all after one flag."""
    return isinstance(spec.nargs, int) and spec.nargs > 1


def _parts(value: Any) -> list[Any]:
    """The words that a command line has for a Python value."""
    if isinstance(value, dict):
        pairs = [(key, part) for key, item in value.items() for part in _parts(item)]
        return [f"{key}={YES_NO[part] if isinstance(part, bool) else part}" for key, part in pairs]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def as_flag(name: str) -> str:
    """The flag of a field: ``--num-envs`` of num_envs."""
    return "--" + name.replace("_", "-")


def shown_default(default: Any) -> str:
    """The default as --help and the page of flags show it; nothing for None, off and empty ones."""
    if default is dataclasses.MISSING:
        return "required"
    if default is None or default is False or default in ("", [], (), {}):
        return ""
    return "on" if default is True else shown(default)


def _default_note(default: Any) -> str:
    """The end of a flag's help."""
    said = shown_default(default)
    if default is dataclasses.MISSING:
        return f" ({said})"
    return f" (default: {said})" if said else ""


def shown(value: Any) -> str:
    """A default as one would write it: 12M, 0.0007, algo=ppo kl=1.0."""
    if isinstance(value, (list, tuple, dict)):
        return " ".join(map(shown, _parts(value)))
    if isinstance(value, float):
        return f"{value:g}"
    for size, suffix in ((10**6, "M"), (10**3, "k")):
        if isinstance(value, int) and value >= 10**4 and value % size == 0:
            return f"{value // size}{suffix}"
    return str(value)


def _percent(text: str) -> str:
    """argparse formats help with the % operator, but our texts are literal."""
    return text.replace("%", "%%").strip()


def _in_usage(action: argparse.Action) -> str:
    """A required argument in the first line of --help."""
    if action.option_strings:
        return f"{action.option_strings[0]} {action.metavar}"
    return f"{action.metavar}{' ...' * (action.nargs == '*')}"


def _display(action: argparse.Action) -> str:
    """An argument's name in a message: its flags, or a positional's metavar."""
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def _unknown(actions: list[argparse.Action], unknown: list[str]) -> str:
    """The message for unknown arguments, with the nearest flag."""
    flags = [arg for arg in unknown if arg.startswith("-") and arg != "--"]
    if not flags:
        return f"expected a flag, got {unknown[0]!r}; see --help"
    name = flags[0].split("=")[0]
    known = ["--help", *(option for action in actions for option in action.option_strings)]
    starts = [option for option in known if name.startswith("--") and option.startswith(name)]
    near = starts or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    mend = f"did you mean {near[0]}?" if near else "see --help for the flags there are"
    return f"unknown flag {name!r}; {mend}"
