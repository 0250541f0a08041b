"""Policies against torch.distributions and by hand, and the draw of actions by frequency."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from lib.agent.distributions import entropy_of, exact_kl, log_prob_of, sample_actions


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


def test_actions_are_drawn_with_the_probabilities_of_the_softmax() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = 40_000
    logits = (probabilities.log() + 3).expand(draws, 4)
    actions = sample_actions(logits, torch.Generator().manual_seed(0))
    assert actions.shape == (draws,)
    assert actions.dtype == torch.int64
    counts = torch.bincount(actions, minlength=4)
    bound = 4 * (draws * probabilities * (1 - probabilities)).sqrt()
    assert ((counts - draws * probabilities).abs() < bound).all()


def test_each_row_is_drawn_from_its_own_policy() -> None:
    rows = torch.arange(50) % 7
    logits = torch.nn.functional.one_hot(rows, 7) * 1e3
    assert torch.equal(sample_actions(logits.float()), rows)


def test_a_generator_makes_draws_repeat() -> None:
    logits = torch.zeros(200, 18)

    def draw(seed: int) -> torch.Tensor:
        return sample_actions(logits, torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
