"""Is a fitted reward model for text any good, and how much of it is length? A page and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lib.preferences.prompts import whole
from lib.provenance import now
from lib.reporting import Charts
from lib.reward.report import report_path
from lib.reward.report.figures import Share
from lib.reward.report.judged import Judged, by_member, judge, kept
from lib.reward.report.page import signed, write_page
from lib.text.fit import TextFit, length_correlation

_LENGTH_ALONE = 0.9
"""A correlation with length above this, in size, is worth a note."""


@dataclass(frozen=True)
class Length:
    """How much labels and model depend on length, in words."""

    longer: Share
    """Decided labels between answers of different lengths that prefer the longer one."""
    learned: float
    """Correlation of r̂ with length among answers to one prompt; NaN where all are equally long."""
    paid: float
    """The same of what is paid, which --length-control makes 0."""


@dataclass(frozen=True, kw_only=True)
class TextFigures(Judged):
    """Everything the page shows, as numbers; `worth` is what is paid for each answer."""

    length: Length


def text_figures(fit: TextFit) -> TextFigures:
    """Computes a report."""
    pairs, store = fit.data.pairs, fit.data.store
    words, prompts = store.words(), store.prompts()
    each = fit.model.each(fit.data.states)
    paid = fit.model.paid(each, words)
    judged = judge(fit, fit.model.unstandardised(each), paid, paid)
    length = Length(
        _longer(pairs.preference1, words[pairs.first] - words[pairs.second]),
        length_correlation(each.mean(0), words, prompts),
        length_correlation(paid, words, prompts),
    )
    if abs(length.paid) > _LENGTH_ALONE:
        judged.verdict.notes.append(
            f"the reward is almost only length (correlation {length.paid:+.2f}); if that is not meant, fit "
            "with --length-control"
        )
    return TextFigures(**vars(judged), length=length)


def _longer(preference1: np.ndarray, difference: np.ndarray) -> Share:
    told = (preference1 != 0.5) & (difference != 0)
    return Share(int(((difference > 0) == (preference1 == 1))[told].sum()), int(told.sum()))


def write_text_report(fit: TextFit, charts: Charts) -> str:
    """Writes `reward-NAME.report.html` beside the checkpoint, and the same as `report.html`.

    Returns:
      The verdict and the figures of length, in lines.

    Raises:
      UserError: the page cannot be written.
    """
    from lib.reward.report import plots  # Matplotlib takes a second to import

    figures = text_figures(fit)
    held_out, length = figures.held_out, figures.length
    members = by_member(fit.history)
    write_page(
        "text.html",
        report_path(fit.path),
        fit.path.with_name("report.html"),
        title=fit.path.stem,
        subtitle=f"{fit.model.language.folder} · {', '.join(map(str, fit.config.dbs))} · {now()}",
        figures=figures,
        labels=len(fit.data.pairs),
        answers=len(fit.data.store.answers),
        fitted=len(fit.train),
        held_out_labels=len(fit.test),
        controlled=fit.config.length_control,
        correlation=_correlation,
        most=[_shown(fit, figures, index) for index in figures.liked()[0]],
        least=[_shown(fit, figures, index) for index in figures.liked()[1]],
        gauge=plots.gauge(f"{held_out.hits} of {held_out.count} held-out pairs", held_out, figures.ceiling),
        learning=plots.learning_curves(members, [kept(epochs) for epochs in members]),
        problems=fit.data.problems,
    )
    numbers = {"held_out_accuracy": held_out.value, "correlation_with_length": length.paid}
    charts.scalars({f"report/{name}": x for name, x in numbers.items() if math.isfinite(x)}, 0)
    longer = (
        "no labels between answers of different lengths"
        if not length.longer.count
        else (f"{length.longer.value:.0%} of {length.longer.count} labels prefer the longer answer")
    )
    taken_out = f", {_correlation(length.paid)} of what is paid" if fit.config.length_control else ""
    notes = "".join(f"\nnote: {note}" for note in figures.verdict.notes)
    return (
        f"{figures.verdict}{notes}\nlength: {longer}; correlation of the learned reward with it "
        f"{_correlation(length.learned)}{taken_out}"
    )


def _correlation(value: float) -> str:
    return signed(value) if math.isfinite(value) else "–"


def _shown(fit: TextFit, figures: TextFigures, index: int) -> dict[str, str]:
    db, name = fit.data.store.sources[index]
    answer = fit.data.store.answers[index]
    prompt = whole(answer.prompt)
    return {
        "paid": signed(figures.worth[index]),
        "source": f"{db.root.name}/{name}",
        "prompt": prompt if len(prompt) <= 2000 else f"…{prompt[-2000:]}",  # its end says what is answered
        "text": answer.text[:4000],
        "end": "■" if answer.finished else "…",
    }
