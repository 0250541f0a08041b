"""NiceGUI's part of the page: overview and existing labels."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from lib.label_ui.access import Keys
from lib.label_ui.desk import Desk


def add_pages(app: FastAPI, desk: Desk, keys: Keys) -> None:
    """Adds the pages to the application."""

    @ui.page("/")
    def overview() -> None:
        ui.link("Label", "/label")

    ui.run_with(app, title="Overview", dark=None, tailwind=False, show_welcome_message=False)
