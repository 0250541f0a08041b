"""Estimators on token sequences: by hand, and against the formulas that DeepSpeed-Chat and OpenRLHF publish.

The formulas are written out here as plain sums over Python numbers, one answer at a time.
"""

import math
from collections.abc import Callable

import pytest
import torch

from lib.agent.actor_critic import surrogate_loss, value_error
from lib.agent.leash import k1, k2, k3
from lib.agent.returns import discounted_returns, group_normalised, leave_one_out, normalised
from lib.agent.sequences import last_tokens, token_advantages, token_rewards

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LENGTHS = (4, 1, 3, 6)  # of four answers, padded to six tokens
MASK = torch.arange(6).unsqueeze(1) < torch.tensor(LENGTHS)


def noise(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOG_PROBS, REFERENCE = -noise(0, 6, 4, scale=3).abs(), -noise(1, 6, 4, scale=8).abs()
SCORES, VALUES = torch.tensor([3.0, -40.0, 12.0, -4.0], dtype=torch.float64), noise(2, 6, 4)


def test_by_hand() -> None:
    """Three tokens and one of padding, β ½, a score of 9 that counts as 5."""
    mask = torch.tensor([[True], [True], [True], [False]])
    kl, values = torch.tensor([[0.1], [0.2], [-0.1], [7.0]]), torch.tensor([[1.0], [2.0], [3.0], [99.0]])
    assert last_tokens(mask).squeeze(1).tolist() == [False, False, True, False]
    rewards = token_rewards(torch.tensor([9.0]), kl, mask, 0.5, 5)
    assert rewards.squeeze(1).tolist() == pytest.approx([-0.05, -0.1, 5.05, 0])
    advantages, returns = token_advantages(rewards, values, mask, gamma=1.0, lambda_=0.5)
    # δ = −0.05 + 2 − 1, −0.1 + 3 − 2, 5.05 − 3; each adds half of what follows.
    expected = [0.95 + 0.5 * 1.925, 0.9 + 0.5 * 2.05, 2.05, 0]
    assert advantages.squeeze(1).tolist() == pytest.approx(expected)
    assert returns.squeeze(1).tolist() == pytest.approx([2.9125, 3.925, 5.05, 0])


def generalised(rewards: list[float], values: list[float], gamma: float, lambda_: float) -> list[float]:
    """Âₜ = Σ_l (γλ)^l δₜ₊ₗ with no value behind the last token, written as the double sum."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]
    return [
        sum((gamma * lambda_) ** (i - t) * deltas[i] for i in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


def clamped(x: float, most: float) -> float:
    return max(-most, min(most, x))


@pytest.mark.parametrize("closing", [0, 1])
def test_deepspeed_chat(closing: int) -> None:
    """k1 priced 0.1 at every token, the score clipped to ±5 at the last, γ 1, λ 0.95, both clips 0.2.

    Its end-of-text token is its padding token: the rewards and advantages of an answer run over one position more
    than the losses do, where the answer is not cut by the length limit (`closing` 1).
    """
    kl_coef, gamma, lambda_, clip = 0.1, 1.0, 0.95, 0.2
    whole = torch.arange(6).unsqueeze(1) < torch.tensor(LENGTHS) + closing
    rewards = token_rewards(SCORES, k1(LOG_PROBS, REFERENCE), whole, kl_coef, 5)
    advantages, returns = token_advantages(rewards, VALUES, whole, gamma, lambda_)
    new_log_probs, new_values = LOG_PROBS + noise(3, 6, 4, scale=0.3), VALUES + noise(4, 6, 4, scale=0.4)
    actor = surrogate_loss(new_log_probs - LOG_PROBS, advantages, clip)[MASK].mean()
    critic = 0.5 * value_error(new_values, VALUES, returns, clip)[MASK].mean()

    actor_terms, critic_terms, cut = [], [], 0
    for b, length in enumerate(LENGTHS):
        end = min(length + closing, 6)
        priced = [-kl_coef * (LOG_PROBS[t, b] - REFERENCE[t, b]).item() for t in range(end)]
        priced[-1] += clamped(SCORES[b].item(), 5)
        values = VALUES[:end, b].tolist()
        expected = generalised(priced, values, gamma, lambda_)
        assert advantages[:end, b].tolist() == pytest.approx(expected)
        assert returns[:end, b].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, values, strict=True)]
        )
        assert not advantages[end:, b].any()
        for t in range(length):
            ratio = math.exp(new_log_probs[t, b] - LOG_PROBS[t, b])
            bounded = min(max(ratio, 1 - clip), 1 + clip)
            cut += bounded != ratio
            actor_terms.append(max(-expected[t] * ratio, -expected[t] * bounded))
            value, old = new_values[t, b].item(), values[t]
            target = expected[t] + old
            near = min(max(value, old - clip), old + clip)
            critic_terms.append(max((value - target) ** 2, (near - target) ** 2))
    assert 0 < cut < len(actor_terms)
    assert actor.item() == pytest.approx(sum(actor_terms) / len(actor_terms))
    assert critic.item() == pytest.approx(0.5 * sum(critic_terms) / len(critic_terms))


def openrlhf_rewards(estimator: str, scores: list[float], kl_coef: float) -> list[list[float]]:
    """−β clip(k, ±10) at every token of each answer, the score clipped to ±10 on top at the last."""
    paid = []
    for b, length in enumerate(LENGTHS):
        ratios = [(LOG_PROBS[t, b] - REFERENCE[t, b]).item() for t in range(length)]
        of = {"k1": lambda x: x, "k2": lambda x: x * x / 2, "k3": lambda x: math.exp(-x) - 1 + x}[estimator]
        tokens = [-kl_coef * clamped(of(ratio), 10) for ratio in ratios]
        tokens[-1] += clamped(scores[b], 10)
        paid.append(tokens)
    return paid


@pytest.mark.parametrize(("name", "estimator"), [("k1", k1), ("k2", k2), ("k3", k3)])
def test_openrlhf_ppo(name: str, estimator: Estimator) -> None:
    kl = estimator(LOG_PROBS, REFERENCE)
    assert kl[MASK].abs().max() > 10
    rewards = token_rewards(SCORES, kl.clamp(-10, 10), MASK, 0.05, 10)
    advantages, returns = token_advantages(rewards, VALUES, MASK, 0.99, 0.9)
    paid = openrlhf_rewards(name, SCORES.tolist(), 0.05)
    for b, length in enumerate(LENGTHS):
        values = VALUES[:length, b].tolist()
        expected = generalised(paid[b], values, 0.99, 0.9)
        assert rewards[:, b].tolist() == pytest.approx(paid[b] + [0.0] * (6 - length))
        assert advantages[:length, b].tolist() == pytest.approx(expected)
        assert returns[:length, b].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, values, strict=True)]
        )


def mean_and_deviation(numbers: list[float], freedom: int) -> tuple[float, float]:
    mean = sum(numbers) / len(numbers)
    return mean, math.sqrt(sum((number - mean) ** 2 for number in numbers) / (len(numbers) - freedom))


@pytest.mark.parametrize("kind", ["reinforce", "rloo", "group_norm"])
def test_openrlhf_without_a_critic(kind: str) -> None:
    """Two answers a prompt; the baseline is taken off the score, the price of each token is not.

    REINFORCE has no baseline, and its advantages are normalised over all tokens of the batch.
    """
    groups = SCORES.view(2, 2)
    scores = {"reinforce": groups, "rloo": leave_one_out(groups), "group_norm": group_normalised(groups)}[
        kind
    ]
    rewards = token_rewards(scores.flatten(), k1(LOG_PROBS, REFERENCE).clamp(-10, 10), MASK, 0.05, 10)
    advantages = discounted_returns(rewards, last_tokens(MASK), 1.0)
    if kind == "reinforce":
        advantages = normalised(advantages, MASK)

    baselined = []
    for mine, other in ((3.0, -40.0), (-40.0, 3.0), (12.0, -4.0), (-4.0, 12.0)):
        mean, deviation = mean_and_deviation([mine, other], 1)
        baselined.append(
            {"reinforce": mine, "rloo": mine - other, "group_norm": (mine - mean) / (deviation + 1e-9)}[kind]
        )
    paid = openrlhf_rewards("k1", baselined, 0.05)
    expected = [[sum(tokens[t:]) for t in range(len(tokens))] for tokens in paid]
    if kind == "reinforce":
        mean, deviation = mean_and_deviation([a for answer in expected for a in answer], 0)
        expected = [[(a - mean) / deviation for a in answer] for answer in expected]
    for b, length in enumerate(LENGTHS):
        assert advantages[:length, b].tolist() == pytest.approx(expected[b])
        assert not advantages[length:, b].any()
