"""Which pair comes next, and who holds it."""

import itertools
from collections import Counter

import numpy as np

from lib.preferences.labels import pair_of
from lib.preferences.queries import Leases, Query, RandomPairs


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def names(count: int) -> list[str]:
    return [f"00/{i:08d}.dat" for i in range(count)]


def test_a_pair_is_the_same_either_way_round() -> None:
    assert pair_of("b", "a") == pair_of("a", "b") == ("a", "b") == Query("b", "a", "random").pair


def test_random_is_uniform_over_the_last_pairs_too() -> None:
    last = set(itertools.islice(itertools.combinations(names(80), 2), 3))
    taken = set(itertools.combinations(names(80), 2)) - last
    rng, counts = np.random.default_rng(2), dict.fromkeys(last, 0)
    for _ in range(150):
        counts[RandomPairs().propose(names(80), taken, 1, rng)[0].pair] += 1
    assert min(counts.values()) > 20


def test_some_of_few_are_all_of_them() -> None:
    many = RandomPairs(lambda name: name[:2])
    names = [*(f"00/{number}" for number in range(4)), *(f"{number:02d}/0" for number in range(1, 60))]
    assert many.some(names, 40, np.random.default_rng(0)) == names[:4]


def test_some_of_a_large_group_may_be_any_of_it() -> None:
    pairs, rng = RandomPairs(lambda name: name[:2]), np.random.default_rng(0)
    names = [f"{group:02d}/{number:02d}" for group in range(3) for number in range(16)]
    often = Counter(name[3:] for _ in range(1000) for name in pairs.some(names, 10, rng))
    assert len(often) == 16
    assert min(often.values()) > 0.8 * max(often.values())


QUERY = Query("a", "b", "random")


def test_a_pair_belongs_to_one_holder_until_the_lease_runs_out() -> None:
    clock = Clock()
    leases = Leases(clock=clock)
    first = leases.grant(QUERY, 1, "ada")
    assert first is not None
    assert leases.live() == {("a", "b")}
    assert leases.grant(Query("b", "a", "random"), 1, "bob") is None
    clock.time += 119
    assert leases.grant(QUERY, 1, "bob") is None
    clock.time += 2
    assert leases.live() == set()
    assert leases.find(first.id) == first, "a late answer still finds its lease"
    assert leases.grant(QUERY, 2, "bob") is not None
    assert leases.find(first.id) is None


def test_a_sign_of_life_renews_under_the_same_id() -> None:
    clock = Clock()
    leases = Leases(clock=clock)
    first = leases.grant(QUERY, 1, "ada")
    assert first is not None
    clock.time += 100
    again = leases.grant(QUERY, 1, "ada", id=first.id)
    assert again is not None
    assert again.id == first.id
    clock.time += 100
    assert leases.grant(QUERY, 1, "bob") is None


def test_release_frees_the_pair_and_only_that() -> None:
    leases = Leases()
    one, two = leases.grant(QUERY, 1, "ada"), leases.grant(Query("a", "c", "random"), 1, "ada")
    assert one is not None
    assert two is not None
    leases.release(one.id)
    leases.release("unknown")
    assert leases.held_by("ada") == [two]
    assert leases.grant(QUERY, 1, "bob") is not None


def test_what_a_holder_leaves_goes_to_whoever_asks_first() -> None:
    leases = Leases(clock=Clock())
    one, two = leases.grant(QUERY, 1, "ada"), leases.grant(Query("a", "c", "random"), 2, "ada")
    others = leases.grant(Query("b", "c", "random"), 1, "bob")
    assert one is not None
    assert two is not None
    assert others is not None
    leases.lapse("ada")
    assert leases.live() == {("b", "c")}
    assert leases.grant(QUERY, 1, "eve") is not None
    assert leases.grant(QUERY, 1, "ada", id=one.id) is None
    back = leases.grant(two.query, two.left, "ada", id=two.id)
    assert back == two, "nobody had asked for it meanwhile"
    assert leases.grant(others.query, 1, "eve") is None


def test_repeat_checks_block_nobody() -> None:
    leases = Leases()
    assert leases.grant(Query("a", "b", "repeat", repeat=True), 1, "ada") is not None
    assert leases.repeats() == {("a", "b")}
    assert leases.live() == set()
    assert leases.grant(QUERY, 1, "bob") is not None


def test_forgotten_leases_do_not_pile_up() -> None:
    clock = Clock()
    leases = Leases(clock=clock)
    for i in range(100):
        leases.grant(Query("a", f"b{i}", "random"), 1, "ada")
    clock.time += 2000
    leases.live()
    assert leases.held_by("ada") == []


def test_random_pairs_are_equally_likely_though_groups_differ_in_size() -> None:
    names = [*(f"00/{number}" for number in range(9)), "01/0", "01/1"]  # 36 pairs and 1
    rng, few = np.random.default_rng(0), 0
    for _ in range(740):
        (query,) = RandomPairs(lambda name: name[:2]).propose(names, set(), 1, rng)
        few += query.sample1.startswith("01")
    assert 5 < few < 45, "20 expected"
