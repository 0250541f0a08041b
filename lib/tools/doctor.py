"""Checks this machine for what the stages need and says what to do: ``python -m lib.tools.doctor`` or ``make doctor``.

Only the standard library is imported at once, in a form that older Pythons read too, so that it still speaks where an
installation is missing or half done.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_PYTHON = (3, 11)
LEAST_FREE = 2.0
"""GB: a DB of 10,000 segments takes 0.3, a run's curves and checkpoints some 0.1."""
PORT = 8080
"""Of the labelling page, by default."""
GET_CHROMIUM = "on Debian: apt install chromium-headless-shell, or chromium"

_EXTRAS = {
    "requirements-mujoco.txt": "for MuJoCo's environments: pip install -r requirements-mujoco.txt",
    "requirements-text.txt": "for answers of language models: make install-text",
}
_INSTALL = "run make install, and start things with .venv/bin/python"
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s#;]+)")
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first draws no window; the page's tests take a quarter less CPU time with it."""
_GAME = "SeaquestNoFrameskip-v4"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    found: str
    advice: str = ""
    """What to do; empty if there is nothing to do."""
    needed: bool = True
    """Whether the advice has to be followed for the stages to work."""

    def __str__(self) -> str:
        mark = "ok" if not self.advice else "TO DO" if self.needed else "note"
        return f"{mark:<6}{self.what:<13}{self.found}" + (f"; {self.advice}" if self.advice else "")


def python() -> Iterator[Finding]:
    """The interpreter."""
    least = ".".join(map(str, LEAST_PYTHON))
    advice = (
        f"install Python {least} or later, then make install PYTHON=python{least}"
        if sys.version_info < LEAST_PYTHON
        else ""
    )
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}", advice)


def packages(root: Path = ROOT) -> Iterator[Finding]:
    """Compares installed versions with those that the requirements files pin, one line for each file."""
    for path in sorted(root.glob("requirements*.txt")):
        pins = _PIN.findall(re.sub(r"#.*", "", path.read_text("utf-8")))
        wrong = []
        for name, wanted in pins:
            try:
                found = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                wrong.append(f"{name} is missing")
                continue
            # A build for CUDA or the CPU adds its name: 2.13.0+cpu is 2.13.0.
            if found.partition("+")[0] != wanted.partition("+")[0]:
                wrong.append(f"{name} is {found}, not {wanted}")
        said = ", ".join(wrong) or f"all {len(pins)} as pinned"
        mend = _EXTRAS.get(path.name, _INSTALL)
        yield Finding(
            "packages", f"{path.name}: {said}", mend if wrong else "", needed=path.name not in _EXTRAS
        )


def game() -> Iterator[Finding]:
    """The emulator and its ROMs: a step of Seaquest."""
    try:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        env = gymnasium.make(_GAME)
        env.reset(seed=0)
        observation = env.step(0)[0]
        env.close()
    except Exception as error:  # a package that is missing, broken or of another version fails in any way
        advice = "run make install: the ROMs come with ale-py"
        yield Finding("Seaquest", f"does not play ({_reason(error)})", advice)
    else:
        yield Finding(
            "Seaquest", f"made a step, frames of {observation.shape[1]}×{observation.shape[0]} pixels"
        )


def devices() -> Iterator[Finding]:
    """CUDA and bf16: how fast it will be, never whether it works."""
    try:
        import torch
    except Exception as error:
        yield Finding("PyTorch", f"cannot be loaded ({_reason(error)})", "run make install")
        return
    from lib.devices import has_fast_bf16

    try:
        cuda = torch.cuda.is_available()
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
        if names:
            yield Finding("CUDA", ", ".join(names) + f" (torch {torch.__version__})")
        else:
            advice = ""
            if shutil.which("nvidia-smi") is not None:
                build = (
                    "install a CUDA build of torch"
                    if torch.version.cuda is None
                    else "see nvidia-smi for the driver"
                )
                advice = f"there seems to be a GPU: {build}"
            yield Finding("CUDA", f"none for torch {torch.__version__}, use --dev cpu", advice, needed=False)
        for name in ("cpu", *(["cuda"] if names else [])):
            fast = has_fast_bf16(torch.device(name))
            yield Finding(
                "bf16", f"{name}: " + ("fast, used by default" if fast else "not native, float32 is used")
            )
    except Exception as error:  # a driver that is broken
        yield Finding(
            "CUDA", f"cannot be queried ({_reason(error)})", "see nvidia-smi for the driver", needed=False
        )


def page(port: int = PORT) -> Iterator[Finding]:
    """The needs of the labelling page and its tests."""
    try:
        import nicegui
    except Exception as error:
        yield Finding("NiceGUI", f"cannot be loaded ({_reason(error)})", "run make install")
    else:
        yield Finding("NiceGUI", str(nicegui.__version__))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            found = (
                "taken, perhaps by a labelling page" if taken else f"cannot be listened on ({error.strerror})"
            )
            yield Finding("port", f"{port} {found}", f"stop it, or take another: --port {port + 1}")
        else:
            yield Finding("port", f"{port} is free")
    browser = chromium()
    advice = f"the page's tests are skipped without it; {GET_CHROMIUM}"
    yield Finding("Chromium", browser or "not found", "" if browser else advice, needed=False)


def chromium() -> str | None:
    """Path of the browser that the page's tests drive, or None if there is none."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def disk(here: Path | None = None) -> Iterator[Finding]:
    """Free space and write permission, in the current folder and where runs go."""
    here = here or Path.cwd()
    for folder in (here, here / "runs"):
        place = folder if folder.exists() else here
        name = f"{folder}" if folder.exists() else f"{folder} (to be made)"
        try:
            with tempfile.TemporaryFile(dir=place):
                pass
            free = shutil.disk_usage(place).free / 1e9
        except OSError as error:
            yield Finding(
                "disk", f"{name} cannot be written to ({error.strerror})", "work in a folder of your own"
            )
            continue
        advice = f"make room: {LEAST_FREE:g} GB are soon used" if free < LEAST_FREE else ""
        yield Finding("disk", f"{name}: {free:.1f} GB free", advice)


def cores() -> Iterator[Finding]:
    """Cores that this process may use: emulators and, without a GPU, networks share them."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = "the emulator and everything else take turns on it; two or more are better" if count < 2 else ""
    yield Finding("cores", str(count), advice, needed=False)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (python, packages, game, devices, page, disk, cores)


def main(checks: tuple[Callable[[], Iterator[Finding]], ...] = CHECKS) -> int:
    """Prints a line for each finding as it comes.

    Returns:
      0 when all is well, 1 when something needs doing.
    """
    to_do = 0
    for check in checks:
        for finding in check():
            print(finding, flush=True)
            to_do += bool(finding.advice) and finding.needed
    print("All is well." if not to_do else f"{to_do} {'thing needs' if to_do == 1 else 'things need'} doing.")
    return 1 if to_do else 0


def _reason(error: Exception) -> str:
    """An error of any library, on one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `… | head` ends it without a traceback
    sys.exit(main())
