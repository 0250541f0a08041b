"""The documentation as a site: `make docs` builds site/index.html, which opens from disk and needs no network."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from lib.cli import as_flag, shown_default  # noqa: E402

project = "clip-preferences"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Teach agents by comparing clips"
html_copy_source = False
smartquotes = False  # they would make a dash of a flag's two hyphens
html_show_sphinx = html_show_copyright = False
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # pseudo-code

OF_ROOT = {"index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages of the repository's root by their name in the site."""


class Flags(SphinxDirective):
    """`{flags} module:Dataclass`: a script's flags as tables, made from the dataclass that the script reads."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, name = self.arguments[0].split(":")
        lines: list[str] = []
        for field in dataclasses.fields(getattr(importlib.import_module(module), name)):
            spec = field.metadata["flag"]
            if spec.group or not lines:
                lines += ["", f"**{spec.group or 'flags'}**", "", "| flag | default | |", "|---|---|---|"]
            default = field.default_factory() if callable(field.default_factory) else field.default
            names = [spec.metavar or field.name] if spec.positional else [*spec.names, as_flag(field.name)]
            values = f" One of {', '.join(map(str, spec.choices))}." if spec.choices else ""
            text = (
                (spec.help[:1].upper() + spec.help[1:] + "." + values).replace("|", "\\|").replace("*", "\\*")
            )
            text = re.sub(r"--[a-z][a-z-]+", r"`\g<0>`", text)
            lines.append(f"| `{', '.join(names)}` | {shown_default(default)} | {text} |")
        return self.parse_text_to_nodes("\n".join(lines))


def place(app: Sphinx, name: str, source: list[str]) -> None:
    """Puts the pages of the root in their places, and leads links to where things stand in the site."""
    text = (ROOT / OF_ROOT[name]).read_text() + source[0] if name in OF_ROOT else source[0]
    text = text.replace("](docs/", "](")
    for page, path in OF_ROOT.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(path)}", f"]({page}.md", text)
    source[0] = re.sub(
        r"\[[^]]*\]\(\.\./((?:benchmarks|examples)/[^)]*)\)", r"`\1`", text
    )  # which the site does not have


def make_accessible(app: Sphinx, name: str, template: str, context: dict[str, Any], _: Any) -> None:
    """Lets the keyboard scroll wide code, and says the level of the sidebar's headings; the theme does neither."""
    context["body"] = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    sidebar = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = sidebar.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> None:
    app.add_directive("flags", Flags)
    app.connect("source-read", place)
    app.connect(
        "html-page-context", make_accessible, priority=900
    )  # after the theme, which makes the sidebar
