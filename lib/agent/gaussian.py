"""Gaussian policies: each number of a continuous action is drawn by itself, with a spread that no state decides.

A policy's *parameters* are one row a state, whatever its kind: A logits of a categorical policy, A means followed by A
logarithms of standard deviations of a Gaussian one. Entropies are differential: nats, and below 0 for a narrow policy.
"""

import math

import torch

_LOG_2PI = math.log(2 * math.pi)


def gaussian_sample(parameters: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draws aₜ ~ N(μ, σ²) without leaving the device: float `[..., 2A]` to float `[..., A]`."""
    mean, log_std = parameters.chunk(2, -1)
    noise = torch.empty_like(mean).normal_(generator=generator)
    return mean + log_std.exp() * noise


def gaussian_log_prob(parameters: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log π(a) = −Σᵢ ½ ((aᵢ − μᵢ) / σᵢ)² + log σᵢ + ½ log 2π, the density of the action as it was drawn.

    Args:
      parameters: float `[..., 2A]`.
      actions: float `[..., A]`, before bounds clip them.

    Returns:
      float `[...]`.
    """
    mean, log_std = parameters.chunk(2, -1)
    return -(((actions - mean) / log_std.exp()).square() / 2 + log_std + _LOG_2PI / 2).sum(-1)


def gaussian_entropy(parameters: torch.Tensor) -> torch.Tensor:
    """H = Σᵢ log σᵢ + ½ log 2πe, float `[..., 2A]` to `[...]`."""
    _, log_std = parameters.chunk(2, -1)
    return (log_std + (1 + _LOG_2PI) / 2).sum(-1)


def gaussian_kl(parameters: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(π ‖ π_ref) = Σᵢ log σ_ref − log σ + (σ² + (μ − μ_ref)²) / (2 σ_ref²) − ½, float `[..., 2A]` each to `[...]`."""
    mean, log_std = parameters.chunk(2, -1)
    reference_mean, reference_log_std = reference.chunk(2, -1)
    log_ratio = log_std - reference_log_std
    apart = ((mean - reference_mean) / reference_log_std.exp()).square()
    return (((2 * log_ratio).exp() + apart - 1) / 2 - log_ratio).sum(-1)
