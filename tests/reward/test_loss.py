"""The preference loss in closed form."""

import math

import pytest
import torch

from lib.reward.loss import preference_accuracy, preference_loss


def loss(return1: float, return2: float, preference1: float) -> float:
    values = [torch.tensor([value], dtype=torch.float64) for value in (return1, return2, preference1)]
    result = preference_loss(*values)
    assert result.shape == (1,)
    return result.item()


def test_returns_of_five_and_three() -> None:
    assert loss(5, 3, 1) == pytest.approx(0.126928, abs=1e-6)
    assert loss(5, 3, 1) == pytest.approx(math.log(1 + math.exp(-2)))
    assert loss(5, 3, 0) == pytest.approx(math.log(1 + math.exp(2)))
    assert loss(5, 3, 0.5) == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2)


@pytest.mark.parametrize("preference1", [0.0, 0.5, 1.0])
def test_equal_returns_cost_one_bit(preference1: float) -> None:
    assert loss(7, 7, preference1) == pytest.approx(math.log(2))


def test_swapping_segments_and_preference_changes_nothing() -> None:
    for preference1 in (0.0, 0.5, 1.0):
        assert loss(1.5, -2, preference1) == pytest.approx(loss(-2, 1.5, 1 - preference1))


def test_only_the_difference_counts() -> None:
    assert loss(1005, 1003, 1) == pytest.approx(loss(5, 3, 1))


def test_a_tie_is_cheapest_where_returns_are_equal() -> None:
    assert loss(1, 1, 0.5) < min(loss(1.1, 1, 0.5), loss(1, 1.1, 0.5))
    assert loss(4, 1, 0.5) == pytest.approx(loss(1, 4, 0.5))


def test_large_differences_stay_finite() -> None:
    assert loss(1e4, 0, 0) == pytest.approx(1e4)
    assert loss(1e4, 0, 1) == 0


def test_the_gradient_is_the_probability_less_the_preference() -> None:
    return1 = torch.tensor([5.0, 5, 5], requires_grad=True)
    return2 = torch.tensor([3.0, 3, 3], requires_grad=True)
    preference_loss(return1, return2, torch.tensor([1.0, 0.5, 0])).sum().backward()
    probability = 1 / (1 + math.exp(-2))
    expected = torch.tensor([probability - 1, probability - 0.5, probability])
    assert return1.grad is not None
    assert return2.grad is not None
    torch.testing.assert_close(return1.grad, expected)
    torch.testing.assert_close(return2.grad, -expected)


def test_one_value_a_pair() -> None:
    values = preference_loss(torch.tensor([5.0, 0]), torch.tensor([3.0, 0]), torch.tensor([1.0, 1]))
    assert values.tolist() == pytest.approx([0.126928, math.log(2)], abs=1e-6)


def test_accuracy_leaves_ties_of_the_teacher_out() -> None:
    hits = preference_accuracy(
        torch.tensor([2.0, 2, 1, 1, 9, 1]),
        torch.tensor([1.0, 1, 2, 2, 1, 9]),
        torch.tensor([1.0, 0, 1, 0, 0.5, 0.5]),
    )
    assert hits.tolist() == [True, False, False, True]
    assert not len(preference_accuracy(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.5])))
