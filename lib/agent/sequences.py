"""The estimators on sequences of tokens: one score at the end, a price of straying at every token.

Time runs down as everywhere here, `[T, B]`: T tokens of B answers, padded behind their last one. With these, the
estimators of `lib.agent.returns` give what DeepSpeed-Chat and OpenRLHF publish; see docs/algorithms.md.
"""

import torch

from lib.agent.returns import lambda_advantages


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
    scores: torch.Tensor, kl: torch.Tensor, mask: torch.Tensor, kl_coef: float, score_clip: float
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
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0, lambda_: float = 0.95
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantages over each answer, which ends for good with its last real token.

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
    rewards = torch.where(mask, rewards, 0.0)
    after = torch.cat([values, torch.zeros_like(values[:1])])
    advantages = lambda_advantages(rewards, after, last_tokens(mask), torch.zeros_like(mask), gamma, lambda_)
    return advantages, advantages + values
