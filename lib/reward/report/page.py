"""A report as one self-contained HTML file: nothing is fetched, nothing but the page's own script may run."""

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from lib.reward.report.figures import Bin, Ceiling, Correlations, Kind, Share
from lib.reward.report.plot import Plot, gauge, percent, plain, spanned
from lib.reward.report.verdict import LABEL_MORE, READY, WRONG, Verdict

_STATIC = Path(__file__).with_name("static")
_TONES = {READY: "ready", LABEL_MORE: "more", WRONG: "wrong"}


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """The whole file.

    Args:
      title: plain text.
      subtitle: plain text.
      sections: elements, in which whatever came from elsewhere is escaped.
    """
    style, script = ((_STATIC / name).read_text() for name in ("page.css", "player.js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        f"base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style></head>\n<body>\n"
        f'<header><div><h1>{escape(title)}</h1><p class="muted">{escape(subtitle)}</p></div>'
        f'<button type="button" class="button" id="all" hidden>Pause all clips</button></header>\n<main>\n'
        + "\n".join(sections)
        + f"\n</main>\n<script>{script}</script>\n</body></html>\n"
    )


def section(title: str, *content: str, wide: bool = False) -> str:
    """A card of the page; the content is elements."""
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{''.join(content)}</section>"


def note(text: str) -> str:
    """A line in a lower voice, plain text."""
    return f'<p class="muted">{escape(text)}</p>'


def legend(*entries: tuple[str, str]) -> str:
    """What the colours of a chart mean: classes and words."""
    return (
        '<p class="legend">'
        + "".join(f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in entries)
        + "</p>"
    )


def strip(figures: Sequence[tuple[str, str]]) -> str:
    """The numbers that come first: each large, with what it is below."""
    return (
        '<section class="wide figures">'
        + "".join(
            f'<p><strong>{escape(number)}</strong><span class="muted">{escape(name)}</span></p>'
            for number, name in figures
        )
        + "</section>"
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1, groups: bool = False
) -> str:
    """Rows of plain text, numbers to the right from some column on; with groups, a line wherever the first column changes."""

    def cell(kind: str, at: int, text: str) -> str:
        return f"<{kind}{' class=number' if at >= numbers_from else ''}>{escape(text)}</{kind}>"

    body, before = [], None
    for row in rows:
        first = row[0] != before
        shown = row if first or not groups else ["", *row[1:]]
        kind = " class=first" if groups and first and before is not None else ""
        body.append(f"<tr{kind}>{''.join(cell('td', at, text) for at, text in enumerate(shown))}</tr>")
        before = row[0]
    return (
        '<div class="scroll"><table><thead><tr>'
        + "".join(cell("th", at, text) for at, text in enumerate(head))
        + f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def span_of(interval: tuple[float, float]) -> str:
    """An interval of shares as it is read."""
    return f"{interval[0]:.0%} to {interval[1]:.0%}"


def share_text(share: Share) -> str:
    """87 % and of how many; a dash of none."""
    return f"{share.value:.0%} of {share.count}" if share.count else "–"


# --- The parts of a report ------------------------------------------------------------------------------------


def verdict_section(verdict: Verdict) -> str:
    """The verdict, its reasons and what else is worth knowing."""
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    notes = "".join(f'<p class="muted">Note: {escape(text)}.</p>' for text in verdict.notes)
    return (
        f'<section class="wide verdict {_TONES[verdict.outcome]}"><h2>{escape(verdict.outcome)}</h2>'
        f"<ul>{reasons}</ul>{notes}</section>"
    )


def accuracy_section(held_out: Share, ceiling: Ceiling) -> str:
    """Held-out accuracy between chance and the teacher's ceiling."""
    chart = gauge(
        f"held-out accuracy {share_text(held_out)}, interval {span_of(held_out.interval)}",
        held_out.value,
        held_out.interval,
        [(0.5, "chance"), (ceiling.value, f"teacher's ceiling {ceiling.value:.0%}")],
        (ceiling.low, ceiling.high),
    )
    if held_out.count:
        said = (
            f"{held_out.hits} of {held_out.count} pairs with a preference, none of whose clips were fitted to: "
            f"{held_out.value:.1%}, 95 % interval {span_of(held_out.interval)} (Wilson)."
        )
    else:
        said = "No pair with a preference was held out."
    between = f" ({span_of((ceiling.low, ceiling.high))})" if ceiling.high > ceiling.low else ""
    return section(
        "Held-out accuracy",
        f'<div class="scroll gauge">{chart}</div>',
        note(said),
        note(
            f"The ceiling is what a model could reach that knew what the teacher means: {ceiling.value:.0%}{between}, "
            f"{ceiling.kind}: {ceiling.detail}."
        ),
        wide=True,
    )


def curves_section(curves: Sequence[tuple[list[int], list[float], list[float]]], kept: Sequence[int]) -> str:
    """Training and held-out loss by epoch.

    Args:
      curves: of each member, its epochs, training and held-out losses, finite.
      kept: the epoch that was kept of each member.
    """
    losses = [loss for _, train, test in curves for loss in (*train, *test)]
    last = max((epochs[-1] for epochs, _, _ in curves if epochs), default=1)
    chance = math.log(2)
    plot = Plot(
        "training and held-out loss by epoch",
        (1, max(2, last)),
        spanned([*losses, chance]),
        "epoch",
        "loss, nats a pair",
        x_text=lambda epoch: plain(epoch) if epoch == round(epoch) else "",
    )
    plot.level(chance)
    for (epochs, train, test), best in zip(curves, kept, strict=True):
        plot.line(epochs, train, "one")
        plot.line(epochs, test, "two")
        plot.dots([best], [test[epochs.index(best)]], "two", 4)
    each = ", one line of each a member" if len(curves) > 1 else ""
    return section(
        "Learning curves",
        plot.svg(),
        legend(
            ("one", f"fitted pairs{each}"),
            ("two", "held-out pairs; the dot is what was kept"),
            ("dashed", "guessing, log 2"),
        ),
    )


def calibration_section(bins: Sequence[Bin], error: float) -> str:
    """Predicted against observed."""
    if not bins:
        return section("Calibration", note("No pair with a preference was held out."))
    plot = Plot(
        "how sure the model is against how often the teacher agrees",
        (0.5, 1),
        (0, 1),
        "predicted: the teacher prefers what the model prefers",
        "the teacher does",
        x_text=percent,
        y_text=percent,
    )
    plot.line([0.5, 1], [0.5, 1], "thin")
    for bin in bins:
        plot.whisker(bin.predicted, *bin.agreed.interval, "one")
    plot.dots([bin.predicted for bin in bins], [bin.agreed.value for bin in bins], "one", 5)
    counts = " or ".join(map(str, sorted({bin.agreed.count for bin in bins})))
    few = "" if len(bins) > 2 else " So few pairs show little of a shape."
    return section(
        "Calibration",
        plot.svg(),
        note(
            f"Dots on the line are probabilities to be trusted; below it the model is too sure of itself, above it not "
            f"sure enough. {counts} held-out pairs a dot, with 95 % intervals; expected calibration error {error:.0%}.{few}"
        ),
    )


def correlation_section(
    found: Sequence[Correlations], learned: Sequence[float], scored: Sequence[float], held_out: bool
) -> str:
    """Learned against true returns, which need not agree."""
    if not found:
        return section(
            "Learned and true returns",
            note("No score was recorded beside these segments, so there is nothing to compare with."),
        )
    plot = Plot(
        "learned return against score, a dot a segment",
        spanned(scored),
        spanned(learned),
        "score of a segment, points",
        "learned return, standard deviations",
    )
    plot.dots(scored, learned, "faint")
    which = (
        "held-out segments" if held_out else "all segments, those it was fitted to included: too few held out"
    )
    return section(
        "Learned and true returns",
        plot.svg(),
        table(
            ["over", "spans", "Pearson", "Spearman"],
            [[entry.span, str(entry.count), entry.pearson.text, entry.spearman.text] for entry in found],
        ),
        note(
            f"Over {len(scored)} {which}; 95 % intervals by bootstrap over segments. What is taught need not be the score: "
            f"this is for looking, and has no say in the verdict."
        ),
    )


def kinds_section(rows: Sequence[Kind]) -> str:
    """The table of accuracies."""
    cells = [
        [
            row.group,
            row.name,
            str(row.labels),
            share_text(row.fitted),
            share_text(row.held_out),
            span_of(row.held_out.interval) if row.held_out.count else "–",
            f"{row.confidence:.0%}" if math.isfinite(row.confidence) else "–",
        ]
        for row in rows
    ]
    return section(
        "By kind of label",
        table(
            ["", "", "labels", "right, fitted", "right, held out", "95 % interval", "mean confidence"],
            cells,
            numbers_from=2,
            groups=True,
        ),
        note(
            "Right is said of pairs with a preference only. Only pairs that were drawn at random can be held out. Confidence "
            "is how probable the model finds the answer it would give, from 50 %: on pairs that are both alike it should be low."
        ),
        wide=True,
    )


def clips_section(title: str, figures: Sequence[str], text: str) -> str:
    """Some clips side by side."""
    return section(title, f'<div class="clips">{"".join(figures)}</div>', note(text), wide=True)
