"""The table of how good reward models get, from fits recorded earlier."""

from benchmarks.quality import _table


def test_fits_of_a_recipe_that_is_no_more_come_last() -> None:
    rows = [
        {"recipe": name, "labels": 50, "accuracy": accuracy}
        for name, accuracy in (("gone", 0.5), ("original", 0.6), ("ours", 0.7))
    ]
    assert [line.split(" | ") for line in _table(rows).splitlines()[2:]] == [
        ["| ours", "70.0 % (1) |"],
        ["| original", "60.0 % (1) |"],
        ["| gone", "50.0 % (1) |"],
    ]
