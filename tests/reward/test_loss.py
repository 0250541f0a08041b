"""The preference loss in closed form."""

import math

import pytest
import torch

from lib.reward.loss import original_loss, preference_accuracy, preference_loss


def loss(return1: float, return2: float, preference1: float, error_rate: float = 0.0) -> float:
    first, second, mu = (
        torch.tensor([value], dtype=torch.float64) for value in (return1, return2, preference1)
    )
    result = preference_loss(first, second, mu, error_rate)
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


@pytest.mark.parametrize("error_rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("preference1", [0.0, 0.5, 1.0])
def test_a_teacher_who_errs_in_closed_form(error_rate: float, preference1: float) -> None:
    probability = (1 - error_rate) / (1 + math.exp(-2)) + error_rate / 2
    expected = -preference1 * math.log(probability) - (1 - preference1) * math.log(1 - probability)
    assert loss(5, 3, preference1, error_rate) == pytest.approx(expected, rel=1e-12)


def test_returns_of_five_and_three_from_a_teacher_who_errs() -> None:
    # P = 0.880797, P' = 0.9 P + 0.05 = 0.842717
    assert loss(5, 3, 1, 0.1) == pytest.approx(0.171124, abs=1e-6)
    assert loss(5, 3, 0, 0.1) == pytest.approx(1.849710, abs=1e-6)
    assert loss(7, 7, 1, 0.1) == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_who_errs_bounds_the_loss_and_the_gradient(dtype: torch.dtype) -> None:
    return1 = torch.tensor([1e4, 1e4, 1e4, -1e4, -1e4, -1e4], dtype=dtype, requires_grad=True)
    preference1 = torch.tensor([1, 0.5, 0, 1, 0.5, 0], dtype=dtype)
    values = preference_loss(return1, torch.zeros_like(return1), preference1, error_rate=0.1)
    right, wrong = -math.log(0.95), -math.log(0.05)
    assert values.tolist() == pytest.approx(
        [right, (right + wrong) / 2, wrong, wrong, (right + wrong) / 2, right], rel=1e-5
    )
    values.sum().backward()
    assert return1.grad is not None
    assert return1.grad.tolist() == [0] * 6


def test_the_gradient_of_a_teacher_who_errs() -> None:
    """dL/dR₁ = −(μ/P' − (1 − μ)/(1 − P')) (1 − ε) P (1 − P)."""
    return1 = torch.tensor([5.0, 5, 5, 1, 1, 1], dtype=torch.float64, requires_grad=True)
    return2 = torch.tensor([3.0, 3, 3, 9, 9, 9], dtype=torch.float64, requires_grad=True)
    preference1 = torch.tensor([1, 0.5, 0, 1, 0.5, 0], dtype=torch.float64)
    preference_loss(return1, return2, preference1, error_rate=0.1).sum().backward()
    plain = torch.sigmoid(return1 - return2).detach()
    erring = 0.9 * plain + 0.05
    expected = -(preference1 / erring - (1 - preference1) / (1 - erring)) * 0.9 * plain * (1 - plain)
    assert return1.grad is not None
    assert return2.grad is not None
    torch.testing.assert_close(return1.grad, expected)
    torch.testing.assert_close(return2.grad, -expected)


def test_an_error_rate_of_nothing_is_the_limit() -> None:
    for return1, return2, preference1 in ((5, 3, 1.0), (5, 3, 0.0), (-20, 10, 0.5)):
        plain = loss(return1, return2, preference1)
        assert loss(return1, return2, preference1, 1e-30) == pytest.approx(plain, rel=1e-9)


def test_the_original_loss_treats_the_returns_apart() -> None:
    values = original_loss(torch.tensor([5.0, 5, 0]), torch.tensor([3.0, 3, 0]), torch.tensor([1.0, 0.5, 0]))
    one = (math.log(1 + math.exp(-5)) + math.log(1 + math.exp(3))) / 2
    tie = one / 2 + (math.log(1 + math.exp(5)) + math.log(1 + math.exp(-3))) / 4
    assert values.tolist() == pytest.approx([one, tie, math.log(2)], rel=1e-5)
    assert one == pytest.approx(1.5277, abs=1e-4)
    # It is what BCEWithLogitsLoss says of the two columns, mean over both.
    columns = torch.nn.BCEWithLogitsLoss()(torch.tensor([[5.0, 3]]), torch.tensor([[1.0, 0]]))
    assert values[0].item() == pytest.approx(columns.item())


def test_the_original_loss_stays_finite() -> None:
    return1 = torch.tensor([1e4, -1e4], requires_grad=True)
    original_loss(return1, torch.zeros(2), torch.tensor([0.0, 1])).sum().backward()
    assert return1.grad is not None
    assert return1.grad.tolist() == [0.5, -0.5]


def test_accuracy_leaves_ties_of_the_teacher_out() -> None:
    hits = preference_accuracy(
        torch.tensor([2.0, 2, 1, 1, 9, 1]),
        torch.tensor([1.0, 1, 2, 2, 1, 9]),
        torch.tensor([1.0, 0, 1, 0, 0.5, 0.5]),
    )
    assert hits.tolist() == [True, False, False, True]
    assert not len(preference_accuracy(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.5])))


def test_a_model_that_cannot_tell_is_not_right_whichever_clip_stands_first() -> None:
    same = torch.ones(2)
    assert preference_accuracy(same, same, torch.tensor([1.0, 0])).tolist() == [False, False]
