"""Labelled pairs as arrays: what counts, what is left out and said, and a split that never leaks."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lib.cli import UserError
from lib.preferences.labels import Label, LabelLog, current
from lib.preferences.segments import Segment
from lib.reward.data import Pairs, PreferenceData, asked_at_random, labeller_of, load_preferences
from lib.reward.split import split_by_segment
from tests.reward.clips import add_labels, clip, save


def ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def database(db: Path, greys: list[int], first: int = 0, **kwargs: object) -> list[str]:
    db.mkdir(exist_ok=True)
    return [save(db, first + i, clip(grey, **kwargs)) for i, grey in enumerate(greys)]  # type: ignore[arg-type]


def original(segment: Segment) -> Segment:
    """The segment as a file of the original format gives it."""
    return dataclasses.replace(segment, sidecar=None)


def brightness(data: PreferenceData) -> list[tuple[int, int, float]]:
    """Each pair as the greys of its segments, to the nearest ten, and μ."""

    def grey(index: int) -> int:
        return int(round(float(data.segments.get(index)[0].mean()), -1))

    pairs = data.pairs
    return [
        (grey(int(a)), grey(int(b)), float(mu))
        for a, b, mu in zip(pairs.first, pairs.second, pairs.preference1, strict=True)
    ]


def test_labels_become_preferences(tmp_path: Path) -> None:
    dark, middle, light = database(tmp_path, [50, 100, 150])
    add_labels(tmp_path, [(dark, light, 2), (light, middle, 1), (middle, dark, 0)])
    data = load_preferences([tmp_path], 100)
    assert brightness(data) == [(50, 150, 0), (150, 100, 1), (100, 50, 0.5)]
    assert data.pairs.preference1.dtype == np.float32
    assert data.pairs.first.dtype == data.pairs.second.dtype == np.int64
    assert len(data.segments) == 3  # each once
    spec = data.segments.spec
    assert (spec.frame_shape, spec.num_actions, data.segments.env_id) == ((48, 48, 3), 4, "Grey-v0")
    assert data.problems == []


def test_the_last_word_counts_and_cannot_tell_is_left_out(tmp_path: Path) -> None:
    a, b, c = database(tmp_path, [50, 100, 150])
    add_labels(tmp_path, [(a, b, 1), (a, c, 1), (b, a, 1), (a, c, None), (b, c, None)])
    data = load_preferences([tmp_path], 100)
    assert brightness(data) == [(100, 50, 1)]
    assert len(data.segments) == 2  # what nobody could judge is not even read


def test_labels_of_several_people_all_count(tmp_path: Path) -> None:
    a, b = database(tmp_path, [50, 100])
    add_labels(tmp_path, [(a, b, 1)], "ann")
    add_labels(tmp_path, [(a, b, 2)], "bob")
    data = load_preferences([tmp_path], 100)
    assert brightness(data) == [(50, 100, 1), (50, 100, 0)]
    people = {"ann": 1, "bob": 1}
    assert data.parents == [{"db": str(tmp_path), "labels": 2, "labellers": people, "policies": {}}]


def test_a_db_is_remembered_with_who_labelled_how_much_and_whose_play_it_shows(tmp_path: Path) -> None:
    played = [(50, "v0"), (100, "v1"), (150, "v1"), (200, "")]
    names = []
    for number, (grey, policy) in enumerate(played):
        one = clip(grey)
        assert one.sidecar is not None
        sidecar = dataclasses.replace(one.sidecar, policy=policy)
        names.append(save(tmp_path, number, dataclasses.replace(one, sidecar=sidecar)))
    a, b, c, d = names
    add_labels(tmp_path, [(a, b, 1), (a, c, 1), (b, c, None)], "ann")
    add_labels(tmp_path, [(a, d, 2), ("gone", a, 1)], "seaquest")
    log = LabelLog(tmp_path / "labels.json")
    log.append(Label(b, d, 0, teacher="seaquest"))
    log.append(Label(b, d, 0))
    assert load_preferences([tmp_path], 100).parents == [
        {
            "db": str(tmp_path),
            "labels": 5,
            "labellers": {"ann": 2, "seaquest": 1, "seaquest teacher": 1, "unknown": 1},
            "policies": {"v1": 2, "v0": 1},
        }
    ]


def test_two_databases_with_the_same_names(tmp_path: Path) -> None:
    for name, greys in (("one", [50, 100]), ("two", [150, 200])):
        a, b = database(tmp_path / name, greys)
        add_labels(tmp_path / name, [(a, b, 2)])
    data = load_preferences([tmp_path / "one", tmp_path / "two"], 100)
    assert brightness(data) == [(50, 100, 0), (150, 200, 0)]
    assert [parent["labels"] for parent in data.parents] == [1, 1]


def test_missing_and_broken_segments_are_named_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    a, b, broken = database(tmp_path, [50, 100, 150])
    (tmp_path / broken).write_bytes((tmp_path / broken).read_bytes()[:100])
    missing = "00/00000099.dat"
    add_labels(tmp_path, [(a, missing, 1), (a, b, 2), (missing, b, 1), (broken, a, 1)])
    data = load_preferences([tmp_path], 100)
    assert brightness(data) == [(50, 100, 0)]
    assert len(data.problems) == 2
    assert missing in data.problems[0]
    assert broken in data.problems[1]
    assert not any("\n" in problem for problem in data.problems)
    assert data.parents[0]["labels"] == 1


def test_torn_lines_are_passed_on(tmp_path: Path) -> None:
    a, b = database(tmp_path, [50, 100])
    add_labels(tmp_path, [(a, b, 1)])
    with (tmp_path / "labels.json").open("a") as file:
        file.write('{"sample1": ')
    data = load_preferences([tmp_path], 100)
    assert len(data.pairs) == 1
    assert len(data.problems) == 1
    assert "line 2" in data.problems[0]


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"env_id": "Other-v0"}, "a clip of Other-v0 among those of Grey-v0"),
        ({"env_id": "Other-v0", "num_actions": 6}, "a clip of Other-v0 among those of Grey-v0"),
        ({"size": 50}, "frames of 48×48 pixels .* got frames of 50×50"),
        ({"num_actions": 6}, "expected 4 actions .* got 6 actions"),
    ],
)
def test_segments_of_another_game_are_refused(tmp_path: Path, kwargs: dict, says: str) -> None:
    names = database(tmp_path, [50, 100])
    other = database(tmp_path, [150], first=9, **kwargs)
    add_labels(tmp_path, [(*names, 1), (names[0], *other, 1)])  # type: ignore[list-item]
    with pytest.raises(UserError, match=says) as caught:
        load_preferences([tmp_path], 100)
    assert str(tmp_path / other[0]) in str(caught.value)


def test_the_module_that_registers_a_game_makes_no_other_game_of_it(tmp_path: Path) -> None:
    names = database(tmp_path, [50, 100])  # as PreferenceEnv names it
    other = database(tmp_path, [150], first=9, env_id="package.mine:Grey-v0")  # as -e does
    add_labels(tmp_path, [(*names, 1), (names[0], *other, 1)])  # type: ignore[list-item]
    assert len(load_preferences([tmp_path], 100).pairs) == 2


def test_a_database_that_is_missing_or_without_labels_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none"):
        load_preferences([tmp_path / "none"], 100)
    a, b = database(tmp_path, [50, 100])
    with pytest.raises(
        UserError, match=r"expected labels in .*labels\.json, found none; label with 02_label_ui"
    ):
        load_preferences([tmp_path], 100)
    add_labels(tmp_path, [(a, b, None)])
    with pytest.raises(UserError, match="found none"):
        load_preferences([tmp_path], 100)


@pytest.mark.parametrize("memory_mb", [0, 0.08])
def test_past_the_budget_segments_are_read_again(tmp_path: Path, memory_mb: float) -> None:
    names = database(tmp_path, [20, 60, 100, 140])  # 35 kB each: the second budget holds two
    add_labels(tmp_path, [(names[0], names[1], 1), (names[2], names[3], 1)])
    held, streamed = load_preferences([tmp_path], 100), load_preferences([tmp_path], memory_mb)
    for index in range(4):
        for ours, theirs in zip(held.segments.get(index)[:2], streamed.segments.get(index)[:2], strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)
    for name in names:
        (tmp_path / name).unlink()
    gone = 0
    for index in range(4):
        held.segments.get(index)
        try:
            streamed.segments.get(index)
        except UserError as error:
            assert "can no longer be read" in str(error)  # noqa: PT017  # some are still held
            gone += 1
    assert gone == (4 if memory_mb == 0 else 2)


def test_the_action_count_may_be_given_for_segments_that_do_not_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = database(tmp_path, [50, 100])
    add_labels(tmp_path, [(*names, 1)])  # type: ignore[list-item]
    highest = max(int(clip(grey).actions.max()) for grey in (50, 100))
    from lib.preferences.segment_db import SegmentDB

    load = SegmentDB.load
    monkeypatch.setattr(SegmentDB, "load", lambda db, name: original(load(db, name)))
    assert load_preferences([tmp_path], 100).segments.spec.num_actions == highest + 1
    assert load_preferences([tmp_path], 100, num_actions=18).segments.spec.num_actions == 18
    with pytest.raises(UserError, match=f"--num-actions {highest}: the clips hold actions up to {highest}"):
        load_preferences([tmp_path], 100, num_actions=highest)


def test_an_action_count_that_the_segments_contradict_is_said(tmp_path: Path) -> None:
    names = database(tmp_path, [50, 100])
    add_labels(tmp_path, [(*names, 1)])  # type: ignore[list-item]
    assert load_preferences([tmp_path], 100, num_actions=4).segments.spec.num_actions == 4
    for count in (3, 18):
        with pytest.raises(
            UserError, match=f"--num-actions {count}: the clips say that there are 4; leave it out"
        ):
            load_preferences([tmp_path], 100, num_actions=count)


def random_pairs(rng: np.random.Generator) -> Pairs:
    segments = int(rng.integers(2, 60))
    count = int(rng.integers(1, 200))  # up to dense graphs, in which few pairs share no segment
    ends = np.array([rng.choice(segments, 2, replace=False) for _ in range(count)])
    return Pairs(ends[:, 0], ends[:, 1], rng.choice([0, 0.5, 1], count).astype(np.float32), ones(count))


def segments_of(pairs: Pairs, index: np.ndarray) -> set[int]:
    return {int(end) for end in np.concatenate([pairs.first[index], pairs.second[index]])}


def check_split(pairs: Pairs, train: np.ndarray, test: np.ndarray) -> None:
    assert len(train)
    assert len(test)
    assert not segments_of(pairs, train) & segments_of(pairs, test)
    for side in (train, test):
        assert (np.diff(side) > 0).all()  # sorted, none twice
    assert not set(train) & set(test)
    assert min(train[0], test[0]) >= 0
    assert max(train[-1], test[-1]) < len(pairs)


def test_a_split_never_shares_a_segment() -> None:
    rng, done = np.random.default_rng(0), 0
    for seed in range(150):
        pairs, held_out = random_pairs(rng), float(rng.choice([0.1, 0.2, 0.5]))
        try:
            train, test = split_by_segment(pairs, held_out, seed)
        except UserError:
            continue
        check_split(pairs, train, test)
        done += 1
    assert done > 75


def chain(count: int) -> Pairs:
    return Pairs(np.arange(count), np.arange(count) + 1, ones(count), ones(count))


def disjoint(count: int) -> Pairs:
    return Pairs(np.arange(count) * 2, np.arange(count) * 2 + 1, ones(count), ones(count))


def sparse(count: int) -> Pairs:
    """As labels on a large database come."""
    rng = np.random.default_rng(1)
    ends = np.array([rng.choice(count, 2, replace=False) for _ in range(count)])
    return Pairs(ends[:, 0], ends[:, 1], ones(count), ones(count))


@pytest.mark.parametrize(("make", "torn"), [(chain, 0.05), (disjoint, 0.0), (sparse, 0.12)])
@pytest.mark.parametrize("held_out", [0.1, 0.2])
def test_a_split_holds_out_the_share_asked_for_and_tears_few_pairs(
    make: Callable[[int], Pairs], torn: float, held_out: float
) -> None:
    pairs = make(200)
    for seed in range(5):
        train, test = split_by_segment(pairs, held_out, seed)
        check_split(pairs, train, test)
        assert len(test) == pytest.approx(held_out * 200, abs=3)
        assert len(train) >= 200 * (1 - held_out - torn) - 3


def test_few_pairs_are_torn_though_few_may_be_held_out() -> None:
    """As in training with a query strategy: 20 of 90 pairs were drawn at random, and clips are in four pairs each."""
    rng = np.random.default_rng(2)
    ends = np.array([rng.choice(45, 2, replace=False) for _ in range(90)])
    pairs = Pairs(ends[:, 0], ends[:, 1], ones(90), ones(90))
    for seed in range(5):
        train, test = split_by_segment(pairs, 0.1, seed, np.arange(90) < 20)
        check_split(pairs, train, test)
        assert len(test) >= 9
        assert len(train) >= 52


def test_a_unit_with_both_sides_of_a_pair_counts_once() -> None:
    """As moments of forks and prompts do: to hold (0, 0) out tears nothing, (1, 2) tears (1, 3)."""
    pairs = Pairs(np.array([0, 1, 1]), np.array([0, 2, 3]), ones(3), ones(3))
    for seed in range(5):
        train, test = split_by_segment(pairs, 0.34, seed)
        assert (train.tolist(), test.tolist()) == ([1, 2], [0])


def test_a_dense_database_can_be_split() -> None:
    """Every pair of 12 segments, which no split leaves whole."""
    ends = np.array([(a, b) for a in range(12) for b in range(a)])
    pairs = Pairs(ends[:, 0], ends[:, 1], ones(66), ones(66))
    for seed in range(10):
        train, test = split_by_segment(pairs, 0.2, seed)
        check_split(pairs, train, test)
        # n segments hold n(n−1)/2 pairs: 6 are the fewest that hold 13, and the other 6 hold 15.
        assert (len(test), len(train)) == (15, 15)


def test_a_seed_makes_a_split_repeat() -> None:
    one, same, other = (split_by_segment(sparse(100), 0.2, seed) for seed in (3, 3, 4))
    assert np.array_equal(one[1], same[1])
    assert not np.array_equal(one[1], other[1])


def test_only_eligible_pairs_are_held_out() -> None:
    """Also where they are no more than the share asked for, and each chosen pair shares a clip with a random one."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        pairs = sparse(200)
        eligible = rng.random(200) < 0.2
        train, test = split_by_segment(pairs, 0.2, seed, eligible)
        check_split(pairs, train, test)
        assert eligible[test].all()
        assert len(test) == min(40, eligible.sum())


def test_without_a_pair_drawn_at_random_there_is_no_judging() -> None:
    with pytest.raises(
        UserError, match=r"none of the 9 labels is on a pair drawn at random.*--strategy random"
    ):
        split_by_segment(disjoint(9), 0.2, 0, np.zeros(9, bool))


def test_pairs_of_the_original_were_drawn_at_random_too() -> None:
    reasons = (None, "random", "disagreement", "recheck")
    labels = [Label("a", str(number), 1, strategy=why) for number, why in enumerate(reasons)]
    assert asked_at_random(labels, labels).tolist() == [True, True, False, False]


def test_a_repeat_check_leaves_open_how_the_pair_was_chosen() -> None:
    """The first answer says it, whatever came after; an answer taken back says nothing."""
    lines = [
        Label("a", "b", 1, strategy="random"),
        Label("a", "c", 1, strategy="entropy"),
        Label("a", "b", 2, strategy="repeat", repeat=True),
        Label("c", "a", 1, strategy="repeat", repeat=True),
        Label("b", "c", 1, strategy="entropy", annotator="ann"),
        Label("b", "c", 1, strategy="random", annotator="bob"),
        Label("b", "d", 1, strategy="entropy"),
        Label("b", "d", 1, strategy="entropy", cancelled=True),
        Label("b", "d", 1, strategy="random"),
    ]
    labels = current(lines)
    chosen = {(label.pair, label.annotator) for label in labels} - {
        (label.pair, label.annotator)
        for label, random in zip(labels, asked_at_random(labels, lines), strict=True)
        if random
    }
    assert chosen == {(("a", "c"), None), (("b", "c"), "ann")}
    assert asked_at_random(labels[:1], lines).tolist() == [True]


def test_a_pair_that_anybody_rechecked_judges_nothing_until_that_is_undone() -> None:
    lines = [
        Label("a", other, 1, strategy="random", annotator=who) for other in "bc" for who in ("ann", "bob")
    ]
    recheck = Label("b", "a", 1, strategy="recheck", annotator="ann", id="7")
    undone = dataclasses.replace(lines[0], id="u-8")
    newcomer = dataclasses.replace(recheck, annotator="eve", id="9")
    for more, expected in (
        ([], {"ab": [True, True], "ac": [True, True]}),
        ([recheck], {"ab": [False, False], "ac": [True, True]}),
        ([recheck, undone], {"ab": [True, True], "ac": [True, True]}),
        ([newcomer], {"ab": [False, False, False], "ac": [True, True]}),
    ):
        labels = current(lines + more)
        found = asked_at_random(labels, lines + more)
        for pair, random in expected.items():
            assert found[[label.pair == tuple(pair) for label in labels]].tolist() == random


def test_what_may_be_held_out_is_told_from_each_log(tmp_path: Path) -> None:
    """Segments have the same names in both DBs; the recheck is of one, by someone who is left out."""
    for name in ("one", "two"):
        a, b = database(tmp_path / name, [50, 100])
        log = LabelLog(tmp_path / name / "labels.json")
        log.append(Label(a, b, 2, strategy="random", annotator="ann"))
        log.append(Label(a, b, 1, strategy="repeat", repeat=True, annotator="ann"))
    log.append(Label(a, b, 1, strategy="recheck", annotator="bob"))
    data = load_preferences([tmp_path / "one", tmp_path / "two"], 100, only=["ann"])
    assert data.db_of.tolist() == [0, 1]
    assert data.at_random.tolist() == [True, False]


def test_pairs_in_which_a_life_is_lost_can_be_left_out(tmp_path: Path) -> None:
    alive, dying = clip(50), clip(100)
    assert dying.sidecar is not None
    dying.sidecar.life_lost[2] = True
    names = [save(tmp_path, number, segment) for number, segment in enumerate([alive, dying, clip(150)])]
    add_labels(tmp_path, [(names[0], names[1], 1), (names[0], names[2], 2), (names[1], names[2], 2)])
    data = load_preferences([tmp_path], 100, survived=True)
    assert [label.pair for label in data.labels] == [(names[0], names[2])]
    assert (len(data.pairs), data.parents[0]["labels"]) == (1, 1)
    assert len(load_preferences([tmp_path], 100).pairs) == 3


def joined(*databases: Pairs) -> tuple[Pairs, np.ndarray]:
    """Pairs of several DBs, which share no segment, and the DB of each."""
    firsts, seconds, begin = [], [], 0
    for pairs in databases:
        firsts.append(pairs.first + begin)
        seconds.append(pairs.second + begin)
        begin = int(max(firsts[-1].max(), seconds[-1].max())) + 1
    db_of = np.repeat(np.arange(len(databases)), [len(pairs) for pairs in databases])
    return Pairs(np.concatenate(firsts), np.concatenate(seconds), ones(len(db_of)), ones(len(db_of))), db_of


def test_a_share_of_every_db_is_held_out() -> None:
    pairs, db_of = joined(sparse(450), sparse(90))
    for seed in range(10):
        train, test = split_by_segment(pairs, 0.2, seed, db_of=db_of)
        check_split(pairs, train, test)
        one, other = np.bincount(db_of[test])
        assert one == pytest.approx(90, abs=3)
        assert other == pytest.approx(18, abs=3)
        assert all(
            np.array_equal(a, b)
            for a, b in zip((train, test), split_by_segment(pairs, 0.2, seed, db_of=db_of), strict=True)
        )


def test_a_db_without_pairs_drawn_at_random_is_only_fitted_to() -> None:
    pairs, db_of = joined(sparse(100), disjoint(50), disjoint(50))
    eligible = (db_of == 0) | ((db_of == 1) & (np.arange(200) < 104))
    train, test = split_by_segment(pairs, 0.2, 0, eligible, db_of)
    check_split(pairs, train, test)
    assert eligible[test].all()
    held, fitted = np.bincount(db_of[test], minlength=3), np.bincount(db_of[train], minlength=3)
    assert held[0] == pytest.approx(20, abs=3)
    assert (held[1], held[2]) == (4, 0)  # four are eligible of the second
    assert (fitted[1], fitted[2]) == (46, 50)


def test_many_small_dbs_hold_out_their_share_together() -> None:
    pairs, db_of = joined(*[disjoint(2)] * 10)
    train, test = split_by_segment(pairs, 0.2, 0, db_of=db_of)
    assert (len(train), len(test)) == (16, 4)
    train, test = split_by_segment(
        *joined(disjoint(2), disjoint(2))[:1], 0.1, 0, db_of=np.array([0, 0, 1, 1])
    )
    assert (len(train), len(test)) == (3, 1)


def test_one_db_is_split_as_if_nothing_were_said_of_dbs() -> None:
    pairs = sparse(100)
    one, other = (split_by_segment(pairs, 0.2, 5, db_of=db_of) for db_of in (None, np.zeros(100, np.int64)))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def labelled_by_two(tmp_path: Path) -> None:
    a, b, c = database(tmp_path, [50, 100, 150])
    add_labels(tmp_path, [(a, b, 2), (b, c, 2)], "ann")
    add_labels(tmp_path, [(a, b, 1)], "bob")


def test_labels_are_weighted_by_who_gave_them(tmp_path: Path) -> None:
    labelled_by_two(tmp_path)
    data = load_preferences([tmp_path], 100, weights={"ann": 2.5})
    assert [labeller_of(label) for label in data.labels] == ["ann", "ann", "bob"]
    assert data.pairs.weight.tolist() == [2.5, 2.5, 1]
    assert data.db_of.tolist() == [0, 0, 0]


@pytest.mark.parametrize("kwargs", [{"weights": {"bob": 0}}, {"only": ["ann"]}])
def test_labels_can_be_filtered_by_who_gave_them(tmp_path: Path, kwargs: dict) -> None:
    labelled_by_two(tmp_path)
    data = load_preferences([tmp_path], 100, **kwargs)
    assert brightness(data) == [(50, 100, 0), (100, 150, 0)]
    assert data.parents == [{"db": str(tmp_path), "labels": 2, "labellers": {"ann": 2}, "policies": {}}]


@pytest.mark.parametrize("kwargs", [{"weights": {"eve": 2}}, {"only": ["eve"]}])
def test_an_unknown_labeller_is_said(tmp_path: Path, kwargs: dict) -> None:
    labelled_by_two(tmp_path)
    with pytest.raises(UserError, match="expected labellers among ann, bob, got eve"):
        load_preferences([tmp_path], 100, **kwargs)


@pytest.mark.parametrize("segments", [2, 3])
def test_too_few_labels_are_said(segments: int) -> None:
    pairs = Pairs(np.zeros(5, np.int64), np.arange(5) % (segments - 1) + 1, ones(5), ones(5))
    with pytest.raises(UserError, match="5 labels are too few"):
        split_by_segment(pairs, 0.2, 0)
