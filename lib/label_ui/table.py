"""The table of existing labels: search, filters, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nicegui import events, html, run, ui

from lib.cli import UserError
from lib.label_ui.db import NotSaved
from lib.label_ui.desk import Desk
from lib.label_ui.ledger import display_name
from lib.label_ui.widgets import ANSWERS, answer_kind, button, when
from lib.preferences.labels import Label, Pair
from lib.preferences.segments import SegmentError

ROWS = 25
"""Labels on one page of the table."""

_EVERYBODY = "Everybody"
_SNIPPET = 160  # characters of an answer


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
            and self.answer in ("any", answer_kind(label))
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
  <template v-if="props.row.texts.length"><span v-for="(text, at) in props.row.texts" class="snippet"
    :class="{best: props.row.best == at + 1}" dir="auto">{{ text }}</span></template>
  <template v-else>
  <img :class="{best: props.row.best == 1}" :src="props.row.thumb1" alt="" width="40" height="52" loading="lazy">
  <img :class="{best: props.row.best == 2}" :src="props.row.thumb2" alt="" width="40" height="52" loading="lazy">
  </template>
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


class LabelTable:
    """The labels of a DB, latest first, one page at a time; the rest stays on the server."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._filter = _Filter()
        self._page = 1
        self._shown: dict[int, Label] = {}

    async def build(self) -> None:
        wanted = self._filter
        with html.div().classes("filters"):
            text = ui.input(placeholder="Search clips, notes, names").props(
                'outlined dense clearable debounce=250 aria-label="Search" type="search"'
            )
            text.bind_value_to(wanted, "text", forward=lambda value: value or "").on_value_change(self._first)
            ui.select(ANSWERS, value="any", on_change=self._first).props(
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
        if self._filter.labeller not in people:
            self._labellers.value = _EVERYBODY
        self._labellers.set_options([_EVERYBODY, *people])
        found = [label for label in reversed(labels) if self._filter.admits(label, disputed)]
        start = (self._page - 1) * ROWS
        self._shown = dict(enumerate(found[start : start + ROWS], start=start))
        self._table.rows = [self._row(i, label, label.pair in disputed) for i, label in self._shown.items()]
        nothing = "No label matches." if labels else "No labels yet."
        self._table.props(f'no-data-label="{nothing}"')
        self._table.pagination = {"rowsPerPage": ROWS, "rowsNumber": len(found), "page": self._page}

    def _row(self, id: int, label: Label, disputed: bool) -> dict[str, Any]:
        one, two = self._desk.db.clip_id(label.sample1), self._desk.db.clip_id(label.sample2)
        says = {0: "both alike", 1: "first is better", 2: "second is better", None: "can’t tell"}[label.label]
        return {
            "id": id,
            "segments": f"{label.sample1} and {label.sample2}",
            "open": f"/label?pair={one}.{two}",
            "texts": [self._snippet(id) for id in (one, two)] if self._desk.db.answers else [],
            "thumb1": f"/thumb/{one}.png",
            "thumb2": f"/thumb/{two}.png",
            "best": label.label or 0,
            "says": says,
            "disputed": disputed,
            "labeller": display_name(label.labeller),
            "flag": label.flag or "",
            "why": "repeat check" if label.repeat else label.strategy or "",
            "took": f"{label.response_ms / 1000:.1f} s" if label.response_ms is not None else "",
            "when": when(label.time) if label.time is not None else "",
        }

    def _snippet(self, id: str) -> str:
        """The first words of an answer."""
        try:
            return self._desk.db.answer(id).text[:_SNIPPET]
        except (KeyError, SegmentError):
            return "?"

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

        named = ui.dialog(value=True).props('aria-label="Delete this label?"')
        with named as dialog, ui.card().classes("dialog"):
            html.h2("Delete this label?")
            html.p(
                f"{display_name(label.labeller)} on {label.sample1} and {label.sample2}. The pair may then "
                "be asked again. labels.json keeps a record of the label and its deletion."
            )
            with html.div().classes("buttons"):
                button("Keep", dialog.close).props("autofocus")
                button("Delete", delete, kind="danger")
        dialog.on("hide", dialog.delete)
