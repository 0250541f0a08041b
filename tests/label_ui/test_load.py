"""Several labellers at once over real sockets, beside clients that mean no good. Longer: benchmarks/label_load.py."""

import os
import signal
from pathlib import Path

import pytest

from benchmarks.label_load import load, lost_or_doubled
from benchmarks.label_page import segments_for
from benchmarks.site import Site
from tests.label_ui.dbs import make_db

SECONDS = float(os.environ.get("LABEL_LOAD_SECONDS", "8"))


@pytest.mark.slow
def test_four_labellers_lose_nothing_beside_slow_lorises_and_huge_requests(tmp_path: Path) -> None:
    votes = round(4 * 2 * SECONDS)
    site = Site(make_db(tmp_path / "db", segments_for(votes)), tmp_path / "state").start()
    try:
        outcome = load(site, labellers=4, rate=2, seconds=SECONDS)
        assert outcome.errors == []
        assert len(outcome.acknowledged) > votes / 4, "nobody was stopped"
        assert lost_or_doubled(site, outcome) == []
        assert {line["id"] for line in site.labels()} == set(outcome.acknowledged)
        pairs = [
            frozenset((line["sample1"], line["sample2"])) for line in site.labels() if not line.get("repeat")
        ]
        assert len(set(pairs)) == len(pairs), "no pair went to two of them"
        assert outcome.refused > 0
        assert outcome.grown() < 40, "MB; a huge request is not kept"
    finally:
        site.stop(signal.SIGKILL)
