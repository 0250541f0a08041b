"""Colours of both themes against WCAG 2.2 AA."""

import re

import pytest

from lib.label_ui.api import STATIC

_CSS = (STATIC / "base.css").read_text()
_LIGHT, _DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part))
    for part in _CSS.split("@media (prefers-color-scheme: dark)")[:2]
)
_TEXT = [
    ("ink", "ground"),
    ("ink", "surface"),
    ("ink", "sunken"),
    ("muted", "ground"),
    ("muted", "surface"),
    ("muted", "sunken"),
    ("on-accent", "accent"),
    ("accent", "surface"),
    ("bad", "surface"),
    ("on-notice", "notice"),
]
_PARTS = [
    ("control", "surface"),
    ("control", "ground"),
    ("accent", "ground"),
    ("accent", "line"),
    ("good", "surface"),
]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    dark, light = sorted((luminance(one), luminance(two)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [_LIGHT, _DARK], ids=["light", "dark"])
def test_text_and_controls_stand_out(theme: dict[str, str]) -> None:
    weak = [
        (front, back, round(contrast(theme[front], theme[back]), 2))
        for pairs, least in ((_TEXT, 4.5), (_PARTS, 3.0))
        for front, back in pairs
        if contrast(theme[front], theme[back]) < least
    ]
    assert weak == []
