"""Simulated teachers: what they prefer, how often they err, and that they repeat nobody."""

import dataclasses
import io
import itertools
import math
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lib.cli import UserError
from lib.envs.atari import AtariWorld
from lib.preferences.answers import prompt_of
from lib.preferences.labels import TEACHERS, Label, LabelLog, current
from lib.preferences.schedule import LabelCount, LabelPlan, ProgressWriter, TrainingProgress
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, Sidecar, save_segment
from lib.preferences.teachers import (
    SimulatedLabeller,
    attend,
    label_with_teacher,
    make_teacher,
    own_teacher,
)
from lib.preferences.values import AIR, air, midwater, myopic_score, score, seaquest
from lib.reporting import Progress
from tests.envs.seaquest_game import Game, begun
from tests.text.dbs import answer_db, random_texts


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
    with pytest.raises(UserError, match=r"--teacher: expected clips with recorded scores.*original format"):
        score(bare)


def test_prefers_the_higher_score_and_calls_equal_ones_alike(tmp_path: Path) -> None:
    points = [0, 0, 20, 40, 40, 60]
    names = database(tmp_path, points)
    summary = label_with_teacher(str(tmp_path), "score", 15)
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


class FirstTwo:
    """A judge of two members, who contradict each other about the first two segments and care for no other."""

    def returns(self, names: Sequence[str]) -> np.ndarray:
        sizes = np.array([9.0 * (name < "00/00000002.dat") for name in names])
        return np.stack([sizes, -sizes])


def test_a_strategy_chooses_what_is_asked(tmp_path: Path) -> None:
    names = database(tmp_path, [float(i) for i in range(12)])
    label_with_teacher(tmp_path, "score", 3, strategy="disagreement", rater=FirstTwo(), random_share=0)
    assert {label.strategy for label in labels(tmp_path)} == {"disagreement"}
    assert all(len({*label.pair} & {*names[:2]}) == 1 for label in labels(tmp_path))
    label_with_teacher(tmp_path, "score", 10, strategy="disagreement", rater=FirstTwo(), random_share=1)
    assert [label.strategy for label in labels(tmp_path)[3:]] == ["random"] * 10


def test_a_strategy_knows_what_was_asked_before(tmp_path: Path) -> None:
    names = database(tmp_path, [0, 0, 0, 1, 2, 3])
    for grey, name in zip((0, 0, 0, 120, 120, 240), names, strict=True):
        clip = scored(0, 1, 0)
        (tmp_path / name).unlink()
        save_segment(tmp_path / name, dataclasses.replace(clip, frames=np.full_like(clip.frames, grey)))
    LabelLog(tmp_path / "labels.json").append(Label(names[0], names[5], 2))
    label_with_teacher(tmp_path, "score", 1, strategy="diversity", random_share=0)
    assert {*labels(tmp_path)[-1].pair} & {*names[3:5]}, "neither dark nor bright, which were seen"


def test_a_strategy_without_its_reward_model_is_refused(tmp_path: Path) -> None:
    database(tmp_path, [1, 2, 3])
    with pytest.raises(UserError, match="--strategy entropy needs a reward model"):
        label_with_teacher(tmp_path, "score", 1, strategy="entropy")
    assert labels(tmp_path) == []


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
    with pytest.raises(UserError, match="at least two clips to compare, found 1"):
        label_with_teacher(tmp_path / "one", "score", 1)
    with pytest.raises(
        UserError,
        match="--teacher nobody: expected one of oracle, mistake, noisy, skip, myopic, equal, midwater, score, seaq",
    ):
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
        clip = dataclasses.replace(scored(*[0] * 30), frames=np.stack(frames[60:])[:, env])
        save_segment(root / f"{env:02d}" / "00000060.dat", clip)
    return root


def test_midwater_on_real_frames(dive: Path) -> None:
    db = SegmentDB(dive)
    db.refresh()
    surface, middle, bed = (midwater(db.load(name)) for name in db.names)
    assert surface == pytest.approx(0, abs=0.02)
    assert middle > 0.6
    assert bed < 0.15
    assert make_teacher("midwater").compare(surface, middle) == 2
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


def answers(root: Path, points: Sequence[float], teacher: str, count: int, **options: float) -> list[Label]:
    """The labels of a teacher in a new DB, whose segments score the points in the order of their names."""
    database(root, points)
    label_with_teacher(root, teacher, count, **options)
    return labels(root)


def points_of(label: Label, points: Sequence[float]) -> tuple[float, float]:
    first, second = (points[int(Path(name).stem)] for name in (label.sample1, label.sample2))
    return first, second


def test_oracle_is_score_by_another_name(tmp_path: Path) -> None:
    points = [60, 0, 40, 20, 0, 40]
    said = [
        [(label.sample1, label.sample2, label.label) for label in answers(tmp_path / name, points, name, 15)]
        for name in ("oracle", "score")
    ]
    assert said[0] == said[1]
    assert {label.teacher for label in labels(tmp_path / "oracle")} == {"oracle"}
    assert {answer for _, _, answer in said[0]} == {0, 1, 2}


def test_mistake_errs_one_time_in_ten_unless_told_otherwise(tmp_path: Path) -> None:
    database(tmp_path / "own", list(range(60)))
    summary = label_with_teacher(tmp_path / "own", "mistake", 1000)
    assert abs(summary.wrong - 100) < 4 * math.sqrt(1000 * 0.1 * 0.9)
    database(tmp_path / "told", [1, 2, 3, 4])
    assert label_with_teacher(tmp_path / "told", "mistake", 6, error_rate=0.0).wrong == 0


def test_noisy_answers_as_boltzmann_would() -> None:
    rng = np.random.default_rng(0)
    for beta, value1, value2 in ((None, 1.0, 0.0), (None, 0.0, 2.0), (0.02, 60.0, 20.0), (1.0, 5.0, 5.0)):
        teacher = make_teacher("noisy", beta=beta)
        said = [teacher.answer(value1, value2, rng) for _ in range(4000)]
        assert set(said) == {1, 2}  # equal segments too are decided, by a coin
        p = 1 / (1 + math.exp(-(beta or 1) * (value1 - value2)))
        assert abs(said.count(1) - 4000 * p) < 4 * math.sqrt(4000 * p * (1 - p))
    assert make_teacher("noisy").answer(1e9, -1e9, rng) == 1
    assert make_teacher("noisy").answer(-1e9, 1e9, rng) == 2


def test_noise_is_counted_as_wrong(tmp_path: Path) -> None:
    points = [float(i) for i in range(40)]
    database(tmp_path, points)
    summary = label_with_teacher(tmp_path, "noisy", 400, beta=0.05)
    against = 0
    for label in labels(tmp_path):
        points1, points2 = points_of(label, points)
        against += label.label == (2 if points1 > points2 else 1)
    assert 50 < summary.wrong == against < 200


def test_skip_cannot_tell_where_neither_clip_scores_enough(tmp_path: Path) -> None:
    points = [0, 1, 5, 9, 11, 11, 113, 650]  # mean 100: 0.1 of it is 10
    written = answers(tmp_path, points, "skip", 100)
    assert len(written) == 28
    for label in written:
        points1, points2 = points_of(label, points)
        better = 0 if points1 == points2 else 1 if points1 > points2 else 2
        assert label.label == (None if max(points1, points2) < 10 else better)
    assert sum(label.label is None for label in written) == 6


def test_skipped_queries_are_written_but_spend_no_budget(tmp_path: Path) -> None:
    points = [0.0] * 12 + [100.0] * 6
    database(tmp_path, points)
    summary = label_with_teacher(tmp_path, "skip", 30)
    said = [label.label for label in labels(tmp_path)]
    assert (summary.written, summary.exhausted) == (30, False)
    assert summary.skipped == said.count(None) > 0
    assert len(said) == 30 + summary.skipped
    assert summary.ties == said.count(0)
    before = {label.pair for label in labels(tmp_path)}
    label_with_teacher(tmp_path, "skip", 10)
    again = [label.pair for label in labels(tmp_path)]
    assert len(again) == len(set(again)) > len(before)  # what could not be told is not asked again


def test_a_teacher_that_can_tell_nothing_comes_to_an_end(tmp_path: Path) -> None:
    database(tmp_path, [1.0] * 30)  # 435 pairs
    summary = label_with_teacher(tmp_path, "skip", 8, threshold=2.0)
    assert (summary.written, summary.skipped, summary.exhausted) == (0, 80, False)
    assert [label.label for label in labels(tmp_path)] == [None] * 80


def test_skip_needs_scores_to_measure_by(tmp_path: Path) -> None:
    database(tmp_path, [-1, -2, 0])
    with pytest.raises(
        UserError, match=r"expected an average score of 0 or more.*got -1; take another --teacher"
    ):
        label_with_teacher(tmp_path, "skip", 1)
    assert labels(tmp_path) == []


@pytest.mark.parametrize("sign", [1, -1])
def test_equal_calls_alike_what_hardly_differs(tmp_path: Path, sign: int) -> None:
    points = [sign * p for p in (80, 88, 95, 105, 112, 120)]  # mean 100: 0.1 of it is 10
    for label in answers(tmp_path, points, "equal", 15):
        points1, points2 = points_of(label, points)
        better = 1 if points1 > points2 else 2
        assert label.label == (0 if abs(points1 - points2) <= 10 else better)
    assert sum(label.label == 0 for label in labels(tmp_path)) == 5


def test_thresholds_are_measured_once_against_the_mean_of_all_segments(tmp_path: Path) -> None:
    # Mean 50 with the broken one left out; one that were applied twice, or to part of the DB, would be another.
    points = [0, 20, 40, 140, 1e6]
    names = database(tmp_path, points)
    (tmp_path / names[-1]).write_bytes(b"torn")
    summary = label_with_teacher(tmp_path, "equal", 100, threshold=0.5)
    assert (summary.written, summary.ties, len(summary.problems)) == (6, 2, 1)


def test_myopic_weighs_the_end_most() -> None:
    assert myopic_score(scored(16, 8, 4), 0.5) == 4 + 4 + 4
    assert myopic_score(scored(1, 2, 3), 1.0) == 6
    assert myopic_score(scored(1, 2, 3), 0.0) == 3
    early, late = scored(*[30] + [0] * 49), scored(*[0] * 49 + [20])
    assert make_teacher("oracle").compare(score(early), score(late)) == 1
    myopic = make_teacher("myopic")
    assert myopic.value(late) == 20
    assert myopic.value(early) == pytest.approx(30 * 0.9**49)
    assert myopic.compare(myopic.value(early), myopic.value(late)) == 2


def test_parameters_reach_their_teacher_and_no_other() -> None:
    assert make_teacher("myopic", myopia=1.0).value(scored(1, 2, 3)) == 6
    assert make_teacher("equal", threshold=0.3).compare(70, 100, mean=100) == 0
    assert make_teacher("skip", threshold=0.3).compare(10, 29, mean=100) is None
    assert make_teacher("seaquest", error_rate=0.2).error_rate == 0.2
    for options, message in (
        ({"beta": 1.0}, "--beta belongs to --teacher noisy; got --teacher oracle"),
        ({"myopia": 0.5}, "--myopia belongs to --teacher myopic; got"),
        ({"threshold": 0.5}, "--threshold belongs to --teacher skip or equal; got"),
    ):
        with pytest.raises(UserError, match=message):
            make_teacher("oracle", **options)


def test_the_script_hands_the_parameters_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(Path(__file__).parents[2] / "02_label_ui.py"))["main"]
    database(tmp_path, [1.0] * 12)
    main(["-d", str(tmp_path), "--teacher", "skip", "--threshold", "2", "--count", "3"])
    said = capsys.readouterr().out
    assert (
        "0 labels by skip, 0 of them alike, 0 wrong on purpose; it could not tell for 30 more pairs" in said
    )
    assert "Gave up" in said
    for given in (["--beta", "0.5"], ["--myopia", "0.5"], ["--threshold", "0.5"]):
        with pytest.raises(SystemExit):
            main(["-d", str(tmp_path), *given])
        assert f"{given[0]} needs --teacher" in capsys.readouterr().err
        with pytest.raises(UserError, match=f"{given[0]} belongs to --teacher .*; got --teacher score"):
            main(["-d", str(tmp_path), "--teacher", "score", *given])


def test_teachers_and_people_share_one_log(tmp_path: Path) -> None:
    names = database(tmp_path, [0, 20, 40, 60, 80, 100, 120])  # 21 pairs
    log = LabelLog(tmp_path / "labels.json")
    log.append(Label(names[0], names[1], 2, annotator="ann"))
    log.append(Label(names[2], names[1], None, annotator="ann"))
    log.append(Label(names[2], names[1], None, annotator="ann", cancelled=True))
    asked = ("oracle", "mistake", "noisy", "skip", "myopic", "equal")
    for seed, teacher in enumerate(asked):
        assert label_with_teacher(tmp_path, teacher, 3, seed=seed).written == 3
    kept = current(log.read())
    assert log.problems == []
    given = [label for label in kept if label.label is not None]
    assert [label.annotator or label.teacher for label in given] == [
        "ann",
        *(teacher for teacher in asked for _ in range(3)),
    ]
    assert len({label.pair for label in kept}) == len(kept)


def clip(game: Game, first: int, last: int) -> Segment:
    """Steps of a game as the recorder stores them: the frame an action is chosen on, and what it led to."""
    return dataclasses.replace(
        scored(*game.scores[first + 1 : last + 1]), frames=np.stack(game.frames[first:last])
    )


@pytest.fixture(scope="module")
def clips() -> dict[str, Segment]:
    """Fifty steps each of real Seaquest, by what happens in them."""

    def play(*script: tuple[str, int], steps: int = 50, **given: int) -> Segment:
        game = begun()
        game.give(**given)
        for action, count in script:
            game.play(action, count)
        return clip(game, 42, 42 + steps)

    pickup = begun()
    pickup.play("NOOP", 20)
    pickup.give(divers=1)
    pickup.play("NOOP", 40)

    hunt = Game()
    hunt.play("NOOP", 34)
    hunt.play("DOWN", 16)
    hunt.play("LEFTFIRE", 2)
    hunt.play("FIRE", 60)
    assert sum(hunt.scores[51:101]) == 20

    rammed = Game()
    rammed.play("NOOP", 40)
    rammed.play("DOWN", 30)
    rammed.play("NOOP", 60)
    assert sum(rammed.scores[75:125]) == 20

    suffocated = begun()
    suffocated.give(oxygen=2)
    suffocated.play("NOOP", 60)
    return {
        "idle": play(("NOOP", 60), oxygen=50),
        "refuel": play(("UP", 10), ("NOOP", 60), oxygen=40, divers=1),
        "late refuel": play(("NOOP", 10), ("UP", 10), ("NOOP", 60), oxygen=12, divers=1),
        "low": play(("NOOP", 60), oxygen=14),
        "no diver": play(("UP", 10), ("NOOP", 60), oxygen=40),
        "rescue": play(("UP", 14), ("NOOP", 120), steps=110, divers=6),
        "life begins": clip(game_begins(), 0, 50),
        "pickup": clip(pickup, 42, 92),
        "hit": clip(hunt, 50, 100),
        "rammed": clip(rammed, 74, 124),
        "suffocated": clip(suffocated, 42, 92),
    }


@pytest.fixture(scope="module")
def dives() -> dict[str, Segment]:
    """Fifty steps each of real Seaquest, on the way to the surface or not."""

    def play(*script: tuple[str, int], depth: int = 14, **given: int) -> Segment:
        game = begun()
        game.play("DOWN", depth)
        first = len(game.frames)
        game.give(**given)
        game.play("NOOP", 1)
        for action, count in script:
            game.play(action, count)
        return clip(game, first, first + 50)

    def hit(oxygen: int) -> Segment:
        """A submarine meets a shark where it waits."""
        game = Game()
        game.play("NOOP", 40)
        game.play("DOWN", 30)
        game.give(divers=1, oxygen=oxygen)
        game.play("NOOP", 60)
        return clip(game, 72, 122)

    second = begun()
    second.give(divers=1)
    second.play("NOOP", 20)
    second.give(divers=2)
    second.play("NOOP", 40)
    return {
        "climb": play(("UP", 10), ("NOOP", 50), oxygen=30, divers=1),
        "half a climb": play(("UP", 5), ("NOOP", 50), oxygen=30, divers=1),
        "climb without a diver": play(("UP", 10), ("NOOP", 50), oxygen=30),
        "climb with air": play(("UP", 10), ("NOOP", 50), oxygen=50, divers=1),
        "sink": play(("DOWN", 5), ("NOOP", 50), depth=8, oxygen=30, divers=1),
        "low and deep": play(("NOOP", 60), oxygen=14),
        "climb to a refuel": play(("UP", 30), ("NOOP", 30), oxygen=12, divers=1),
        "lost with a diver": play(("NOOP", 60), depth=4, oxygen=1, divers=2),
        "second diver": clip(second, 44, 94),
        "hit with half a tank": hit(oxygen=30),
        "hit with a full tank": hit(oxygen=60),
        "hover": play(("UP", 10), ("NOOP", 50), depth=3),
        "hover with half a tank": play(("UP", 10), ("NOOP", 50), depth=3, oxygen=40),
        "a moment at the top": play(("UP", 10), ("NOOP", 5), ("DOWN", 45), depth=3),
    }


def game_begins() -> Game:
    game = Game()
    game.play("NOOP", 60)
    return game


@pytest.mark.parametrize(
    ("name", "survival", "rest", "value"),
    [
        ("idle", 0, 0, 0),
        ("life begins", 0, 0, 0),
        ("refuel", 1, 0, 2 - 1),  # and 30 steps at the top after it
        ("late refuel", 1, 0, 2 + 0.3),  # and the climb from a third of the depth
        ("low", -1, 0, 0),  # but not deep
        ("no diver", -1, 0, -2),
        ("rammed", -1, 0, -2),
        ("suffocated", -2, 0, -2),
        ("rescue", 2, 0, 2 + 2),
        ("pickup", 0, 1, 1),
        ("hit", 0, 1, 0.05),
    ],
)
def test_what_seaquest_and_air_value(
    clips: dict[str, Segment], name: str, survival: int, rest: int, value: float
) -> None:
    assert seaquest(clips[name]) == survival * 100_000 + rest
    assert air(clips[name]) == pytest.approx(value, abs=0.08)


def test_seaquest_reads_neither_the_flags_nor_the_actions(clips: dict[str, Segment]) -> None:
    seen = clips["rammed"]
    assert seen.sidecar is not None
    flags = np.ones(50, bool)
    lied = dataclasses.replace(
        seen,
        actions=np.full(50, 7),
        sidecar=dataclasses.replace(seen.sidecar, life_lost=flags, game_over=flags, env_id="Pong"),
    )
    assert seaquest(lied) == seaquest(seen)


def test_seaquest_labels_a_database(clips: dict[str, Segment], tmp_path: Path) -> None:
    worst_to_best = ["suffocated", "low", "idle", "hit", "refuel", "rescue"]
    stored = ["hit", "rescue", "suffocated", "refuel", "idle", "low"]
    rank = {f"00/{number:08d}.dat": worst_to_best.index(name) for number, name in enumerate(stored)}
    for number, name in enumerate(stored):
        save_segment(tmp_path / f"00/{number:08d}.dat", clips[name])
    assert label_with_teacher(tmp_path, "seaquest", 100).written == 15
    for label in labels(tmp_path):
        assert label.label == (1 if rank[label.sample1] > rank[label.sample2] else 2)
        assert label.teacher == "seaquest"


def test_seaquest_needs_its_frames_and_scores() -> None:
    with pytest.raises(UserError, match="teacher seaquest: expected Seaquest's 210×160 frames, got 5×4"):
        seaquest(scored(1))
    with pytest.raises(UserError, match="expected clips with recorded scores"):
        seaquest(dataclasses.replace(scored(0, 0, size=(210, 160)), sidecar=None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("climb", 40 / 95),  # four rows a step
        ("half a climb", 20 / 95),
        ("climb without a diver", 0),
        ("climb with air", 0),
        ("sink", -20 / 95),
        ("low and deep", -0.5),
        ("climb to a refuel", 2 + 88 / 95),
        ("lost with a diver", -2 - 0.3),
        ("hit with half a tank", 0),
        ("hit with a full tank", -2),
        ("second diver", 0.3),
        ("hover", -1),
        ("hover with half a tank", -1),
        ("a moment at the top", 0),
    ],
)
def test_air_values_the_way_to_a_refuel(dives: dict[str, Segment], name: str, value: float) -> None:
    assert air(dives[name]) == pytest.approx(value, abs=0.08)


def test_air_excuses_the_moment_after_a_life_began() -> None:
    game = Game()
    game.play("NOOP", 110)
    assert air(clip(game, 0, 50)) == 0
    full = next(t for t, memory in enumerate(game.memory) if memory.oxygen == 64)
    assert air(clip(game, full - 15, full + 29)) == 0
    assert air(clip(game, full - 5, full + 45)) == AIR["idle"]


@pytest.mark.slow
def test_air_grades_clips_without_a_refuel(dives: dict[str, Segment]) -> None:
    worst_to_best = [
        "lost with a diver",
        "hover",
        "low and deep",
        "half a climb",
        "climb",
        "climb to a refuel",
    ]
    values = [air(dives[name]) for name in worst_to_best]
    assert values == sorted(values)
    teacher = make_teacher("air")
    assert all(teacher.compare(worse, better) == 2 for worse, better in itertools.pairwise(values))


def test_air_passes_over_half_of_what_differs_in_hits_alone() -> None:
    teacher, rng = make_teacher("air"), np.random.default_rng(0)
    assert [teacher.compare(hits * AIR["hit"], 0) for hits in (1, 2)] == [0, 1]
    said = [teacher.answer(3 * AIR["hit"], 0, rng) for _ in range(1000)]
    assert set(said) == {None, 1}
    assert abs(said.count(None) - 500) < 4 * math.sqrt(250)
    assert {teacher.answer(AIR["further diver"], 0, rng) for _ in range(100)} == {1}


def test_air_needs_its_frames_and_scores() -> None:
    with pytest.raises(UserError, match="teacher air: expected Seaquest's 210×160 frames, got 5×4"):
        air(scored(1))
    with pytest.raises(UserError, match="expected clips with recorded scores"):
        air(dataclasses.replace(scored(0, 0, size=(210, 160)), sidecar=None))


@pytest.mark.parametrize(
    ("teacher", "given", "expected"),
    [
        ("score", {}, {"error_rate": 0.0}),
        ("mistake", {}, {"error_rate": 0.1}),
        ("noisy", {"beta": 2.0, "error_rate": 0.2}, {"beta": 2.0, "error_rate": 0.2}),
        ("myopic", {"myopia": 0.8}, {"error_rate": 0.0, "gamma": 0.8}),
        ("equal", {}, {"error_rate": 0.0, "threshold": 0.1}),
    ],
)
def test_labels_say_which_teacher_gave_them_to_the_parameter(
    teacher: str, given: dict[str, float], expected: dict[str, float]
) -> None:
    assert make_teacher(teacher, **given).parameters() == expected


def test_a_teacher_that_attends_gives_what_is_due_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing without a training or while it still records its first clips; then as the steps go by."""
    database(tmp_path, range(30))
    count, writer = LabelCount(tmp_path), ProgressWriter(tmp_path)
    plan = LabelPlan(steps=100, budget=50, opening=10)
    given: list[int] = []

    def training(*progress: object) -> Callable[[], None]:
        return lambda: writer.write(TrainingProgress(plan, *progress))  # type: ignore[arg-type]

    happens = [
        training(0, "opening"),
        training(0, "waiting"),
        lambda: None,
        training(50, "training"),
        lambda: LabelLog(tmp_path / "labels.json").append(Label("00/1.dat", "00/2.dat", 1, annotator="ada")),
        training(60, "training", "", 2),
        training(100, "over"),
        lambda: None,
    ]

    def sleep(seconds: float) -> None:
        given.append(count.read())
        happens.pop(0)()

    monkeypatch.setattr(time, "sleep", sleep)
    said = io.StringIO()
    labeller = SimulatedLabeller(tmp_path, "score", seed=3)
    assert attend(labeller, tmp_path, Progress(said, interval=0), lambda: not happens) == 49
    assert given == [0, 0, 10, 10, 30, 31, 34, 50]
    assert said.getvalue().splitlines()[1] == "50 steps: 30 labels, of 30 due"
    pairs = [label.pair for label in LabelLog(tmp_path / "labels.json").read()]
    assert len(set(pairs)) == len(pairs)


def test_a_segment_that_was_dropped_meanwhile_is_not_labelled(tmp_path: Path) -> None:
    names = database(tmp_path, range(4))
    labeller = SimulatedLabeller(tmp_path, "score")
    labeller.give(6)
    (tmp_path / "labels.json").unlink()
    labeller._db.refresh = lambda: None  # type: ignore[method-assign]  # it has not noticed
    (tmp_path / names[0]).unlink()
    assert labeller.give(6).written == 3


def test_every_name_has_a_teacher() -> None:
    values = {name: make_teacher(name).value for name in TEACHERS}
    assert [name for name, value in values.items() if value is score] == [
        *("oracle", "mistake", "noisy", "skip"),
        *("equal", "score"),
    ]


def test_a_teacher_of_ones_own_values_each_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_by_value.py").write_text("def taste(clip): return -clip.sidecar.scores.sum()\n")
    monkeypatch.chdir(tmp_path)
    names = database(tmp_path / "db", [3, 1, 2])
    summary = label_with_teacher(tmp_path / "db", "mine_by_value:taste", 3)
    assert (summary.written, summary.exhausted) == (3, False)
    better = {(label.sample1, label.sample2)[(label.label or 0) - 1] for label in labels(tmp_path / "db")}
    assert better == {names[1], names[2]}
    said = labels(tmp_path / "db")
    assert {label.teacher for label in said} == {"mine_by_value:taste"}
    assert [(label.parameters or {})["seed"] for label in said] == [0, 0, 0]
    database(tmp_path / "wrong", [3, 1, 2])
    assert label_with_teacher(tmp_path / "wrong", "mine_by_value:taste", 3, error_rate=1.0).wrong == 3


def test_a_teacher_of_ones_own_may_import_a_neighbour_when_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_late.py").write_text(
        "def taste(clip):\n    import mine_heavy\n    return mine_heavy.worth\n"
    )
    (tmp_path / "mine_heavy.py").write_text("worth = 1\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    database(tmp_path / "db", [3, 1])
    assert label_with_teacher(tmp_path / "db", "mine_late:taste", 1).written == 1


def test_a_teacher_of_ones_own_chooses_between_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_by_choice.py").write_text(
        "def pick(a, b):\n    a, b = (x.sidecar.scores.sum() for x in (a, b))\n"
        "    return None if 5 in (a, b) else 0 if a == b else 1 if a > b else 2\n"
    )
    monkeypatch.chdir(tmp_path)
    names = database(tmp_path / "db", [3, 1, 1, 5])
    summary = label_with_teacher(tmp_path / "db", "mine_by_choice:pick", 6)
    assert (summary.written, summary.ties, summary.skipped, summary.exhausted) == (3, 1, 3, True)
    said = labels(tmp_path / "db")
    assert {(label.sample1, label.sample2)[label.label - 1] for label in said if label.label} == {names[0]}
    names = database(tmp_path / "other", [3, 1, 1])
    summary = label_with_teacher(tmp_path / "other", "mine_by_choice:pick", 3, error_rate=1.0)
    assert (summary.written, summary.wrong, summary.ties) == (3, 2, 1)
    said = labels(tmp_path / "other")
    assert names[0] not in {(label.sample1, label.sample2)[label.label - 1] for label in said if label.label}


def test_labels_on_random_pairs_are_counted(tmp_path: Path) -> None:
    database(tmp_path / "db", [1, 2, 3, 4])
    summary = label_with_teacher(tmp_path / "db", "score", 4, strategy="fork", random_share=0.0)
    assert summary.at_random == 4, "none of these forks"


def test_a_judge_that_likes_what_it_sees_first_favours_no_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_at_first.py").write_text("def pick(a, b): return 1\n")
    monkeypatch.chdir(tmp_path)
    database(tmp_path / "db", list(range(30)))
    label_with_teacher(tmp_path / "db", "mine_at_first:pick", 300)
    said = labels(tmp_path / "db")
    assert 0.4 < sum(label.winner == min(label.pair) for label in said) / len(said) < 0.6


@pytest.mark.parametrize("said", ["np.int64(1)", "1.0", "np.float32(1)"])
def test_a_choice_may_be_any_kind_of_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    module = f"mine_{abs(hash(said))}"
    (tmp_path / f"{module}.py").write_text(
        "import numpy as np\n"
        f"def pick(a, b): return {said} * (1 if a.sidecar.scores.sum() > b.sidecar.scores.sum() else 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    names = database(tmp_path / "db", [3, 1])
    label_with_teacher(tmp_path / "db", f"{module}:pick", 1)
    (label,) = labels(tmp_path / "db")
    assert (label.winner, type(label.label)) == (names[0], int)


def test_arguments_with_defaults_are_not_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_with_defaults.py").write_text(
        "def taste(clip, scale=2, **more): return scale * clip.sidecar.scores.sum()\n"
        "def pick(a, b, *, scale=1): return scale\n"
    )
    monkeypatch.chdir(tmp_path)
    database(tmp_path / "db", [3, 1])
    teacher = own_teacher("mine_with_defaults:taste")
    assert teacher.choose is None
    assert own_teacher("mine_with_defaults:pick").choose is not None
    assert label_with_teacher(tmp_path / "db", "mine_with_defaults:taste", 1).written == 1


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        ("", "mine_a:gone", "has no attribute 'gone'"),
        ("", "no_such_module_of_mine:f", "No module named"),
        ("def f(): pass", "mine_b:f", "it needs 0 arguments"),
        ("def f(clip): return 'good'", "mine_c:f", "expected a finite number for each clip, got 'good'"),
        ("def f(clip): return float('nan')", "mine_e:f", "expected a finite number for each clip, got nan"),
        ("def f(clip): return -float('inf')", "mine_f:f", "expected a finite number for each clip, got -inf"),
        ("def f(a, b): return 3", "mine_d:f", "expected 1, 2, 0 or None for each pair, got 3"),
        ("def f(a, b): return False", "mine_g:f", "expected 1, 2, 0 or None for each pair, got False"),
        ("import numpy as np\ndef f(a, b): return np.bool_(1)", "mine_k:f", "for each pair, got .*True"),
        ("def f(a, b): return 1.5", "mine_h:f", "expected 1, 2, 0 or None for each pair, got 1.5"),
        ("def f(a, b): return 'left'", "mine_i:f", "expected 1, 2, 0 or None for each pair, got 'left'"),
        ("import numpy as np\ndef f(a, b): return np.ones(2)", "mine_j:f", "for each pair, got array"),
    ],
)
def test_a_teacher_of_ones_own_that_does_not_fit_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, name: str, says: str
) -> None:
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(code) if "mine_" in name else None
    monkeypatch.chdir(tmp_path)
    database(tmp_path / "db", [3, 1])
    with pytest.raises(UserError, match=r"--teacher .*" + says):
        label_with_teacher(tmp_path / "db", name, 1)
    assert labels(tmp_path / "db") == []
    with pytest.raises(UserError, match="--beta belongs to other teachers"):
        SimulatedLabeller(tmp_path / "db", name, beta=1.0)


def test_a_file_that_names_a_teacher_of_somebodys_own_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_teacher.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    names = database(tmp_path / "db", [3, 1])
    log = LabelLog(tmp_path / "db" / "labels.json")
    log.append(Label(names[0], names[1], 1, teacher="hostile_teacher:run"))
    assert [label.teacher for label in current(log.read())] == ["hostile_teacher:run"]
    with pytest.raises(UserError, match="expected one of"):
        make_teacher("hostile_teacher:run")


def test_a_teacher_of_ones_own_waits_at_a_db_of_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_answers.py").write_text("def longer(answer): return len(answer.text)\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "db").mkdir()
    labeller = SimulatedLabeller(tmp_path / "db", "mine_of_answers:longer", strategy="recent", random_share=0)
    answer_db(tmp_path / "db", random_texts(4, 3))
    assert labeller.give(6).written == 6
    assert all(prompt_of(label.sample1) == prompt_of(label.sample2) for label in labels(tmp_path / "db"))


def test_a_teacher_of_clips_waits_and_answers_come(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    labeller = SimulatedLabeller(tmp_path / "db", "score")
    answer_db(tmp_path / "db", random_texts(4, 3))
    with pytest.raises(UserError, match=r"--teacher score compares clips, and .* holds answers"):
        labeller.give(1)
