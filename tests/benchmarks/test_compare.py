"""Contenders that take a known time, on a clock of their own."""

import pytest

from benchmarks.compare import Comparison, alternate, rate


class Clock:
    """Goes forward only when a contender works."""

    def __init__(self) -> None:
        self.now = 100.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, units: int, *seconds: float):
        """Work of so many units; its pieces take these seconds in turn, the last of them for good."""
        left = list(seconds)

        def work() -> int:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]
            return units

        return work


def test_rate_fills_the_time_with_whole_pieces() -> None:
    clock = Clock()
    # Pieces of 10 units in 2 s until 5 s are over: 3 of them, 30 units in 6 s.
    assert rate(clock.contender("a", 10, 2.0), 5.0, clock) == pytest.approx(5.0)
    assert len(clock.order) == 3


def test_rate_measures_one_piece_that_is_longer_than_the_time() -> None:
    clock = Clock()
    assert rate(clock.contender("a", 7, 10.0), 1.0, clock) == pytest.approx(0.7)
    assert len(clock.order) == 1


def test_contenders_take_turns_at_being_first_after_one_warm_up_each() -> None:
    clock = Clock()
    ours, theirs = clock.contender("ours", 4, 1.0), clock.contender("theirs", 1, 1.0)
    result = alternate(ours, theirs, 3, 1.0, clock)
    assert clock.order == ["ours", "theirs", "theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert result.ours == [4.0] * 3
    assert result.theirs == [1.0] * 3
    assert result.ratio == 4.0


def test_the_warm_up_does_not_count() -> None:
    clock = Clock()
    ours = clock.contender("ours", 1, 100.0, 1.0)
    result = alternate(ours, clock.contender("theirs", 1, 1.0), 2, 1.0, clock)
    assert result.ours == [1.0, 1.0]


def test_the_ratio_is_the_median_of_the_repeats_ratios() -> None:
    # Ratios 2, 10, 3; the ratio of the medians would be 20 / 5 = 4.
    result = Comparison([10.0, 20.0, 30.0], [5.0, 2.0, 10.0])
    assert result.ratios == [2.0, 10.0, 3.0]
    assert result.ratio == 3.0
    assert result.spread == (2.0, 10.0)


def test_a_machine_that_slows_down_slows_both() -> None:
    clock = Clock()
    slower = [1.0, 1.0, 4.0, 4.0]
    ours, theirs = clock.contender("ours", 6, *slower), clock.contender("theirs", 2, *slower)
    result = alternate(ours, theirs, 3, 1.0, clock)
    assert result.ours == [6.0, 1.5, 1.5]
    assert result.ratios == [3.0, 3.0, 3.0]
