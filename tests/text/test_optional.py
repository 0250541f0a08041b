"""Games neither need nor import what language models need."""

import ast
from pathlib import Path

import pytest

from tests.scripts import call

EXTRAS = {"transformers", "tokenizers", "safetensors", "vaderSentiment"}


def test_tests_are_collected_without_them() -> None:
    for path in Path(__file__).parents[1].rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not EXTRAS & {name.partition(".")[0] for name in names}, f"{path}:{node.lineno}"


@pytest.mark.slow  # as all that starts a process from a warm one
def test_no_game_imports_transformers(tmp_path: Path) -> None:
    (tmp_path / "games.py").write_text(
        "import sys, lib.training.train, lib.label_ui.serve, lib.reward.fit, lib.reward.report, lib.tools.play_games\n"
        "print([name for name in ('transformers', 'tokenizers', 'safetensors') if name in sys.modules])"
    )
    assert call(tmp_path, str(tmp_path / "games.py")).stdout == "[]\n"
