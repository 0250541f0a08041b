"""Estimators of the KL by exact expectation, its adapted price, and what a rollout is paid with the penalty."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lib.agent.distributions import exact_kl
from lib.agent.kl import KLPenalty, adapted, k1, k2, k3
from lib.agent.network import PolicyNet
from tests.agent.worlds import random_rollout


def distributions(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """log π and log π_ref of 50 pairs of policies of 6 actions."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        (2 * torch.randn(50, 6, generator=generator, dtype=torch.float64)).log_softmax(-1) for _ in range(2)
    )  # type: ignore[return-value]


def test_by_hand() -> None:
    """π = (¼, ¾) against π_ref = (½, ½)."""
    log_prob, reference = torch.tensor([0.25, 0.75]).log(), torch.tensor([0.5, 0.5]).log()
    half, more = math.log(1 / 2), math.log(3 / 2)
    assert k1(log_prob, reference).tolist() == pytest.approx([half, more])
    assert k2(log_prob, reference).tolist() == pytest.approx([half**2 / 2, more**2 / 2])
    assert k3(log_prob, reference).tolist() == pytest.approx([2 - 1 + half, 2 / 3 - 1 + more], abs=1e-6)
    # Logits are log-probabilities up to a constant.
    assert exact_kl(log_prob + 3, reference - 2).item() == pytest.approx(half / 4 + more * 3 / 4)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_are_unbiased(estimator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    log_probs, reference = distributions()
    expectation = (log_probs.exp() * estimator(log_probs, reference)).sum(-1)
    torch.testing.assert_close(expectation, exact_kl(log_probs, reference), rtol=1e-12, atol=1e-12)


def test_k2_is_biased_but_its_gradient_is_that_of_the_kl() -> None:
    log_probs, reference = distributions()
    expectation = (log_probs.exp() * k2(log_probs, reference)).sum(-1)
    assert (expectation - exact_kl(log_probs, reference)).abs().max() > 0.1

    logits = log_probs.clone().requires_grad_()
    (log_probs.exp() * k2(logits.log_softmax(-1), reference)).sum().backward()
    sampled, logits.grad = logits.grad, None
    exact_kl(logits, reference).sum().backward()
    assert sampled is not None
    torch.testing.assert_close(sampled, logits.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.05, 1.0),
        (0.055, 1 + 0.1 / 4),
        (0.045, 1 - 0.1 / 4),
        (0.1, 1 + 0.2 / 4),  # no more than a fifth counts,
        (9.0, 1 + 0.2 / 4),
        (0.0, 1 - 0.2 / 4),  # either way
    ],
)
def test_the_price_is_adapted(kl: float, factor: float) -> None:
    coef = adapted(torch.tensor(0.5), torch.tensor(kl), target=0.05, steps=25, horizon=100)
    assert coef.item() == pytest.approx(0.5 * factor, rel=1e-6)


class Fixed(PolicyNet):
    """Says the same logits of every state, and how many it was asked about."""

    def __init__(self, logits: torch.Tensor) -> None:
        nn.Module.__init__(self)
        self.says, self.asked = nn.Parameter(logits), 0

    def features(self, observations: torch.Tensor) -> torch.Tensor:
        self.asked += len(observations)
        return observations

    def dist_params(self, features: torch.Tensor) -> torch.Tensor:
        return self.says.expand(len(features), -1)


# π is uniform over 6 actions; the reference likes action 0 better than each of the others.
REFERENCE = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.1, 0.1]).log()
KL = (math.log(1 / 3) + 5 * math.log(10 / 6)) / 6


def test_every_valid_step_pays_for_its_action() -> None:
    played = random_rollout()
    played.actions[:] = torch.tensor([[0, 1], [2, 0], [3, 4], [0, 5]])
    rewards, valid = torch.arange(8.0).view(4, 2), torch.ones(4, 2, dtype=torch.bool)
    valid[3, 0] = False
    penalty = KLPenalty(Fixed(REFERENCE), 0.5, 0.0, 100)
    paid, parts = penalty.charge(played, rewards, valid, bf16=False)
    liked, other = -0.5 * math.log(1 / 3), -0.5 * math.log(10 / 6)
    prices = torch.tensor([[liked, other], [other, liked], [other, other], [0, other]])
    torch.testing.assert_close(paid, torch.arange(8.0).view(4, 2) + prices)
    assert rewards.tolist() == torch.arange(8.0).view(4, 2).tolist()
    assert parts["kl_ref"].item() == pytest.approx(KL, rel=1e-5)
    assert parts["kl_coef"].item() == 0.5
    assert not any(parameter.requires_grad for parameter in penalty.reference.parameters())


def test_the_kl_is_a_mean_over_valid_steps() -> None:
    played = random_rollout()
    played.dist_params[0] = REFERENCE  # no KL there
    valid = torch.ones(4, 2, dtype=torch.bool)
    valid[1:, 0] = False
    _, parts = KLPenalty(Fixed(REFERENCE), 0.5, 0.0, 100).charge(played, torch.zeros(4, 2), valid, bf16=False)
    assert parts["kl_ref"].item() == pytest.approx(KL * 3 / 5, rel=1e-5)


@pytest.mark.parametrize(("steps", "expected"), [(1, KL), (0, 0.0)])  # NaN would be the price for ever
def test_the_kl_of_few_valid_steps(steps: int, expected: float) -> None:
    played, valid = random_rollout(), torch.zeros(4, 2, dtype=torch.bool)
    valid[:steps, 0] = True
    _, parts = KLPenalty(Fixed(REFERENCE), 0.5, 0.0, 100).charge(played, torch.zeros(4, 2), valid, bf16=False)
    assert parts["kl_ref"].item() == pytest.approx(expected, rel=1e-5)


def test_without_a_price_the_last_step_is_watched_and_rewards_stay() -> None:
    played, reference = random_rollout(), Fixed(REFERENCE)
    rewards = torch.randn(4, 2, generator=torch.Generator().manual_seed(1))
    paid, parts = KLPenalty(reference, 0.0, 0.0, 100).charge(
        played, rewards, torch.ones(4, 2, dtype=torch.bool), bf16=False
    )
    assert torch.equal(paid, rewards)
    assert parts["kl_ref"].item() == pytest.approx(KL, rel=1e-5)
    assert reference.asked == 2


def test_frozen_features_serve_a_reference_of_the_same_body_alone() -> None:
    valid = torch.ones(4, 2, dtype=torch.bool)
    played = random_rollout()._replace(features=torch.zeros(4, 2, 6))
    asked = []
    for same_body in (True, False):
        reference = Fixed(REFERENCE)
        KLPenalty(reference, 0.5, 0.0, 100, same_body).charge(played, torch.zeros(4, 2), valid, bf16=False)
        asked.append(reference.asked)
    assert asked == [0, len(valid.flatten())]


def test_only_a_target_moves_the_price() -> None:
    fixed = KLPenalty(Fixed(REFERENCE), 0.5, 0.0, 100)
    fixed.adapt(torch.tensor(3.0), 10)
    assert fixed.coef.item() == 0.5
    moving = KLPenalty(Fixed(REFERENCE), 0.5, 0.1, 100)
    for _ in range(2):
        moving.adapt(torch.tensor(3.0), 10)
    assert moving.coef.item() == pytest.approx(0.5 * 1.02**2, rel=1e-6)
