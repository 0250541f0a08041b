"""Distributions over actions: sampling, log-probabilities, entropy and KL, of categorical and of Gaussian policies.

For each state a network returns one row of *distribution parameters*: A logits of a categorical policy over A actions; A
means followed by A logarithms of standard deviations of a Gaussian over actions of A numbers. The first four functions
take either, and tell them apart by the type of the actions or by `continuous`, so that no other code has to.

Each number of a Gaussian action is drawn independently. Its entropy is differential: nats, and below 0 for a narrow one.
"""

import math

import torch
from torch.nn import functional as F

_LOG_2PI = math.log(2 * math.pi)
_LOG_STD = -20.0, 2.0  # of a squashed Gaussian


def sample_actions(
    dist_params: torch.Tensor, generator: torch.Generator | None = None, continuous: bool = False
) -> torch.Tensor:
    """Draws aₜ ~ softmax(logits) without leaving the device, or from a Gaussian.

    argmaxₐ pₐ / eₐ with eₐ ~ Exp(1) is distributed as p (an exponential race, the Gumbel-max trick).

    Args:
      dist_params: float32 `[B, A]` logits, or `[B, 2A]` of a Gaussian.
      generator: source of randomness on the same device.
      continuous: whether the policy is a Gaussian.

    Returns:
      int64 `[B]`, or float32 `[B, A]` without bounds.
    """
    if continuous:
        return gaussian_sample(dist_params, generator)
    race = torch.empty_like(dist_params).exponential_(generator=generator)
    return (dist_params.softmax(-1) / race).argmax(-1)


def log_prob_of(dist_params: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log π(aₜ|sₜ), float `[...]`, of `[..., A]` logits and int64 actions `[...]`, or of `[..., 2A]` and float `[..., A]`."""
    if actions.is_floating_point():
        return gaussian_log_prob(dist_params, actions)
    return dist_params.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def entropy_of(dist_params: torch.Tensor, continuous: bool = False) -> torch.Tensor:
    """H(π(·|sₜ)) in nats, float `[...]`, of `[..., A]` logits, or of `[..., 2A]` of a Gaussian."""
    if continuous:
        return gaussian_entropy(dist_params)
    log_probs = dist_params.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def exact_kl(dist_params: torch.Tensor, reference: torch.Tensor, continuous: bool = False) -> torch.Tensor:
    """KL(π ‖ π_ref) = Σₐ π(a) (log π(a) − log π_ref(a)), in nats.

    Args:
      dist_params: of π, float `[..., A]` logits, or `[..., 2A]` of a Gaussian.
      reference: the same of π_ref.
      continuous: whether both are Gaussians.

    Returns:
      float `[...]`.
    """
    if continuous:
        return gaussian_kl(dist_params, reference)
    log_probs = dist_params.log_softmax(-1)
    return (log_probs.exp() * (log_probs - reference.log_softmax(-1))).sum(-1)


def gaussian_sample(dist_params: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draws aₜ ~ N(μ, σ²) without leaving the device: float `[..., 2A]` to float `[..., A]`."""
    mean, log_std = dist_params.chunk(2, -1)
    noise = torch.empty_like(mean).normal_(generator=generator)
    return mean + log_std.exp() * noise


def squashed_sample(dist_params: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws a = tanh(u), u ~ N(μ, σ²), and says how likely it was.

        log π(a) = log N(u; μ, σ²) − Σᵢ log(1 − tanh² uᵢ),   log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u))

    Source: Haarnoja et al. 2018, arXiv 1812.05905, appendix C; the second form does not overflow.

    Args:
      dist_params: float `[..., 2A]`, μ and log σ, clamped to −20 … 2.
      noise: float `[..., A]`, standard normal.

    Returns:
      Actions within ±1, float `[..., A]`, and log π(a), float `[...]`. Gradients flow through both.
    """
    mean, log_std = dist_params.chunk(2, -1)
    log_std = log_std.clamp(*_LOG_STD)
    drawn = mean + log_std.exp() * noise
    squeeze = 2 * (math.log(2) - drawn - F.softplus(-2 * drawn))
    return drawn.tanh(), -(noise.square() / 2 + log_std + _LOG_2PI / 2 + squeeze).sum(-1)


def gaussian_log_prob(dist_params: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log π(a) = −Σᵢ ½ ((aᵢ − μᵢ) / σᵢ)² + log σᵢ + ½ log 2π, the density of the action as it was drawn.

    Args:
      dist_params: float `[..., 2A]`.
      actions: float `[..., A]`, before bounds clip them.

    Returns:
      float `[...]`.
    """
    mean, log_std = dist_params.chunk(2, -1)
    return -(((actions - mean) / log_std.exp()).square() / 2 + log_std + _LOG_2PI / 2).sum(-1)


def gaussian_entropy(dist_params: torch.Tensor) -> torch.Tensor:
    """H = Σᵢ log σᵢ + ½ log 2πe, float `[..., 2A]` to `[...]`."""
    _, log_std = dist_params.chunk(2, -1)
    return (log_std + (1 + _LOG_2PI) / 2).sum(-1)


def gaussian_kl(dist_params: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(π ‖ π_ref) = Σᵢ log σ_ref − log σ + (σ² + (μ − μ_ref)²) / (2 σ_ref²) − ½, float `[..., 2A]` each to `[...]`."""
    mean, log_std = dist_params.chunk(2, -1)
    reference_mean, reference_log_std = reference.chunk(2, -1)
    log_ratio = log_std - reference_log_std
    apart = ((mean - reference_mean) / reference_log_std.exp()).square()
    return (((2 * log_ratio).exp() + apart - 1) / 2 - log_ratio).sum(-1)
