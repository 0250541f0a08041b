"""Losses of an actor-critic's pass over a rollout. A2C and PPO are settings of one loss.

PPO: Schulman et al. 2017, arXiv 1707.06347. A2C: Mnih et al. 2016, arXiv 1602.01783. That A2C is PPO of one pass:
Huang et al. 2022, arXiv 2205.09123.
"""

import torch

from lib.agent.distributions import entropy_of, log_prob_of


def surrogate_loss(log_ratio: torch.Tensor, advantages: torch.Tensor, clip_range: float) -> torch.Tensor:
    """Clipped surrogate of the policy gradient, of each step.

        −min(ρₜ Âₜ, clip(ρₜ, 1 − ε, 1 + ε) Âₜ),  ρₜ = π(aₜ|sₜ) / π_old(aₜ|sₜ)

    At ρ = 1 its gradient is that of −log π(aₜ|sₜ) Âₜ.

    Source: arXiv 1707.06347, eq. 7.

    Args:
      log_ratio: float `[...]`, log ρₜ.
      advantages: float `[...]`.
      clip_range: ε; 0 leaves the ratio free.

    Returns:
      float `[...]`.
    """
    ratio = log_ratio.exp()
    if clip_range == 0:
        return -ratio * advantages
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_range, 1 + clip_range) * advantages)


def value_error(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip_range: float
) -> torch.Tensor:
    """Squared error of each value, pessimistic about moves of more than `clip_range` away from the old one.

        max((vₜ − Gₜ)², (v_old + clip(vₜ − v_old, ±ε_v) − Gₜ)²)

    No factor of ½: where a source has one, it is in the weight of the value loss here.

    Source: the PPO of OpenAI's baselines; detail 9 of Huang et al. 2022, "The 37 implementation details of PPO".

    Args:
      values: float `[...]`, vₜ.
      old_values: float `[...]`, those at the time of the rollout.
      returns: float `[...]`, Gₜ.
      clip_range: ε_v; 0 leaves the value free.

    Returns:
      float `[...]`.
    """
    error = (values - returns).square()
    if clip_range == 0:
        return error
    clipped = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return torch.maximum(error, (clipped - returns).square())


def actor_critic_loss(
    dist_params: torch.Tensor,
    values: torch.Tensor,
    actions: torch.Tensor,
    old_log_probs: torch.Tensor | None,
    old_values: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    valid: torch.Tensor,
    count: torch.Tensor,
    *,
    clip_range: float,
    value_clip_range: float,
    entropy_coef: float,
    value_coef: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Policy gradient, squared value error and entropy bonus, averaged over the valid steps.

        L = mean[ surrogateₜ + c_v value errorₜ − c_e H(π(·|sₜ)) ]

    Args:
      dist_params: float32 `[N, A]` logits, or `[N, 2A]` of a Gaussian.
      values: float32 `[N]`, v(sₜ).
      actions: int64 `[N]`, or float32 `[N, A]` as they were drawn.
      old_log_probs: float32 `[N]`, log π_old(aₜ|sₜ); None where the policy is still the one that acted, so that the
        ratio is exactly 1 and the loss that of A2C.
      old_values: float32 `[N]`, those at the time of the rollout.
      advantages: float32 `[N]`, Âₜ; no gradient flows through them.
      returns: float32 `[N]`, Gₜ; nor through these.
      valid: bool `[N]`; False where the environment ignored the action.
      count: valid steps that the mean is over, those of other processes included. Losses
        and gradients are then this process's part of a sum.
      clip_range: of `surrogate_loss`.
      value_clip_range: of `value_error`.
      entropy_coef: c_e.
      value_coef: c_v.

    Returns:
      The loss, and the detached parts by chart name: `approx_kl` is Schulman's k3 estimate of KL(π_old ‖ π),
      `clip_fraction` the share of steps whose ratio is beyond the clip range.
    """
    weight = valid / count.clamp(min=1)
    log_prob = log_prob_of(dist_params, actions)
    old = log_prob.detach() if old_log_probs is None else old_log_probs
    # The ratio of an ignored action means nothing, and one that overflows would survive a weight of 0.
    log_ratio = torch.where(valid, log_prob - old, 0.0)
    entropy = entropy_of(dist_params, actions.is_floating_point())

    policy_loss = (surrogate_loss(log_ratio, advantages.detach(), clip_range) * weight).sum()
    value_loss = (value_error(values, old_values, returns.detach(), value_clip_range) * weight).sum()
    entropy_loss = -entropy_coef * (entropy * weight).sum()
    loss = policy_loss + value_coef * value_loss + entropy_loss
    moved = log_ratio.detach()
    beyond = (moved.exp() - 1).abs() > clip_range if clip_range else torch.zeros_like(valid)
    parts = {
        "loss_policy": policy_loss,
        "loss_value": value_loss,
        "loss_entropy": entropy_loss,
        "loss_total": loss,
        "values": (values * weight).sum(),
        "entropy": (entropy * weight).sum(),
        "approx_kl": ((moved.exp() - 1 - moved) * weight).sum(),
        "clip_fraction": (beyond * weight).sum(),
    }
    return loss, {name: part.detach() for name, part in parts.items()}
