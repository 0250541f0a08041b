"""The figures of a report, against numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from lib.preferences.labels import Label
from lib.reward.data import Pairs
from lib.reward.loss import preference_loss
from lib.reward.report.figures import (
    ASSUMED,
    KNOWN,
    MEASURED,
    Agreement,
    Share,
    agreement,
    by_kind,
    calibration,
    ceiling_of_agreement,
    correlations,
    decided_loss,
    pearson,
    preference_probabilities,
    ranks,
    segments_to_correlate,
    span_sums,
    spearman,
    teacher_ceiling,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29 by the score method.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0000),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval(hits: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(hits, count) == pytest.approx((low, high), abs=6e-5)


def test_a_share_of_nothing_is_no_number() -> None:
    assert math.isnan(Share(0, 0).value)
    assert Share(3, 4).value == 0.75


def test_probabilities_are_the_members_mean_and_allow_for_errors() -> None:
    log3 = math.log(3)
    returns = np.array([[log3, 0.0, 2000.0], [0.0, 0.0, 0.0]])  # two members, three segments
    first, second = np.array([0, 1, 2, 1]), np.array([1, 0, 0, 2])
    # σ(log 3) = ¾ of the one member, ½ of the other.
    assert preference_probabilities(returns, first, second, 0.0) == pytest.approx([0.625, 0.375, 0.75, 0.25])
    assert preference_probabilities(returns, first, second, 0.2)[0] == pytest.approx(0.8 * 0.625 + 0.1)


def test_a_sure_error_costs_what_it_costs_in_the_fit_whichever_segment_comes_first() -> None:
    returns, one, zero = np.array([[0.0, 40.0]]), np.array([1]), np.array([0])
    weight = np.ones(1, np.float32)
    for error_rate, cost in ((0.0, 40.0), (0.1, -math.log(0.05))):
        for pairs in (Pairs(zero, one, weight, weight), Pairs(one, zero, 0 * weight, weight)):
            assert decided_loss(returns, pairs, error_rate) == pytest.approx(cost)
            difference = torch.from_numpy(returns[:, pairs.first] - returns[:, pairs.second])[0]
            fitted = preference_loss(
                difference, 0 * difference, torch.from_numpy(pairs.preference1), error_rate
            )
            assert float(fitted) == pytest.approx(cost)


def test_calibration_reads_pairs_from_the_side_the_model_prefers() -> None:
    # Ten pairs at 60 %, of which six came; ten at 10 %, which is 90 % for the second, of which eight came.
    probabilities = np.repeat([0.6, 0.1], 10)
    first_better = np.array([True] * 6 + [False] * 4 + [False] * 8 + [True] * 2)
    bins, error = calibration(probabilities, first_better)
    assert [bin.predicted for bin in bins] == pytest.approx([0.6, 0.9])
    assert [bin.agreed for bin in bins] == [Share(6, 10), Share(8, 10)]
    assert error == pytest.approx(0.05)


@pytest.mark.parametrize(("count", "bins"), [(1, 1), (19, 1), (20, 2), (45, 4), (1000, 10)])
def test_few_pairs_make_few_bins_of_equal_counts(count: int, bins: int) -> None:
    found, _ = calibration(np.linspace(0.01, 0.99, count), np.ones(count, bool))
    counts = [bin.agreed.count for bin in found]
    assert (len(counts), sum(counts)) == (bins, count)
    assert max(counts) - min(counts) <= 1


def test_no_pairs_have_no_calibration() -> None:
    bins, error = calibration(np.zeros(0), np.zeros(0, bool))
    assert bins == []
    assert math.isnan(error)


def test_kinds_count_what_was_fitted_and_what_was_held_out() -> None:
    labels = [
        Label("a", "b", 1, annotator="ada", strategy="random"),
        Label("c", "d", 2, annotator="ada", strategy="random", flag="odd"),
        Label("e", "f", 0, teacher="score", strategy="random"),
        Label("g", "h", 1, annotator="ada", strategy="unsure"),
        Label("i", "j", 1, annotator="ada", strategy="unsure", repeat=True),
    ]
    rows = by_kind(
        labels,
        ["one"] * 5,
        train=np.array([0, 3]),
        test=np.array([1, 2]),
        right=np.array([True, True, False, False, True]),
        probabilities=np.array([0.9, 0.2, 0.6, 0.4, 0.5]),
    )
    found = {(row.group, row.name): row for row in rows}
    assert {group for group, _ in found} == {"answer", "labeller", "asked", "note"}  # one DB tells nothing
    first = found["answer", "first is better"]
    assert (first.labels, first.fitted, first.held_out) == (3, Share(1, 2), Share(0, 0))
    assert math.isnan(first.confidence)
    assert found["answer", "second is better"].held_out == Share(1, 1)
    alike = found["answer", "both alike"]
    assert alike.held_out == Share(0, 0)
    assert alike.confidence == pytest.approx(0.6)
    ada = found["labeller", "ada"]
    assert (ada.labels, ada.fitted, ada.held_out, ada.confidence) == (4, Share(1, 2), Share(1, 1), 0.8)
    assert found["labeller", "score (simulated)"].labels == 1
    assert found["asked", "repeat check"].labels == 1
    assert found["note", "with a note"].held_out == Share(1, 1)


def said(
    label: int | None, sample1: str = "a", sample2: str = "b", who: str = "ada", **more: object
) -> Label:
    return Label(sample1, sample2, label, annotator=who, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "same"),
    [
        ([said(1), said(1, repeat=True)], Share(1, 1)),
        ([said(1), said(2, repeat=True)], Share(0, 1)),
        ([said(1), said(2, "b", "a", repeat=True)], Share(1, 1)),  # the same segment, now the second
        ([said(1), said(2)], Share(0, 0)),  # a change of mind is no check
        ([said(1), said(0, repeat=True)], Share(0, 0)),
        ([said(1), said(2, who="bob", repeat=True)], Share(0, 0)),
        ([said(1), said(2, repeat=True), said(1, cancelled=True)], Share(0, 0)),
        # Undone: the line says again what had held before the check.
        ([said(1), said(2, repeat=True), said(1, id="u-0")], Share(0, 0)),
        ([said(1), said(2, repeat=True), said(1, id="u-0"), said(1, repeat=True)], Share(1, 1)),
    ],
)
def test_repeat_checks_are_compared_with_what_was_said_before(lines: list[Label], same: Share) -> None:
    assert agreement([lines]).same_labeller == same


def test_labellers_are_compared_two_by_two_and_db_by_db() -> None:
    one = [said(1), said(1, who="bob"), said(2, who="eve"), said(0, who="joe")]
    other = [said(2, who="kim")]  # a pair of the same names in another DB
    assert agreement([one, other]).between_labellers == Share(1, 3)


def test_rechecks_of_labels_that_a_model_doubts_say_nothing_of_all_labels() -> None:
    doubted = {"strategy": "recheck"}
    assert agreement([[said(1), said(2, who="bob", **doubted)]]).between_labellers == Share(0, 0)
    changed = [said(1), said(1, who="bob"), said(2, **doubted)]
    assert agreement([changed]).between_labellers == Share(1, 1), "what she said of her own accord"


def test_ceiling_of_a_teacher_who_errs_one_time_in_ten() -> None:
    assert ceiling_of_agreement(0.9**2 + 0.1**2) == pytest.approx(0.9)
    assert ceiling_of_agreement(1.0) == 1.0
    assert ceiling_of_agreement(0.5) == ceiling_of_agreement(0.2) == 0.5


def test_the_ceiling_is_measured_where_there_are_checks_and_assumed_elsewhere() -> None:
    none, few, many = Share(0, 0), Share(9, 9), Share(82, 100)
    labels = [said(1), said(0)]
    assumed = teacher_ceiling(Agreement(few, none), 0.1, labels)
    assert (assumed.value, assumed.low, assumed.high, assumed.kind) == (0.95, 0.95, 0.95, ASSUMED)
    measured = teacher_ceiling(Agreement(many, none), 0.1, labels)
    assert measured.kind == MEASURED
    assert measured.value == pytest.approx(0.9)
    low, high = many.interval
    assert (measured.low, measured.high) == (ceiling_of_agreement(low), ceiling_of_agreement(high))
    # Of two measurements the more sober one.
    both = teacher_ceiling(Agreement(many, Share(34, 50)), 0.1, labels)
    assert both.value == pytest.approx(0.8)
    assert "labelled by several" in both.detail


def test_the_ceiling_of_a_simulated_teacher_is_known() -> None:
    none = Agreement(Share(0, 0), Share(0, 0))
    errs = Label("a", "b", 1, teacher="mistake", parameters={"error_rate": 0.1})
    contrary = Label("a", "b", 1, teacher="mistake", parameters={"error_rate": 0.8})
    noisy = Label("a", "b", 1, teacher="noisy", parameters={"error_rate": 0.0, "beta": 1.0})
    alike = Label("a", "b", 0, teacher="mistake", parameters={"error_rate": 0.5})
    found = teacher_ceiling(none, 0.1, [errs, contrary, alike])
    assert found.kind == KNOWN
    assert found.value == found.low == found.high == pytest.approx(0.85)
    # Three in four known at 0.9, the rest taken to be right 95 times in 100.
    mixed = teacher_ceiling(none, 0.1, [errs, errs, errs, noisy])
    assert mixed.kind == ASSUMED
    assert mixed.value == pytest.approx(0.75 * 0.9 + 0.25 * 0.95)
    assert "75%" in mixed.detail
    per_cent = Label("a", "b", 1, teacher="mistake", parameters={"error_rate": 10})
    assert teacher_ceiling(none, 0.1, [per_cent]).kind == ASSUMED


def test_ranks_share_ties() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, -2.0, 3.0])).tolist() == [4, 2, 4, 1, 4]


def test_correlations_by_hand() -> None:
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])
    assert pearson(x, y) == pytest.approx(0.8)
    assert spearman(x, np.exp(x)) == pytest.approx(1)
    assert pearson(x, np.exp(x)) == pytest.approx(0.9, abs=0.04)
    assert spearman(x, -y) == pytest.approx(-0.8)


@pytest.mark.parametrize("constant", [np.full(9, 0.1), np.zeros(9), np.full(9, 1e9)])
def test_nothing_correlates_with_a_constant(constant: np.ndarray) -> None:
    varying = np.arange(9.0)
    assert pearson(varying, constant) is None
    assert spearman(constant, varying) is None


def test_spans_do_not_overlap_and_drop_what_is_left() -> None:
    assert span_sums(np.arange(7), 3).tolist() == [0 + 1 + 2, 3 + 4 + 5]
    assert span_sums(np.arange(2), 3).tolist() == []


def test_correlations_over_seconds_and_segments() -> None:
    rng = np.random.default_rng(0)
    learned = [rng.normal(size=50) + shift for shift in rng.normal(size=40)]
    scores = [values + 0.1 * rng.normal(size=50) for values in learned]
    second = correlations(learned, scores, 15, "1 second")
    assert second.count == 3 * 40
    for coefficient in (second.pearson, second.spearman):
        assert coefficient.value is not None
        assert coefficient.low is not None
        assert coefficient.high is not None
        assert 0.95 < coefficient.low < coefficient.value < coefficient.high < 1
    assert correlations(learned, scores, None, "whole segments").count == 40


def test_a_score_that_never_moves_is_not_defined_rather_than_nan() -> None:
    found = correlations([np.arange(30.0)] * 5, [np.zeros(30)] * 5, 15, "1 second")
    assert found.pearson.text == found.spearman.text == "not defined"
    # One segment in which the score moves is too little for an interval: half of the resamples lack it.
    scores = [np.zeros(30)] * 4 + [np.repeat([0.0, 10.0], 15)]
    lonely = correlations([np.arange(30.0)] * 5, scores, 15, "1 second")
    assert lonely.pearson.value is not None
    assert lonely.pearson.low is None
    assert lonely.pearson.text == f"{lonely.pearson.value:+.2f}"


def test_correlations_are_over_held_out_segments_where_these_are_enough() -> None:
    scored = list(range(0, 60, 2))
    assert segments_to_correlate(list(range(40)), scored) == (list(range(0, 40, 2)), True)
    assert segments_to_correlate(list(range(38)), scored) == (scored, False)
