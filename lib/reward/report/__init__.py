"""Is a fitted reward model any good? A page with figures, clips and a verdict. See docs/report.md."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.envs.world import STEPS_PER_SECOND
from lib.provenance import now
from lib.reporting import Charts
from lib.reward.fit import Epoch, Fit
from lib.reward.report.clips import PageClip, clip, film_strip
from lib.reward.report.figures import Correlations, Kind, Share, by_kind, correlations, segments_to_correlate
from lib.reward.report.judged import Judged, by_member, judge, kept
from lib.reward.report.page import interval, signed, write_page
from lib.reward.report.probes import PaidFor, paid_for, some_segments
from lib.reward.report.verdict import Verdict
from lib.reward.store import SegmentStore

_SETTINGS = (
    *("loss", "error_rate", "ensemble", "lr", "batch_size", "dropout", "l2", "held_out"),
    *("frame_stride", "seed"),
)
"""Flags of the fit that the page shows."""


@dataclass(frozen=True, kw_only=True)
class Figures(Judged):
    """Everything a report shows, as numbers."""

    held_out_without_events: Share
    """Of `held_out`, those with no clip that was recorded because of an event."""
    kinds: list[Kind]
    correlations: list[Correlations]
    """Over one second and over whole segments; empty if no score was recorded."""
    compared: list[int]
    """Segments that the correlations are over."""
    compared_held_out: bool
    paid_for: PaidFor | None
    each: list[np.ndarray]
    """Of every segment, float32 `[M, T]`: what each member pays, standardised."""

    def paid(self, segment: int) -> np.ndarray:
        """What the model pays along a segment, float32 `[T]`."""
        paid: np.ndarray = self.each[segment].mean(0)
        return paid


def figures_of(fit: Fit) -> Figures:
    """Computes a report."""
    data, pairs, config = fit.data, fit.data.pairs, fit.config
    each = [fit.model.each_along(*data.segments.get(index)) for index in range(len(data.segments))]
    fitted_to = [steps[:, : data.segments.length(index)] for index, steps in enumerate(each)]
    returns = np.stack([fit.model.unstandardised(steps).sum(1) for steps in fitted_to], 1)
    paid = np.array([fit.model.as_fitted(steps.mean(0)).sum() for steps in fitted_to])
    judged = judge(fit, returns, paid, np.array([steps.mean() for steps in each]))

    sidecars = [data.segments.sidecar(index) for index in range(len(data.segments))]
    of_event = np.array([sidecar is not None and sidecar.of_event for sidecar in sidecars], bool)
    plain = judged.decided[~(of_event[pairs.first] | of_event[pairs.second])[judged.decided]]
    scores = {index: sidecar.scores for index, sidecar in enumerate(sidecars) if sidecar is not None}
    seen = np.union1d(pairs.first[fit.test], pairs.second[fit.test])
    compared, fresh = segments_to_correlate(seen.tolist(), list(scores))
    found = [
        correlations([each[i].mean(0) for i in compared], [scores[i] for i in compared], steps, span)
        for steps, span in ((STEPS_PER_SECOND, "1 second"), (None, "whole segments"))
        if compared
    ]
    db_names = [str(config.dbs[number]) for number in data.db_of]
    return Figures(
        **vars(judged),
        held_out_without_events=Share(int(judged.right[plain].sum()), len(plain)),
        kinds=by_kind(data.labels, db_names, fit.train, fit.test, judged.right, judged.probabilities),
        correlations=found,
        compared=compared,
        compared_held_out=fresh,
        paid_for=paid_for(fit.model, data.segments.env_id, some_segments(fit.model, config.dbs)),
        each=each,
    )


def kept_epochs(fit: Fit) -> list[Epoch]:
    """The epoch whose weights each member keeps: the last one of a policy, which has no early stopping."""
    policy = fit.config.policy is not None
    return [epochs[-1] if policy else kept(epochs) for epochs in by_member(fit.history)]


def report_path(checkpoint: Path) -> Path:
    """The path of a reward checkpoint's report."""
    return checkpoint.with_suffix(".report.html")


def write_report(fit: Fit, charts: Charts) -> Verdict:
    """Writes `reward-NAME.report.html` beside the checkpoint, and the same as `report.html`.

    Args:
      fit: what a fit returned.
      charts: where the figures go as curves, pictures and text.

    Raises:
      UserError: the page cannot be written.
    """
    figures = figures_of(fit)
    paths = report_path(fit.path), fit.path.with_name("report.html")
    write_page("report.html", *paths, **_page(fit, figures))
    _chart(fit, figures, charts)
    return figures.verdict


def _page(fit: Fit, figures: Figures) -> dict[str, object]:
    """The values for templates/report.html."""
    from lib.reward.report import plots  # Matplotlib takes a second to import

    data, config, held_out = fit.data, fit.config, figures.held_out
    members = by_member(fit.history)
    ends = figures.liked()
    shown = [figures.each[i] for end in ends for i in end]
    # Two standard deviations are always shown, so that dull clips look dull.
    scale = (
        min([-2.0, *(float(each.min()) for each in shown)]),
        max([2.0, *(float(each.max()) for each in shown)]),
    )
    gauge_title = f"held-out accuracy: {held_out.hits} of {held_out.count} pairs, interval {interval(held_out.interval)}"
    return {
        "title": fit.path.stem,
        "subtitle": f"{data.segments.env_id or 'an unnamed game'} · {', '.join(map(str, config.dbs))} · {now()}",
        "figures": figures,
        "labels": len(data.pairs),
        "segments": len(data.segments),
        "fitted": len(fit.train),
        "held_out_labels": len(fit.test),
        "early_stopping": config.policy is None,
        "aside": len(data.pairs) - len(fit.train) - len(fit.test),
        "members": len(fit.model.members),
        "most": [_clip(fit, figures, i, scale) for i in ends[0]],
        "least": [_clip(fit, figures, i, scale) for i in ends[1]],
        "charts": {
            "gauge": plots.gauge(gauge_title, held_out, figures.ceiling),
            "learning": plots.learning_curves(members, kept_epochs(fit)),
            "paid_for": figures.paid_for and plots.paid_for(figures.paid_for),
            "calibration": plots.calibration(figures.bins),
            "returns": plots.returns(
                [float(figures.paid(i).sum()) for i in figures.compared],
                [float(_scores(data.segments, i).sum()) for i in figures.compared],
            ),
        },
        "settings": [(name.replace("_", " "), getattr(config, name)) for name in _SETTINGS],
        "problems": data.problems,
    }


def _scores(segments: SegmentStore, index: int) -> np.ndarray:
    sidecar = segments.sidecar(index)
    assert sidecar is not None
    return sidecar.scores


def _clip(fit: Fit, figures: Figures, index: int, scale: tuple[float, float]) -> PageClip:
    segments, each = fit.data.segments, figures.each[index]
    db, name = segments.source(index)
    sidecar = segments.sidecar(index)
    scored = "" if sidecar is None else f" · score {sidecar.scores.sum():g}"
    return clip(
        f"{signed(each.mean())} a step",
        f"{db.root.name}/{name}{scored}",
        segments.frames(index),
        figures.paid(index),
        scale,
        "learned reward",
        None if sidecar is None else sidecar.scores,
        list(each) if len(each) > 1 else [],
    )


def _chart(fit: Fit, figures: Figures, charts: Charts) -> None:
    """The same figures for TensorBoard. The learning curves are there already."""
    low, high = figures.held_out.interval
    numbers = {
        "held_out_accuracy": figures.held_out.value,
        "held_out_accuracy_low": low,
        "held_out_accuracy_high": high,
        "teacher_ceiling": figures.ceiling.value,
        "calibration_error": figures.calibration_error,
    }
    for entry in figures.correlations:
        for name, coefficient in (("pearson", entry.pearson), ("spearman", entry.spearman)):
            if coefficient.value is not None:
                numbers[f"{name}_{entry.span.replace(' ', '_')}"] = coefficient.value
    charts.scalars({f"report/{name}": value for name, value in numbers.items() if math.isfinite(value)}, 0)
    for bin in figures.bins:  # a curve over the predicted per cent
        if math.isfinite(bin.predicted):
            charts.scalars({"report/calibration": bin.agreed.value}, round(100 * bin.predicted))
    for name, liked in zip(("most", "least"), figures.liked(), strict=True):
        for step, reward in enumerate(figures.paid(liked[0])):
            charts.scalars({f"report/liked_{name}": float(reward)}, step)
        strips = [film_strip(fit.data.segments.frames(index)) for index in liked]
        charts.image(f"report/clips_liked_{name}", np.concatenate(strips))
    charts.text(
        "report/verdict",
        f"**{figures.verdict.outcome}**\n\n" + "\n".join(f"- {r}" for r in figures.verdict.reasons),
    )
