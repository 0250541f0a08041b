"""The charts of a report. Importing this imports Matplotlib."""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator, MultipleLocator

from lib.plots import THEME, chart, inline_svg, styled
from lib.reporting import format_count
from lib.reward.fit import Epoch
from lib.reward.report.figures import Bin, Ceiling, Share
from lib.reward.report.probes import PaidFor

_DASHES = (0, (4, 4))
_ONE, _TWO = THEME["accent"], THEME["second"]


def _percent(share: float, _: object) -> str:
    """A tick of a percentage axis."""
    return f"{100 * share:g} %"


@styled
def gauge(title: str, held_out: Share, ceiling: Ceiling) -> Markup:
    """Held-out accuracy with its interval, on a line from 0 to 100 % between chance and the ceiling."""
    figure, (axes,) = chart("", "", 1080, 92)
    figure.subplots_adjust(left=0.015, right=0.985, top=0.74, bottom=0.3)
    axes.set(xlim=(0, 1), ylim=(-1, 1), yticks=[])
    axes.spines.bottom.set_visible(False)
    axes.xaxis.set_major_locator(MultipleLocator(0.1))
    axes.xaxis.set_major_formatter(_percent)
    axes.hlines(0, 0, 1, THEME["line"], linewidth=6)
    if ceiling.high > ceiling.low:
        axes.axvspan(ceiling.low, ceiling.high, -0.1, 1.1, color=_TWO, alpha=0.2, linewidth=0, zorder=2.1)
    for share, name in ((0.5, "chance"), (ceiling.value, f"teacher's ceiling {ceiling.value:.0%}")):
        axes.axvline(share, 0, 1.15, color=THEME["muted"], linewidth=1, linestyle=_DASHES, clip_on=False)
        place = "right" if share > 0.85 else "center"
        axes.text(share, 1.5, name, color=THEME["muted"], horizontalalignment=place)
    axes.plot(held_out.interval, (0, 0), color=_ONE, linewidth=6, solid_capstyle="round", zorder=3)
    if held_out.count:
        axes.plot(held_out.value, 0, "o", color=_ONE, markersize=16, zorder=3)
    return inline_svg(figure, title)


@styled
def learning_curves(members: Sequence[Sequence[Epoch]], kept: Sequence[Epoch]) -> Markup:
    """Training and held-out loss by epoch.

    Args:
      members: the epochs of each, with finite losses.
      kept: the epoch that was kept of each member.
    """
    figure, (axes,) = chart("epoch", "loss, nats per pair")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.axhline(math.log(2), color=THEME["muted"], linewidth=1, linestyle=_DASHES)
    for epochs in members:
        numbers = [epoch.epoch for epoch in epochs]
        axes.plot(numbers, [epoch.train_loss for epoch in epochs], color=_ONE)
        axes.plot(numbers, [epoch.held_out_loss for epoch in epochs], color=_TWO)
    axes.plot(
        [epoch.epoch for epoch in kept],
        [epoch.held_out_loss for epoch in kept],
        "o",
        color=_TWO,
        markersize=8,
        clip_on=False,
    )
    axes.set_xlim(1, max([2, *(epoch.epoch for epochs in members for epoch in epochs)]))
    return inline_svg(figure, "training and held-out loss by epoch")


@styled
def calibration(bins: Sequence[Bin]) -> Markup:
    """Predicted against observed, with 95 % intervals."""
    figure, (axes,) = chart("predicted: the teacher prefers what the model prefers", "the teacher does")
    axes.set(xlim=(0.5, 1), ylim=(0, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_percent)
    axes.plot([0.5, 1], [0.5, 1], color=THEME["control"], linewidth=1)
    for bin in bins:
        axes.vlines(bin.predicted, *bin.agreed.interval, _ONE, clip_on=False)
        axes.plot(bin.predicted, bin.agreed.value, "o", color=_ONE, markersize=10, clip_on=False)
    return inline_svg(figure, "the model's confidence against how often the teacher agrees")


@styled
def returns(learned: Sequence[float], scored: Sequence[float]) -> Markup:
    """Learned return of each segment against its score."""
    figure, (axes,) = chart("score of a clip, points", "learned return, standard deviations")
    axes.plot(scored, learned, "o", color=_ONE, alpha=0.45, markersize=6)
    return inline_svg(figure, "learned return against score, one dot per clip")


@styled
def paid_for(found: PaidFor) -> Markup:
    """Mean reward along the rows of a table, once for each column; larger dots stand for more steps."""
    figure, (axes,) = chart("", "learned reward per step", 1080, 250)
    count, columns = len(found.rows.intervals), found.columns.intervals
    most = max(paid.steps for row in found.cells for cell in row for paid in cell)
    axes.axhline(0, color=THEME["muted"], linewidth=1, linestyle=_DASHES)
    for at, column in enumerate(columns):
        left = at * (count + 1)
        for part, colour in zip(range(len(found.parts.intervals)), (_TWO, _ONE), strict=False):
            here = [row[at][part] for row in found.cells]
            places = [left + r for r, paid in enumerate(here) if paid.steps]
            means = [paid.mean for paid in here if paid.steps]
            axes.plot(places, means, color=colour)
            sizes = [24 + 150 * paid.steps / most for paid in here if paid.steps]
            axes.scatter(places, means, sizes, color=colour, linewidths=0, zorder=3)
        axes.text(
            left + (count - 1) / 2,
            1.02,
            column,
            color=THEME["muted"],
            horizontalalignment="center",
            transform=axes.get_xaxis_transform(),
        )
    ticks = [at * (count + 1) + r for at in range(len(columns)) for r in range(count)]
    axes.set_xticks(ticks, found.rows.intervals * len(columns))
    axes.set(xlabel=found.rows.name, xlim=(-0.7, ticks[-1] + 0.7))
    figure.subplots_adjust(top=0.9)
    return inline_svg(figure, f"learned reward by {found.rows.name}, for each {found.columns.name}")


@styled
def histogram(title: str, unit: str, edges: np.ndarray, one: np.ndarray, two: np.ndarray) -> Markup:
    """Two histograms over the same bins: B + 1 edges, and B shares of each."""
    figure, (axes,) = chart(unit, "share of steps")
    axes.yaxis.set_major_formatter(_percent)
    for shares, colour in ((one, _ONE), (two, _TWO)):
        axes.stairs(shares, edges, color=colour, alpha=0.5, fill=True)
    axes.set_xlim(edges[0], edges[-1])
    return inline_svg(figure, title)


@styled
def along_the_game(steps: Sequence[float], means: Sequence[float], limit: float) -> Markup:
    """Mean disagreement by the step of the game, below or above a limit."""
    figure, (axes,) = chart("steps since the game began", "mean disagreement")
    axes.axhline(limit, color=THEME["muted"], linewidth=1, linestyle=_DASHES)
    axes.plot(steps, means, "o-", color=_TWO, markersize=6)
    axes.set(xlim=(0, None), ylim=(0, None))
    return inline_svg(figure, "disagreement along the game")


@styled
def over_training(
    title: str,
    unit: str,
    steps: Sequence[float],
    values: Sequence[float],
    halves: Sequence[float] | None = None,
) -> Markup:
    """A figure of evaluations by steps of training, or their like, with half-widths of intervals around it."""
    figure, (axes,) = chart(unit, "", height=210)
    axes.xaxis.set_major_formatter(lambda step, _: format_count(step))
    axes.errorbar(steps, values, halves, color=_ONE, marker="o", markersize=6)
    return inline_svg(figure, f"{title} by {unit} of training")
