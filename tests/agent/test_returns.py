"""Advantages and returns against numbers worked out by hand."""

import pytest
import torch

from lib.agent.returns import (
    discounted_returns,
    explained_variance,
    group_normalised,
    lambda_advantages,
    leave_one_out,
    normalised,
)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*where: int, steps: int) -> torch.Tensor:
    flagged = torch.zeros(steps, 1, dtype=torch.bool)
    flagged[list(where)] = True
    return flagged


# Three steps with rewards 1, 2, 4, values 10, 20, 30, 40, discount ½.
REWARDS, VALUES, GAMMA = column(1, 2, 4), column(10, 20, 30, 40), 0.5


def returns(terminal: torch.Tensor, truncated: torch.Tensor, gamma: float = GAMMA) -> list[float]:
    advantages = lambda_advantages(REWARDS, VALUES, terminal, truncated, gamma)
    assert advantages.shape == (3, 1)
    return (advantages + VALUES[:-1]).squeeze(1).tolist()


NONE, MIDDLE, END = flags(steps=3), flags(1, steps=3), flags(2, steps=3)


@pytest.mark.parametrize(
    ("terminal", "truncated", "expected"),
    [
        # Bootstrapped with the value after the last step: G₂ = 4 + ½·40, G₁ = 2 + ½·24, G₀ = 1 + ½·14.
        (NONE, NONE, [8, 14, 24]),
        # A life lost at step 1 has no future: G₁ = 2, G₀ = 1 + ½·2; the game goes on, so G₂ = 4 + ½·40 is as before.
        (MIDDLE, NONE, [2, 2, 24]),
        # A terminal at the end is not bootstrapped.
        (END, NONE, [3, 4, 4]),
        # v₂ = 30 is the last frame's of the game that was cut: G₁ = 2 + ½·30, G₀ = 1 + ½·17; G₂ is the reset's and starts
        # anew.
        (NONE, MIDDLE, [9.5, 17, 24]),
        # A truncation at the end bootstraps too.
        (NONE, END, [8, 14, 24]),
        # Where both are set, terminal counts.
        (MIDDLE, MIDDLE, [2, 2, 24]),
    ],
)
def test_n_step_returns(terminal: torch.Tensor, truncated: torch.Tensor, expected: list[float]) -> None:
    assert returns(terminal, truncated) == expected


@pytest.mark.parametrize(
    ("gamma", "expected"), [(0.0, [1, 2, 4]), (1.0, [47, 46, 44]), (0.25, [2.375, 5.5, 14])]
)
def test_discounts(gamma: float, expected: list[float]) -> None:
    assert returns(NONE, NONE, gamma) == expected


def test_one_step() -> None:
    values, reward = column(3, 8), column(-1)
    go = flags(steps=1)
    assert lambda_advantages(reward, values, go, go, 0.5).item() == -1 + 4 - 3
    assert lambda_advantages(reward, values, flags(0, steps=1), go, 0.5).item() == -1 - 3
    assert lambda_advantages(reward, values, go, flags(0, steps=1), 0.5).item() == -1 + 4 - 3


def test_lambda_below_one_is_the_explicit_sum_of_temporal_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    steps, envs, gamma, lambda_ = 9, 40, 0.9, 0.7
    rewards = torch.randn(steps, envs, generator=generator, dtype=torch.float64)
    values = torch.randn(steps + 1, envs, generator=generator, dtype=torch.float64)
    terminal = torch.rand(steps, envs, generator=generator) < 0.15
    truncated = torch.rand(steps, envs, generator=generator) < 0.15
    assert (terminal & truncated).any()
    expected = torch.zeros(steps, envs, dtype=torch.float64)
    for env in range(envs):
        for t in range(steps):
            for i in range(t, steps):
                future = 0.0 if terminal[i, env] else gamma * values[i + 1, env].item()
                delta = rewards[i, env].item() + future - values[i, env].item()
                expected[t, env] += (gamma * lambda_) ** (i - t) * delta
                if terminal[i, env] or truncated[i, env]:
                    break
    torch.testing.assert_close(
        lambda_advantages(rewards, values, terminal, truncated, gamma, lambda_), expected, rtol=0, atol=1e-12
    )


def test_monte_carlo_returns_end_with_the_sequence() -> None:
    assert discounted_returns(REWARDS, NONE, 0.5).squeeze(1).tolist() == [1 + 1 + 1, 2 + 2, 4]
    assert discounted_returns(REWARDS, flags(1, steps=3), 0.5).squeeze(1).tolist() == [1 + 1, 2, 4]
    assert discounted_returns(REWARDS, flags(0, 2, steps=3), 1.0).squeeze(1).tolist() == [1, 6, 4]


def test_baselines_of_groups() -> None:
    returns = torch.tensor([[[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]], [[-1.0, 0.0, 1.0], [0.0, 3.0, 0.0]]])
    # The others of 1 are 2 and 6, whose mean is 4, and so on.
    others = [[[-3, -1.5, 4.5], [0, 0, 0]], [[-1.5, 0, 1.5], [-1.5, 3, -1.5]]]
    assert leave_one_out(returns).tolist() == others
    # The sample's standard deviation of 1, 2, 6 is √((4 + 1 + 9) / 2) = √7, that of 0, 3, 0 is √3.
    seven, three = 7**-0.5, 3**-0.5
    expected = [[[-2 * seven, -seven, 3 * seven], [0, 0, 0]], [[-1, 0, 1], [-three, 2 * three, -three]]]
    torch.testing.assert_close(group_normalised(returns), torch.tensor(expected))


@pytest.mark.parametrize("value", [torch.tensor(12.7), torch.tensor(1e9 / 7, dtype=torch.float64)])
def test_a_group_of_equal_returns_is_worth_nothing(value: torch.Tensor) -> None:
    """Their mean as it is rounded is not the value itself."""
    returns = value.repeat(7)
    assert returns.mean() != value
    assert group_normalised(returns).tolist() == [0] * 7
    assert group_normalised(returns).dtype == value.dtype


def test_what_rounding_makes_of_equal_answers_is_worth_nothing() -> None:
    """Beside longer answers one of several equal ones may be paid an ulp more. A thousandth is no rounding."""
    returns = torch.tensor([[-1.2, -1.2 + 2**-22, -1.2, -1.2], [0.0, 0.001, 0.0, 0.0]])
    assert returns[0].std() > 0
    nothing, something = group_normalised(returns)
    assert not nothing.any()
    torch.testing.assert_close(something, torch.tensor([-0.5, 1.5, -0.5, -0.5]))


def test_normalised_over_the_valid_steps() -> None:
    advantages = torch.tensor([[1.0, 1e6], [3.0, 5.0]])
    valid = torch.tensor([[True, False], [True, True]])
    # Mean 3, variance (4 + 0 + 4) / 3.
    unit = (8 / 3) ** -0.5
    torch.testing.assert_close(normalised(advantages, valid), torch.tensor([[-2 * unit, 0], [0, 2 * unit]]))
    assert not normalised(torch.full((2, 2), 7.0), valid).any()
    assert not normalised(advantages, torch.zeros(2, 2, dtype=torch.bool)).any()
    assert not normalised(advantages, advantages == 5).any()  # one step is its own mean


def test_explained_variance() -> None:
    returns, valid = torch.tensor([1.0, 2.0, 3.0, 1e6]), torch.tensor([True, True, True, False])
    assert explained_variance(returns + 9, returns, valid).item() == 1  # a constant error is not variance
    assert explained_variance(torch.zeros(4), returns, valid).item() == 0
    # Errors 1, 0, 1: variance 2/9 of 2/3.
    assert explained_variance(torch.tensor([0.0, 2, 2, 0]), returns, valid).item() == pytest.approx(2 / 3)
    assert explained_variance(returns, torch.ones(4), valid).item() == 0
    for few in (returns == 2, returns < 0):  # one step does not vary, nor does none
        assert explained_variance(torch.zeros(4), returns, few).item() == 0
