"""Charts by Matplotlib as SVG, with text that stays text."""

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

THEME = {
    "accent": "#1d5cb8",
    "second": "#b4540a",
    "line": "#cfd1cf",
    "control": "#848a92",
    "muted": "#565d69",
}
"""Colours of the light theme by the name of their CSS variable, which takes their place in a page."""

_SVG = "{http://www.w3.org/2000/svg}"

styled = matplotlib.rc_context(
    {
        "figure.dpi": 72,  # so that a point is a pixel
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.edgecolor": THEME["control"],
        "axes.labelcolor": THEME["muted"],
        "axes.labelsize": 12,
        "axes.linewidth": 1,
        "axes.spines.left": False,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": THEME["line"],
        "grid.linewidth": 1,
        "lines.linewidth": 2,
        "lines.markeredgewidth": 0,
        "lines.solid_joinstyle": "round",
        "font.size": 12,
        "text.parse_math": False,
        "xtick.color": THEME["control"],
        "xtick.labelcolor": THEME["muted"],
        "xtick.major.width": 1,
        "xtick.minor.size": 0,
        "ytick.labelcolor": THEME["muted"],
        "ytick.major.size": 0,
        "svg.fonttype": "none",
        "svg.hashsalt": "charts",  # the same chart is the same file
    }
)
"""Decorates functions that draw: the style of all charts."""


def chart(
    x_label: str, y_label: str, width: int = 520, height: int = 270, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """An empty figure of `rows` panels below each other over one x axis; `width` and `height` in pixels, of one panel."""
    figure = Figure(figsize=(width / 72, rows * height / 72))
    panels = figure.subplots(rows, sharex=True, squeeze=False)[:, 0].tolist()
    figure.subplots_adjust(
        left=52 / width,
        right=1 - 12 / width,
        top=1 - 12 / (rows * height),
        bottom=42 / (rows * height),
    )
    for panel in panels:
        panel.set(ylabel=y_label)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    panels[-1].set(xlabel=x_label)
    return figure, panels


def _rendered(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    # The reader's own font, not the one that text was measured with; and pixels, not points.
    text = re.sub("font-family: [^;]*", "font-family: sans-serif", file.getvalue())
    return re.sub(r'(width|height)="(\d+)pt"', r'\1="\2"', text)


def save_svg(path: Path, figure: Figure) -> None:
    """Writes a figure to its own file."""
    path.write_text(_rendered(figure))


def inline_svg(figure: Figure, title: str) -> Markup:
    """A figure as an element of a page, in the colours of the page's theme.

    A page's content policy admits no `style` attributes, so that their rules become attributes of their own.

    Args:
      figure: drawn in colours of `THEME`.
      title: what the figure shows, for screen readers.
    """
    root = ET.fromstring(_rendered(figure))
    root.remove(root[0])  # a style sheet
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title}
    variables = {colour: f"var(--{name})" for name, colour in THEME.items()}
    for element in root.iter():
        if element.tag == f"{_SVG}g":
            element.attrib.pop("id", None)  # the same in every figure
        for rule in filter(None, element.attrib.pop("style", "").split("; ")):
            name, value = rule.split(": ")
            if not name.startswith("font"):
                element.set(name, variables.get(value, value))
    ET.register_namespace("", _SVG[1:-1])
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    return Markup(ET.tostring(root, encoding="unicode"))
