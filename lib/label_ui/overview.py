"""The overview: figures about a database, kept up to date."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from nicegui import html, run, ui

from lib.cli import UserError
from lib.label_ui.db import LabelledDB
from lib.label_ui.desk import Desk
from lib.label_ui.fitting import FIRST_LOOK, Fitting
from lib.label_ui.ledger import display_name
from lib.label_ui.stats import Overview
from lib.label_ui.widgets import ANSWERS, answer_kind, button, card, when
from lib.preferences.labels import Label

_QUESTION = "What does a reward model make of these labels?"


class LiveOverview:
    """The overview's figures, rebuilt when segments or labels change."""

    def __init__(self, desk: Desk, fitting: Fitting | None = None) -> None:
        self._desk, self._fitting = desk, fitting
        self._version: object = None
        self._overview: Overview | None = None
        self._offered: object = False
        with html.div().classes("cards"):
            # What stays as it is keeps the focus and the text that somebody has selected in it.
            self._cards, self._offer = (html.div().style("display: contents") for _ in range(2))

    async def build(self) -> None:
        await self._update()
        ui.timer(2.0, self._update, immediate=False)

    async def _update(self) -> None:
        version: object
        try:
            version = await run.io_bound(self._desk.db.version)
            if version != self._version:
                self._overview = await run.io_bound(self._desk.stats.overview)
        except (UserError, OSError) as error:
            version, self._overview = str(error), None
        overview, fitting = self._overview, self._fitting
        if version != self._version:
            self._version = version
            self._cards.clear()
            with self._cards:
                if overview is None:
                    with card("This database cannot be read", wide=True):
                        html.p(str(version))
                else:
                    _show_overview(overview, self._desk.stats.goal)
        labels = overview.usable if overview is not None and overview.labels else None
        offered: object = labels is not None
        if labels is not None and fitting is not None:
            offered = min(labels, FIRST_LOOK), fitting.running, *fitting.lines
        if offered != self._offered:
            self._offered = offered
            self._offer.clear()
            with self._offer:
                if labels is not None and fitting is not None:
                    _fit(fitting, labels)
                elif labels is not None and self._desk.model is None:
                    _how_to_fit(self._desk.db)


def _fit(fitting: Fitting, labels: int) -> None:
    """The offer of a fit, its last lines while it runs, and its result."""
    with card(_QUESTION, wide=True):
        if fitting.lines:
            shown = [fitting.lines[-1]] if fitting.running else fitting.lines
            html.pre("\n".join(shown)).classes("command").props("tabindex=0")
        if fitting.running:
            html.p("Fitting takes about a minute. You can continue labelling.").props("role=status")
            return
        if fitting.failed:
            html.p("The fit failed; the last lines say why.").classes("alert")
        if labels < FIRST_LOOK:
            html.p(f"{FIRST_LOOK} labels are enough for a first look: {FIRST_LOOK - labels} to go.")
            return
        fitted = bool(fitting.lines) and not fitting.failed
        with html.div().classes("buttons"):
            if fitted:
                ui.link("See what it learned from these labels", "/model").classes("button main")
            button(
                "Fit again" if fitting.lines else "Fit one now", fitting.start, kind="" if fitted else "main"
            )


def _how_to_fit(db: LabelledDB) -> None:
    path = shlex.quote(str(db.root))
    commands = [f"./03_reward_train.py {path} -n mine -o rewards"]
    if db.answers:
        why = "Fit one: its report says how good it is, and which answers it likes most and least."
    else:
        why = (
            "Fit one, then restart this page with it to see what each step is worth and which labels the "
            "model doubts."
        )
        commands.append(f"./02_label_ui.py -d {path} --reward rewards/reward-mine.dat")
    with card(_QUESTION, wide=True):
        html.p(why)
        html.pre("\n".join(commands)).classes("command").props("tabindex=0")


def _show_overview(overview: Overview, goal: int | None) -> None:
    labels = overview.labels
    usable = overview.usable
    with html.section().classes("figures").props('aria-label="Figures"'):
        _figure(*overview.counted.split())
        _figure(f"{usable:,}" + (f" of {goal:,}" if goal else ""), "label" if usable == 1 else "labels")
        _figure(f"{overview.left:,}", "pair not asked yet" if overview.left == 1 else "pairs not asked yet")
        _figure(_bytes(overview.bytes), "on disk")
    if overview.segments < 2:
        with card("Nothing to compare yet", wide=True):
            html.p(
                "A pair takes two clips, or two answers to one prompt. Record clips with 01_a2c.py --db-path and this "
                "folder, or sample answers with 01_text.py; they appear here as they come in."
            )
    if labels:
        with card("Answers"):
            _answers(labels)
        with card("Agreement"):
            _agreement(overview)
        with card("Growth"):
            _growth(labels)
        with card("Who labelled", wide=True):
            _people(overview)
    problems = [*overview.broken.values(), *overview.log_problems]
    if problems:
        with card(f"Left out ({len(problems)})", wide=True), html.ul().classes("problems"):
            for problem in problems[:20]:
                html.li(problem)


def _figure(value: str, what: str) -> None:
    with html.p():
        html.strong(value)
        html.span(what).classes("muted")


def _answers(labels: Sequence[Label]) -> None:
    kinds = Counter(answer_kind(label) for label in labels)
    with html.div().classes("bars"):
        for kind in ("better", "alike", "unsure"):
            share = kinds[kind] / len(labels)
            html.span(ANSWERS[kind])
            with html.div().classes("bar").props('aria-hidden="true"'):
                html.div().style(f"width: {100 * share:.1f}%")
            html.span(f"{kinds[kind]:,}").classes("number")
    lefts = [label for label in labels if label.label and label.left]
    if len(lefts) >= 20:
        share = sum(label.label == label.left for label in lefts) / len(lefts)
        html.p(f"The left clip was preferred in {share:.0%} of these; sides are drawn at random.").classes(
            "muted"
        )


def _agreement(overview: Overview) -> None:
    if overview.shared_pairs:
        share = overview.shared_alike / overview.shared_pairs
        html.p(
            f"Several labellers answered {overview.shared_pairs} of the pairs "
            f"and agreed on {overview.shared_alike} ({share:.0%})."
        )
    else:
        html.p("No pair has been answered by more than one labeller.").classes("muted")
    asked = [same for results in overview.checks.values() for same in results]
    if asked:
        html.p(f"When asked again, people gave the same answer {sum(asked)} times out of {len(asked)}.")
    else:
        html.p("No pair has been asked a second time yet.").classes("muted")


def _growth(labels: Sequence[Label]) -> None:
    times = sorted(label.time for label in labels if label.time is not None)
    if len(times) < 2 or times[-1] - times[0] < 1:
        html.p("Labels over time appear here after the first few.").classes("muted")
        return
    width, height, span = 320, 110, times[-1] - times[0]
    every = max(1, len(times) // 200)  # a drawing needs no more points than pixels
    marks = [(t, i + 1) for i, t in enumerate(times) if i % every == 0 or i == len(times) - 1]
    points = " ".join(
        f"{width * (t - times[0]) / span:.1f},{height - height * n / len(times):.1f}" for t, n in marks
    )
    # Made of numbers only, so there is nothing to sanitise.
    ui.html(
        f'<svg viewBox="-2 -4 {width + 4} {height + 8}" role="img" aria-label="Labels over time" '
        f'preserveAspectRatio="none"><polygon points="0,{height} {points} {width},{height}"/>'
        f'<polyline points="{points}"/></svg>',
        sanitize=False,
    ).classes("growth")
    with html.p().classes("muted ends"):
        html.span(when(times[0]))
        html.span(f"{len(times):,} answers")
        html.span(when(times[-1]))


def _people(overview: Overview) -> None:
    by_name: dict[str, list[Label]] = {}
    for label in overview.labels:
        by_name.setdefault(display_name(label.labeller), []).append(label)
    with html.div().classes("scroll").props("tabindex=0"), html.table():
        with html.thead(), html.tr():
            for title in (
                "Labeller",
                "Labels",
                "Alike",
                "Can’t tell",
                "Flagged",
                "Same again",
                "Median time",
                "Last",
            ):
                html.th(title).props('scope="col"')
        with html.tbody():
            for name, labels in sorted(by_name.items(), key=lambda item: -len(item[1])):
                checks = overview.checks.get(name, [])
                took = sorted(label.response_ms for label in labels if label.response_ms is not None)
                times = [label.time for label in labels if label.time is not None]
                with html.tr():
                    html.th(name).props('scope="row"')
                    html.td(f"{sum(label.label is not None for label in labels):,}")
                    html.td(f"{sum(label.label == 0 for label in labels):,}")
                    html.td(f"{sum(label.label is None for label in labels):,}")
                    html.td(f"{sum(label.flag is not None for label in labels):,}")
                    html.td(f"{sum(checks)} of {len(checks)}" if checks else "–")
                    html.td(f"{took[len(took) // 2] / 1000:.1f} s" if took else "–")
                    html.td(when(max(times)) if times else "–")


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
