"""The scripts, called where they are quick to call."""

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from benchmarks.site import Site
from lib import cli

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads in each other's way are slower than one

Done = subprocess.CompletedProcess[str]

warm = multiprocessing.get_context("forkserver")
warm.set_forkserver_preload(
    [
        "torch._dynamo",  # which an optimiser imports
        "lib.training.train",
        "lib.label_ui.serve",
        "lib.reward.fit",
        "lib.reward.refit",
        "lib.reward.report.plots",  # and Matplotlib
        "torch.utils.tensorboard",
        "lib.tools.audit",
        "lib.tools.lineage",
        "lib.tools.play_games",
        "tests.scripts",  # with pytest
        "tests.training.test_ranks",  # with readers of curves
        "pygame",  # which draws the worlds of Gymnasium
    ]
)


def call(cwd: Path, script: str, *args: object, status: int = 0, seconds: float = 900) -> Done:
    """Runs a script's command line in a fork of a process that has imported PyTorch and the rest already.

    Which takes most of the time of a script that has little to do. Whatever is about starting it, and signals, needs a
    process of its own.

    Args:
      cwd: the working folder.
      script: its name.
      args: of its command line.
      status: that it has to end with.
      seconds: that it may take.
    """
    with tempfile.TemporaryDirectory() as said:
        streams = [Path(said) / name for name in ("stdout", "stderr")]
        process = warm.Process(target=_run, args=(cwd, script, list(map(str, args)), streams))
        process.start()
        process.join(seconds)
        process.kill()  # of use only where it takes longer
        process.join()
        out, err = (path.read_text() if path.exists() else "" for path in streams)
    assert process.exitcode == status, out + err
    return Done([script, *map(str, args)], status, out, err)


def call_anew(cwd: Path, script: str, *args: object, status: int = 0) -> Done:
    """The same in a process of its own, as at a shell."""
    done = subprocess.run(
        command(script, *args), capture_output=True, text=True, timeout=900, cwd=cwd, env=ENVIRONMENT
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def command(script: str, *args: object) -> list[str]:
    return [sys.executable, str(ROOT / script), *map(str, args)]


def _run(cwd: Path, script: str, args: list[str], streams: list[Path]) -> None:
    os.chdir(cwd)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    import torch

    torch.set_num_threads(1)  # threads in each other's way are slower than one
    sys.argv = [str(ROOT / script), *args]
    sys.path.insert(0, str(ROOT))
    runpy.run_path(sys.argv[0], run_name="__main__")


def wait_until(come: Callable[[], bool], pause: float = 0.1) -> None:
    """Waits for something, looking again after so many seconds."""
    deadline = time.monotonic() + 600
    while not come():
        assert time.monotonic() < deadline
        time.sleep(pause)


class Forked:
    """What tests ask of a `subprocess.Popen`, of such a fork.

    Args:
      words: the command line of a script.
      environment: its variables.
      cwd: its working folder.
    """

    def __init__(self, words: list[str], environment: dict[str, str], cwd: Path = ROOT) -> None:
        reader, writer = warm.Pipe(duplex=False)
        self._process = warm.Process(target=_begin, args=(words, environment, cwd, writer))
        self._process.start()
        writer.close()
        self.pid, self.stdout = self._process.pid, os.fdopen(os.dup(reader.fileno()))

    def send_signal(self, how: signal.Signals) -> None:
        assert self.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, how)

    def wait(self, timeout: float = 600) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, None]:
        self.wait(timeout)
        with self.stdout:
            return self.stdout.read(), None


def _begin(words: list[str], environment: dict[str, str], cwd: Path, said: Connection) -> None:
    os.environ.update(environment)
    os.chdir(cwd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number in (1, 2):
        os.dup2(said.fileno(), number)
    sys.argv = words
    sys.path.insert(0, str(ROOT))
    runpy.run_path(words[0], run_name="__main__")


class ForkedSite(Site):
    """The labelling page in such a fork, unless something is to be done in its process first."""

    def launch(self, words: list[str], before: Callable[[], None] | None) -> Any:
        return super().launch(words, before) if before else Forked(words, dict(self.environment))


def refusal(line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a script says to a command line that it refuses: one line, with status 2."""
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as ended:
        cli.run(runpy.run_path(str(ROOT / line[0]))["main"])
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith(f"{line[0]}: error: ")
    assert said.count("\n") == 1
    return said
