"""In which order tests run, in one thread, and without waiting for the disk."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first: begun last, they would leave a core with nothing to do beside them.

    `make test` gives each worker of pytest-xdist whole files, so that what a file's tests share is made once.
    """
    seconds = Counter[Path]()
    for item in items:
        seconds[item.path] += _seconds(item)
    items.sort(key=lambda item: -seconds[item.path])


def _seconds(item: pytest.Item) -> int:
    """Roughly, of one of four workers on two cores."""
    if slow := item.get_closest_marker("slow"):
        return slow.args[0] if slow.args else 4
    return 2 if item.get_closest_marker("browser") else 0


def pytest_configure() -> None:
    # Stable-Baselines3 makes a folder for logs at every `learn`, by default a new one.
    os.environ["SB3_LOGDIR"] = str(Path(tempfile.gettempdir()) / "SB3-tests")
    vars(os)["fsync"] = lambda descriptor: None  # whose effect no test can see, as none cuts the power


def pytest_collection_finish() -> None:
    _one_thread()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other in a busy loop, which is slow where cores are shared."""
    _one_thread()
    yield
    _one_thread()


def _one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
