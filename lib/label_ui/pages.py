"""NiceGUI's part of the page: overview and existing labels. The labelling screen itself is in static/."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from nicegui import events, html, run, ui
from starlette.requests import Request

from lib.cli import UserError
from lib.label_ui.access import Keys
from lib.label_ui.db import NotSaved
from lib.label_ui.desk import Desk
from lib.label_ui.ledger import display_name
from lib.label_ui.stats import Overview
from lib.preferences.labels import Label, Pair

ROWS = 25
"""Labels on one page of the table."""

_STYLES = (
    '<link rel="stylesheet" href="/static/base.css"><link rel="stylesheet" href="/static/pages.css">'
    '<link rel="icon" href="/static/icon.svg">'
)
_ANSWERS = {"any": "Any answer", "better": "One is better", "alike": "Both alike", "unsure": "Can’t tell"}
_EVERYBODY = "Everybody"


def add_pages(app: FastAPI, desk: Desk, keys: Keys) -> None:
    """Adds the pages to the application.

    Args:
      app: The application; NiceGUI is mounted under it.
      desk: The DB.
      keys: Makes the links by which further browsers come in.
    """

    @ui.page("/", title="Overview")
    async def overview(request: Request) -> None:
        base = f"{request.url.scheme}://{request.headers['host']}/"
        with _frame("/", desk.model is not None):
            with html.header().classes("head"):
                with html.div().classes("title"):
                    html.h1(desk.db.root.resolve().name)
                    html.p(str(desk.db.root.resolve())).classes("muted path")
                _button("Invite", lambda: _invite(base, keys)).props(
                    'title="Make a link that lets in one more browser"'
                )
                ui.link("Start labelling", "/label").classes("button main start")
            await _LiveOverview(desk).build()

    @ui.page("/labels", title="Labels")
    async def labels() -> None:
        with _frame("/labels", desk.model is not None):
            with html.header().classes("head"), html.div().classes("title"):
                html.h1("Existing labels")
            await _Table(desk).build()

    ui.run_with(app, title="Label", dark=None, tailwind=False, show_welcome_message=False)


@contextmanager
def _frame(here: str, model: bool) -> Iterator[None]:
    """What surrounds the content of every page, with a link to the reward model if there is one."""
    ui.add_head_html(_STYLES)
    ui.colors(primary="var(--accent)", negative="var(--bad)")
    pages = [("Overview", "/"), ("Label", "/label"), ("Labels", "/labels")]
    if model:
        pages.append(("Model", "/model"))
    with html.nav().classes("nav").props('aria-label="Pages"'):
        for text, path in pages:
            link = ui.link(text, path)
            if path == here:
                link.props('aria-current="page"')
    with html.main().classes("page"):
        yield


def _button(text: str, action: Callable[[], Any], kind: str = "") -> ui.element:
    return html.button(text).classes(f"button {kind}").props("type=button").on("click", action)


def _invite(base: str, keys: Keys) -> None:
    link = f"{base}?invite={keys.new_link('guest')}"

    async def copy() -> None:
        # Not the clipboard API: browsers withhold it from pages that came from another machine without TLS.
        await ui.run_javascript(f"getHtmlElement({field.id}).select(); document.execCommand('copy')")
        ui.notify("Copied.")

    with ui.dialog(value=True) as dialog, ui.card().classes("dialog"):
        html.h2("Invite somebody")
        html.p(
            "This link works once. It lets one person in, under a name of their choice, to label this database."
        )
        field = ui.input(value=link).props('readonly outlined dense aria-label="Link"').classes("link")
        with html.div().classes("buttons"):
            _button("Close", dialog.close)
            _button("Copy", copy, kind="main")
    dialog.on("hide", dialog.delete)


# --- overview --------------------------------------------------------------------------------------------------


class _LiveOverview:
    """The overview's figures, built anew when segments or labels have changed."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shown: object = None
        self._place = html.div().classes("cards")

    async def build(self) -> None:
        await self._update()
        ui.timer(2.0, self._update, immediate=False)

    async def _update(self) -> None:
        state: object
        overview: Overview | None
        try:
            state = await run.io_bound(self._desk.db.version)
            if state == self._shown:
                return
            overview = await run.io_bound(self._desk.stats.overview)
        except (UserError, OSError) as error:
            state, overview = str(error), None
            if state == self._shown:
                return
        self._shown = state
        self._place.clear()
        with self._place:
            if overview is None:
                with _card("This database cannot be read", wide=True):
                    html.p(str(state))
            else:
                _show_overview(overview, self._desk.stats.goal)
                if overview.labels and self._desk.model is None:
                    html.p(
                        "Fit a reward model to these labels and restart this page with --reward REWARD to see what "
                        "it gives each step, and which labels it doubts."
                    ).classes("muted wide")


def _show_overview(overview: Overview, goal: int | None) -> None:
    labels = overview.labels
    usable = overview.usable
    with html.section().classes("figures").props('aria-label="Figures"'):
        _figure(f"{overview.segments:,}", "segment" if overview.segments == 1 else "segments")
        _figure(f"{usable:,}" + (f" of {goal:,}" if goal else ""), "label" if usable == 1 else "labels")
        _figure(
            f"{overview.segments * (overview.segments - 1) // 2 - overview.pairs:,}", "pairs not asked yet"
        )
        _figure(_bytes(overview.bytes), "on disk")
    if overview.segments < 2:
        with _card("Nothing to compare yet", wide=True):
            html.p(
                "A pair takes two segments. Record some with 01_a2c.py --db-path and this folder; "
                "they appear here as they come."
            )
    if labels:
        with _card("Answers"):
            _answers(labels)
        with _card("Agreement"):
            _agreement(overview)
        with _card("Growth"):
            _growth(labels)
        with _card("Who labelled", wide=True):
            _people(overview)
    problems = [*overview.broken.values(), *overview.log_problems]
    if problems:
        with _card(f"Left out ({len(problems)})", wide=True), html.ul().classes("problems"):
            for problem in problems[:20]:
                html.li(problem)


@contextmanager
def _card(title: str, wide: bool = False) -> Iterator[None]:
    with html.section().classes("card wide" if wide else "card"):
        html.h2(title)
        yield


def _figure(value: str, what: str) -> None:
    with html.p():
        html.strong(value)
        html.span(what).classes("muted")


def _answers(labels: Sequence[Label]) -> None:
    kinds = Counter(_kind(label) for label in labels)
    with html.div().classes("bars"):
        for kind in ("better", "alike", "unsure"):
            share = kinds[kind] / len(labels)
            html.span(_ANSWERS[kind])
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
        html.p("Labels over time appear here once there are a few.").classes("muted")
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
        html.span(_when(times[0]))
        html.span(f"{len(times):,} answers")
        html.span(_when(times[-1]))


def _people(overview: Overview) -> None:
    by_name: dict[str, list[Label]] = {}
    for label in overview.labels:
        by_name.setdefault(display_name(label.labeller), []).append(label)
    with html.div().classes("scroll"), html.table():
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
                    html.td(_when(max(times)) if times else "–")


# --- existing labels -------------------------------------------------------------------------------------------


@dataclass
class _Filter:
    text: str = ""
    answer: str = "any"
    labeller: str = _EVERYBODY
    flagged: bool = False
    disputed: bool = False

    def admits(self, label: Label, disputed: set[Pair]) -> bool:
        words = f"{label.sample1} {label.sample2} {label.flag or ''} {display_name(label.labeller)} {label.strategy or ''}"
        return (
            self.text.lower() in words.lower()
            and self.answer in ("any", _kind(label))
            and self.labeller in (_EVERYBODY, display_name(label.labeller))
            and (not self.flagged or label.flag is not None)
            and (not self.disputed or label.pair in disputed)
        )


_COLUMNS: list[dict[str, Any]] = [
    {"name": "pair", "label": "Pair", "field": "segments", "align": "left"},
    {"name": "says", "label": "Answer", "field": "says", "align": "left"},
    {"name": "labeller", "label": "Labeller", "field": "labeller", "align": "left"},
    {"name": "flag", "label": "Note", "field": "flag", "align": "left"},
    {"name": "why", "label": "Asked as", "field": "why", "align": "left"},
    {"name": "took", "label": "Took", "field": "took", "align": "right"},
    {"name": "when", "label": "When", "field": "when", "align": "left"},
    {"name": "do", "label": "", "field": "id", "align": "right"},
]

# Vue escapes what stands between double braces, so names and notes are shown, never run.
_PAIR_CELL = """
<q-td :props="props"><a class="pair" :href="props.row.open" :aria-label="'Open ' + props.row.segments">
  <img :class="{best: props.row.best == 1}" :src="props.row.thumb1" alt="" width="40" height="52" loading="lazy">
  <img :class="{best: props.row.best == 2}" :src="props.row.thumb2" alt="" width="40" height="52" loading="lazy">
</a></q-td>
"""
_SAYS_CELL = """
<q-td :props="props">{{ props.row.says }}<span v-if="props.row.disputed" class="tag">disputed</span></q-td>
"""
_DO_CELL = """
<q-td :props="props">
  <a class="do" :href="props.row.open">Open or change</a>
  <button type="button" class="button quiet" @click="() => $parent.$emit('remove', props.row.id)"
    :aria-label="'Delete this label of ' + props.row.labeller">Delete</button>
</q-td>
"""


class _Table:
    """The labels of a DB, latest first, a page at a time; the rest stays on the server."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._filter = _Filter()
        self._page = 1
        self._shown: dict[int, Label] = {}

    async def build(self) -> None:
        wanted = self._filter
        with html.div().classes("filters"):
            text = ui.input(placeholder="Search segments, notes, names").props(
                'outlined dense clearable debounce=250 aria-label="Search" type="search"'
            )
            text.bind_value_to(wanted, "text", forward=lambda value: value or "").on_value_change(self._first)
            ui.select(_ANSWERS, value="any", on_change=self._first).props(
                'outlined dense options-dense aria-label="Answer"'
            ).bind_value_to(wanted, "answer")
            self._labellers = ui.select([_EVERYBODY], value=_EVERYBODY, on_change=self._first).props(
                'outlined dense options-dense aria-label="Labeller"'
            )
            self._labellers.bind_value_to(wanted, "labeller")
            ui.checkbox("Flagged", on_change=self._first).bind_value_to(wanted, "flagged")
            ui.checkbox("Disputed", on_change=self._first).bind_value_to(wanted, "disputed").tooltip(
                "Labellers disagree, or somebody answered differently when asked again"
            )
        self._table = ui.table(
            rows=[],
            columns=_COLUMNS,
            row_key="id",
            pagination={"rowsPerPage": ROWS, "rowsNumber": 0, "page": 1},
        ).props(f'flat dense :rows-per-page-options="[{ROWS}]"')
        for name, cell in (("pair", _PAIR_CELL), ("says", _SAYS_CELL), ("do", _DO_CELL)):
            self._table.add_slot(f"body-cell-{name}", cell)
        self._table.on("request", self._turn)
        self._table.on("remove", self._confirm)
        await self._load()

    async def _first(self) -> None:
        self._page = 1
        await self._load()

    async def _turn(self, event: events.GenericEventArguments) -> None:
        self._page = max(1, int(event.args["pagination"]["page"]))
        await self._load()

    async def _load(self) -> None:
        try:
            labels, disputed = await run.io_bound(self._desk.stats.labels)  # type: ignore[misc]  # None only at shutdown
        except (UserError, OSError) as error:
            ui.notify(str(error), type="negative")
            return
        people = sorted({display_name(label.labeller) for label in labels})
        self._labellers.set_options([_EVERYBODY, *people])
        found = [label for label in reversed(labels) if self._filter.admits(label, disputed)]
        start = (self._page - 1) * ROWS
        self._shown = dict(enumerate(found[start : start + ROWS], start=start))
        self._table.rows = [self._row(i, label, label.pair in disputed) for i, label in self._shown.items()]
        nothing = "No label fits." if labels else "No labels yet."
        self._table.props(f'no-data-label="{nothing}"')
        self._table.pagination = {"rowsPerPage": ROWS, "rowsNumber": len(found), "page": self._page}

    def _row(self, id: int, label: Label, disputed: bool) -> dict[str, Any]:
        one, two = self._desk.db.clip_id(label.sample1), self._desk.db.clip_id(label.sample2)
        says = {0: "both alike", 1: "first is better", 2: "second is better", None: "can’t tell"}[label.label]
        return {
            "id": id,
            "segments": f"{label.sample1} and {label.sample2}",
            "open": f"/label?pair={one}.{two}",
            "thumb1": f"/thumb/{one}.png",
            "thumb2": f"/thumb/{two}.png",
            "best": label.label or 0,
            "says": says,
            "disputed": disputed,
            "labeller": display_name(label.labeller),
            "flag": label.flag or "",
            "why": "repeat check" if label.repeat else label.strategy or "",
            "took": f"{label.response_ms / 1000:.1f} s" if label.response_ms is not None else "",
            "when": _when(label.time) if label.time is not None else "",
        }

    def _confirm(self, event: events.GenericEventArguments) -> None:
        label = self._shown.get(int(event.args))
        if label is None:
            return

        async def delete() -> None:
            dialog.close()
            try:
                await run.io_bound(self._desk.votes.delete, label)
            except (NotSaved, UserError) as error:
                ui.notify(str(error), type="negative")
            await self._load()

        with ui.dialog(value=True) as dialog, ui.card().classes("dialog"):
            html.h2("Delete this label?")
            html.p(
                f"{display_name(label.labeller)} on {label.sample1} and {label.sample2}. "
                "The pair may then be asked again. labels.json keeps a record of both."
            )
            with html.div().classes("buttons"):
                _button("Keep", dialog.close).props("autofocus")
                _button("Delete", delete, kind="danger")
        dialog.on("hide", dialog.delete)


def _kind(label: Label) -> str:
    return "unsure" if label.label is None else "better" if label.label else "alike"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
