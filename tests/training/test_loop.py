"""The loop with a learner that only counts: what happens around an update, in which order, and when it ends."""

import signal
from collections.abc import Callable
from typing import Any, cast

from lib.interrupt import Interrupt
from lib.learner import Advance, Learner
from lib.training.loop import Hook, Stop, run


class Counting:
    """10 steps an update, and nothing learned."""

    def __init__(self, said: list[str], steps: int = 0) -> None:
        self.steps, self._said = steps, said

    def advance(self) -> Advance:
        self.steps += 10
        self._said.append(f"update to {self.steps}")
        return Advance(10, {"loss_total": float(self.steps)}, [])


class Telling(Hook):
    """Says what it is asked to do, and after how many steps."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self._said = name, said

    def begin(self, learner: Learner) -> None:
        self._said.append(f"{self.name} begins at {learner.steps}")

    def before(self, learner: Learner) -> None:
        self._said.append(f"{self.name} before {learner.steps}")

    def after(self, learner: Learner, made: Advance) -> None:
        assert made == (10, {"loss_total": float(learner.steps)}, [])
        self._said.append(f"{self.name} after {learner.steps}")

    def end(self, learner: Learner) -> None:
        self._said.append(f"{self.name} ends at {learner.steps}")


def told(steps: int, stop: Callable[[], bool] = lambda: False, made: int = 0, **parts: Any) -> list[str]:
    """What two hooks and the learner say of a run."""
    said: list[str] = []
    learner = cast(Learner, Counting(said, made))
    run(learner, [Telling("outer", said), Telling("inner", said)], steps, stop, **parts)
    return said


def updates(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith("update")]


def test_hooks_nest_and_the_first_is_the_outermost() -> None:
    assert told(20) == [
        "outer begins at 0",
        "inner begins at 0",
        "outer before 0",
        "inner before 0",
        "update to 10",
        "inner after 10",
        "outer after 10",
        "outer before 10",
        "inner before 10",
        "update to 20",
        "inner after 20",
        "outer after 20",
        "inner ends at 20",
        "outer ends at 20",
    ]


def test_steps_are_made_up_to_the_last_one_asked_for() -> None:
    assert updates(told(20)) == ["update to 10", "update to 20"]
    assert updates(told(21))[-1] == "update to 30"  # no update is cut short
    assert updates(told(40, made=20)) == ["update to 30", "update to 40"]  # resumed after 20
    done = ["outer begins at 40", "inner begins at 40", "inner ends at 40", "outer ends at 40"]
    assert told(40, made=40) == done


def test_it_stops_between_two_updates() -> None:
    """Asked at the top of the loop alone: what is under way is finished, and every hook ends."""
    asked = iter([False, False, True])
    said = told(1000, lambda: next(asked))
    assert updates(said) == ["update to 10", "update to 20"]
    assert said[-4:] == ["inner after 20", "outer after 20", "inner ends at 20", "outer ends at 20"]
    assert updates(told(1000, lambda: True)) == []


def test_what_all_processes_say_decides() -> None:
    """One of them may be asked to stop where this one is not, and this one alone decides nothing."""
    decisions: list[bool] = []

    def others(decision: bool) -> bool:
        decisions.append(decision)
        return len(decisions) == 3

    assert updates(told(1000, together=others)) == ["update to 10", "update to 20"]
    assert decisions == [False, False, False]
    assert len(updates(told(30, lambda: True, together=lambda _: False))) == 3


def test_a_hook_need_do_nothing() -> None:
    said: list[str] = []
    run(cast(Learner, Counting(said)), [Hook()], 10, lambda: False)
    assert said == ["update to 10"]
    nothing = Hook()
    assert (nothing.state(), nothing.scalars(0), nothing.words()) == ({}, {}, "")


def test_a_run_stops_for_the_user_or_for_a_hook() -> None:
    with Interrupt() as interrupt:
        stop = Stop(interrupt)
        assert not stop()
        stop.reason = "the DB cannot be written"
        assert stop()
        assert not stop.asked
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
