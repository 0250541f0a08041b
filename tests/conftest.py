"""In which order tests run, in one thread, and without waiting for the disk."""

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: begun last, the longest would leave a core with nothing to do beside it.

    pytest-xdist gives each worker an equal part of the tests, one after the other, so each part begins with some of
    these files. A file stays whole, as its tests may share what is made for them.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    begun = [0] * workers  # slow tests of each part
    for path, of_file in itertools.groupby(items, lambda item: item.path):
        if slow[path]:
            part = begun.index(min(begun))
            begun[part] += slow[path]
            first[part] += sorted(of_file, key=lambda item: item.get_closest_marker("slow") is None)
    quick = [item for item in items if not slow[item.path]]
    order: list[pytest.Item] = []
    for part, chosen in enumerate(first):
        end = len(items) * (part + 1) // workers
        order += chosen
        room = max(0, end - len(order))
        order += quick[:room]
        del quick[:room]
    items[:] = order + quick


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
