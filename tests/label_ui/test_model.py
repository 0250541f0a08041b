"""What the page makes of a reward model: pairs chosen ahead, curves, the labels it doubts, rechecks."""

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.testclient import TestClient

from lib.cli import UserError
from lib.label_ui import prefetch
from lib.label_ui.api import PageSettings, build_api
from lib.label_ui.assign import IN_HAND
from lib.label_ui.desk import Desk
from lib.label_ui.fitting import Fitting
from lib.label_ui.model_view import ModelView
from lib.label_ui.prefetch import READY, QueryPrefetcher
from lib.label_ui.ratings import Ratings
from lib.preferences.labels import Label, LabelLog, Pair, current
from lib.preferences.queries import Query, RandomPairs
from lib.preferences.segments import SegmentError
from tests.label_ui.dbs import lines
from tests.label_ui.user import User

NAMES = [f"{i % 3:02d}/{i:08d}.dat" for i in range(6)]


def until(happens: Callable[[], bool]) -> None:
    """Waits for a thread."""
    for _ in range(1000):
        if happens():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen within five seconds")


class Table:
    """A rater with the returns of two members in a table; counts how often it is asked."""

    def __init__(self, table: dict[str, tuple[float, float]]) -> None:
        self.table = table
        self.asked: list[str] = []

    def returns(self, names: Sequence[str]) -> np.ndarray:
        self.asked += names
        return np.array([self.table.get(name, (np.nan, np.nan)) for name in names], float).reshape(-1, 2).T

    def curve(self, name: str) -> np.ndarray:
        if name not in self.table:
            raise SegmentError(f"{name}: cannot be rated")
        return np.full(6, sum(self.table[name]) / 6, np.float32)


class Alphabetical:
    """Proposes the first free pairs by name, once it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.calls: list[tuple[int, set[str]]] = []
        self.error: Exception | None = None

    def propose(
        self,
        names: Sequence[str],
        taken: Container[Pair],
        count: int,
        rng: np.random.Generator,
        asked: Iterable[str] = (),
    ) -> list[Query]:
        self.may.wait(10)
        self.calls.append((count, set(asked)))
        if self.error is not None:
            raise self.error
        free = (pair for pair in itertools.combinations(names, 2) if pair not in taken)
        return [Query(*pair, "first", "the first by name") for pair in itertools.islice(free, count)]


@pytest.fixture
def slow() -> Iterator[Alphabetical]:
    strategy = Alphabetical()
    yield strategy
    strategy.may.set()


def add(root: Path, *labels: Label) -> None:
    for label in labels:
        LabelLog(root / "labels.json").append(label)


def model_of(desk: Desk) -> ModelView:
    assert desk.model is not None
    return desk.model


def rated(table: dict[str, tuple[float, float]]) -> tuple[Table, Ratings]:
    rater = Table(table)
    return rater, Ratings(rater, "reward-x.dat")


# --- pairs chosen ahead -----------------------------------------------------------------------------------------


def test_nobody_waits_for_a_strategy_and_random_pairs_say_so(root: Path, slow: Alphabetical) -> None:
    desk = Desk(root, make_strategies=lambda: {"first": slow}, strategy="first", repeat_rate=0.0, seed=0)
    user = User(desk)
    offers = user.batch(8).pairs  # the strategy has not chosen a single pair and holds its thread
    assert len(offers) == IN_HAND
    assert {offer.strategy for offer in offers} == {"random"}
    user.vote(offers[0])
    assert lines(root)[-1].strategy == "random"

    slow.may.set()
    until(lambda: len(user.batch(8, keep=offers[1:]).pairs) > IN_HAND)
    chosen = [offer for offer in user.batch(8, keep=offers[1:]).pairs if offer not in offers]
    assert {(offer.strategy, offer.reason) for offer in chosen} == {("first", "the first by name")}
    taken = {frozenset((offer.sample1, offer.sample2)) for offer in offers}
    assert taken.isdisjoint(frozenset((offer.sample1, offer.sample2)) for offer in chosen)
    user.vote(chosen[0])
    assert lines(root)[-1].strategy == "first"


def test_a_page_that_holds_pairs_gets_none_at_random(root: Path, slow: Alphabetical) -> None:
    user = User(Desk(root, make_strategies=lambda: {"first": slow}, strategy="first", repeat_rate=0.0))
    held = user.batch(8).pairs
    assert user.batch(8, keep=held).pairs == held


def test_pages_choose_among_the_strategies_there_are(root: Path, slow: Alphabetical) -> None:
    slow.may.set()
    desk = Desk(root, make_strategies=lambda: {"random": RandomPairs(), "first": slow}, repeat_rate=0.0)
    assert desk.assign.strategies == ["random", "first"]
    user = User(desk)
    assert {offer.strategy for offer in user.batch(4).pairs} == {"random"}
    assert {offer.strategy for offer in user.batch(4, strategy="psychic").pairs} == {"random"}
    assert slow.calls == [], "nobody asked for it"
    until(lambda: {offer.strategy for offer in user.batch(4, strategy="first").pairs} == {"first"})


@pytest.mark.parametrize(
    "error", [UserError("the model is gone"), RuntimeError("CUDA: the model is gone\nwith a trace")]
)
def test_a_strategy_that_fails_is_named_and_random_pairs_go_on(
    root: Path, slow: Alphabetical, error: Exception
) -> None:
    slow.error = error
    slow.may.set()
    user = User(Desk(root, make_strategies=lambda: {"first": slow}, strategy="first", repeat_rate=0.0))
    until(lambda: any(problem.endswith("the model is gone") for problem in user.batch().problems))
    assert {offer.strategy for offer in user.batch().pairs} == {"random"}
    slow.error = None
    until(lambda: "first" in {offer.strategy for offer in user.batch().pairs})
    assert user.batch().problems == []


def test_ahead_keeps_a_store_and_hands_out_nothing_that_was_taken_since(slow: Alphabetical) -> None:
    names = [f"00/{i:08d}.dat" for i in range(12)]
    done = {(names[0], names[1])}
    ahead = QueryPrefetcher(slow, lambda: (names, done), np.random.default_rng(0))
    slow.may.set()
    assert ahead.take(1, set(names), done) == [], "not even the first call waits"
    until(lambda: sum(count for count, _ in slow.calls) == READY)
    assert names[0] in slow.calls[0][1]
    assert names[1] in slow.calls[0][1], "what was asked about already"
    done.add((names[0], names[2]))
    found = ahead.take(3, set(names[:3] + names[4:]), done)
    assert [query.pair for query in found] == [(names[0], names[i]) for i in (4, 5, 6)]


def test_pairs_of_two_minutes_ago_are_chosen_anew(
    slow: Alphabetical, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a break there are newer clips, and other answers."""
    names = [f"00/{i:08d}.dat" for i in range(12)]
    ahead = QueryPrefetcher(slow, lambda: (names, set()), np.random.default_rng(0))
    slow.may.set()
    ahead.wake()
    until(lambda: sum(count for count, _ in slow.calls) == READY)
    now = time.monotonic()
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(monotonic=lambda: now + 119))
    assert len(ahead.take(1, set(names), set())) == 1
    until(lambda: sum(count for count, _ in slow.calls) == READY + 1)
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(monotonic=lambda: now + 130))
    assert len(ahead.take(READY, set(names), set())) == 1, "the one that was chosen last"
    until(lambda: sum(count for count, _ in slow.calls) == 2 * READY + 1)


# --- the model's page -------------------------------------------------------------------------------------------


def test_segments_by_total_rated_in_the_background(root: Path) -> None:
    table = {name: (3.0 * i, 3.0 * i) for i, name in enumerate(NAMES[:5])}  # the sixth cannot be rated
    rater, ratings = rated(table)
    desk = Desk(root, ratings=ratings)
    assert rater.asked == [], "nothing before somebody looks"
    first = model_of(desk).segments("most")
    assert first.of == 6
    until(lambda: model_of(desk).segments("most").rated == 6)
    most = model_of(desk).segments("most")
    assert [(clip.name, clip.total) for clip in most.clips] == [
        (name, 6.0 * i) for i, name in reversed(list(enumerate(NAMES[:5])))
    ]
    assert [clip.name for clip in model_of(desk).segments("least").clips] == NAMES[:5]
    assert sorted(rater.asked) == sorted(NAMES), "each once"
    by_name = model_of(desk).segments("name", text="02/")
    assert [(clip.name, clip.total) for clip in by_name.clips] == [(NAMES[2], 12.0), (NAMES[5], None)]
    assert {clip.name for clip in model_of(desk).segments("random", seed=1).clips} == set(NAMES)
    assert model_of(desk).segments("random", seed=1) == model_of(desk).segments("random", seed=1)
    os.utime(root / NAMES[3], (2e9, 2e9))
    assert [clip.name for clip in model_of(desk).segments("newest", limit=1).clips] == [NAMES[3]]


def test_a_rater_that_fails_takes_the_next(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it fails of: beside a training a GPU may be without memory for a moment."""
    rater, ratings = rated(dict.fromkeys(NAMES, (1.0, 1.0)))
    whole = rater.returns

    def returns(names: Sequence[str]) -> np.ndarray:
        if list(names) == NAMES[2:3]:
            raise RuntimeError("CUDA out of memory")
        return whole(names)

    monkeypatch.setattr(rater, "returns", returns)
    desk = Desk(root, ratings=ratings)
    until(lambda: model_of(desk).segments("most").rated == 6)
    assert [clip.name for clip in model_of(desk).segments("most").clips if clip.total is None] == []
    assert NAMES[2] not in {clip.name for clip in model_of(desk).segments("most").clips}
    add(root, Label(NAMES[2], NAMES[3], 1, annotator="ada"))
    assert ratings.probability(lines(root)[0]) is None


def test_a_segment_is_rated_once_however_often_somebody_looks_meanwhile() -> None:
    rater = Table(dict.fromkeys(NAMES, (0.0, 0.0)))
    ratings, began, go = Ratings(rater), threading.Event(), threading.Event()

    def returns(names: Sequence[str]) -> np.ndarray:
        began.set()
        go.wait(10)
        return Table.returns(rater, names)

    rater.returns = returns  # type: ignore[method-assign]
    ratings.look(NAMES)
    assert began.wait(10)
    ratings.look(NAMES)  # while the first is being rated
    go.set()
    until(lambda: len(ratings.look(NAMES)) == len(NAMES))
    assert sorted(rater.asked) == sorted(NAMES)


def test_rating_stops_when_nobody_looks(root: Path) -> None:
    now = [0.0]
    rater = Table(dict.fromkeys(NAMES, (0.0, 0.0)))
    ratings = Ratings(rater, clock=lambda: now[0])
    go = threading.Event()

    def returns(names: Sequence[str]) -> np.ndarray:
        go.wait(10)
        now[0] += 6.0
        return Table.returns(rater, names)

    rater.returns = returns  # type: ignore[method-assign]
    ratings.look(NAMES)
    go.set()
    until(lambda: len(rater.asked) == 2)
    time.sleep(0.05)
    assert len(rater.asked) == 2, "the third would begin twelve seconds after the last look"
    ratings.look(NAMES)
    until(lambda: len(rater.asked) == 4)


def test_labels_by_how_unlikely_they_are(root: Path) -> None:
    a, b, c, d, e, broken = NAMES
    # Member one thinks a > b by log-odds 2, member two by 0; both think c > d by 1 and e like c.
    _, ratings = rated({a: (2, 0), b: (0, 0), c: (1, 1), d: (0, 0), e: (1, 1)})
    add(
        root,
        Label(a, b, 2, annotator="bob"),
        Label(d, c, 2, annotator="bob"),
        Label(c, d, 2, teacher="score"),  # of two labels on one pair the less likely one counts
        Label(c, e, 1, annotator="bob"),
        Label(d, e, 0, annotator="bob"),  # prefers neither
        Label(a, e, None, annotator="bob"),
        Label(a, broken, 1, annotator="bob"),  # cannot be rated
        Label(a, "09/00000099.dat", 1, annotator="bob"),  # not in the DB
    )
    desk = Desk(root, ratings=ratings)
    until(lambda: model_of(desk).doubts("ada").rated == 5)
    reply = model_of(desk).doubts("ada")
    assert reply.of == 5
    assert [(doubt.clip, doubt.other) for doubt in reply.doubts] == [
        (desk.db.clip_id(better), desk.db.clip_id(other)) for better, other in ((d, c), (b, a), (c, e))
    ]
    assert [doubt.probability for doubt in reply.doubts] == pytest.approx(
        [0.2689414, (0.1192029 + 0.5) / 2, 0.5]  # σ(−1), the mean of σ(−2) and σ(0), σ(0)
    )
    assert [doubt.labeller for doubt in reply.doubts] == ["score (simulated)", "bob", "bob"]
    assert (reply.doubts[1].total, reply.doubts[1].other_total) == pytest.approx((0.0, 2.0))


def test_a_recheck_replaces_ones_own_label_and_undo_brings_it_back(root: Path) -> None:
    a, b, c, *_ = NAMES
    _, ratings = rated({name: (float(i), float(i)) for i, name in enumerate(NAMES)})
    add(
        root,
        Label(a, b, 1, annotator="ada", strategy="random", id="x" * 12),
        Label(a, c, 1, annotator="bob", strategy="random", id="y" * 12),
    )
    desk = Desk(root, ratings=ratings, repeat_rate=0.0, goal=10)
    ada = User(desk)
    until(lambda: model_of(desk).doubts("ada").rated == 2)
    assert [offer.strategy for offer in ada.batch(2).pairs] == ["random"] * 2, "only where it is asked for"
    opened, said = desk.votes.pair(desk.db.clip_id(b), desk.db.clip_id(a), recheck=True)
    assert (opened.strategy, said) == ("recheck", [])
    offers = ada.batch(10, strategy="recheck", keep=[opened]).pairs
    assert [{offer.sample1, offer.sample2} for offer in offers] == [{a, b}, {a, c}]
    assert {offer.repeat for offer in offers} == {False}

    reply = ada.vote(offers[0], 2 if offers[0].sample1 == a else 1)
    assert (reply.outcome, reply.standing.total) == ("saved", 2)
    assert reply.standing.checks == [], "no consistency check: these were not drawn at random"
    assert (lines(root)[-1].strategy, lines(root)[-1].annotator) == ("recheck", "ada")
    assert ada.vote(offers[1], 2).standing.total == 2, "beside somebody else's it is no label more"
    assert len(current(lines(root))) == 3
    assert desk.stats.overview().usable == 2
    assert model_of(desk).doubts("ada").doubts == []
    assert ada.batch(10, strategy="recheck").pairs == []
    assert "recheck" in ada.batch(10, strategy="recheck").notice
    bob = User(desk, "bob")
    assert len(bob.batch(10, strategy="recheck").pairs) == 2, "others may still"

    assert ada.undo(offers[0].id).outcome == "undone"
    held = {label.pair: label for label in current(lines(root)) if label.annotator == "ada"}
    assert (held[a, b].label, held[a, b].strategy) == (1, "random")


def test_a_pair_is_rechecked_by_one_person_at_a_time(root: Path) -> None:
    a, b, *_ = NAMES
    _, ratings = rated(dict.fromkeys(NAMES, (0.0, 0.0)))
    add(root, Label(a, b, 1, teacher="score"))
    desk = Desk(root, ratings=ratings, repeat_rate=0.0)
    until(lambda: model_of(desk).doubts("ada").rated == 1)
    assert len(User(desk, "ada").batch(5, strategy="recheck").pairs) == 1
    assert User(desk, "bob").batch(5, strategy="recheck").pairs == []


def test_endpoints_of_the_models_page(root: Path) -> None:
    _, ratings = rated(dict.fromkeys(NAMES[:5], (1.5, 1.5)))
    desk = Desk(root, ratings=ratings)
    client = TestClient(build_api(desk, PageSettings()))
    assert client.get("/model").headers["content-type"].startswith("text/html")
    session = client.get("/api/session").json()
    assert session["model"] == "reward-x.dat"
    curve = client.get(f"/api/model/curve/{desk.db.clip_id(NAMES[0])}").json()
    assert curve == {"rewards": [0.5] * 6}
    assert client.get(f"/api/model/curve/{desk.db.clip_id(NAMES[5])}").status_code == 422
    assert client.get(f"/api/model/curve/{'0' * 16}").status_code == 404
    assert client.get("/api/model/clips", params={"order": "name"}).json()["of"] == 6
    assert client.get("/api/model/clips", params={"order": "sideways"}).status_code == 422
    assert client.get("/api/model/doubts", params={"labeller": "ada"}).json() == {
        "doubts": [],
        "rated": 0,
        "of": 0,
    }


def test_without_a_model_nothing_is_rated(root: Path) -> None:
    desk = Desk(root, repeat_rate=0.0)
    client = TestClient(build_api(desk, PageSettings()))
    assert client.get("/api/session").json()["model"] == ""
    for path in ("clips?order=most", "doubts?labeller=ada", f"curve/{desk.db.clip_id(NAMES[0])}"):
        assert client.get(f"/api/model/{path}").status_code == 404
    assert {offer.strategy for offer in User(desk).batch(2, strategy="recheck").pairs} == {"random"}


def test_a_fit_whose_model_cannot_be_shown_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(reward: Path) -> None:
        raise UserError("--dev cuda: there is none")

    async def fitted(self: Fitting) -> bool:
        return True

    async def done() -> Fitting:
        fitting = Fitting(tmp_path, tmp_path / "mine", refuse)
        fitting.start()
        while fitting.running:
            await asyncio.sleep(0.01)
        return fitting

    monkeypatch.setattr(Fitting, "_fit", fitted)
    with ThreadPoolExecutor(1) as thread:  # Playwright leaves a loop running in this one
        fitting = thread.submit(asyncio.run, done()).result()
    assert fitting.failed
    assert list(fitting.lines) == ["--dev cuda: there is none"]
