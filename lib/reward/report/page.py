"""Pages of a fit: self-contained HTML files that may run only their own script."""

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lib.cli import UserError
from lib.files import write_atomic

_HERE = Path(__file__).parent
_SHARED = _HERE.parents[1] / "label_ui" / "static"
"""The labelling page's style and player, which reports embed."""

_STYLES = (_SHARED / "base.css", _SHARED / "curve.css", _HERE / "static" / "report.css")
_SCRIPTS = (_SHARED / "player.js", _SHARED / "curve.js", _HERE / "static" / "report.js")


def percent(share: float) -> str:
    """0.873 as 87%."""
    return f"{share:.0%}"


def interval(bounds: tuple[float, float]) -> str:
    """An interval of shares, such as 80% to 93%."""
    return f"{bounds[0]:.0%} to {bounds[1]:.0%}"


def signed(number: float) -> str:
    """Two digits and a sign."""
    return f"{number:+.2f}".replace("-", "−")


_templates = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
_templates.filters |= {"percent": percent, "interval": interval, "signed": signed}


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_page(template: str, *paths: Path, **values: object) -> None:
    """Renders a template, which extends base.html, and writes it atomically.

    Args:
      template: its file name.
      paths: where to.
      values: for the template; `title` and `subtitle` are those of the page. Only `Markup` is not escaped.

    Raises:
      UserError: the page cannot be written.
    """
    style, script = ("\n".join(path.read_text() for path in paths) for paths in (_STYLES, _SCRIPTS))
    policy = (
        f"default-src 'none'; img-src data:; media-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        f"base-uri 'none'; form-action 'none'"
    )
    text = _templates.get_template(template).render(
        values, style=Markup(style), script=Markup(script), policy=policy
    )
    for path in paths:
        try:
            write_atomic(path, text.encode())
        except OSError as error:
            raise UserError(f"{path}: the report could not be written: {error.strerror}") from error
