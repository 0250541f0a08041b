"""The scripts, called where they are quick to call: in this process."""

import runpy
import sys
from pathlib import Path

import pytest

from lib import cli

ROOT = Path(__file__).parents[1]


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
