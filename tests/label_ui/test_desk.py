"""A simulated user at the desk: everything the page does, without HTTP."""

import dataclasses
import errno
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lib.cli import UserError
from lib.label_ui.assign import CHECK_DISTANCE
from lib.label_ui.db import NotSaved
from lib.label_ui.desk import Desk
from lib.label_ui.messages import Offer, Undo
from lib.preferences.answers import Answer, holds_answers, prompt_of, save_answer
from lib.preferences.labels import Label, LabelLog, current
from lib.preferences.queries import Strategy
from lib.preferences.schedule import LabelPlan, ProgressWriter, TrainingProgress
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.preferences.strategies import make_strategy
from lib.reward.data import asked_at_random
from lib.reward.report.figures import Share, agreement
from tests.label_ui.dbs import lines, make_db
from tests.label_ui.user import User
from tests.text.dbs import answer_db, random_texts


class Clock:
    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_desk(
    root: Path, clock: Clock, repeat_rate: float = 0.0, seed: int = 0, goal: int | None = None
) -> Desk:
    return Desk(root, repeat_rate=repeat_rate, seed=seed, clock=clock, now=clock, goal=goal)


@pytest.fixture
def desk(root: Path, clock: Clock) -> Desk:
    return make_desk(root, clock)


def test_a_vote_is_on_disk_with_all_that_is_known_about_it(root: Path, desk: Desk, clock: Clock) -> None:
    user = User(desk)
    offer = user.take()
    assert user.vote(offer, 2, response_ms=1234, flag="odd").outcome == "saved"
    assert lines(root) == [
        Label(
            offer.sample1,
            offer.sample2,
            2,
            annotator="ada",
            time=clock.time,
            response_ms=1234,
            left=offer.left,
            flag="odd",
            strategy="random",
            id=offer.id,
        )
    ]


@pytest.mark.parametrize("label", [1, 2, 0, None])
def test_cannot_tell_is_kept_apart_from_alike(root: Path, desk: Desk, label: int | None) -> None:
    user = User(desk)
    standing = user.vote(user.take(), label).standing
    assert lines(root)[0].label == label
    assert (standing.total, standing.skipped) == ((0, 1) if label is None else (1, 0))


def test_sides_are_random_and_stored(root: Path, desk: Desk) -> None:
    user = User(desk)
    for _ in range(15):
        user.vote(user.take())
    lefts = [label.left for label in lines(root)]
    assert 2 <= lefts.count(1) <= 13


def test_one_vote_sent_twice_counts_once_even_after_a_restart(root: Path, desk: Desk, clock: Clock) -> None:
    user = User(desk)
    offer = user.take()
    user.vote(offer, 1)
    assert user.vote(offer, 2).outcome == "duplicate"
    user.desk = make_desk(root, clock, seed=1)
    assert user.vote(offer, 2).outcome == "duplicate"
    assert [label.label for label in lines(root)] == [1]


def test_a_vote_whose_lease_the_server_forgot_counts(root: Path, desk: Desk, clock: Clock) -> None:
    user = User(desk)
    offer = user.take()
    user.desk = make_desk(root, clock)
    assert user.vote(offer).outcome == "saved"
    assert lines(root)[0].strategy == "random"


def test_a_second_answer_of_one_person_from_another_tab_is_dropped(
    root: Path, desk: Desk, clock: Clock
) -> None:
    one, two = User(desk), User(desk)
    offer = one.take()
    clock.time += 121
    both = [o for o in two.batch(15).pairs if {o.sample1, o.sample2} == {offer.sample1, offer.sample2}]
    assert two.vote(both[0], 1).outcome == "saved"
    reply = one.vote(offer, 2)
    assert (reply.outcome, len(lines(root))) == ("dropped", 1)
    assert "already answered" in reply.reason


def test_colliding_answers_of_two_people_are_both_kept(root: Path, desk: Desk, clock: Clock) -> None:
    ada, bob = User(desk, "ada"), User(desk, "bob")
    offer = ada.take()
    clock.time += 121
    same = next(o for o in bob.batch(15).pairs if {o.sample1, o.sample2} == {offer.sample1, offer.sample2})
    assert bob.vote(same, 1).outcome == "saved"
    assert ada.vote(offer, 2).outcome == "saved"
    assert {label.annotator for label in current(lines(root))} == {"ada", "bob"}


def test_no_pair_is_in_front_of_two_people(desk: Desk) -> None:
    ada, bob = User(desk, "ada"), User(desk, "bob")
    pairs = [frozenset((o.sample1, o.sample2)) for o in [*ada.batch(8).pairs, *bob.batch(8).pairs]]
    assert len(pairs) == len(set(pairs)) == 15
    assert "on other labellers' screens" in User(desk, "eve").batch().notice


def test_leases_run_out_after_two_minutes_unless_renewed(desk: Desk, clock: Clock) -> None:
    ada, bob = User(desk, "ada"), User(desk, "bob")
    held = ada.batch(15).pairs
    for _ in range(3):
        clock.time += 100
        assert ada.batch(15, keep=held).pairs == held
    assert bob.batch(15).pairs == []
    clock.time += 121
    assert len(bob.batch(15).pairs) == 15
    assert ada.batch(15, keep=held).pairs == [], "they have gone to somebody else"


def test_a_closed_page_gives_its_pairs_back_and_a_reloaded_one_has_them_again(desk: Desk) -> None:
    ada, bob = User(desk, "ada"), User(desk, "bob")
    held = ada.batch(15).pairs
    assert bob.batch(15).pairs == []
    desk.assign.leave(ada.page)
    assert ada.batch(15, keep=held).pairs == held, "a reload"
    desk.assign.leave(ada.page)
    assert len(bob.batch(15).pairs) == 15
    assert ada.vote(held[0]).outcome == "saved", "an answer that was on its way counts all the same"
    desk.assign.leave("nobody00")


def test_what_a_page_no_longer_keeps_is_free(desk: Desk) -> None:
    ada, bob = User(desk, "ada"), User(desk, "bob")
    held = ada.batch(15).pairs
    kept = ada.batch(3, keep=held[:3]).pairs
    assert kept == held[:3]
    assert len(bob.batch(15).pairs) == 12


def test_a_restarted_server_renews_what_a_page_shows(root: Path, desk: Desk, clock: Clock) -> None:
    user = User(desk)
    held = user.batch(4).pairs
    user.desk = make_desk(root, clock, seed=9)
    assert user.batch(4, keep=held).pairs == held
    assert not {(o.sample1, o.sample2) for o in User(user.desk, "bob").batch(15).pairs} & {
        (o.sample1, o.sample2) for o in held
    }


def test_no_pair_is_asked_twice_in_either_order_and_it_says_when_they_run_out(root: Path, desk: Desk) -> None:
    user = User(desk)
    seen = set()
    while offers := user.batch(4).pairs:
        for offer in offers:
            pair = frozenset((offer.sample1, offer.sample2))
            assert pair not in seen
            seen.add(pair)
            user.vote(offer)
    assert len(seen) == 15
    assert "every one of the 15 pairs" in user.batch().notice
    make_db(root, 1, first=6)
    desk.db._refreshed = 0.0
    assert len(user.batch(10).pairs) == 6, "a new segment appears without a restart"


def test_labels_of_segments_that_are_gone_do_not_count_as_pairs(root: Path, desk: Desk) -> None:
    for number in range(20):
        LabelLog(root / "labels.json").append(Label("00/00000000.dat", f"gone/{number}.dat", 1))
    overview = desk.stats.overview()
    assert (overview.segments, overview.left, len(overview.labels)) == (6, 15, 20)
    assert len(User(desk).batch(20).pairs) == 15


def test_one_last_pair_is_spoken_of_as_one(tmp_path: Path, clock: Clock) -> None:
    desk = make_desk(make_db(tmp_path / "two", 2), clock)
    ada, bob = User(desk, "ada"), User(desk, "bob")
    offer = ada.take()
    assert "The last pair is on other labellers' screens" in bob.batch().notice
    ada.vote(offer)
    assert "the one pair that 2 clips make" in bob.batch().notice


def test_labels_of_the_original_and_of_teachers_are_not_asked_again(root: Path, desk: Desk) -> None:
    log = LabelLog(root / "labels.json")
    names = sorted(p.relative_to(root).as_posix() for p in root.glob("*/*.dat"))
    for one, two in itertools.combinations(names, 2):
        log.append(Label(two, one, 1))
    assert User(desk).batch().pairs == []


def test_undo_takes_back_any_number(root: Path, desk: Desk) -> None:
    user = User(desk)
    offers = [user.take() for _ in range(5) if not user.vote(user.take(), 1).reason]
    ids = [said.offer.id for said in desk.votes.history("ada", None, 100)]
    assert len(ids) == len(offers) == 5
    for number, id in enumerate(reversed(ids), start=1):
        reply = user.undo(id)
        assert (reply.outcome, reply.standing.total) == ("undone", 5 - number)
    assert current(lines(root)) == []
    assert len(lines(root)) == 10, "lines are only ever added"
    assert len(user.batch(15).pairs) == 15


def test_undo_sent_twice_undoes_once(root: Path, desk: Desk) -> None:
    user = User(desk)
    for _ in range(2):
        user.vote(user.take())
    last = desk.votes.history("ada", None, 1)[0].offer.id
    assert user.undo(last, "u-00000000").outcome == "undone"
    assert user.undo(last, "u-00000000").outcome == "duplicate"
    assert user.undo(last, "u-11111111").outcome == "dropped"
    assert len(current(lines(root))) == 1


def test_an_undone_pair_can_be_answered_again(root: Path, desk: Desk) -> None:
    user = User(desk)
    offer = user.take()
    user.vote(offer, 1)
    user.undo(offer.id)
    again = offer.model_copy(update={"id": "0123456789abcdef"})
    assert user.batch(1, keep=[again]).pairs == [again]
    assert user.vote(again, 2).outcome == "saved"
    assert [label.label for label in current(lines(root))] == [2]


def test_nobody_undoes_anothers_answer(root: Path, desk: Desk) -> None:
    ada, bob = User(desk, "ada"), User(desk, "bob")
    offer = ada.take()
    ada.vote(offer)
    assert bob.undo(offer.id).outcome == "dropped"
    assert len(current(lines(root))) == 1


def answer_all_but_one(user: User) -> None:
    for _ in range(CHECK_DISTANCE + 2):
        user.vote(user.take(), 1)


def repeat_check(root: Path, clock: Clock) -> tuple[User, Offer, Label]:
    user = User(make_desk(root, clock))
    answer_all_but_one(user)
    user.desk = make_desk(root, clock, repeat_rate=1.0)
    offer = user.take()
    earlier = next(
        label for label in lines(root) if {label.sample1, label.sample2} == {offer.sample1, offer.sample2}
    )
    return user, offer, earlier


def test_a_repeat_check_brings_an_early_pair_with_sides_swapped(root: Path, clock: Clock) -> None:
    user, offer, earlier = repeat_check(root, clock)
    assert offer.repeat
    assert offer.strategy == "repeat"
    assert offer.reason == "drawn at random", "which says no more than of any other pair"
    left_name = {1: offer.sample1, 2: offer.sample2}[offer.left]
    assert left_name != {1: earlier.sample1, 2: earlier.sample2}[earlier.left or 1]
    first = [label.pair for label in lines(root)[:2]]
    assert tuple(sorted((offer.sample1, offer.sample2))) in first, "only pairs from a while ago"
    reply = user.vote(offer, 1)
    assert reply.standing.checks == [True]
    assert lines(root)[-1].repeat
    pairs = {(o.sample1, o.sample2) for o in user.batch(5).pairs if o.repeat}
    assert (offer.sample1, offer.sample2) not in pairs, "once each"


def test_an_undone_repeat_check_leaves_the_earlier_answer(root: Path, clock: Clock) -> None:
    user, offer, earlier = repeat_check(root, clock)
    assert user.vote(offer, 2).standing.checks == [False]
    reply = user.undo(offer.id)
    assert reply.standing.checks == []
    held = {label.pair: label.label for label in current(lines(root))}
    assert held[earlier.pair] == earlier.label
    assert earlier.id is not None
    assert user.undo(earlier.id).outcome == "undone", "and the earlier one can be undone in turn"
    assert earlier.pair not in {label.pair for label in current(lines(root))}


def test_a_repeat_check_falls_with_the_answer_that_it_repeats(root: Path, clock: Clock) -> None:
    user, offer, earlier = repeat_check(root, clock)
    assert offer in user.batch(1, [offer]).pairs
    assert earlier.id is not None
    user.undo(earlier.id)
    assert offer.id not in {kept.id for kept in user.batch(1, [offer]).pairs}
    user.vote(offer, 1)  # the page had it on its screen already
    assert (lines(root)[-1].id, lines(root)[-1].repeat) == (offer.id, False)


def test_repeat_checks_can_be_off_and_come_at_the_rate_that_was_asked(tmp_path: Path, clock: Clock) -> None:
    root = make_db(tmp_path / "big", 40)
    for rate, low, high in ((0.0, 0, 0), (0.2, 40, 85)):
        user = User(make_desk(root, clock, repeat_rate=rate), f"ada{rate}")
        repeats = 0
        for _ in range(300):
            offer = user.take()
            repeats += offer.repeat
            user.vote(offer)
        assert low <= repeats <= high


def test_nothing_is_asked_again_where_no_other_pair_is_left(tmp_path: Path, clock: Clock) -> None:
    """A page that finds no pair asks every two seconds."""
    user = User(make_desk(make_db(tmp_path / "few", 7), clock, repeat_rate=0.3))
    repeats = 0
    while (offers := user.batch(10).pairs) and repeats < 21:
        repeats += offers[0].repeat
        user.vote(offers[0])
    assert repeats < 21  # of 21 pairs
    assert all(not user.batch(10).pairs for _ in range(20))


def test_change_replaces_ones_own_answer_and_undo_brings_it_back(root: Path, desk: Desk) -> None:
    user = User(desk)
    offer = user.take()
    user.vote(offer, 1)
    opened, said = desk.votes.pair(offer.clip1, offer.clip2)
    assert [(one.labeller, one.label) for one in said] == [("ada", 1)]
    assert user.vote(opened, 2).outcome == "dropped", "only on purpose"
    assert user.vote(opened, 2, change=True).outcome == "saved"
    assert [(label.label, label.strategy) for label in current(lines(root))] == [(2, offer.strategy)]
    user.undo(opened.id)
    assert [label.label for label in current(lines(root))] == [1]


def test_an_answer_that_was_deleted_cannot_be_undone(root: Path, desk: Desk) -> None:
    User(desk).vote(User(desk).take())
    (label,) = desk.stats.labels()[0]
    assert len(desk.votes.history("ada", None, 100)) == 1
    desk.votes.delete(label)
    assert desk.votes.history("ada", None, 100) == []


def test_who_answers_a_pair_that_she_opened_was_not_asked_at_random(root: Path, desk: Desk) -> None:
    offer = User(desk).take()
    User(desk).vote(offer, 1)
    opened, _ = desk.votes.pair(offer.clip1, offer.clip2)
    User(desk, "bob").vote(opened, 1, change=True)
    labels = current(lines(root))
    assert [label.strategy for label in labels] == ["random", "opened"]
    assert asked_at_random(labels, lines(root)).tolist() == [True, False]
    assert agreement([lines(root)]).between_labellers == Share(0, 0)


def test_delete_cancels_whosoever_label(root: Path, desk: Desk) -> None:
    LabelLog(root / "labels.json").append(Label("00/00000000.dat", "01/00000001.dat", 1, teacher="score"))
    labels, _ = desk.stats.labels()
    desk.votes.delete(labels[0])
    assert desk.stats.labels()[0] == []
    assert lines(root)[-1].cancelled


def test_a_label_that_was_changed_meanwhile_is_not_deleted_unseen(root: Path, desk: Desk) -> None:
    log = LabelLog(root / "labels.json")
    old = Label("00/00000000.dat", "01/00000001.dat", 1, annotator="ada")
    log.append(old)
    log.append(dataclasses.replace(old, label=2))
    desk.votes.delete(old)
    assert [label.label for label in desk.stats.labels()[0]] == [2]


def test_labels_written_by_others_meanwhile_are_seen(root: Path, desk: Desk) -> None:
    user = User(desk)
    user.vote(user.take())
    free = user.batch(15).pairs
    LabelLog(root / "labels.json").append(Label(free[0].sample2, free[0].sample1, 0, teacher="score"))
    assert len(user.batch(15, keep=free).pairs) == 13
    assert user.batch(15).standing.total == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_vote_that_cannot_be_written_is_refused_and_counts_when_sent_again(
    root: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    user = User(desk)
    offer = user.take()

    def full(label: Label, present: Callable[[], bool]) -> bool:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(desk.db.log, "append", full)
        with pytest.raises(NotSaved, match=os.strerror(code)):
            user.vote(offer)
    assert user.vote(offer).outcome == "saved"
    assert len(lines(root)) == 1


def test_a_db_that_went_away_is_said(root: Path, desk: Desk, clock: Clock) -> None:
    user = User(desk)
    user.take()
    root.rename(root.with_name("elsewhere"))
    clock.time += 5
    with pytest.raises(UserError, match="cannot read"):
        user.batch()


@pytest.mark.parametrize(
    ("segments", "says"), [(0, "no clips yet"), (1, "a pair takes two")], ids=["empty", "one clip"]
)
def test_too_few_segments_get_a_friendly_sentence(
    tmp_path: Path, clock: Clock, segments: int, says: str
) -> None:
    reply = User(make_desk(make_db(tmp_path / "small", segments), clock)).batch()
    assert reply.pairs == []
    assert says in reply.notice


def test_an_answer_alone_is_not_called_a_clip(tmp_path: Path, clock: Clock) -> None:
    reply = User(make_desk(answer_db(tmp_path / "small", [["alone"]]), clock)).batch()
    assert "No prompt has two answers yet" in reply.notice


def test_a_broken_segment_is_left_out_and_named(root: Path, desk: Desk) -> None:
    (root / "00/00000000.dat").write_bytes(b"garbage")
    user = User(desk)
    with pytest.raises(SegmentError):
        desk.db.clip(desk.db.clip_id("00/00000000.dat"))
    reply = user.batch(15)
    assert len(reply.pairs) == 10
    assert "00/00000000.dat" in reply.problems[0]
    assert desk.stats.overview().broken


def test_a_segment_that_was_broken_while_it_was_copied_is_shown_once_it_is_whole(
    root: Path, desk: Desk, clock: Clock
) -> None:
    name = desk.db.playable()[0]
    whole = (root / name).read_bytes()
    (root / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SegmentError):
        desk.db.clip(desk.db.clip_id(name))
    clock.time += 10
    assert name not in desk.db.playable()
    (root / name).write_bytes(whole)
    clock.time += 10
    assert name in desk.db.playable()
    desk.db.clip(desk.db.clip_id(name))


def test_a_segment_that_was_dropped_is_not_called_left_out(root: Path, desk: Desk, clock: Clock) -> None:
    offer = User(desk).take()
    (root / offer.sample1).unlink()
    clock.time += 10
    desk.db.sync()
    with pytest.raises(SegmentError):
        desk.db.clip(offer.clip1)  # by a page that had the pair ahead
    clock.time += 10
    assert User(desk).batch().problems == []


@pytest.mark.parametrize("name", ["00/00000099.dat", "../secret", "x" * 400])
def test_a_labelled_pair_whose_clip_is_gone_cannot_be_opened(root: Path, desk: Desk, name: str) -> None:
    there = desk.db.sync()[0]
    LabelLog(root / "labels.json").append(Label(there, name, 1))
    with pytest.raises(KeyError):
        desk.votes.pair(desk.db.clip_id(there), desk.db.clip_id(name))


@pytest.mark.parametrize("name", ["00/00000000.dat/x", "x" * 300, "a\0b", "../labels.json"])
def test_a_name_that_only_a_foreign_line_has_is_no_answer(tmp_path: Path, clock: Clock, name: str) -> None:
    save_answer(tmp_path / "00" / "00000000.dat", Answer("?", "one", finished=True))
    desk = make_desk(tmp_path, clock)
    assert desk.db.answer(desk.db.clip_id("00/00000000.dat")).text == "one"
    with pytest.raises(SegmentError):
        desk.db.answer(desk.db.clip_id(name))


def test_a_clip_of_an_endless_name_is_none(root: Path, clock: Clock) -> None:
    (root / ("0" * 101)).mkdir()
    shutil.copy(next(root.glob("00/*.dat")), root / ("0" * 101) / f"{'1' * 211}.dat")
    names = make_desk(root, clock).db.sync()
    assert max(map(len, names)) < 20


def test_a_db_that_was_empty_gets_the_strategies_of_what_comes(tmp_path: Path, clock: Clock) -> None:
    root = tmp_path / "texts"
    root.mkdir()
    db = SegmentDB(root)

    def strategies() -> dict[str, Strategy]:
        db.refresh()
        return {"recent": make_strategy("recent", db, random_share=0.0, answers=holds_answers(db))}

    desk = Desk(root, make_strategies=strategies, strategy="recent", repeat_rate=0, clock=clock, now=clock)
    user = User(desk)
    empty = user.batch()
    assert (empty.pairs, empty.answers) == ([], False)
    answer_db(root, random_texts(6, 3))
    clock.time += 10
    assert user.batch(0).answers
    while not (offers := [offer for offer in user.batch(4).pairs if offer.strategy == "recent"]):
        time.sleep(0.01)
    assert all(prompt_of(offer.sample1) == prompt_of(offer.sample2) for offer in offers)


def test_a_strategy_that_does_not_suit_what_comes_leaves_random_pairs_and_says_so(
    tmp_path: Path, clock: Clock
) -> None:
    root = tmp_path / "texts"
    root.mkdir()
    db = SegmentDB(root)

    def strategies() -> dict[str, Strategy]:
        db.refresh()
        return {"diversity": make_strategy("diversity", db, answers=holds_answers(db))}

    desk = Desk(root, make_strategies=strategies, strategy="diversity", clock=clock, now=clock)
    user = User(desk)
    assert user.batch().pairs == []
    answer_db(root, random_texts(6, 3))
    clock.time += 10
    for _ in range(2):
        reply = user.batch()
        assert {offer.strategy for offer in reply.pairs} == {"random"}
        assert "--strategy diversity compares frames" in reply.problems[0]


def test_foreign_votes_are_dropped(root: Path, desk: Desk) -> None:
    user = User(desk)
    offer = user.take()
    with pytest.raises(UserError, match="another database"):  # for which the page keeps it
        user.vote(offer, db="another")
    with pytest.raises(UserError, match="another database"):
        desk.votes.undo(Undo(db="another", labeller=user.name, id="u-0000000000000000", target=offer.id))
    gone = offer.model_copy(update={"sample1": "../secret", "id": "0" * 16})
    assert user.vote(gone).outcome == "dropped"
    other = offer.model_copy(update={"sample1": offer.sample2, "sample2": offer.sample1})
    assert user.vote(other).outcome == "dropped"
    assert lines(root) == []


def test_standing_counts_today_rate_and_goal(root: Path, clock: Clock) -> None:
    user = User(make_desk(root, clock, goal=10))
    for _ in range(4):
        standing = user.vote(user.take()).standing
        clock.time += 6
    clock.time += 3600  # a break does not slow the rate
    standing = user.vote(user.take()).standing
    assert (standing.mine, standing.total, standing.goal, standing.per_minute) == (5, 5, 10, 10.0)
    clock.time += 2 * 86400
    offer = user.take()
    standing = user.vote(offer).standing
    assert (standing.mine, standing.today) == (6, 1)
    changed = user.vote(offer.model_copy(update={"id": "changed0"}), 2, change=True)
    assert changed.outcome == "saved"
    assert (changed.standing.mine, changed.standing.today, changed.standing.total) == (6, 1, 6)


def test_disputes_are_between_people_and_with_oneself(root: Path, clock: Clock) -> None:
    log = LabelLog(root / "labels.json")
    a, b, c = "00/00000000.dat", "01/00000001.dat", "02/00000002.dat"
    log.append(Label(a, b, 1, annotator="ada"))
    log.append(Label(b, a, 2, annotator="bob"))  # the same, the other way round
    log.append(Label(a, c, 1, annotator="ada"))
    log.append(Label(a, c, 0, annotator="bob"))
    log.append(Label(b, c, 1, annotator="ada"))
    log.append(Label(b, c, 2, annotator="ada", repeat=True))
    desk = make_desk(root, clock)
    labels, disputed = desk.stats.labels()
    assert len(labels) == 5
    assert disputed == {(a, c), (b, c)}
    overview = desk.stats.overview()
    assert (overview.shared_pairs, overview.shared_alike) == (2, 1)
    assert overview.checks == {"ada": [False]}


def test_a_torn_line_costs_only_itself(root: Path, desk: Desk) -> None:
    path = root / "labels.json"
    path.write_text(
        json.dumps({"sample1": "00/00000000.dat", "sample2": "01/00000001.dat", "label": 1}) + '\n{"sam'
    )
    user = User(desk)
    assert user.vote(user.take()).standing.total == 2
    assert len(desk.stats.overview().log_problems) == 1


def test_what_a_training_is_waiting_for_is_said(root: Path, desk: Desk) -> None:
    user = User(desk)
    assert user.vote(user.take()).standing.due is None
    training = TrainingProgress(LabelPlan(steps=100, budget=12, opening=2), 0, "opening")
    writer = ProgressWriter(root)
    writer.write(training)
    assert user.batch().standing.due == 1
    assert user.vote(user.take(), None).standing.due == 1  # can't tell is no label
    assert user.vote(user.take()).standing.due == 0
    assert user.vote(user.take()).standing.due == 0  # more than was asked for
    writer.write(dataclasses.replace(training, steps=50, phase="training"))
    assert user.batch().standing.due == 4
    assert not user.batch().standing.over
    writer.write(dataclasses.replace(training, steps=100, phase="over"))
    assert (user.batch().standing.due, user.batch().standing.over) == (None, True)
    (root / "progress.json").write_text("{")
    assert user.batch().standing.due is None


def test_an_answer_about_a_segment_that_was_dropped_a_moment_ago_is_not_counted(
    root: Path, desk: Desk
) -> None:
    user = User(desk)
    offer = user.take()
    (root / offer.sample2).unlink()
    reply = user.vote(offer)
    assert (reply.outcome, reply.reason) == ("dropped", "one of its clips is no longer in the database")
    assert lines(root) == []
