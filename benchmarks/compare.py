"""Two contenders side by side: run in turns, so that other load on the machine slows both alike."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Work = Callable[[], int]
"""Does a piece of work, of a second or less where it can, and says how many units (steps, labels, …) it was."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """Units a second of both contenders, one figure a repeat."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, repeat by repeat: what slows a whole repeat down cancels out."""
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of `ratios`."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest of `ratios`."""
        return min(self.ratios), max(self.ratios)


def rate(work: Work, seconds: float, clock: Clock = time.perf_counter) -> float:
    """Units a second, measured over whole pieces of work.

    Args:
      work: is run at least once.
      seconds: no new piece starts after these.
      clock: seconds from any origin.
    """
    units, began = 0, clock()
    while True:
        units += work()
        elapsed = clock() - began
        if elapsed >= seconds:
            return units / elapsed


def alternate(
    ours: Work, theirs: Work, repeats: int, seconds: float, clock: Clock = time.perf_counter
) -> Comparison:
    """Measures both in turns, alternating which is first, after one repeat to warm up.

    Args:
      ours: one contender; both are built and stay alive throughout.
      theirs: the other.
      repeats: figures of each.
      seconds: of each figure.
      clock: seconds from any origin.
    """
    figures: dict[int, list[float]] = {0: [], 1: []}
    contenders = ours, theirs
    for repeat in range(repeats + 1):
        for which in (0, 1) if repeat % 2 == 0 else (1, 0):
            figure = rate(contenders[which], seconds, clock)
            if repeat > 0:
                figures[which].append(figure)
    return Comparison(figures[0], figures[1])
