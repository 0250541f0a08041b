"""Advantage actor-critic: choosing actions, and the loss of one update (Mnih et al. 2016, arXiv 1602.01783)."""

import torch
from torch.nn import functional as F


def sample_actions(logits: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draws aₜ ~ softmax(logits) without leaving the device.

    argmaxₐ pₐ / eₐ with eₐ ~ Exp(1) is distributed as p (an exponential race, the Gumbel-max trick).

    Args:
      logits: float32 `[B, A]`.
      generator: source of randomness on the logits' device.

    Returns:
      int64 `[B]`.
    """
    race = torch.empty_like(logits).exponential_(generator=generator)
    return (logits.softmax(-1) / race).argmax(-1)


def a2c_loss(
    logits: torch.Tensor,
    values: torch.Tensor,
    actions: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    valid: torch.Tensor,
    entropy_coef: float,
    value_coef: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Policy gradient, squared value error and entropy bonus, averaged over the valid steps.

        L = mean[ −log π(aₜ|sₜ) Âₜ + c_v (v(sₜ) − Gₜ)² − c_e H(π(·|sₜ)) ]

    Args:
      logits: float32 `[N, A]`.
      values: float32 `[N]`, v(sₜ).
      actions: int64 `[N]`.
      advantages: float32 `[N]`, Âₜ; no gradient flows through them.
      returns: float32 `[N]`, Gₜ.
      valid: bool `[N]`; False where the environment ignored the action.
      entropy_coef: c_e.
      value_coef: c_v.

    Returns:
      The loss, and the detached parts by the original's chart names.
    """
    weight = valid.float() / valid.sum().clamp(min=1)
    log_probs = logits.log_softmax(-1)
    log_prob = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    policy_loss = -(log_prob * advantages.detach() * weight).sum()
    value_loss = (F.mse_loss(values, returns.detach(), reduction="none") * weight).sum()
    entropy_loss = -entropy_coef * (entropy * weight).sum()
    loss = policy_loss + value_coef * value_loss + entropy_loss
    parts = {
        "loss_policy": policy_loss,
        "loss_value": value_loss,
        "loss_entropy": entropy_loss,
        "loss_total": loss,
        "advantage": (advantages * weight).sum(),
        "values": (values * weight).sum(),
        "batch_rewards": (returns * weight).sum(),
        "entropy": (entropy * weight).sum(),
    }
    return loss, {name: part.detach() for name, part in parts.items()}
