"""The evaluations that a run wrote down, and charts of them that need nothing but a browser."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.reporting import format_count
from lib.reward.report.plot import Plot, spanned

_COLOURS = {
    "one": "#2364aa",
    "two": "#d1495b",
    "three": "#2e8b57",
    "four": "#8d5fd3",
    "five": "#c77d0a",
    "six": "#4a4e69",
}
KINDS = tuple(_COLOURS)
"""Classes of lines, each with a colour of its own."""

_STYLE = """
text { font: 11px sans-serif; fill: #444 } .name { font-size: 12px } .title { font-size: 14px; fill: #111 }
.grid { stroke: #e4e4e4 } .axis, .tick { stroke: #888 } .guide { stroke: #999; stroke-dasharray: 4 3 }
.line { fill: none; stroke-width: 1.8 }
""" + "".join(
    f".line.{kind} {{ stroke: {colour} }} .dot.{kind} {{ fill: {colour} }}\n"
    for kind, colour in _COLOURS.items()
)
_WIDTH, _HEIGHT, _HEAD = 760, 260, 30


class Curve(NamedTuple):
    """One figure over the evaluations of a run."""

    steps: np.ndarray  # int64 [N], of training before it
    values: np.ndarray  # float64 [N]


def read_curves(folder: Path) -> dict[str, Curve]:
    """The figures of all evaluations below a folder of TensorBoard curves, by name: score, steps, kl, learned, ….

    Where a run was resumed, its parts are put together; of two evaluations after equally many steps the later one
    counts.

    Returns:
      By name; `interval` is the half-width of the score's 95 % interval.
    """
    points: dict[str, dict[int, tuple[float, float]]] = {}
    for run in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(run), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            name = _RENAMED.get(tag, tag.removeprefix("test_") if tag.startswith("test_") else None)
            for event in events.Scalars(tag) if name is not None else ():
                kept = points.setdefault(str(name), {})
                if event.step not in kept or kept[event.step][0] <= event.wall_time:
                    kept[event.step] = event.wall_time, event.value
    return {
        name: Curve(
            np.array(sorted(values), np.int64), np.array([values[step][1] for step in sorted(values)])
        )
        for name, values in points.items()
    }


_RENAMED = {"test_reward": "score", "test_reward_interval": "interval", "test_reward_best": "highest"}


class Line(NamedTuple):
    """One line of a chart."""

    steps: Sequence[float] | np.ndarray
    values: Sequence[float] | np.ndarray
    half: Sequence[float] | np.ndarray | None  # of an interval around each value
    kind: str  # one of KINDS


def write_chart(path: Path, panels: Mapping[str, Sequence[Line]], legend: Mapping[str, str]) -> None:
    """Writes an SVG of panels below each other, over a common axis of steps.

    Args:
      path: the file.
      panels: lines by the panel's title; one without lines is left out.
      legend: what each kind of line is called; {} for none.
    """
    shown = {title: lines for title, lines in panels.items() if any(len(line.values) for line in lines)}
    steps = [float(step) for lines in shown.values() for line in lines for step in line.steps]
    x = spanned(steps, 0.02)
    parts, top = [], 8
    if legend:
        entries = enumerate(legend.items())
        width = (_WIDTH - 60) / len(legend)
        parts += [
            f'<circle class="dot {kind}" cx="{60 + at * width:.0f}" cy="14" r="5"/>'
            f'<text x="{70 + at * width:.0f}" y="18">{escape(name)}</text>'
            for at, (kind, name) in entries
        ]
        top += 24
    for title, lines in shown.items():
        ends = [
            float(end)
            for line in lines
            for half in ([0.0] * len(line.values), *([] if line.half is None else [line.half]))
            for sign in (-1, 1)
            for end in np.asarray(line.values) + sign * np.nan_to_num(np.asarray(half))
        ]
        plot = Plot(title, x, spanned(ends), "steps", "", _WIDTH, _HEIGHT, x_text=format_count)
        for line in lines:
            plot.line(list(line.steps), list(line.values), line.kind)
            plot.dots(list(line.steps), list(line.values), line.kind)
            for step, value, half in (
                zip(line.steps, line.values, line.half, strict=True) if line.half is not None else ()
            ):
                plot.whisker(step, value - np.nan_to_num(half), value + np.nan_to_num(half), line.kind)
        placed = f'<svg x="0" y="{top + _HEAD}" width="{_WIDTH}" height="{_HEIGHT}" '
        parts.append(f'<text class="title" x="52" y="{top + 20}">{escape(title)}</text>')
        parts.append(plot.svg().replace("<svg ", placed, 1))
        top += _HEAD + _HEIGHT
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts)
        + "</svg>\n"
    )
