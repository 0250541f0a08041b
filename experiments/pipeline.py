"""Pipelines: stages that run once each, in order, and continue where an earlier run stopped.

A stage is a call of what a script calls, in this process. Its command is printed: the same stage, typed by hand.
"""

import contextlib
import dataclasses
import gc
import json
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lib.runs
import online
from experiments.measure_config import MeasureConfig
from lib import cli
from lib.agent.config import TrainConfig
from lib.agent.play_config import PlayConfig
from lib.cli import UserError, flag
from lib.files import write_atomic
from lib.flag_values import Flag
from lib.label_ui.config import LabelConfig
from lib.preferences.labels import LabelLog, usable
from lib.reward.config import FitConfig
from lib.runs import locked

if TYPE_CHECKING:
    from lib.training.parts import Trained

TIME_IS_UP = 75
"""Exit status after --max-minutes: EX_TEMPFAIL of sysexits.h, try again."""

_GRACE = 60.0
"""Seconds that a stage has to save what it has."""


class TimeUp(SystemExit):
    """--max-minutes are over; the next run does the rest. The status is `TIME_IS_UP`."""

    def __init__(self) -> None:
        super().__init__(TIME_IS_UP)


class Pipeline:
    """Runs each stage unless it has finished before, and stops in time.

    `<out>/stages.jsonl` gets a line for every attempt: its stage, how it ended ("done", "stopped", "time up",
    "failed"), its seconds and its command. A later run reads there what is done.
    """

    def __init__(self, out: Path, max_minutes: float | None = None) -> None:
        """Reads what was done before.

        Args:
          out: folder of the experiment; it exists.
          max_minutes: time for this run; None: no limit.
        """
        self._log = out / "stages.jsonl"
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._time_up = False
        self._attempts: list[dict[str, Any]] = read_lines(self._log)

    @property
    def seconds(self) -> float:
        """Time of all attempts, in this run and earlier ones."""
        return self.seconds_of("")

    def seconds_of(self, start: str) -> float:
        """Time of all attempts at stages whose names start so."""
        return sum(attempt["seconds"] for attempt in self._attempts if attempt["stage"].startswith(start))

    def done(self, name: str) -> bool:
        """Whether a stage has finished."""
        return any(attempt["stage"] == name and attempt["how"] == "done" for attempt in self._attempts)

    def train(
        self,
        name: str,
        title: str,
        config: TrainConfig,
        script: str = "01_a2c.py",
        by: "Callable[[TrainConfig], Trained] | None" = None,
    ) -> Path:
        """Trains a policy.

        Args:
          name: of the stage.
          title: what it does, for the screen.
          config: with `save`, and folders that no other stage has.
          script: the command that does the same.
          by: what to call in place of `lib.training.train.train`.

        Returns:
          The policy where its training ended.
        """
        assert config.save is not None

        def work(resume: Path | None) -> bool:
            from lib.training.train import train

            return (by or train)(dataclasses.replace(config, resume=resume)).stopped

        makes = [path for path in (config.save, config.db_path, config.runs) if path is not None]
        self.run(name, title, script, config, work, makes, config.runs)
        return config.save / "latest.dat"

    def label(
        self,
        name: str,
        title: str,
        db: Path,
        teacher: str,
        labels: int,
        error_rate: float,
        seed: int,
        **more: Any,
    ) -> None:
        """A simulated teacher compares pairs of clips until a DB has so many labels.

        Args:
          name: of the stage.
          title: what it does, for the screen.
          db: segments.
          teacher: see 02_label_ui.py --teacher.
          labels: in all, those from before included.
          error_rate: how often the teacher prefers the wrong segment.
          seed: of the pairs and the errors.
          **more: further flags of 02_label_ui.py.
        """
        log = LabelLog(db / "labels.json")
        missing = labels - usable(log.read())
        if missing <= 0 and not self.done(name):
            return
        config = LabelConfig(
            db_path=db, teacher=teacher, count=max(1, missing), error_rate=error_rate, seed=seed, **more
        )

        def work(_: Path | None) -> None:
            from lib.label_ui.simulated import give_labels

            give_labels(config)
            if (found := usable(log.read())) < labels:
                print(f"expected {labels} labels in {db}, found {found}; the experiment goes on with these")

        self.run(name, title, "02_label_ui.py", config, work)

    def fit(self, name: str, title: str, config: FitConfig) -> Path:
        """Fits a reward model and writes its report, or fits a policy, with `--policy`.

        Args:
          name: of the stage.
          title: what it does, for the screen.
          config: with a folder for the curves that no other stage has.

        Returns:
          The reward model, or the policy.
        """
        path = config.reward_path if config.policy is None else config.out / f"{config.name}.dat"

        def work(resume: Path | None) -> bool:
            from lib.tools.fit_labels import fit_labels

            return fit_labels(dataclasses.replace(config, resume=resume)).stopped

        self.run(name, title, "03_reward_train.py", config, work, [path, config.runs], config.runs)
        return path

    def play(self, name: str, title: str, config: PlayConfig) -> None:
        """Records games of a policy."""
        assert config.record is not None

        def work(_: Path | None) -> None:
            from lib.tools.play_games import play_games

            play_games(config)

        self.run(name, title, "04_play.py", config, work, [config.record])

    def measure(self, name: str, title: str, config: MeasureConfig) -> None:
        """Measures a policy; see `experiments.measures`."""

        def work(_: Path | None) -> None:
            from experiments.measures import measure

            measure(config)

        self.run(name, title, "-m experiments.measures", config, work, [config.out])

    def online(
        self, name: str, title: str, config: online.OnlineConfig, trainer: Sequence[str] = online.TRAINER
    ) -> None:
        """Trains while labels come and the reward model is refitted: three processes at once; see `online.commands`."""

        def work(_: Path | None) -> bool:
            status = online.learn(config, trainer)
            if status not in (None, online.STOPPED):
                raise UserError(f"{title}: ended with status {status}")
            return status is not None

        self.run(name, title, "online.py", config, work)

    def run(
        self,
        name: str,
        title: str,
        script: str,
        config: Any,
        work: Callable[[Path | None], bool | None],
        makes: Sequence[Path] = (),
        runs: Path | None = None,
    ) -> None:
        """Runs a stage to its end, unless it is done.

        Args:
          name: of the stage; no other has it.
          title: what it does, for the screen.
          script: a script, or `-m` and a module, that does the same with the flags of `config`.
          config: the stage's configuration.
          work: does it, given the run to resume or None; returns True where it was stopped before its end.
          makes: files and folders that only this stage makes. What an unfinished attempt left there is removed
            first, unless it can be resumed.
          runs: folder where the stage makes the folder of its run, if it is one that can be resumed.

        Raises:
          TimeUp: the time is over; the stage was stopped as by Ctrl-C, or not started.
          UserError: the stage failed, or another process runs one.
          KeyboardInterrupt: the stage was stopped.
        """
        if self.done(name):
            print(f"== {title}: done before", flush=True)
            return
        if self._deadline is not None and time.monotonic() >= self._deadline:
            print("\ntime is up; the same command continues from here", flush=True)
            raise TimeUp
        with locked(self._log.parent, "--out"):  # two would remove what the other makes
            command = [*script.split(), *cli.words(config)]
            run = None if runs is None else online.last_run(runs)
            if run is not None and online.trained(run, config.steps):
                self._note(name, "done", 0.0, ["(finished when it was stopped)"])
                print(f"== {title}: done before", flush=True)
                return
            if run is not None:
                command = [*script.split(), "--dev", config.dev, "--resume", str(run)]
            else:
                for path in makes:
                    _remove(path)
            try:
                self._attempt(name, title, command, lambda: work(run))
            except UserError:
                if run is not None:
                    print(
                        f"what was made so far is in {run}; without that folder the stage begins anew",
                        flush=True,
                    )
                raise

    def _attempt(self, name: str, title: str, command: list[str], work: Callable[[], bool | None]) -> None:
        """Works at a stage, and notes how that ended; raises as `run`."""
        print(f"\n== {title}\n$ python {shlex.join(command)}", flush=True)
        began, how = time.monotonic(), "failed"
        try:
            with self._alarm(), _clean():
                how = "stopped" if work() else "done"
        except KeyboardInterrupt:
            how = "stopped"
        finally:
            if how == "stopped" and self._time_up:
                how = "time up"
            took = time.monotonic() - began
            self._note(name, how, took, command)
        if how != "done":
            print(
                f"\n{'time is up' if self._time_up else 'stopped'}; the same command continues from here",
                flush=True,
            )
            raise TimeUp if self._time_up else KeyboardInterrupt
        from lib.reporting import format_duration

        print(f"({format_duration(took)})", flush=True)

    @contextlib.contextmanager
    def _alarm(self) -> Iterator[None]:
        """Stops what runs inside at the deadline, as Ctrl-C does; a second time where it takes too long to save."""
        if self._deadline is None:
            yield
            return

        def ring(*_: object) -> None:
            self._time_up = True
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background shell
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGINT)

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self._deadline - time.monotonic()), _GRACE)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _note(self, name: str, how: str, seconds: float, command: list[str]) -> None:
        attempt = {"stage": name, "how": how, "seconds": round(seconds, 1), "command": command}
        self._attempts.append(attempt)
        write_lines(self._log, self._attempts)


@contextlib.contextmanager
def _clean() -> Iterator[None]:
    """Leaves the next stage as many threads and as much memory as a process of its own would have."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()  # runs hold themselves in cycles


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def max_minutes() -> Any:
    """The flag --max-minutes of an experiment; see `Pipeline`."""
    return flag(
        default=None,
        min=0,
        help=f"stop after so many minutes, with status {TIME_IS_UP}; the same command continues",
    )


def by_preset(presets: Mapping[str, Mapping[str, Any]], help: str, name: str) -> str:
    """A flag's help with its default under each preset; the first preset is the default one."""
    first, *others = presets
    values = [cli.shown(presets[first][name])]
    values += [f"with {preset} {cli.shown(presets[preset][name])}" for preset in others]
    return f"{help} (default: {', '.join(values)})"


def fill_in(config: Any, presets: Mapping[str, Mapping[str, Any]]) -> None:
    """Completes a frozen configuration by its `preset`: fields that are None, or without any KEY=VALUE."""
    for name, value in presets[config.preset].items():
        if getattr(config, name) in (None, {}):
            object.__setattr__(config, name, value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes objects as JSON lines; a reader sees all of them or the file before."""
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def settle(config: Any, *free: str) -> None:
    """Makes the folder of an experiment, or checks that it is that of this very experiment.

    Until a stage has been done, stopped or saved its state, the same folder takes another configuration.

    Args:
      config: its configuration, a dataclass with the folder as `out`; see `lib.runs.settle`.
      free: fields that may change from run to run.

    Raises:
      UserError: there is no such teacher, KEY=VALUE names a flag that the experiment sets, the folder holds an experiment of
        another configuration or something else, or cannot be written to.
    """
    for field in dataclasses.fields(config):
        given = getattr(config, field.name)
        if field.metadata.get("flag", Flag()).of is not None:
            online.refuse_tied(field.name, given)
        elif field.name == "teacher":  # a mistyped one would be found when the first policy has learned
            LabelConfig(db_path=config.out, teacher=given, watch=True)
    tried = any(attempt["how"] != "failed" for attempt in read_lines(config.out / "stages.jsonl"))
    lib.runs.settle(config, *free, begun=tried or any(config.out.rglob(lib.runs.STATE)))
