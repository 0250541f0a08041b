"""Games neither need nor import what language models need."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_game_imports_transformers() -> None:
    code = (
        "import sys, lib.training.train, lib.label_ui.serve, lib.reward.fit, lib.reward.report, lib.tools.play_games\n"
        "print([name for name in ('transformers', 'tokenizers', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
