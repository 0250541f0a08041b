"""What is written down about a benchmark."""

import json
from pathlib import Path

import pytest

from benchmarks.compare import Comparison
from benchmarks.report import Row, Target, compared, machine, markdown, provenance, write

ORIGIN = {
    "machine": {"cpu": "A processor", "cores": 2, "memory_gb": 8, "gpu": None, "torch_threads": 2},
    "versions": {"python": "3.11.7", "ptan": ""},
    "git_commit": "abc123",
    "date": "2026-11-21T10:00:00+00:00",
    "command": "run.py --quick",
}


def cells(row: Row) -> list[str]:
    return [cell.strip() for cell in markdown([row], ORIGIN).splitlines()[2].strip("|").split("|")]


def test_a_compared_row_holds_medians_ratio_and_range() -> None:
    result = Comparison([3000.0, 3300.0, 3100.0], [1000.0, 1000.0, 1000.0])
    row = compared("train", "Training", "steps/s", result, Target(3))
    assert row.met is True
    assert cells(row) == [
        "train",
        "Training (medians of 3)",
        "3,100 steps/s",
        "1,000 steps/s",
        "3.10× (3.00× – 3.30×)",
        "≥ 3.00×",
        "yes",
    ]


def test_shares_are_in_per_cent() -> None:
    row = Row("cost", "Recording", "steps/s", 960.0, 1000.0, 0.96, (0.95, 0.99), target=Target(0.97))
    assert row.met is False
    assert cells(row)[4:] == ["96.0% (95.0% – 99.0%)", "≥ 97.0%", "**no**"]


@pytest.mark.parametrize(("size", "met"), [(59.9, True), (60.0, True), (60.1, False)])
def test_a_limit_on_our_own_figure(size: float, met: bool) -> None:
    row = Row("size", "Segment", "KB", size, 5000.0, target=Target(60, least=False, of_ratio=False))
    assert row.met is met
    assert cells(row)[5] == "≤ 60 KB"


def test_what_was_not_measured_says_so_and_why() -> None:
    row = Row("gpu", "Training on a GPU", target=Target(0.8), note="no CUDA device")
    assert row.met is None
    page = markdown([row], ORIGIN)
    assert "| gpu | Training on a GPU | not yet measured |  |  | ≥ 80.0% |  |" in page
    assert "- `gpu`: no CUDA device" in page


def test_the_page_says_where_it_was_measured() -> None:
    last = markdown([], ORIGIN).splitlines()[-1]
    assert last == (
        "A processor, 2 cores, 8 GB, no GPU; 2 threads of torch. python 3.11.7, ptan missing. "
        "Commit abc123, 2026-11-21T10:00:00+00:00. `run.py --quick`"
    )


def test_this_machine_and_these_versions() -> None:
    assert machine()["cores"] >= 1
    assert machine()["memory_gb"] >= 1
    found = provenance()
    assert {"python", "torch", "gymnasium", "ale-py", "stable_baselines3", "ptan"} <= found["versions"].keys()
    assert found["versions"]["ptan"]


def test_page_and_figures_are_written(tmp_path: Path) -> None:
    row = Row("size", "Segment", "KB", 31.0, target=Target(60, least=False, of_ratio=False))
    page = write([row], ORIGIN, tmp_path / "results", "bench")
    assert page.read_text() == markdown([row], ORIGIN)
    assert page.stem.endswith("-bench")
    content = json.loads(page.with_suffix(".json").read_text())
    assert content["machine"]["cores"] == 2
    assert content["rows"][0]["ours"] == 31.0
    assert content["rows"][0]["met"] is True
