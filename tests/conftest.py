"""In which order tests run."""

import itertools
import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: begun last, the longest would leave a core with nothing to do beside it.

    pytest-xdist gives each worker an equal part of the tests, one after the other, so each part begins with some of the
    slow ones; those of one file, which may share what is made for them, are in one part.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for _, of_file in itertools.groupby(slow, lambda item: item.path):
        min(first, key=len).extend(of_file)
    order: list[pytest.Item] = []
    for part, chosen in enumerate(first):
        end = len(items) * (part + 1) // workers
        order += chosen
        room = max(0, end - len(order))
        order += quick[:room]
        del quick[:room]
    items[:] = order + quick
