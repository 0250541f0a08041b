"""In which order tests run."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: begun last, the longest would leave a core with nothing to do beside it."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
