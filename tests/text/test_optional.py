"""Games neither need nor import what language models need."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXTRAS = {"transformers", "tokenizers", "safetensors", "vaderSentiment"}


def test_tests_are_collected_without_them() -> None:
    for path in Path(__file__).parents[1].rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not EXTRAS & {name.partition(".")[0] for name in names}, f"{path}:{node.lineno}"


@pytest.mark.slow
def test_no_game_imports_transformers() -> None:
    code = (
        "import sys, lib.training.train, lib.label_ui.serve, lib.reward.fit, lib.reward.report, lib.tools.play_games\n"
        "print([name for name in ('transformers', 'tokenizers', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
