"""The evaluations that a run wrote down, and charts of them as SVG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.plots import chart, save_svg, styled
from lib.reporting import format_count

COLOURS = ("#2364aa", "#d1495b", "#2e8b57", "#8d5fd3", "#c77d0a", "#4a4e69")
"""Of lines that stand for different runs."""


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
            if not tag.startswith("test_"):
                continue
            kept = points.setdefault(_RENAMED.get(tag, tag.removeprefix("test_")), {})
            for event in events.Scalars(tag):
                if event.step not in kept or kept[event.step][0] <= event.wall_time:
                    kept[event.step] = event.wall_time, event.value
    return {
        name: Curve(
            np.array(sorted(values), np.int64), np.array([values[step][1] for step in sorted(values)])
        )
        for name, values in points.items()
    }


_RENAMED = {"test_reward": "score", "test_reward_interval": "interval"}


class Line(NamedTuple):
    """One line of a chart."""

    steps: Sequence[float] | np.ndarray
    values: Sequence[float] | np.ndarray
    half: Sequence[float] | np.ndarray | None  # of an interval around each value
    colour: str  # one of COLOURS


@styled
def write_chart(path: Path, panels: Mapping[str, Sequence[Line]], legend: Mapping[str, str]) -> None:
    """Writes an SVG of panels below each other, over a common axis of steps.

    Args:
      path: the file.
      panels: lines by the panel's title; one without lines is left out, but not all are.
      legend: what each colour stands for.
    """
    shown = {title: lines for title, lines in panels.items() if any(len(line.values) for line in lines)}
    height = 290 * len(shown)
    figure, axes = chart("steps", "", 760, 290, rows=len(shown))
    figure.set_facecolor("white")
    figure.subplots_adjust(top=1 - 58 / height, hspace=0.3)
    axes[-1].xaxis.set_major_formatter(lambda step, _: format_count(step))
    for panel, (title, lines) in zip(axes, shown.items(), strict=True):
        panel.set_title(title, loc="left", pad=10)
        panel.tick_params(labelbottom=True)
        for steps, values, half, colour in lines:
            within = None if half is None else np.nan_to_num(np.asarray(half, float))
            panel.errorbar(steps, values, within, color=colour, marker="o", markersize=6, linewidth=1.8)
    figure.legend(
        [Line2D([], [], color=colour, marker="o", linestyle="") for colour in legend],
        legend.values(),
        loc="upper left",
        ncols=len(legend),
        handletextpad=0,
        columnspacing=4,
        frameon=False,
    )
    save_svg(path, figure)
