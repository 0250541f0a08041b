"""make install: which Pythons it takes, and that an environment whose Python is gone is filled again.

The interpreter is a script; nothing is installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import ROOT

_PYTHON = """#!/bin/sh
# Python {version}, whose venv module makes environments with a pip that installs nothing.
case "$1" in
-m) mkdir -p .venv/bin && printf '#!/bin/sh\\n' > .venv/bin/python && chmod +x .venv/bin/python ;;
--version) echo "Python {version}" ;;
*) exec {real} -I -c 'import sys; sys.version_info = ({numbers}); exec(sys.argv[2])' "$@" ;;
esac
"""


def make_install(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """`make install`, in a folder that has only what the target reads, with the interpreter of that version."""
    shutil.copy(ROOT / "Makefile", folder)
    for path in ROOT.glob("requirements*.txt"):
        (folder / path.name).touch()
    python = folder / "python3"
    text = _PYTHON.format(version=version, numbers=version.replace(".", ", "), real=sys.executable)
    python.write_text(text)
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "install", f"PYTHON={python}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["3.11.0", "3.13.5", "3.14.10"])
def test_it_installs_once(version: str, tmp_path: Path) -> None:
    done = make_install(tmp_path, version)
    assert done.returncode == 0, done.stderr
    assert ".venv/bin/python -m pip install" in done.stdout
    assert subprocess.run(["make", "--question", "install"], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("version", ["3.10.12", "3.15.2"])
def test_a_python_without_the_pinned_pytorch_is_refused(version: str, tmp_path: Path) -> None:
    done = make_install(tmp_path, version)
    assert done.returncode == 2
    said = done.stderr.splitlines()[0]
    assert said.startswith("make install: expected Python 3.11 to 3.14")
    assert f"got Python {version}; install one of them and set PYTHON=" in said
    assert not (tmp_path / ".venv").exists()


def test_an_environment_whose_python_was_replaced_is_filled_again(tmp_path: Path) -> None:
    """As Debian's is by an upgrade: .venv/bin/python is there, and has no packages and no pip."""
    make_install(tmp_path, "3.11.0")
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    done = make_install(tmp_path, "3.13.5")
    assert done.returncode == 0, done.stderr
    assert ".venv/bin/python -m pip install" in done.stdout


def test_and_so_is_one_whose_python_is_gone(tmp_path: Path) -> None:
    make_install(tmp_path, "3.11.0")
    python = tmp_path / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    done = make_install(tmp_path, "3.13.5")
    assert done.returncode == 0, done.stderr
    assert ".venv/bin/python -m pip install" in done.stdout
