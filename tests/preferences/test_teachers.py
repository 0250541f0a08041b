"""Simulated teachers: what they prefer, how often they err, and that they repeat nobody."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lib.cli import UserError
from lib.envs.atari import AtariWorld
from lib.preferences.labels import Label, LabelLog
from lib.preferences.segments import Segment, SegmentDB, Sidecar, save_segment
from lib.preferences.teachers import TEACHERS, Teacher, label_with_teacher, midwater, score


def scored(*scores: float, size: tuple[int, int] = (5, 4)) -> Segment:
    steps = len(scores)
    return Segment(
        np.zeros((steps, *size, 3), np.uint8),
        np.zeros(steps, np.int64),
        Sidecar(
            np.array(scores, np.float32), np.zeros(steps, bool), np.zeros(steps, bool), "Test-v0", 3, "", 0
        ),
    )


def database(root: Path, scores: Sequence[float]) -> list[str]:
    root.mkdir(exist_ok=True)
    names = [f"00/{number:08d}.dat" for number in range(len(scores))]
    for name, points in zip(names, scores, strict=True):
        save_segment(root / name, scored(0, points, 0))
    return names


def labels(root: Path) -> list[Label]:
    return LabelLog(root / "labels.json").read()


def test_score_is_the_sum_over_the_segment() -> None:
    assert score(scored(1, 20, -4, 0.5)) == 17.5


def test_score_needs_a_sidecar() -> None:
    bare = dataclasses.replace(scored(1, 2), sidecar=None)
    with pytest.raises(
        UserError, match=r"teacher score: expected segments with recorded scores.*original format"
    ):
        score(bare)


@pytest.mark.parametrize(
    ("values", "tie", "answer"),
    [
        ((2, 1), 0, 1),
        ((1, 2), 0, 2),
        ((3, 3), 0, 0),
        ((0.5, 0.52), 0.05, 0),
        ((0.5, 0.6), 0.05, 2),
        ((-1, -2), 0, 1),
    ],
)
def test_prefers_the_higher_value(values: tuple[float, float], tie: float, answer: int) -> None:
    assert Teacher(score, tie).compare(*values) == answer


def test_prefers_the_higher_score_and_calls_equal_ones_alike(tmp_path: Path) -> None:
    points = [0, 0, 20, 40, 40, 60]
    names = database(tmp_path, points)
    summary = label_with_teacher(tmp_path, "score", 15)
    assert (summary.written, summary.wrong, summary.ties, summary.exhausted) == (15, 0, 2, False)
    assert len(labels(tmp_path)) == 15
    for label in labels(tmp_path):
        points1, points2 = (points[names.index(name)] for name in (label.sample1, label.sample2))
        assert label.label == (0 if points1 == points2 else 1 if points1 > points2 else 2)
        assert (label.teacher, label.strategy, label.annotator) == ("score", "random", None)
        assert label.time is not None


def test_no_pair_is_asked_twice_in_either_order(tmp_path: Path) -> None:
    names = database(tmp_path, [float(i) for i in range(8)])  # 28 pairs
    by_hand = Label(names[3], names[1], 0, annotator="ann")
    LabelLog(tmp_path / "labels.json").append(by_hand)
    first = label_with_teacher(tmp_path, "score", 15, seed=0)
    second = label_with_teacher(tmp_path, "score", 100, seed=0)
    assert (first.written, first.exhausted) == (15, False)
    assert (second.written, second.exhausted) == (12, True)
    pairs = [label.pair for label in labels(tmp_path)]
    assert len(set(pairs)) == len(pairs) == 28
    assert labels(tmp_path)[0] == by_hand
    third = label_with_teacher(tmp_path, "score", 1)
    assert (third.written, third.exhausted) == (0, True)


def test_exactly_as_many_labels_as_there_are_pairs_exhaust_nothing(tmp_path: Path) -> None:
    database(tmp_path, [1, 2, 3])
    assert not label_with_teacher(tmp_path, "score", 3).exhausted


def test_errs_as_often_as_asked_and_never_about_ties(tmp_path: Path) -> None:
    points = [float(i // 2) for i in range(60)]  # 1,770 pairs, 30 of them alike
    names = database(tmp_path, points)
    summary = label_with_teacher(tmp_path, "score", 600, error_rate=0.3, seed=1)
    wrong = ties = 0
    for label in labels(tmp_path):
        points1, points2 = (points[names.index(name)] for name in (label.sample1, label.sample2))
        if points1 == points2:
            assert label.label == 0
            ties += 1
        else:
            assert label.label in (1, 2)
            wrong += label.label == (2 if points1 > points2 else 1)
    decided = 600 - ties
    assert (summary.wrong, summary.ties, summary.written) == (wrong, ties, 600)
    assert abs(wrong - 0.3 * decided) < 4 * math.sqrt(decided * 0.3 * 0.7)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_errs_never_or_always(tmp_path: Path, rate: float) -> None:
    database(tmp_path, [1, 2, 3, 4, 5])
    assert label_with_teacher(tmp_path, "score", 10, error_rate=rate).wrong == 10 * rate


def test_a_seed_makes_the_answers_repeat(tmp_path: Path) -> None:
    asked = []
    for folder, seed in (("one", 0), ("same", 0), ("other", 1)):
        database(tmp_path / folder, [1, 2, 3, 4, 5, 6, 7])
        label_with_teacher(tmp_path / folder, "score", 12, error_rate=0.5, seed=seed)
        asked.append([(label.sample1, label.sample2, label.label) for label in labels(tmp_path / folder)])
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_a_broken_segment_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    names = database(tmp_path, [1, 2, 3, 4])
    (tmp_path / names[1]).write_bytes(b"torn")
    summary = label_with_teacher(tmp_path, "score", 100)
    assert (summary.written, summary.exhausted) == (3, True)
    assert len(summary.problems) == 1
    assert names[1] in summary.problems[0]
    assert all(names[1] not in label.pair for label in labels(tmp_path))


def test_what_cannot_be_labelled_is_said(tmp_path: Path) -> None:
    database(tmp_path / "one", [1])
    with pytest.raises(UserError, match="at least two segments to compare, found 1"):
        label_with_teacher(tmp_path / "one", "score", 1)
    with pytest.raises(UserError, match=r"--teacher nobody: expected one of .*midwater.*score"):
        label_with_teacher(tmp_path / "one", "nobody", 1)
    database(tmp_path / "two", [1, 2])
    with pytest.raises(UserError, match="teacher midwater: expected Seaquest's 210×160 frames, got 5×4"):
        label_with_teacher(tmp_path / "two", "midwater", 1)


@pytest.fixture(scope="module")
def dive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real Seaquest: 0 stays at the surface, 1 goes half-way down and stays there, 2 lies on the sea bed."""
    root = tmp_path_factory.mktemp("dive")
    world = AtariWorld("SeaquestNoFrameskip-v4", 3, num_threads=1)
    noop, down = world.action_names.index("NOOP"), world.action_names.index("DOWN")
    step, frames = world.reset(0), []
    for t in range(90):
        frames.append(step.frames.copy())
        # The submarine can move from step 28 on, and needs some 24 steps to the sea bed.
        world.send(np.array([noop, down if t < 40 else noop, down]))
        step = world.recv()
        assert not step.terminal.any()
    world.close()
    for env in range(3):
        clip = Segment(
            np.stack(frames[60:])[:, env],
            np.zeros(30, np.int64),
            Sidecar(np.zeros(30, np.float32), np.zeros(30, bool), np.zeros(30, bool), "Seaquest", 18, "", 60),
        )
        save_segment(root / f"{env:02d}" / "00000060.dat", clip)
    return root


def test_midwater_on_real_frames(dive: Path) -> None:
    db = SegmentDB(dive)
    db.refresh()
    surface, middle, bed = (midwater(db.load(name)) for name in db.names)
    assert surface == pytest.approx(0, abs=0.02)
    assert middle > 0.6
    assert bed < 0.15
    assert TEACHERS["midwater"].compare(surface, middle) == 2
    summary = label_with_teacher(dive, "midwater", 3)
    assert summary.written == 3
    best = "01/00000060.dat"
    for label in labels(dive):
        assert label.teacher == "midwater"
        if best in label.pair:
            assert (label.sample1, label.sample2)[(label.label or 0) - 1] == best
            assert label.label != 0


def test_midwater_without_a_submarine_is_worth_nothing() -> None:
    assert midwater(scored(0, 0, size=(210, 160))) == 0
