"""Verdicts at the edges of their thresholds."""

import dataclasses
import math
from typing import Any

import pytest

from lib.reward.report.figures import Ceiling, Share
from lib.reward.report.verdict import LABEL_MORE, READY, WRONG, Evidence, judge_fit

GOOD = Evidence(
    held_out=Share(85, 100),
    decided=500,
    ceiling=Ceiling(0.95, 0.9, 0.97, "measured"),
    repeats=Share(45, 50),
    train_loss=0.3,
    held_out_loss=0.45,
    finite=True,
    spread=0.5,
    still_falling=False,
)


def judged(**changes: Any) -> tuple[str, str]:
    verdict = judge_fit(dataclasses.replace(GOOD, **changes))
    return verdict.outcome, "; ".join(verdict.reasons)


def test_a_good_fit_is_ready_and_says_why() -> None:
    outcome, reasons = judged()
    assert outcome == READY
    assert "85%" in reasons
    assert "95%" in reasons
    assert judge_fit(GOOD).notes == []


@pytest.mark.parametrize("share", [Share(40, 47), Share(33, 42), Share(35, 42)])
def test_the_demos_reward_models_taught_their_lesson_and_are_ready(share: Share) -> None:
    ceiling = Ceiling(0.95, 0.95, 0.95, "assumed")
    assert judged(held_out=share, decided=230, ceiling=ceiling)[0] == READY


@pytest.mark.parametrize(
    ("changes", "outcome", "word"),
    [
        # 69 of 100 begin at 0.594, 70 of 100 at 0.604.
        ({"held_out": Share(69, 100)}, LABEL_MORE, "as low as"),
        ({"held_out": Share(76, 100)}, LABEL_MORE, "only 58% of the way"),
        ({"held_out": Share(77, 100)}, READY, ""),
        (
            {"held_out": Share(69, 100), "ceiling": Ceiling(0.7, 0.6, 0.8, "measured")},
            LABEL_MORE,
            "as low as",
        ),
        ({"held_out": Share(70, 100), "ceiling": Ceiling(0.7, 0.6, 0.8, "measured")}, READY, ""),
        # 18 of 20 are open by 0.273, 17 of 20 by 0.308.
        ({"held_out": Share(18, 20)}, READY, ""),
        ({"held_out": Share(17, 20)}, LABEL_MORE, "too few"),
        ({"held_out": Share(0, 0)}, LABEL_MORE, "no pair"),
    ],
)
def test_label_more(changes: dict[str, Any], outcome: str, word: str) -> None:
    found, reasons = judged(**changes)
    assert found == outcome
    assert word in reasons


LOG2 = math.log(2)


@pytest.mark.parametrize(
    ("changes", "outcome", "word"),
    [
        ({"finite": False}, WRONG, "finite"),
        ({"spread": 0.0}, WRONG, "pays the same"),
        # Fewer right than a coin: 39 of 100 end at 0.488, 41 of 100 at 0.508.
        ({"held_out": Share(39, 100), "decided": 120}, WRONG, "the wrong way round"),
        ({"held_out": Share(41, 100), "decided": 120}, LABEL_MORE, "as low as"),
        # A labeller like a coin: 14 of 20 begin at 0.481, 15 of 20 at 0.531.
        ({"repeats": Share(14, 20)}, WRONG, "repeat checks"),
        ({"repeats": Share(15, 20)}, READY, ""),
        ({"repeats": Share(9, 19)}, READY, ""),
        # No better than a coin: forgiven below 200 labels.
        ({"held_out": Share(55, 100), "decided": 200}, WRONG, "no better than a coin"),
        ({"held_out": Share(55, 100), "decided": 199}, LABEL_MORE, "as low as"),
        ({"held_out": Share(15, 30), "decided": 200}, LABEL_MORE, "too few"),
        # Guessing on what it was fitted to.
        ({"train_loss": 0.98 * LOG2}, WRONG, "even on the labels"),
        ({"train_loss": 0.97 * LOG2}, READY, ""),
        ({"train_loss": 0.98 * LOG2, "decided": 199}, READY, ""),
        # Known by heart.
        ({"held_out_loss": 0.70, "train_loss": 0.34}, WRONG, "memorised"),
        ({"held_out_loss": 0.70, "train_loss": 0.36}, READY, ""),
        ({"held_out_loss": 0.69, "train_loss": 0.01}, READY, ""),
    ],
)
def test_something_is_wrong(changes: dict[str, Any], outcome: str, word: str) -> None:
    found, reasons = judged(**changes)
    assert found == outcome, reasons
    assert word in reasons


def test_what_is_wrong_comes_before_what_is_lacking() -> None:
    assert judged(spread=0.0, held_out=Share(1, 2))[0] == WRONG


@pytest.mark.parametrize("changes", [{"finite": False}, {"spread": 0.0}])
def test_labels_are_not_to_blame_where_rewards_cannot_be_compared(changes: dict[str, Any]) -> None:
    assert "the wrong way round" not in judged(held_out=Share(0, 40), **changes)[1]


def test_notes_change_no_verdict() -> None:
    ceiling = Ceiling(0.95, 0.95, 0.95, "assumed")
    verdict = judge_fit(dataclasses.replace(GOOD, still_falling=True, ceiling=ceiling))
    assert verdict.outcome == READY
    assert "--epochs" in verdict.notes[0]
    assert "repeat checks" in verdict.notes[1]
    assert str(verdict).startswith("ready: 85%")
