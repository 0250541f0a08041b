"""make doctor: what it finds, what it says to do, and that it speaks where nearly everything is missing."""

import importlib.metadata
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from lib.tools import doctor
from lib.tools.doctor import Finding

ROOT = Path(__file__).parents[2]


def to_do(findings: Iterator[Finding]) -> list[str]:
    return [str(finding) for finding in findings if finding.advice and finding.needed]


def test_a_line_says_what_was_found_and_what_to_do() -> None:
    assert str(Finding("disk", "1 GB free")) == "ok    disk         1 GB free"
    assert str(Finding("disk", "full", "make room")) == "TO DO disk         full; make room"
    assert str(Finding("CUDA", "none", "buy one", needed=False)) == "note  CUDA         none; buy one"


@pytest.mark.parametrize(
    ("findings", "status", "last"),
    [
        ([Finding("a", "b")], 0, "All is well."),
        ([Finding("a", "b", "c", needed=False)], 0, "All is well."),
        ([Finding("a", "b", "c"), Finding("a", "b")], 1, "1 thing needs doing."),
        ([Finding("a", "b", "c")] * 2, 1, "2 things need doing."),
    ],
)
def test_the_status_says_whether_anything_needs_doing(
    findings: list[Finding], status: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.main((lambda: iter(findings),)) == status
    assert capsys.readouterr().out.splitlines() == [*map(str, findings), last]


def test_versions_are_held_against_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.13.0+cu130", "numpy": "1.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    (tmp_path / "requirements.txt").write_text("torch==2.13.0  # numpy==9 in a comment\n")
    assert to_do(doctor.packages(tmp_path)) == []
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\nnumpy==2.4.6  # arrays\nav==18.1.0\n")
    (line,) = to_do(doctor.packages(tmp_path))
    assert "requirements.txt: numpy is 1.0, not 2.4.6, av is missing; run make install" in line


def test_every_pin_of_this_checkout_is_looked_at() -> None:
    found = [finding.found for finding in doctor.packages() if finding.needed]
    paths = set(ROOT.glob("requirements*.txt")) - {ROOT / f"requirements-{x}.txt" for x in ("mujoco", "text")}
    pins = sum("==" in line for path in paths for line in path.read_text().splitlines())
    assert sum(int(text.split("all ")[1].split()[0]) for text in found) == pins


def test_what_is_an_extra_need_not_be_there(tmp_path: Path) -> None:
    (tmp_path / "requirements-mujoco.txt").write_text("no-such-package==1.0\n")
    (finding,) = doctor.packages(tmp_path)
    assert str(finding) == (
        "note  packages     requirements-mujoco.txt: no-such-package is missing; "
        "for MuJoCo's environments: pip install -r requirements-mujoco.txt"
    )


def test_text_is_an_extra_too(tmp_path: Path) -> None:
    (tmp_path / "requirements-text.txt").write_text("no-such-package==1.0\n")
    (finding,) = doctor.packages(tmp_path)
    assert not finding.needed
    assert str(finding).endswith("for answers of language models: make install-text")


def test_an_old_python_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert to_do(doctor.python()) == []
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert "install Python 3.11 or later" in to_do(doctor.python())[0]


def test_seaquest_makes_a_step_or_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(finding) for finding in doctor.game()] == [
        "ok    Seaquest     made a step, frames of 160×210 pixels"
    ]
    monkeypatch.setattr(doctor, "_GAME", "NoSuchGame-v0")
    (line,) = to_do(doctor.game())
    assert "does not play (NameNotFound: " in line
    assert "the ROMs come with ale-py" in line
    assert "\n" not in line


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (line,) = to_do(doctor.page(port))
        assert (
            f"{port} taken, perhaps by a labelling page; stop it, or take another: --port {port + 1}" in line
        )
    assert to_do(doctor.page(port)) == []


def test_chromium_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    last = list(doctor.page(0))[-1]
    assert "apt install chromium-headless-shell, or chromium" in last.advice
    assert not last.needed


class Usage(NamedTuple):
    free: float


def test_a_disk_that_is_nearly_full_or_read_only_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(50e9))
    found = [finding.found for finding in doctor.disk(tmp_path)]
    assert found == [f"{tmp_path}: 50.0 GB free", f"{tmp_path}/runs (to be made): 50.0 GB free"]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0.5e9))
    assert all("make room" in line for line in to_do(doctor.disk(tmp_path)))
    (tmp_path / "runs").write_text("no folder")
    assert "runs cannot be written to (Not a directory)" in to_do(doctor.disk(tmp_path))[1]


def test_a_gpu_that_torch_does_not_see_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    cuda, bf16 = doctor.devices()
    assert (cuda.advice, cuda.needed) == ("there seems to be a GPU: install a CUDA build of torch", False)
    assert bf16.found.startswith("cpu: ")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "see nvidia-smi for the driver" in next(doctor.devices()).advice
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert next(doctor.devices()).advice == ""


def test_it_speaks_where_nothing_is_installed() -> None:
    """-S hides every installed package, -I the environment's as well."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from lib.tools import doctor; sys.exit(doctor.main())"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1
    assert done.stderr == ""
    for line in ("TO DO packages", "TO DO Seaquest", "TO DO PyTorch", "TO DO NiceGUI", "disk", "cores"):
        assert line in done.stdout
    assert "No module named 'torch'" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("things need doing.")


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "lib" / "tools" / "doctor.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.slow
def test_the_module_runs_every_check() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lib.tools.doctor"], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    assert done.returncode == any(line.startswith("TO DO") for line in lines)
    for what in (
        "Python",
        "packages",
        "Seaquest",
        "CUDA",
        "bf16",
        "NiceGUI",
        "port",
        "Chromium",
        "disk",
        "cores",
    ):
        assert any(line[6:].startswith(what) for line in lines), what
