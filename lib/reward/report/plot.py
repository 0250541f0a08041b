"""Charts as SVG text. Colours come from the page's style sheet, so that a chart follows its theme."""

import math
from collections.abc import Callable, Sequence
from html import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 42


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high, 1, 2 or 5 times a power of ten apart, about so many."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((1 * power, 2 * power, 5 * power, 10 * power), key=lambda size: abs(size - rough))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def spanned(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """The range of some finite numbers and a little beyond; 1 wide where they are all the same."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high - low < 1e-9 * max(1.0, abs(low)):
        return low - 0.5, high + 0.5
    return low - margin * (high - low), high + margin * (high - low)


def plain(value: float) -> str:
    """A tick as it is read: 0.25, 2, −3."""
    return f"{value:g}".replace("-", "−")


def percent(value: float) -> str:
    """0.25 as 25 %."""
    return f"{100 * value:g} %"


class Plot:
    """One chart: axes first, then whatever is drawn on them, in the units of the data."""

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        width: int = 520,
        height: int = 270,
        x_text: Callable[[float], str] = plain,
        y_text: Callable[[float], str] = plain,
        y_ticks: int = 5,
    ) -> None:
        self._title, self._size = title, (width, height)
        self._x, self._y = x, y
        self._parts: list[str] = []
        bottom, right = height - _BOTTOM, width - _RIGHT
        for value in ticks(*y, y_ticks):
            at = self.down(value)
            self._parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(y_text(value))}</text>'
            )
        for value in ticks(*x, max(2, width // 90)):
            at = self.across(value)
            self._parts.append(
                f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
                f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(x_text(value))}</text>'
            )
        middle = (_TOP + bottom) / 2
        self._parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
            f'<text class="name" x="{(_LEFT + right) / 2}" y="{height - 6}" text-anchor="middle">{escape(x_label)}</text>'
            f'<text class="name" x="12" y="{middle}" text-anchor="middle" '
            f'transform="rotate(-90 12 {middle})">{escape(y_label)}</text>'
        )

    def across(self, x: float) -> float:
        """Where a value lies from the left edge."""
        low, high = self._x
        return _LEFT + (x - low) / (high - low) * (self._size[0] - _LEFT - _RIGHT)

    def down(self, y: float) -> float:
        """Where a value lies from the upper edge."""
        low, high = self._y
        return self._size[1] - _BOTTOM - (y - low) / (high - low) * (self._size[1] - _TOP - _BOTTOM)

    def line(self, x: Sequence[float], y: Sequence[float], kind: str) -> None:
        """Joins points; `kind` is a class of the style sheet."""
        points = " ".join(f"{self.across(a):.1f},{self.down(b):.1f}" for a, b in zip(x, y, strict=True))
        self._parts.append(f'<polyline class="line {kind}" points="{points}"/>')

    def dots(self, x: Sequence[float], y: Sequence[float], kind: str, radius: float = 3) -> None:
        """A dot at each point."""
        self._parts += [
            f'<circle class="dot {kind}" cx="{self.across(a):.1f}" cy="{self.down(b):.1f}" r="{radius}"/>'
            for a, b in zip(x, y, strict=True)
        ]

    def whisker(self, x: float, low: float, high: float, kind: str) -> None:
        """An interval of y at x."""
        at = self.across(x)
        self._parts.append(
            f'<line class="line {kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{self.down(low):.1f}" y2="{self.down(high):.1f}"/>'
        )

    def bars(self, edges: Sequence[float], heights: Sequence[float], kind: str) -> None:
        """A histogram: one bar between every two edges, from 0."""
        for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
            x, y = self.across(left), self.down(height)
            self._parts.append(
                f'<rect class="bars {kind}" x="{x:.1f}" y="{y:.1f}" width="{self.across(right) - x:.1f}" '
                f'height="{self.down(0) - y:.1f}"/>'
            )

    def level(self, y: float) -> None:
        """A dashed line across at y."""
        at, right = self.down(y), self._size[0] - _RIGHT
        self._parts.append(f'<line class="guide" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')

    def cursor(self, x: float) -> None:
        """The line that the player moves along."""
        at, bottom = self.across(x), self._size[1] - _BOTTOM
        self._parts.append(f'<line class="cursor" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>')

    def svg(self) -> str:
        """The chart as an element."""
        width, height = self._size
        return (
            f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self._title)}">'
            + "".join(self._parts)
            + "</svg>"
        )


def gauge(
    title: str,
    value: float,
    interval: tuple[float, float],
    marks: Sequence[tuple[float, str]],
    band: tuple[float, float],
) -> str:
    """A share on a line from 0 to 1, with its interval, marks above it and a band behind it.

    Args:
      title: for those who do not see it.
      value: the share; NaN draws none.
      interval: its interval.
      marks: places worth comparing it with, and what they are called.
      band: such as the interval of a mark.
    """
    width, height, left, right, y = 1080, 96, 16, 1064, 56

    def at(share: float) -> float:
        return left + share * (right - left)

    parts = [f'<line class="rail" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>']
    if band[1] > band[0]:
        parts.append(
            f'<rect class="band" x="{at(band[0]):.1f}" y="{y - 14}" width="{at(band[1]) - at(band[0]):.1f}" height="28"/>'
        )
    for share in ticks(0, 1, 10):
        parts.append(
            f'<line class="tick" x1="{at(share):.1f}" x2="{at(share):.1f}" y1="{y + 14}" y2="{y + 19}"/>'
            f'<text x="{at(share):.1f}" y="{y + 34}" text-anchor="middle">{escape(percent(share))}</text>'
        )
    for share, name in marks:
        anchor = "end" if share > 0.85 else "start" if share < 0.15 else "middle"
        parts.append(
            f'<line class="guide" x1="{at(share):.1f}" x2="{at(share):.1f}" y1="{y - 30}" y2="{y + 14}"/>'
            f'<text x="{at(share):.1f}" y="{y - 36}" text-anchor="{anchor}">{escape(name)}</text>'
        )
    parts.append(
        f'<line class="span" x1="{at(interval[0]):.1f}" x2="{at(interval[1]):.1f}" y1="{y}" y2="{y}"/>'
    )
    if math.isfinite(value):
        parts.append(f'<circle class="dot one" cx="{at(value):.1f}" cy="{y}" r="8"/>')
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )
