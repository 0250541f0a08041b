from pathlib import Path

import pytest

from tests.label_ui.dbs import make_db


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_db(tmp_path / "db", 6)
