"""Gaussian policies against torch.distributions and by hand, and the four functions that know both kinds of policy."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from lib.agent.actor_critic import entropy_of, exact_kl, log_prob_of, sample_actions


@pytest.fixture
def parameters() -> torch.Tensor:
    return torch.randn(7, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def reference(parameters: torch.Tensor) -> Independent:
    mean, log_std = parameters.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


def test_of_one_number_by_hand() -> None:
    """N(1, 2²) at 5, two deviations off; KL to N(0, 1): log 1 − log 2 + (4 + 1)/2 − ½."""
    parameters = torch.tensor([1.0, math.log(2)])
    density = math.exp(-2) / (2 * math.sqrt(2 * math.pi))
    assert log_prob_of(parameters, torch.tensor([5.0])).item() == pytest.approx(math.log(density))
    assert entropy_of(parameters, True).item() == pytest.approx(math.log(2 * math.sqrt(2 * math.pi * math.e)))
    assert exact_kl(parameters, torch.zeros(2), True).item() == pytest.approx(2 - math.log(2))


def test_as_in_torch(parameters: torch.Tensor) -> None:
    theirs, other = reference(parameters), reference(parameters.flip(0))
    actions = theirs.sample()
    torch.testing.assert_close(log_prob_of(parameters, actions), theirs.log_prob(actions))
    torch.testing.assert_close(entropy_of(parameters, True), theirs.entropy())
    torch.testing.assert_close(exact_kl(parameters, parameters.flip(0), True), kl_divergence(theirs, other))
    assert not exact_kl(parameters, parameters, True).any()


def test_draws_have_the_mean_and_the_spread() -> None:
    parameters = torch.tensor([1.0, -3.0, math.log(0.5), math.log(2)]).expand(40_000, 4)
    drawn = sample_actions(parameters, torch.Generator().manual_seed(1), continuous=True)
    assert drawn.shape == (40_000, 2)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([1.0, -3.0]), atol=0.04, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.5, 2.0]), atol=0.03, rtol=0)
    again = sample_actions(parameters, torch.Generator().manual_seed(1), continuous=True)
    assert torch.equal(drawn, again)


def test_categorical_entropy_as_in_torch(parameters: torch.Tensor) -> None:
    theirs = torch.distributions.Categorical(logits=parameters)
    torch.testing.assert_close(entropy_of(parameters), theirs.entropy())
