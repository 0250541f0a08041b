"""The program that docs/wrapper.md is made of."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wrappers_page_is_a_program_that_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/wrapper.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 7
    sizes = "LABELS, STEPS = 200, 20_000"
    assert sizes in blocks[0]
    # Fewer labels and steps, and no wait for the threads of other processes.
    program = "import torch\ntorch.set_num_threads(1)\n" + "\n".join(blocks)
    program = program.replace(sizes, "LABELS, STEPS = 20, 1_000")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "True [" in done.stdout
    for made in ("db/dot", "db/chance", "preferences/dot"):
        assert list((tmp_path / made).glob("*/*.dat"))
        assert (tmp_path / made / "labels.json").exists()
