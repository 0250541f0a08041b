"""The preference loss of Bradley & Terry, as Christiano et al. use it (arXiv 1706.03741, eq. 1)."""

import torch
from torch.nn import functional as F


def preference_loss(return1: torch.Tensor, return2: torch.Tensor, preference1: torch.Tensor) -> torch.Tensor:
    """Cross-entropy between the teacher's preferences and the model's, one value a pair.

        P[1 ≻ 2] = exp R₁ / (exp R₁ + exp R₂) = σ(R₁ − R₂)
        L = −μ log P[1 ≻ 2] − (1 − μ) log P[2 ≻ 1]

    Args:
      return1: float `[N]`, R₁ = Σₜ r̂(oₜ, aₜ) over the first segment.
      return2: float `[N]`, R₂ over the second.
      preference1: float `[N]`, μ: 1 where the first is better, 0 where the second is, ½ where they are alike.

    Returns:
      float `[N]`.
    """
    return F.binary_cross_entropy_with_logits(return1 - return2, preference1, reduction="none")


def preference_accuracy(
    return1: torch.Tensor, return2: torch.Tensor, preference1: torch.Tensor
) -> torch.Tensor:
    """Where the model prefers the segment that the teacher prefers; ties of the teacher are left out.

    Args:
      return1: float `[N]`.
      return2: float `[N]`.
      preference1: float `[N]`, μ as above.

    Returns:
      bool `[M]`, one for each of the M pairs that are no tie.
    """
    decided = preference1 != 0.5
    return (return1 > return2)[decided] == (preference1 == 1)[decided]
