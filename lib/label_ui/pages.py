"""NiceGUI's part of the page: overview and existing labels. The labelling screen itself is in static/."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI
from nicegui import html, ui
from starlette.requests import Request

from lib.label_ui.desk import Desk
from lib.label_ui.fitting import Fitting
from lib.label_ui.keys import Keys
from lib.label_ui.overview import LiveOverview
from lib.label_ui.table import LabelTable
from lib.label_ui.widgets import button

_STYLES = (
    '<link rel="stylesheet" href="/static/base.css"><link rel="stylesheet" href="/static/pages.css">'
    '<link rel="icon" href="/static/icon.svg">'
)


def add_pages(
    app: FastAPI, desk: Desk, keys: Keys, fitting: Fitting | None = None, url: str | None = None
) -> None:
    """Adds the pages to the application.

    Args:
      app: The application; NiceGUI is mounted under it.
      desk: The DB.
      keys: Makes the links by which further browsers come in.
      fitting: The fits that the overview offers, None without.
      url: Where browsers find the page, without a slash at its end; None: where their requests say.
    """

    @ui.page("/", title="Overview")
    async def overview(request: Request) -> None:
        base = url or f"{request.url.scheme}://{request.headers['host']}"
        with _frame("/", desk):
            with html.header().classes("head"):
                with html.div().classes("title"):
                    html.h1(desk.db.root.resolve().name)
                    html.p(str(desk.db.root.resolve())).classes("muted path")
                button("Invite", lambda: _invite(base, keys)).props(
                    'title="Make a link that lets in one more browser"'
                )
                ui.link("Start labelling", "/label").classes("button main start")
            await LiveOverview(desk, fitting).build()

    @ui.page("/labels", title="Labels")
    async def labels() -> None:
        with _frame("/labels", desk):
            with html.header().classes("head"), html.div().classes("title"):
                html.h1("Existing labels")
            await LabelTable(desk).build()

    ui.run_with(app, title="Label", language="en-US", dark=None, tailwind=False, show_welcome_message=False)


@contextmanager
def _frame(here: str, desk: Desk) -> Iterator[None]:
    """The frame of every page, with a link to the reward model once there is one."""
    ui.add_head_html(_STYLES)
    ui.colors(primary="var(--accent)", negative="var(--bad)")
    with html.nav().classes("nav").props('aria-label="Pages"'):
        for text, path in (("Overview", "/"), ("Label", "/label"), ("Labels", "/labels")):
            link = ui.link(text, path)
            if path == here:
                link.props('aria-current="page"')
        ui.link("Model", "/model").bind_visibility_from(desk, "model", lambda model: model is not None)
    with html.main().classes("page"):
        yield


def _invite(base: str, keys: Keys) -> None:
    link = f"{base}/?invite={keys.new_link('guest')}"

    async def copy() -> None:
        # Not the clipboard API: browsers withhold it from pages that came from another machine without TLS.
        await ui.run_javascript(f"getHtmlElement({field.id}).select(); document.execCommand('copy')")
        ui.notify("Copied.")

    named = ui.dialog(value=True).props('aria-label="Invite somebody"')
    with named as dialog, ui.card().classes("dialog"):
        html.h2("Invite somebody")
        html.p(
            "This link works once. It lets one person in, under a name of their choice, to label this database."
        )
        field = ui.input(value=link).props('readonly outlined dense aria-label="Link"').classes("link")
        with html.div().classes("buttons"):
            button("Close", dialog.close)
            button("Copy", copy, kind="main")
    dialog.on("hide", dialog.delete)
