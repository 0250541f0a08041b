"""Stages of an experiment: commands that run once each, in order, and go on where an earlier run of them stopped."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lib.checkpoints import load_checkpoint
from lib.cli import UserError, flag
from lib.interrupt import Interrupt, ending_with_parent
from lib.reporting import format_duration
from lib.runs import STATE, write_config

ROOT = Path(__file__).parents[1]

TIME_IS_UP = 75
"""Exit status of an experiment that --max-minutes ended: EX_TEMPFAIL of sysexits.h, try again."""

_GRACE = 60.0  # seconds in which a stage may save what it has


class TimeUp(Exception):
    """The time that an experiment was given is over; what it lacks is left to the next run."""


class Resumable(NamedTuple):
    """A command that `--resume RUN` goes on with."""

    door: Sequence[object]  # the command without what --resume knows by itself
    runs: Path  # where it makes the folder of its run, and no other does


class Stages:
    """Runs each stage of an experiment unless it has ended before, and stops in time.

    `<out>/stages.jsonl` has a line for every attempt, with its seconds: that is how a later run knows what is done, and
    what the experiment took in all.
    """

    def __init__(self, out: Path, max_minutes: float | None = None) -> None:
        """Reads what was done before.

        Args:
          out: folder of the experiment; it exists.
          max_minutes: time for this run; None: as long as it takes.
        """
        self._log = out / "stages.jsonl"
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._attempts: list[dict[str, Any]] = read_lines(self._log)

    @property
    def seconds(self) -> float:
        """What all attempts took together, in this run and earlier ones."""
        return sum(attempt["seconds"] for attempt in self._attempts)

    def seconds_of(self, start: str) -> float:
        """What all attempts took at the stages whose names begin so."""
        return sum(attempt["seconds"] for attempt in self._attempts if attempt["stage"].startswith(start))

    def done(self, name: str) -> bool:
        """Whether a stage has come to its end."""
        return any(attempt["stage"] == name and attempt["how"] == "done" for attempt in self._attempts)

    def run(
        self,
        name: str,
        title: str,
        command: Sequence[object],
        makes: Sequence[Path] = (),
        again: Resumable | None = None,
    ) -> None:
        """Runs a stage to its end, or not at all where it is done.

        Args:
          name: of the stage, no other has it.
          title: what it does, for the screen.
          command: a script or `-m` and a module, and their arguments, to be run by this Python.
          makes: files and folders that only this stage makes. What an attempt left there that did not come to its end
            is removed first, unless it can be gone on from.
          again: how a command that was stopped goes on, where it can.

        Raises:
          TimeUp: the time is over; the stage was asked to stop as by Ctrl-C, or not begun.
          UserError: it failed; its own message is on the screen.
          KeyboardInterrupt: this process was asked to stop, and the stage has.
        """
        if self.done(name):
            print(f"== {title}: done before", flush=True)
            return
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise TimeUp
        run = None if again is None else self._unfinished(name, again.runs)
        if again is not None and run is not None:
            if _trained(run):
                self._note(name, "done", 0.0, ["(it was over when it was asked to stop)"])
                print(f"== {title}: done before", flush=True)
                return
            command, makes = [*again.door, "--resume", run], []
        words = [str(word) for word in command]
        print(f"\n== {title}\n$ python {shlex.join(words)}", flush=True)
        for path in makes:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        began = time.monotonic()
        how, status = "stopped", None
        try:
            how, status = self._wait(words)
        finally:
            took = time.monotonic() - began
            self._note(name, how, took, words)
        if how == "time up":
            raise TimeUp
        if how == "stopped":
            raise KeyboardInterrupt
        if how == "failed":
            raise UserError(f"{shlex.join(words[:3])} …: ended with status {status}")
        print(f"({format_duration(took)})", flush=True)

    def _note(self, name: str, how: str, seconds: float, words: list[str]) -> None:
        attempt = {"stage": name, "how": how, "seconds": round(seconds, 1), "command": words}
        self._attempts.append(attempt)
        with self._log.open("a") as file:
            file.write(json.dumps(attempt) + "\n")

    def _unfinished(self, name: str, runs: Path) -> Path | None:
        """The folder of a stage's run that has a state to go on from, unless going on has failed before."""
        if any(
            attempt["stage"] == name and attempt["how"] == "failed" and "--resume" in attempt["command"]
            for attempt in self._attempts
        ):
            return None
        return max((state.parent for state in runs.glob(f"*/{STATE}")), default=None)

    def finish(self, work: Callable[[], None]) -> bool:
        """Whether some work of stages came to its end; where the time was up before, says how to go on."""
        try:
            work()
        except TimeUp:
            print("\ntime is up; the same command goes on from here", flush=True)
            return False
        return True

    def _wait(self, words: list[str]) -> tuple[str, int]:
        """Waits for a command, or ends it: how that came out, and its exit status."""
        script = words if words[0] == "-m" else [str(ROOT / words[0]), *words[1:]]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        how = None
        with Interrupt() as interrupt:
            # In a group of its own, so that Ctrl-C comes to it once, from here: a second one would cost its work.
            process = subprocess.Popen(
                [sys.executable, *script], env=environment, process_group=0, preexec_fn=ending_with_parent()
            )
            kill_at = float("inf")
            try:
                while True:
                    try:
                        status = process.wait(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        pass
                    now = time.monotonic()
                    if how is None and (
                        interrupt.asked or (self._deadline is not None and now >= self._deadline)
                    ):
                        how = "stopped" if interrupt.asked else "time up"
                        process.send_signal(signal.SIGINT)
                        kill_at = now + _GRACE
                    if now >= kill_at:
                        process.kill()
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return how or ("failed" if status else "done"), status


def _trained(run: Path) -> bool:
    """Whether a training has made and evaluated all its steps; --resume would find nothing to do and say so."""
    config = json.loads((run / "config.json").read_text())["config"]
    return "steps" in config and load_checkpoint(run / STATE, "trainer").get("examined", 0) >= config["steps"]


def max_minutes() -> Any:
    """The flag --max-minutes of an experiment; see `Stages`."""
    return flag(
        default=None, min=0, help=f"stop after so long, with status {TIME_IS_UP}; the same command goes on"
    )


def by_preset(presets: Mapping[str, Mapping[str, Any]], help: str, name: str) -> str:
    """A flag's help with what it is under each preset; the first one is the default."""
    first, *others = presets
    values = [f"{presets[first][name]}", *(f"with {preset} {presets[preset][name]}" for preset in others)]
    return f"{help} (default: {', '.join(values)})"


def fill_in(config: Any, presets: Mapping[str, Mapping[str, Any]]) -> None:
    """Gives the fields of a frozen configuration that are None what its `preset` has for them."""
    for name, value in presets[config.preset].items():
        if getattr(config, name) is None:
            object.__setattr__(config, name, value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def settle(config: Any, out: Path, free: Sequence[str]) -> None:
    """Makes the folder of an experiment, or sees to it that it is this very experiment that goes on there.

    Args:
      config: its configuration, a dataclass; kept in `<out>/config.json`.
      out: the folder.
      free: fields that may change from run to run.

    Raises:
      UserError: the folder holds an experiment of another configuration or something else, or cannot be written to.
    """
    kept = out / "config.json"
    fields = {key: value for key, value in dataclasses.asdict(config).items() if key not in free}
    if kept.exists():
        before = json.loads(kept.read_text())["config"]
        now = json.loads(json.dumps(fields, default=str))
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise UserError(
                    f"--{name.replace('_', '-')}: the experiment in {out} has {before.get(name)!r}, got "
                    f"{now.get(name)!r}; repeat its flags, or name another --out"
                )
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        if found := next(out.iterdir(), None):  # stages make room for what they make
            raise UserError(
                f"--out {out}: expected a new folder or that of this experiment, it holds {found.name}; name another --out"
            )
    except OSError as error:
        raise UserError(f"--out {out}: expected a folder to write to: {error.strerror}") from error
    write_config(out, fields)
