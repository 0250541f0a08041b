"""In which order tests run, in one thread, and without waiting for the disk."""

import os
import sys
from collections import Counter
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the most slow tests first: begun last, they would leave a core with nothing to do beside them.

    `make test` gives each worker of pytest-xdist whole files, so that what a file's tests share is made once.
    """
    slow = Counter(
        item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")
    )
    items.sort(key=lambda item: -slow[item.path])


def pytest_configure() -> None:
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
