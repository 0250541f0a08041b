"""The estimators on sequences of tokens: one score at the end, a KL penalty at every token.

Time runs down as everywhere here, `[T, B]`: T tokens of B answers, padded behind their last one. With these, the
estimators of `lib.agent.returns` give what DeepSpeed-Chat and OpenRLHF publish; see docs/algorithms.md.
"""

import torch

from lib.agent.returns import (
    discounted_returns,
    group_normalised,
    lambda_advantages,
    leave_one_out,
    normalised,
)
from lib.learner import ALONE, Total


def last_tokens(mask: torch.Tensor) -> torch.Tensor:
    """The last real token of each sequence.

    Args:
      mask: bool `[T, B]`, False on padding; each sequence has a real token.

    Returns:
      bool `[T, B]`.
    """
    at = torch.arange(len(mask), device=mask.device).unsqueeze(1)
    return at == torch.where(mask, at, -1).amax(0)


def token_rewards(
    scores: torch.Tensor,
    kl: torch.Tensor,
    mask: torch.Tensor,
    kl_coef: float | torch.Tensor,
    score_clip: float,
) -> torch.Tensor:
    """−β klₜ at every real token, and the clipped score on top of that at the last.

    Source: Ouyang et al. 2022, arXiv 2203.02155, eq. 2. DeepSpeed-Chat: k1, clip 5; OpenRLHF: k1, k2 or k3 clamped to
    ±10, clip 10.

    Args:
      scores: float `[B]`, what a reward model says of each whole answer.
      kl: float `[T, B]`, an estimate of `lib.agent.kl` at each token.
      mask: bool `[T, B]`, False on padding.
      kl_coef: β.
      score_clip: scores count up to ± this.

    Returns:
      float `[T, B]`; 0 on padding.
    """
    paid = torch.where(last_tokens(mask), scores.clamp(-score_clip, score_clip), 0.0)
    return torch.where(mask, paid - kl_coef * kl, 0.0)


def token_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lambda_: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantages over each answer, which ends with its last real token.

    Args:
      rewards: float `[T, B]`, of `token_rewards`.
      values: float `[T, B]`, vₜ of the critic before token t is added.
      mask: bool `[T, B]`, False on padding.
      gamma: discount γ.
      lambda_: mixing parameter λ.

    Returns:
      Advantages and returns, float `[T, B]` each; 0 on padding.
    """
    values = torch.where(mask, values, 0.0)
    after = torch.cat([values, torch.zeros_like(values[:1])])
    advantages = lambda_advantages(rewards, after, last_tokens(mask), torch.zeros_like(mask), gamma, lambda_)
    return advantages, advantages + values


def answer_advantages(
    estimator: str,
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    answers: int = 1,
    gamma: float = 1.0,
    lambda_: float = 0.95,
    total: Total = ALONE.total,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's advantage, by an estimator:

    =========  ====================================================================================
    ppo        generalised advantages over the critic's values, normalised over the batch's tokens
    reinforce  discounted rewards from the token on, normalised over the batch's tokens
    rloo       the answer's whole reward less the mean of the other answers to its prompt
    grpo       the same less the mean of all of them, in their standard deviations
    =========  ====================================================================================

    In rloo and grpo the KL penalty is part of an answer's reward before the baseline is subtracted, as in Ahmadian et
    al. 2024 (arXiv 2402.14740, eq. 1 and 6), so both aim for the policy π ∝ π_ref exp(r/β). Shao et al. 2024 (arXiv
    2402.03300) put it into the loss instead.

    Args:
      estimator: its name.
      rewards: float `[T, B]`, of `token_rewards`.
      values: float `[T, B]`, as in `token_advantages`; only ppo looks at them.
      mask: bool `[T, B]`, False on padding.
      answers: to each prompt, side by side among the B.
      gamma: discount γ of ppo and reinforce.
      lambda_: mixing parameter λ of ppo.
      total: sums over all processes; normalised is over the tokens of all.

    Returns:
      Advantages and the returns that values are fitted to, float `[T, B]` each; 0 on padding.
    """
    if estimator == "ppo":
        advantages, returns = token_advantages(rewards, values, mask, gamma, lambda_)
        return normalised(advantages, mask, total), returns
    returns = discounted_returns(rewards, last_tokens(mask), gamma) * mask
    if estimator == "reinforce":
        return normalised(returns, mask, total), returns
    whole = rewards.sum(0).view(-1, answers)
    baselined = leave_one_out(whole) if estimator == "rloo" else group_normalised(whole)
    return baselined.flatten() * mask, returns
