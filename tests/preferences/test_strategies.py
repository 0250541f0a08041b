"""Strategies that choose by what is known: what they choose by hand-worked numbers, and what they share."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lib.cli import UserError
from lib.preferences import looks as looks_module
from lib.preferences.labels import STRATEGIES, Pair
from lib.preferences.looks import Looks, distances, features, k_centre_pairs, look_of
from lib.preferences.queries import Query, RandomPairs, Strategy
from lib.preferences.rated_pairs import candidate_pairs, disagreement, entropy, say_entropy, sigmoid
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, Sidecar, save_segment
from lib.preferences.strategies import WithRandomShare, make_strategy
from tests.envs.seaquest_game import begun

SEAQUEST = "SeaquestNoFrameskip-v4"


def names(count: int) -> list[str]:
    return [f"00/{i:08d}.dat" for i in range(count)]


def number(name: str) -> int:
    return int(Path(name).stem)


def segment(grey: int, action: int = 0, policy: str = "v0", steps: int = 10) -> Segment:
    """One grey all over, and one action."""
    none = np.zeros(steps, bool)
    return Segment(
        np.full((steps, 24, 24, 3), grey, np.uint8),
        np.full(steps, action, np.int64),
        Sidecar(np.zeros(steps, np.float32), none, none, "Test-v0", 6, policy, 0),
    )


class Judge:
    """Says what it is told, and remembers which segments it was asked about."""

    def __init__(self, *members: Callable[[int], float]) -> None:
        self.members = members
        self.asked: list[str] = []

    def returns(self, names: Sequence[str]) -> np.ndarray:
        self.asked += names
        return np.array([[member(number(name)) for name in names] for member in self.members]).reshape(
            len(self.members), len(names)
        )


class FakeDB(SegmentDB):
    """Makes segments up as they are asked for."""

    def __init__(self, root: Path, make: Callable[[int], Segment]) -> None:
        super().__init__(root)
        self.make = make
        self.loaded: list[str] = []

    def load(self, name: str) -> Segment:
        self.loaded.append(name)
        return self.make(number(name))


def made(name: str, db: SegmentDB, random_share: float = 0.2) -> Strategy:
    """A strategy whose ensemble, where it has one, disagrees about segments of odd number."""
    judge = Judge(lambda i: 0.3 * i, lambda i: 0.3 * i * (-1) ** i)
    return make_strategy(name, db, judge if "rater" in STRATEGIES[name] else None, random_share)


def needing(what: str) -> list[str]:
    return [name for name, needs in STRATEGIES.items() if what in needs]


@pytest.fixture
def db(tmp_path: Path) -> FakeDB:
    return FakeDB(tmp_path, lambda i: segment(i * 37 % 256, i % 6))


# --- what all of them share -----------------------------------------------------------------------------------


@pytest.mark.slow(0)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("count", [2, 3, 7, 16])
def test_every_pair_is_asked_once_and_then_no_more(db: FakeDB, name: str, count: int) -> None:
    rng, taken, strategy = np.random.default_rng(0), set[Pair](), made(name, db)
    while queries := strategy.propose(
        names(count), taken, 4, rng, {segment for pair in taken for segment in pair}
    ):
        assert len(queries) <= 4
        for query in queries:
            assert query.pair not in taken
            taken.add(query.pair)
    assert taken == set(itertools.combinations(names(count), 2))


@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_to_ask_about(db: FakeDB, name: str) -> None:
    strategy, rng = made(name, db), np.random.default_rng(0)
    assert strategy.propose([], set(), 3, rng) == []
    assert strategy.propose(names(1), set(), 3, rng) == []
    assert strategy.propose(names(9), set(), 0, rng) == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_same_seed_same_pairs(db: FakeDB, name: str) -> None:
    asked = set(names(9))
    first, second = (
        made(name, db).propose(names(60), set(), 12, np.random.default_rng(3), asked) for _ in range(2)
    )
    assert first == second
    assert len({query.pair for query in first}) == 12


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "fork"])  # none forks here
def test_each_says_its_name_and_why(db: FakeDB, name: str) -> None:
    queries = made(name, db, random_share=0).propose(names(40), set(), 8, np.random.default_rng(0))
    assert {query.strategy for query in queries} == {name}
    assert all(0 < len(query.reason) <= 200 for query in queries)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("count", [1, 64])
def test_a_large_db_is_not_read_in_one_call(db: FakeDB, name: str, count: int) -> None:
    judge = Judge(lambda i: math.sin(i), lambda i: math.cos(i))
    strategy = make_strategy(name, db, judge if "rater" in STRATEGIES[name] else None)
    many = names(10_000)
    assert strategy.propose(many, set(), count, np.random.default_rng(0), many[:6000])
    assert len(judge.asked) <= 256
    assert len(db.loaded) <= 256 + 128


def test_what_a_strategy_needs_is_said(tmp_path: Path) -> None:
    db = SegmentDB(tmp_path)
    with pytest.raises(UserError, match=r"--strategy clever: expected one of random, disagreement, entropy"):
        make_strategy("clever", db)
    for name in needing("rater"):
        with pytest.raises(UserError, match=r"needs a reward model.*--reward REWARD.*03_reward_train\.py"):
            make_strategy(name, db)
    for name in needing("ensemble"):
        with pytest.raises(UserError, match=r"needs an ensemble.*--ensemble 3"):
            make_strategy(name, db, Judge(lambda i: i))
    assert make_strategy("entropy", db, Judge(lambda i: i))


# --- the stream of random pairs -------------------------------------------------------------------------------


class Sorted:
    """Proposes pairs in alphabetical order."""

    def propose(self, names, taken, count, rng, asked=()):
        free = (pair for pair in itertools.combinations(names, 2) if pair not in taken)
        return [Query(*pair, "sorted", "it comes first") for pair in itertools.islice(free, count)]


def test_the_share_of_random_pairs() -> None:
    queries = WithRandomShare(Sorted(), 0.2).propose(names(300), set(), 2000, np.random.default_rng(0))
    counts = Counter(query.strategy for query in queries)
    # 400 expected; five standard deviations of a binomial are 90.
    assert abs(counts["random"] - 400) < 90
    assert counts["random"] + counts["sorted"] == 2000
    # All along the list, so that whoever takes only its beginning has them too.
    assert sum(query.strategy == "random" for query in queries[:1000]) > 100
    assert all("random" in query.reason for query in queries if query.strategy == "random")
    assert [query.pair for query in queries if query.strategy == "sorted"] == sorted(
        query.pair for query in queries if query.strategy == "sorted"
    )


@pytest.mark.parametrize(("share", "strategy"), [(0.0, "sorted"), (1.0, "random")])
def test_none_or_all_random(share: float, strategy: str) -> None:
    queries = WithRandomShare(Sorted(), share).propose(names(30), set(), 50, np.random.default_rng(0))
    assert [query.strategy for query in queries] == [strategy] * 50


def test_random_ones_are_drawn_from_all_pairs_also_those_another_strategy_would_take() -> None:
    rng, counts = np.random.default_rng(1), dict.fromkeys(itertools.combinations(names(5), 2), 0)
    for _ in range(8000):
        for query in WithRandomShare(Sorted(), 0.5).propose(names(5), set(), 1, rng):
            if query.strategy == "random":
                counts[query.pair] += 1
    # Some 400 expected each; five standard deviations of a binomial are 97.
    assert all(abs(count - 400) < 97 for count in counts.values())


# --- by what the reward model says ----------------------------------------------------------------------------


def test_disagreement_is_the_variance_over_members() -> None:
    chances = np.array([[0.1, 0.5, 0.0], [0.9, 0.5, 1.0], [0.5, 0.5, 1.0]])
    np.testing.assert_allclose(disagreement(chances), [0.32 / 3, 0, 2 / 9])


def test_entropy_is_that_of_the_mean() -> None:
    chances = np.array([[0.5, 0.0, 0.25, 1.0], [0.5, 1.0, 0.25, 1.0]])
    np.testing.assert_allclose(entropy(chances), [1, 1, 2 - 0.75 * math.log2(3), 0], atol=1e-300)


def test_chances_are_logistic_in_differences_however_large() -> None:
    found = sigmoid(np.array([0.0, math.log(3), -math.log(3), 1e4, -1e4]))
    np.testing.assert_allclose(found, [0.5, 0.75, 0.25, 1, 0], atol=1e-12)


@pytest.mark.parametrize("chances", [[0.5, 0.75, 1.0], [0.5, 0.25, 0.0]])
def test_how_unsure_a_model_is_does_not_say_which_one_it_prefers(chances: list[float]) -> None:
    assert say_entropy(np.array(chances)) == "the reward model is unsure: 0.75 to 0.25 which one is better"


def test_disagreement_asks_where_members_contradict_each_other(db: FakeDB) -> None:
    # They agree on all but segment 3, which one of them finds 3 better and the other 3 worse than the rest.
    judge = Judge(lambda i: 3.0 * (i == 3), lambda i: -3.0 * (i == 3))
    queries = make_strategy("disagreement", db, judge, random_share=0).propose(
        names(10), set(), 9, np.random.default_rng(0)
    )
    assert {query.pair for query in queries} == {tuple(sorted((names(4)[3], n))) for n in names(10)} - {
        (names(4)[3],) * 2
    }
    assert {query.reason for query in queries} == {
        "the reward models disagree: 0.05 to 0.95 that the same one is better"  # σ(±3)
    }


def test_entropy_asks_where_the_model_is_least_sure(db: FakeDB) -> None:
    judge = Judge(lambda i: float(i * i))  # 0, 1, 4, 9: the nearer to 0, the smaller the differences
    queries = make_strategy("entropy", db, judge, random_share=0).propose(
        names(5), set(), 3, np.random.default_rng(0)
    )
    at = names(5)
    assert [query.pair for query in queries] == [(at[0], at[1]), (at[1], at[2]), (at[0], at[2])]
    assert queries[0].reason == "the reward model is unsure: 0.73 to 0.27 which one is better"  # σ(1)


def test_large_returns_do_not_overflow(db: FakeDB) -> None:
    with np.errstate(all="raise"):
        queries = make_strategy("disagreement", db, Judge(lambda i: 1e4 * i, lambda i: -1e4 * i), 0).propose(
            names(5), set(), 3, np.random.default_rng(0)
        )
    assert "0.00 to 1.00" in queries[0].reason


@pytest.mark.parametrize("name", needing("rater"))
def test_segments_that_cannot_be_judged_are_passed_over(db: FakeDB, name: str) -> None:
    judge = Judge(lambda i: math.nan if i % 2 else i, lambda i: math.nan if i % 2 else -i)
    queries = make_strategy(name, db, judge, random_share=0).propose(
        names(20), set(), 10, np.random.default_rng(0)
    )
    assert queries
    assert all(number(part) % 2 == 0 for query in queries for part in query.pair)


@pytest.mark.parametrize("name", needing("rater"))
def test_where_none_can_be_judged_pairs_are_random(db: FakeDB, name: str) -> None:
    strategy = make_strategy(name, db, Judge(lambda i: math.nan, lambda i: math.nan), random_share=0)
    queries = strategy.propose(names(20), set(), 5, np.random.default_rng(0))
    assert [query.strategy for query in queries] == ["random"] * 5


# --- by who recorded it ---------------------------------------------------------------------------------------


def recent(db: SegmentDB, among: list[str], taken: set[Pair], count: int) -> list[Query]:
    return make_strategy("recent", db, random_share=0).propose(among, taken, count, np.random.default_rng(0))


def test_the_newest_policy_comes_first(tmp_path: Path) -> None:
    db = FakeDB(tmp_path, lambda i: segment(9, policy="v1" if i >= 15 else "v0"))
    among = [f"{i % 3:02d}/{i:08d}.dat" for i in range(20)]  # number 15 to 19 are of v1, in several folders
    newest = [name for name in among if number(name) >= 15]
    queries = recent(db, among, set(), 10)
    assert {query.pair for query in queries} == {
        (min(pair), max(pair)) for pair in itertools.combinations(newest, 2)
    }
    assert {query.reason for query in queries} == {"both among the 5 newest clips, of policy v1"}
    more = recent(db, among, {query.pair for query in queries[1:]}, 3)
    assert more[0] == queries[0]
    assert [query.reason for query in more[1:]] == ["both among the 20 newest clips"] * 2


def test_of_one_policy_the_newest_tenth_comes_first(db: FakeDB) -> None:
    among = names(1000)
    strategy, taken, rng = make_strategy("recent", db, random_share=0), set[Pair](), np.random.default_rng(0)
    queries = strategy.propose(among, taken, 50, rng)
    assert all(number(name) >= 900 for query in queries for name in query.pair)
    assert min(number(name) for query in queries for name in query.pair) < 950
    assert {query.reason for query in queries} == {"both among the 100 newest clips, of policy v0"}


def test_clips_that_were_not_read_yet_come_last(db: FakeDB) -> None:
    """A call reads 128."""
    among = names(300)
    queries = recent(db, among, set(itertools.combinations(among[-128:], 2)), 5)
    assert [query.reason for query in queries] == ["both among the 300 newest clips"] * 5
    assert len(db.loaded) == 128


def test_files_without_a_sidecar_are_ordered_by_number(tmp_path: Path) -> None:
    db = FakeDB(tmp_path, lambda i: dataclasses.replace(segment(9), sidecar=None))
    queries = recent(db, names(2000), set(), 20)
    assert all(number(name) >= 2000 - 128 for query in queries for name in query.pair)
    assert {query.reason for query in queries} == {"both among the 128 newest clips"}


def test_a_sidecar_is_read_once(db: FakeDB) -> None:
    strategy, rng = make_strategy("recent", db, random_share=0), np.random.default_rng(0)
    for _ in range(5):
        strategy.propose(names(300), set(), 5, rng)
    assert max(Counter(db.loaded).values()) == 1


def unreadable(i: int) -> Segment:
    if i % 2:
        raise SegmentError("torn")
    return segment(i * 11 % 256)


@pytest.mark.parametrize("name", ["recent", "diversity", "alike"])
def test_segments_that_cannot_be_read_are_passed_over(tmp_path: Path, name: str) -> None:
    strategy = make_strategy(name, FakeDB(tmp_path, unreadable), random_share=0)
    queries = strategy.propose(names(20), set(), 10, np.random.default_rng(0))
    assert queries
    assert all(number(part) % 2 == 0 for query in queries for part in query.pair)


# --- by how it begins -----------------------------------------------------------------------------------------


def of_cartpole(position: float) -> Segment:
    clip = segment(9)
    assert clip.sidecar is not None
    observations = np.zeros((10, 4), np.float32)
    observations[:, 0] = position + np.arange(10)  # only where it begins counts
    sidecar = dataclasses.replace(clip.sidecar, env_id="CartPole-v1")
    return dataclasses.replace(clip, observations=observations, sidecar=sidecar)


def test_alike_are_those_that_begin_in_the_same_third(tmp_path: Path) -> None:
    # From −2 to 0.9 in steps of 0.1, ten to a third. Segment 30 reads nothing, and nothing is like it.
    db = FakeDB(tmp_path, lambda i: of_cartpole(-2 + 0.1 * i if i < 30 else math.nan))
    queries = make_strategy("alike", db, random_share=0).propose(
        names(31), set(), 60, np.random.default_rng(0)
    )
    assert len(queries) == 60
    for query in queries:
        assert len({number(name) // 10 for name in query.pair}) == 1
    assert {query.reason for query in queries} == {"both begin alike: in position"}


def test_rare_situations_are_asked_about_as_often_as_common_ones(tmp_path: Path) -> None:
    db = FakeDB(tmp_path, lambda i: of_cartpole(-1.0 if i < 180 else 1.0))
    queries = make_strategy("alike", db, random_share=0).propose(
        names(200), set(), 100, np.random.default_rng(0)
    )
    rare = sum(number(query.sample1) >= 180 for query in queries)
    assert abs(rare - 50) < 4 * math.sqrt(25)
    assert all((number(query.sample1) >= 180) == (number(query.sample2) >= 180) for query in queries)


def test_where_nothing_is_alike_any_more_pairs_are_random(tmp_path: Path) -> None:
    db = FakeDB(tmp_path, lambda i: of_cartpole(float(i)))
    strategy = make_strategy("alike", db, random_share=0)
    queries = strategy.propose(names(3), set(), 9, np.random.default_rng(0))
    assert [query.strategy for query in queries] == ["random"] * 3


def test_without_probes_all_are_alike(db: FakeDB) -> None:
    queries = make_strategy("alike", db, random_share=0).propose(
        names(20), set(), 5, np.random.default_rng(0)
    )
    assert [(query.strategy, query.reason) for query in queries] == [("alike", "drawn at random")] * 5


def test_a_clip_is_read_once_to_know_how_it_begins(db: FakeDB) -> None:
    strategy, rng = make_strategy("alike", db, random_share=0), np.random.default_rng(0)
    for _ in range(4):
        strategy.propose(names(600), set(), 5, rng)
    assert sorted(db.loaded) == names(600)


def test_alike_on_seaquests_own_frames(tmp_path: Path) -> None:
    game = begun()
    game.play("DOWN", 4)
    clips = []
    for oxygen, divers in [(14, 0), (14, 2), (60, 0), (60, 2)] * 2:
        game.give(oxygen=oxygen, divers=divers)
        game.play("NOOP", 2)
        clips.append(np.stack(game.frames[-1:]))
    none = np.zeros(1, bool)
    sidecar = Sidecar(np.zeros(1, np.float32), none, none, SEAQUEST, 18, "", 0)
    db = FakeDB(tmp_path, lambda i: Segment(clips[i], np.zeros(1, np.int64), sidecar))
    queries = make_strategy("alike", db, random_share=0).propose(names(8), set(), 9, np.random.default_rng(0))
    assert {query.pair for query in queries} == {(names(8)[i], names(8)[i + 4]) for i in range(4)}
    assert {query.reason for query in queries} == {"both begin alike: in air and diver"}


@pytest.mark.parametrize("size", [(84, 84), (420, 320)])
def test_frames_that_seaquest_does_not_draw_are_no_situation(tmp_path: Path, size: tuple[int, int]) -> None:
    none = np.zeros(1, bool)
    sidecar = Sidecar(np.zeros(1, np.float32), none, none, SEAQUEST, 18, "", 0)
    frames = np.zeros((1, *size, 3), np.uint8)
    db = FakeDB(tmp_path, lambda i: Segment(frames, np.zeros(1, np.int64), sidecar))
    queries = make_strategy("alike", db, random_share=0).propose(names(8), set(), 9, np.random.default_rng(0))
    assert {query.reason for query in queries} == {"drawn at random"}


# --- by how it looks ------------------------------------------------------------------------------------------


def test_a_look_is_five_moments_and_the_share_of_each_action() -> None:
    frames = np.zeros((9, 24, 36, 3), np.uint8)
    frames[4:] = (30, 60, 90)  # from the middle on: grey 60
    frames[4:, :2, :3] = 12  # one cell of the 12 × 12
    actions = np.array([0, 0, 0, 2, 2, 2, 2, 2, 2], np.int64)
    picture, shares = look_of(Segment(frames, actions, None))
    moments = picture.reshape(5, 12, 12)
    assert moments.dtype == np.uint8
    assert (moments[:2] == 0).all()
    assert (moments[2:, 0, 0] == 12).all()
    assert (moments[2:, 1:] == 60).all()
    np.testing.assert_allclose(shares, [1 / 3, 0, 2 / 3])


@pytest.mark.parametrize("size", [(5, 4), (84, 84), (13, 25), (210, 160)])
def test_a_look_of_one_grey_is_that_grey(size: tuple[int, int]) -> None:
    picture, _ = look_of(Segment(np.full((3, *size, 3), 77, np.uint8), np.zeros(3, np.int64), None))
    assert picture.shape == (720,)
    assert (picture == 77).all()


def test_features_lie_one_apart_on_average() -> None:
    rng = np.random.default_rng(0)
    looks = [(rng.integers(0, 256, 720).astype(np.uint8), rng.random(1 + i % 4)) for i in range(50)]
    points, others = features(looks, looks[:3])
    squares = distances(points, points) ** 2
    assert squares.mean() == pytest.approx(1, rel=1e-3)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(others, points[:3], atol=1e-6)


def test_features_of_clips_all_alike_are_one_point() -> None:
    looks = [look_of(segment(9))] * 3
    points, _ = features(looks, [])
    assert (points == 0).all()


def test_k_centre_by_hand() -> None:
    # On a line, 0 has been asked about. Distances to it: 1, 4, 5, 9.
    points, centres = np.array([[1.0], [4.0], [5.0], [9.0]]), np.array([[0.0]])
    pairs = [(0, 1), (2, 3), (1, 3), (1, 2)]
    # (5, 9): 9, and then 5 lies 4 from 9: 13 in all. (4, 9): 9, then 4 (to 0): 13 too. (4, 5): 5, then 1.
    # (1, 4): 4, then 1. With 5 and 9 centres, 4 adds 1 and 1 adds 1; (4, 9) adds 1, as does (4, 5).
    chosen = k_centre_pairs(points, centres, pairs, 4)
    assert chosen == [(1, 6.5), (0, 1.0), (2, 0.0), (3, 0.0)]
    assert k_centre_pairs(points, centres, pairs, 1) == [(1, 6.5)]
    # Without a centre, distances are those to the origin, which is where it was.
    assert k_centre_pairs(points, np.empty((0, 1)), pairs, 4) == chosen


def test_diversity_leaves_what_was_seen_for_what_was_not(tmp_path: Path) -> None:
    # Dark clips, of which some have been asked about, and six bright ones.
    db = FakeDB(tmp_path, lambda i: segment(200 + 8 * (i - 24) if i >= 24 else 10))
    queries = make_strategy("diversity", db, random_share=0).propose(
        names(30), set(), 3, np.random.default_rng(0), names(5)
    )
    first = queries[0]
    assert first.pair == (names(30)[24], names(30)[29])  # the brightest, and the one most unlike it
    # It lies 230 from the dark ones and the other 40 from it. Clips that differ in grey only lie |g₁ − g₂| ÷ 2σ apart.
    spread = 2 * np.std([10] * 24 + [200 + 8 * i for i in range(6)])
    novelty = (230 + 40) / 2 / spread
    assert first.reason == f"unlike the clips asked about so far: {novelty:.2f} times the usual distance"
    # By the time these are asked, one bright clip has been: the best that is left adds less.
    figures = [float(query.reason.split(": ")[1].split()[0]) for query in queries]
    assert figures[0] > figures[1] >= figures[2]


def test_diversity_of_what_the_ensemble_disagrees_on(tmp_path: Path) -> None:
    # The members disagree on segments 0 to 9 only; of these, 8 and 9 look unlike the others. So do 30 and above.
    db = FakeDB(tmp_path, lambda i: segment(240 if i in (8, 9) or i >= 30 else 10))
    judge = Judge(lambda i: i if i < 10 else 0, lambda i: -i if i < 10 else 0)
    strategy = make_strategy("disagreement+diversity", db, judge, random_share=0)
    queries = strategy.propose(names(40), set(), 4, np.random.default_rng(0), names(3))
    assert any(number(name) in (8, 9) for name in queries[0].pair)
    assert all(query.strategy == "disagreement+diversity" for query in queries)
    assert all("disagree: " in query.reason and "unlike" in query.reason for query in queries)
    assert set(db.loaded) <= set(judge.asked) | set(names(3))


def test_looks_are_kept_but_not_without_end(db: FakeDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks_module, "_HELD", 25)
    looks = Looks(db)
    assert list(looks.of(names(20), reads=30)) == names(20)
    assert list(looks.of(names(20), reads=0)) == names(20)
    assert len(db.loaded) == 20
    assert list(looks.of(names(60)[20:], reads=40)) == names(60)[20:]
    assert list(looks.of(names(60), reads=0)) == names(60)[35:]


def test_on_files(tmp_path: Path) -> None:
    for i, name in enumerate(names(12)):
        save_segment(tmp_path / name, segment(i * 20, i % 6))
    db = SegmentDB(tmp_path)
    for name in STRATEGIES:
        queries = made(name, db).propose(db.names, set(), 6, np.random.default_rng(0), db.names[:4])
        assert len(queries) == 6


def test_random_alone_has_no_share_to_mix(tmp_path: Path) -> None:
    assert isinstance(make_strategy("random", SegmentDB(tmp_path)), RandomPairs)


def test_there_are_ten_candidates_for_a_pair_of_two_answers_too() -> None:
    names = [f"{prompt:03d}/{answer}" for prompt in range(200) for answer in range(2)]
    taken = {(f"{prompt:03d}/0", f"{prompt:03d}/1") for prompt in range(150)}
    rng = np.random.default_rng(0)
    for asked in (set[Pair](), taken):
        for _ in range(50):
            found = candidate_pairs(RandomPairs(lambda name: name[:3]), names, asked, 1, rng)
            assert len(set(found)) == 10
            assert asked.isdisjoint(found)
