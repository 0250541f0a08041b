"""The scripts, called where they are quick to call."""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lib import cli

ROOT = Path(__file__).parents[1]

Done = subprocess.CompletedProcess[str]

warm = multiprocessing.get_context("forkserver")
warm.set_forkserver_preload(
    [
        "torch._dynamo",  # which an optimiser imports
        "lib.training.train",
        "lib.label_ui.serve",
        "lib.reward.fit",
        "lib.reward.refit",
        "lib.reward.report",
        "lib.tools.audit",
        "lib.tools.lineage",
        "lib.tools.play_games",
    ]
)


def call(cwd: Path, script: str, *args: object, status: int = 0, seconds: float = 120) -> Done:
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


def _run(cwd: Path, script: str, args: list[str], streams: list[Path]) -> None:
    os.chdir(cwd)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    import torch

    torch.set_num_threads(1)  # threads in each other's way are slower than one
    sys.argv = [str(ROOT / script), *args]
    sys.path.insert(0, str(ROOT))
    runpy.run_path(sys.argv[0], run_name="__main__")


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
