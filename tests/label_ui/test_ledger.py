"""The ledger counts as it goes; here all is counted anew."""

import dataclasses

import numpy as np

from lib.label_ui.ledger import Ledger
from lib.preferences.labels import RECHECK, UNDO, Label


def counted(ledger: Ledger) -> tuple[int, int]:
    """Usable and skipped labels; of a pair with rechecks only the others, or the first if there are no others."""
    kept = []
    for said in ledger.standing.values():
        labels = list(said.values())
        kept += [label for label in labels if label.strategy != RECHECK] or labels[:1]
    skipped = sum(label.label is None for label in kept)
    return len(kept) - skipped, skipped


def test_counts_are_those_of_what_holds() -> None:
    rng = np.random.default_rng(0)
    samples = [f"00/{number:08d}.dat" for number in range(4)]
    lines: list[Label] = []
    ledger = Ledger()
    seen = set()
    for number in range(600):
        sample1, sample2 = rng.choice(samples, 2, replace=False).tolist()
        kind = int(rng.integers(10))
        lines.append(
            Label(
                sample1,
                sample2,
                (0, 1, 2, None)[int(rng.integers(4))],
                annotator=("ada", "bob", "eve")[int(rng.integers(3))],
                strategy=RECHECK if rng.random() < 0.3 else "random",
                cancelled=kind in (0, 1),
                id=f"{UNDO if kind in (1, 2) else ''}{number:08d}",
            )
        )
        ledger.update(list(lines))
        assert (ledger.usable, ledger.skipped) == counted(ledger)
        seen.add((ledger.usable, ledger.skipped))
    assert len(seen) > 20
    ledger.update(lines[:1])  # another file: all is counted anew
    assert (ledger.usable, ledger.skipped) == counted(ledger)
    assert ledger.usable + ledger.skipped <= 1


def test_an_edit_of_an_earlier_line_is_noticed() -> None:
    lines = [Label("00/0.dat", f"00/{number}.dat", 1, annotator="ada") for number in (1, 2, 3)]
    ledger = Ledger()
    ledger.update(lines)
    ledger.update([dataclasses.replace(lines[0], label=None), *lines[1:]])
    assert (ledger.usable, ledger.skipped) == (2, 1)
