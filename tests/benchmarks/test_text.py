"""The rows of language models, on a tiny one."""

from pathlib import Path

import pytest

from benchmarks.setup import Setup
from benchmarks.text import against_whole_models
from tests.text.tiny import save_tiny


@pytest.mark.slow(20)
def test_tokens_and_memory_are_compared(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "cpu", True, repeats=1, seconds=0.01, num_envs=None)
    [row] = against_whole_models(setup, tmp_path / "none")
    assert (row.ours, "make model" in row.note) == (None, True)
    folder = save_tiny(tmp_path / "model", hidden_size=64, vocab_size=100)
    kept = bytearray(2**30)  # of this process, not of those that are measured
    kept[:: 2**12] = bytes(1) * len(kept[:: 2**12])
    sampled, learned, memory = against_whole_models(setup, folder)
    for row in (sampled, learned):
        assert row.unit == "tokens/s"
        assert None not in (row.ours, row.theirs, row.ratio)
    assert memory.ours is not None
    assert 0.1 < memory.ours < 1
    assert memory.theirs is not None
    assert memory.ratio == memory.theirs / memory.ours  # twice the memory that ours takes is 2×
    assert memory.theirs == pytest.approx(memory.ours, rel=0.5)  # Python and its libraries, not the model
