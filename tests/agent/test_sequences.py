"""Estimators on token sequences: by hand, and against the formulas that DeepSpeed-Chat and OpenRLHF publish.

The formulas are written out here as plain sums over Python numbers, one answer at a time.
"""

import math
from collections.abc import Callable

import pytest
import torch

from lib.agent.kl import k1, k2, k3
from lib.agent.losses import surrogate_loss, value_error
from lib.agent.returns import discounted_returns, group_normalised, leave_one_out
from lib.agent.sequences import answer_advantages, last_tokens, token_advantages, token_rewards

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LENGTHS = (4, 1, 3, 6)  # of four answers, padded to six tokens
MASK = torch.arange(6).unsqueeze(1) < torch.tensor(LENGTHS)


def noise(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOG_PROBS, REFERENCE = -noise(0, 6, 4, scale=3).abs(), -noise(1, 6, 4, scale=8).abs()
SCORES, VALUES = torch.tensor([3.0, -40.0, 12.0, -4.0], dtype=torch.float64), noise(2, 6, 4)
# After some passes over the batch.
NEW_LOG_PROBS, NEW_VALUES = LOG_PROBS + noise(3, 6, 4, scale=0.3), VALUES + noise(4, 6, 4, scale=0.4)


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


def check_losses(
    advantages: torch.Tensor,
    returns: torch.Tensor,
    expected_advantages: list[list[float]],
    expected_returns: list[list[float]],
    clip: float,
) -> None:
    """Holds the means over all tokens to plain sums of the clipped surrogate and of half the clipped squared error.

    Args:
      advantages, returns: float `[T, B]`.
      expected_advantages, expected_returns: of each answer, each token; what is beyond its length does not count.
      clip: of the ratio and of the value.
    """
    actor, critic, cut, held = [], [], 0, 0
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            advantage, target = expected_advantages[b][t], expected_returns[b][t]
            ratio = math.exp(NEW_LOG_PROBS[t, b] - LOG_PROBS[t, b])
            bounded = min(max(ratio, 1 - clip), 1 + clip)
            actor.append(max(-advantage * ratio, -advantage * bounded))
            value, old = NEW_VALUES[t, b].item(), VALUES[t, b].item()
            near = min(max(value, old - clip), old + clip)
            critic.append(max((value - target) ** 2, (near - target) ** 2))
            cut, held = cut + (actor[-1] != -advantage * ratio), held + (critic[-1] != (value - target) ** 2)
    assert 0 < cut < len(actor)
    assert 0 < held < len(critic)
    surrogate = surrogate_loss(NEW_LOG_PROBS - LOG_PROBS, advantages, clip)[MASK].mean()
    assert surrogate.item() == pytest.approx(sum(actor) / len(actor))
    error = 0.5 * value_error(NEW_VALUES, VALUES, returns, clip)[MASK].mean()
    assert error.item() == pytest.approx(0.5 * sum(critic) / len(critic))


@pytest.mark.parametrize("closing", [0, 1])
def test_deepspeed_chat(closing: int) -> None:
    """k1 priced 0.1 at every token, the score clipped to ±5 at the last, γ 1, λ 0.95, both clips 0.2.

    Its end-of-text token is its padding token: the rewards and advantages of an answer run over one position more
    than the losses do, where the answer is not cut by the length limit (`closing` 1).
    """
    kl_coef, gamma, lambda_ = 0.1, 1.0, 0.95
    whole = torch.arange(6).unsqueeze(1) < torch.tensor(LENGTHS) + closing
    rewards = token_rewards(SCORES, k1(LOG_PROBS, REFERENCE), whole, kl_coef, 5)
    advantages, returns = token_advantages(rewards, VALUES, whole, gamma, lambda_)

    expected_advantages, expected_returns = [], []
    for b, length in enumerate(LENGTHS):
        end = min(length + closing, 6)
        priced = [-kl_coef * (LOG_PROBS[t, b] - REFERENCE[t, b]).item() for t in range(end)]
        priced[-1] += clamped(SCORES[b].item(), 5)
        values = VALUES[:end, b].tolist()
        expected_advantages.append(generalised(priced, values, gamma, lambda_))
        expected_returns.append([a + v for a, v in zip(expected_advantages[b], values, strict=True)])
        assert advantages[:end, b].tolist() == pytest.approx(expected_advantages[b])
        assert returns[:end, b].tolist() == pytest.approx(expected_returns[b])
        assert not advantages[end:, b].any()
    check_losses(advantages, returns, expected_advantages, expected_returns, 0.2)


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


def mean_and_deviation(numbers: list[float], freedom: int) -> tuple[float, float]:
    mean = sum(numbers) / len(numbers)
    return mean, math.sqrt(sum((number - mean) ** 2 for number in numbers) / (len(numbers) - freedom))


def whitened(answers: list[list[float]]) -> list[list[float]]:
    """Mean 0 and variance 1 over all tokens of the batch."""
    mean, deviation = mean_and_deviation([number for answer in answers for number in answer], 0)
    return [[(number - mean) / deviation for number in answer] for answer in answers]


@pytest.mark.parametrize(("name", "estimator"), [("k1", k1), ("k2", k2), ("k3", k3)])
def test_openrlhf_ppo(name: str, estimator: Estimator) -> None:
    """Returns are of the advantages as they are, the actor learns from the normalised ones."""
    kl = estimator(LOG_PROBS, REFERENCE)
    assert kl[MASK].abs().max() > 10
    rewards = token_rewards(SCORES, kl.clamp(-10, 10), MASK, 0.05, 10)
    advantages, returns = token_advantages(rewards, VALUES, MASK, 0.99, 0.9)
    paid = openrlhf_rewards(name, SCORES.tolist(), 0.05)
    expected_advantages, expected_returns = [], []
    for b, length in enumerate(LENGTHS):
        values = VALUES[:length, b].tolist()
        expected_advantages.append(generalised(paid[b], values, 0.99, 0.9))
        expected_returns.append([a + v for a, v in zip(expected_advantages[b], values, strict=True)])
        assert rewards[:, b].tolist() == pytest.approx(paid[b] + [0.0] * (6 - length))
        assert advantages[:length, b].tolist() == pytest.approx(expected_advantages[b])
        assert returns[:length, b].tolist() == pytest.approx(expected_returns[b])
    advantages, returns = answer_advantages("ppo", rewards, VALUES, MASK, gamma=0.99, lambda_=0.9)
    check_losses(advantages, returns, whitened(expected_advantages), expected_returns, 0.2)


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
    if kind == "reinforce":
        advantages, _ = answer_advantages(kind, rewards, VALUES, MASK)
    else:
        advantages = discounted_returns(rewards, last_tokens(MASK), 1.0)

    baselined = []
    for mine, other in ((3.0, -40.0), (-40.0, 3.0), (12.0, -4.0), (-4.0, 12.0)):
        mean, deviation = mean_and_deviation([mine, other], 1)
        baselined.append(
            {"reinforce": mine, "rloo": mine - other, "group_norm": (mine - mean) / (deviation + 1e-9)}[kind]
        )
    paid = openrlhf_rewards("k1", baselined, 0.05)
    expected = [[sum(tokens[t:]) for t in range(len(tokens))] for tokens in paid]
    if kind == "reinforce":
        expected = whitened(expected)
    for b, length in enumerate(LENGTHS):
        assert advantages[:length, b].tolist() == pytest.approx(expected[b])
        assert not advantages[length:, b].any()


@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
def test_answers_to_one_prompt_are_compared_with_the_price_of_straying_in_their_reward(
    estimator: str,
) -> None:
    """Ahmadian et al. 2024, eq. 1 and 6: R = clip(r) − β (log π − log π_ref) of the whole answer, less the others' mean.

    GRPO's advantage is the same R in standard deviations of the group.
    """
    rewards = token_rewards(SCORES, k1(LOG_PROBS, REFERENCE), MASK, 0.05, 10)
    advantages, _ = answer_advantages(estimator, rewards, VALUES, MASK, 2)
    whole = [
        clamped(SCORES[b].item(), 10)
        - 0.05 * sum((LOG_PROBS[t, b] - REFERENCE[t, b]).item() for t in range(length))
        for b, length in enumerate(LENGTHS)
    ]
    for b, length in enumerate(LENGTHS):
        mine, other = whole[b], whole[b ^ 1]
        mean, deviation = mean_and_deviation([mine, other], 1)
        expected = mine - other if estimator == "rloo" else (mine - mean) / (deviation + 1e-9)
        assert advantages[:length, b].tolist() == pytest.approx([expected] * length)
        assert not advantages[length:, b].any()
