"""What differs between two specs, and in which words."""

import pytest

from lib.envs.spec import PICTURE_SHAPE, Spec

ATARI = Spec(18, False, PICTURE_SHAPE, (210, 160, 3))
HOPPER = Spec(3, True, (11,), (128, 128, 3))


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (ATARI, ATARI, None),
        (ATARI, Spec(6, False, PICTURE_SHAPE, (210, 160, 3)), ("18 actions", "6 actions")),
        (ATARI, HOPPER, ("18 actions", "actions of 3 numbers")),
        (HOPPER, Spec(3, True, (17,)), ("observations of 11 numbers", "observations of 17 numbers")),
        (Spec(3, True), HOPPER, ("observations that are pictures", "observations of 11 numbers")),
        (ATARI, Spec(18, False, None, (96, 96, 3)), ("frames of 210×160 pixels", "frames of 96×96 pixels")),
        # What one side does not look at may be anything.
        (Spec(18), ATARI, None),
        (Spec(3, True, None, (128, 128, 3)), HOPPER, None),
        (Spec(3, True, (11,), None), HOPPER, None),
    ],
)
def test_the_first_difference_is_named_as_each_side_has_it(
    one: Spec, other: Spec, difference: tuple[str, str] | None
) -> None:
    assert one.difference(other) == difference
    assert other.difference(one) == (difference and difference[::-1])


def test_only_vectors_have_a_size() -> None:
    assert [spec.observation_size for spec in (ATARI, HOPPER, Spec(2, False, None))] == [None, 11, None]
