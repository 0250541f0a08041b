"""The KL penalty of a finetune: estimators of the KL to a reference policy, and its price.

Estimators are of KL(π ‖ π_ref) = E_{a∼π}[log π(a) − log π_ref(a)], one number per sampled action, after
J. Schulman, "Approximating KL divergence" (2020). k1 and k3 are unbiased; k2 and k3 are never negative.
"""

import torch

from lib.agent.distributions import exact_kl, log_prob_of
from lib.agent.network import PolicyNet, autocast
from lib.agent.rollout import Rollout
from lib.learner import ALONE, Total

_MOST = 0.2  # of KL/target − 1 that counts in one update, either way (Ziegler et al. 2019)


def k1(log_prob: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """log π(a) − log π_ref(a), `[...]`: unbiased, of either sign."""
    return log_prob - reference


def k2(log_prob: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """½ (log π(a) − log π_ref(a))², `[...]`: never negative, slightly biased; its gradient is that of the KL."""
    return (log_prob - reference).square() / 2


def k3(log_prob: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """ρ − 1 − log ρ with ρ = π_ref(a) / π(a), `[...]`: unbiased and never negative."""
    log_ratio = reference - log_prob
    return log_ratio.expm1() - log_ratio


def adapted(coef: torch.Tensor, kl: torch.Tensor, target: float, steps: int, horizon: int) -> torch.Tensor:
    """The price of the KL, raised if the KL is above its target and lowered if it is below.

        β ← β (1 + clip(KL / target − 1, ±0.2) · steps / horizon)

    Source: Ziegler et al. 2019, arXiv 1909.08593, section 2.2.

    Args:
      coef: float `[]`, β.
      kl: float `[]`, KL(π ‖ π_ref) over the last rollout.
      target: the KL aimed for.
      steps: how many the rollout had.
      horizon: steps in which β may change by a fifth.

    Returns:
      float `[]` on the same device; nothing waits for it.
    """
    return coef * (1 + (kl / target - 1).clamp(-_MOST, _MOST) * (steps / horizon))


class KLPenalty:
    """The cost of acting unlike a frozen reference policy.

    Attributes:
      reference: that policy.
      coef: β, float32 `[]` on the device. With β = 0 the KL is only charted.
    """

    def __init__(
        self, reference: PolicyNet, coef: float, target: float, horizon: int, same_body: bool = True
    ) -> None:
        """Freezes the reference.

        Args:
          reference: on the device; it is frozen here.
          coef: β to begin with.
          target: KL for `adapt`; 0 keeps β as it is.
          horizon: of `adapted`.
          same_body: whether a learner with a frozen body shares the reference's, and so its features.
        """
        self.reference = reference.requires_grad_(False)
        self.coef = torch.tensor(coef, device=next(reference.parameters()).device)
        self._target, self._horizon, self._same_body = target, horizon, same_body
        # For a curve alone the last step of each rollout is enough, and costs a fraction of the forward passes.
        self._rows = slice(None) if coef else slice(-1, None)

    @torch.no_grad()
    def charge(
        self,
        rollout: Rollout,
        rewards: torch.Tensor,
        valid: torch.Tensor,
        bf16: bool,
        total: Total = ALONE.total,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Rewards less the penalty, on every step: rₜ − β (log π(aₜ|sₜ) − log π_ref(aₜ|sₜ)).

        Args:
          rollout: what was played, and from which distributions.
          rewards: float32 `[T, B]`; left as they are.
          valid: bool `[T, B]` on the device.
          bf16: whether the reference computes in bf16.
          total: sums over all processes, whose steps the mean is over.

        Returns:
          float32 `[T, B]`, and by chart name the mean exact KL over the valid steps and β.
        """
        dist_params = rollout.dist_params[self._rows]
        with autocast(dist_params.device, bf16):
            if rollout.features is not None and self._same_body:
                features = rollout.features[self._rows].flatten(0, 1)
            else:
                features = self.reference.features(rollout.observations[self._rows].flatten(0, 1))
            reference = self.reference.dist_params(features).view_as(dist_params)
        valid, actions = valid[self._rows], rollout.actions[self._rows]
        kl = exact_kl(dist_params, reference, actions.is_floating_point())
        summed, count = total([(kl * valid).sum(), valid.sum()])
        kl = summed / count.clamp(min=1)
        log_ratio = k1(log_prob_of(dist_params, actions), log_prob_of(reference, actions))
        rewards = rewards.clone()
        rewards[self._rows] -= self.coef * log_ratio * valid
        return rewards, {"kl_ref": kl, "kl_coef": self.coef}

    def adapt(self, kl: torch.Tensor, steps: int) -> None:
        """Moves β towards what keeps the KL at its target, once per update.

        Args:
          kl: float `[]`, `kl_ref` of `charge`.
          steps: of the update, all environments together.
        """
        if self._target:
            self.coef = adapted(self.coef, kl, self._target, steps, self._horizon)
