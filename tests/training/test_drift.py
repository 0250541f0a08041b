"""When to call it a drift: what successive evaluations of a finetune say."""

from typing import Any

import pytest

from lib.agent.finetune_metrics import Reading
from lib.training.drift import best_before, drifting

START = Reading(0, 400, 0, 10, 0.7, 0.2)
UP = Reading(100_000, 460, 0, 12, 0.75, 0.25)
DRIFT = [
    Reading(200_000, 440, 0, 15, 0.7, 0.3),
    Reading(300_000, 450, 0, 14, 0.6, 0.4),
    Reading(400_000, 300, 0, 26, 0.65, 0.5),
]


def without(readings: list[Reading], *names: str) -> list[Reading]:
    nothing: dict[str, Any] = dict.fromkeys(names)
    return [reading._replace(**nothing) for reading in readings]


def changed(readings: list[Reading], at: int, **values: Any) -> list[Reading]:
    return [reading._replace(**values) if i == at else reading for i, reading in enumerate(readings)]


def test_a_drift_is_said_with_its_figures() -> None:
    history = [START, UP, *DRIFT]
    said = "drift: since 100k steps the learned return rose from 12.0 to 26.0 while the score fell from 460.0 to 300.0"
    assert drifting(history, 3) == f"{said} and agreement with the teacher from 0.75 to 0.65"
    assert (
        drifting(without(history, "agreement"), 3)
        == f"{said} and disagreement of the members rose from 0.25 to 0.50"
    )
    assert drifting(without(history, "agreement", "disagreement"), 3) == said
    judged = [reading._replace(score=reading.score / 10_000, interval=0.0005) for reading in history]
    assert "while the score fell from 0.0460 to 0.0300" in str(drifting(judged, 3)), "a judge of answers"
    paid = [reading._replace(learned=(reading.learned or 0) / 1000) for reading in history]
    assert "since 100k answers the learned return rose from 0.0120 to 0.0260" in str(
        drifting(paid, 3, "answers")
    )
    assert best_before(history, 3) == UP


def test_it_takes_several_evaluations_in_a_row() -> None:
    history = [START, UP, *DRIFT]
    assert drifting(history[:-1], 3) is None
    assert drifting(history[:-1], 2) is not None
    assert drifting(DRIFT, 3) is None  # nothing before them to compare with
    assert drifting([], 3) is None
    assert best_before(DRIFT, 3) is None


@pytest.mark.parametrize("at", [2, 3, 4])
@pytest.mark.parametrize(
    "values", [{"learned": 12.0}, {"score": 460.0}, {"agreement": 0.75}, {"learned": 0.0, "score": 0.0}]
)
def test_every_one_of_them_must_be_worse(at: int, values: dict[str, float]) -> None:
    assert drifting(changed([START, UP, *DRIFT], at, **values), 3) is None


def test_without_a_teacher_the_members_must_disagree_more() -> None:
    history = without([START, UP, *DRIFT], "agreement")
    assert drifting(changed(history, 3, disagreement=0.25), 3) is None


def test_a_fall_that_chance_explains_is_none() -> None:
    """The mean of the last three scores is 396⅔, 63⅓ below the best; with 60 and 3 × 39, √(60² + 39²/3) is 64.1."""
    history = [START, UP, *DRIFT]
    noisy = [reading._replace(interval=39.0) for reading in history]
    assert drifting(changed(noisy, 1, interval=60.0), 3) is None
    assert drifting(changed(noisy, 1, interval=59.0), 3) is not None


def test_without_a_learned_reward_there_is_nothing_to_exploit() -> None:
    assert drifting(without([START, UP, *DRIFT], "learned"), 3) is None
