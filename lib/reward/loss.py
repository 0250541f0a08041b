"""The losses of a fit: the preference loss of Christiano et al. (arXiv 1706.03741), and the original's."""

import math

import torch
from torch.nn import functional as F


def preference_loss(
    return1: torch.Tensor, return2: torch.Tensor, preference1: torch.Tensor, error_rate: float = 0.0
) -> torch.Tensor:
    """Cross-entropy between the teacher's preferences and the model's, one value a pair.

        P[1 ≻ 2] = exp R₁ / (exp R₁ + exp R₂) = σ(R₁ − R₂)       (Bradley & Terry; Christiano et al., eq. 1)
        P' = (1 − ε) P + ε/2                                     (section 2.2.3)
        L = −μ log P'[1 ≻ 2] − (1 − μ) log P'[2 ≻ 1]

    A teacher who sometimes answers at random limits the cost of a single wrong label to −log(ε/2), however
    sure the model is. Computed from the logarithms of both terms, so that no large difference overflows.

    Args:
      return1: float `[N]`, R₁ = Σₜ r̂(oₜ, aₜ) over the first segment.
      return2: float `[N]`, R₂ over the second.
      preference1: float `[N]`, μ: 1 where the first is better, 0 where the second is, ½ where they are alike.
      error_rate: ε, at least 0 and below 1: how often the teacher answers at random (and is wrong half of those times).

    Returns:
      float `[N]`.
    """
    difference = return1 - return2
    if error_rate == 0:
        return F.binary_cross_entropy_with_logits(difference, preference1, reduction="none")
    at_random = difference.new_tensor(math.log(error_rate / 2))
    log1, log2 = (
        torch.logaddexp(math.log1p(-error_rate) + F.logsigmoid(signed), at_random)
        for signed in (difference, -difference)
    )
    return -preference1 * log1 - (1 - preference1) * log2


def original_loss(return1: torch.Tensor, return2: torch.Tensor, preference1: torch.Tensor) -> torch.Tensor:
    """The original experiment's loss, kept for comparison: it asks that σ(R₁) be μ and, apart from that, σ(R₂) 1 − μ.

        L = ½ (−μ log σ(R₁) − (1 − μ) log σ(−R₁)) + ½ (−(1 − μ) log σ(R₂) − μ log σ(−R₂))

    So it does not compare: both returns of a pair of good segments are pulled to opposite sides of 0. Arguments and
    result are those of `preference_loss`.
    """
    both = torch.stack([return1, return2], 1), torch.stack([preference1, 1 - preference1], 1)
    return F.binary_cross_entropy_with_logits(*both, reduction="none").mean(1)


def preference_accuracy(
    return1: torch.Tensor, return2: torch.Tensor, preference1: torch.Tensor
) -> torch.Tensor:
    """Where the model prefers the segment that the teacher prefers; ties of the teacher are left out, those of the model are wrong.

    Args:
      return1: float `[N]`.
      return2: float `[N]`.
      preference1: float `[N]`, μ as above.

    Returns:
      bool `[M]`, one for each of the M pairs that are no tie.
    """
    return ((return1 - return2).sign() == 2 * preference1 - 1)[preference1 != 0.5]
