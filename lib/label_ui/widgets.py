"""What the NiceGUI pages share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import html, ui

from lib.preferences.labels import Label

ANSWERS = {"any": "Any answer", "better": "One is better", "alike": "Both alike", "unsure": "Can’t tell"}


def button(text: str, action: Callable[[], Any], kind: str = "") -> ui.element:
    """A button in the page's style; `kind` is one more CSS class of it, such as "main" or "danger"."""
    return html.button(text).classes(f"button {kind}").props("type=button").on("click", action)


@contextmanager
def card(title: str, wide: bool = False) -> Iterator[None]:
    """A titled box on a page; what is built within goes into it."""
    with html.section().classes("card wide" if wide else "card"):
        html.h2(title)
        yield


def answer_kind(label: Label) -> str:
    """Which of ANSWERS a label is."""
    return "unsure" if label.label is None else "better" if label.label else "alike"


def when(seconds: float) -> str:
    """Local date and time of Unix seconds."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
