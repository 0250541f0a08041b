"""Returns and advantages as pure functions, most of them over `[T, B]`: T steps of B environments.

Time runs as in `lib.envs.world`: row t holds what followed action aₜ, chosen on observation sₜ. A terminal
(life lost, game over) has no future; a truncation (time limit) has one that is only bootstrapped.
"""

import torch

from lib.learner import ALONE, Total

_ROUNDING = 1e-5  # standard deviations of a reward model; float32 makes some 1e-7 of them from equal answers


def lambda_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    terminal: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    lambda_: float = 1.0,
) -> torch.Tensor:
    """Generalised advantage estimates; at λ = 1 the n-step advantages that A2C uses.

        δₜ = rₜ + γ (1 − terminalₜ) vₜ₊₁ − vₜ
        Âₜ = δₜ + γ λ (1 − terminalₜ)(1 − truncatedₜ) Âₜ₊₁,   Â_T = 0

    With λ = 1 the return Âₜ + vₜ is the discounted sum of the rewards up to the end of the rollout, of the
    life or of the game, whichever comes first, plus γⁿ v of the state after it unless that end is terminal.

    Source: Schulman et al. 2016, arXiv 1506.02438, eq. 16; n-step case: Mnih et al. 2016, arXiv 1602.01783.

    Args:
      rewards: float `[T, B]`, rₜ for t in 0 … T−1.
      values: float `[T+1, B]`, vₜ for t in 0 … T. After a truncation at t, vₜ₊₁ is that of the last frame
        of the game that was cut.
      terminal: bool `[T, B]`.
      truncated: bool `[T, B]`; where both are set, terminal counts.
      gamma: discount γ.
      lambda_: mixing parameter λ.

    Returns:
      float `[T, B]`.
    """
    alive = (~terminal).to(rewards.dtype)
    goes_on = alive * (~truncated).to(rewards.dtype)
    deltas = rewards + gamma * alive * values[1:] - values[:-1]
    advantages = torch.empty_like(deltas)
    advantage = torch.zeros_like(deltas[0])
    for t in range(deltas.shape[0] - 1, -1, -1):
        advantage = deltas[t] + gamma * lambda_ * goes_on[t] * advantage
        advantages[t] = advantage
    return advantages


def n_step_returns(
    rewards: torch.Tensor, terminal: torch.Tensor, truncated: torch.Tensor, gamma: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Off-policy targets of a value: the rewards of n steps or fewer, and the weight of the value after them.

        G = Σₖ γᵏ rₖ over k < m,   target = G + γᵐ (1 − terminal) v(sₘ)

    with m = n, or the steps up to the first terminal or truncation, that one included. Actions after the first are not
    corrected for, as in Rainbow (Hessel et al. 2018, arXiv 1710.02298).

    Args:
      rewards, terminal, truncated: float and bool `[N, n]`, of n consecutive steps each.
      gamma: discount γ.

    Returns:
      G, float `[N]`; γᵐ (1 − terminal), float `[N]`; m, int64 `[N]`.
    """
    ends = (terminal | truncated).long()
    counts = ends.cumsum(1) - ends == 0
    powers = gamma ** torch.arange(rewards.shape[1] + 1, dtype=rewards.dtype, device=rewards.device)
    lengths = counts.sum(1)
    alive = ~(terminal & counts).any(1)
    return (rewards * counts * powers[:-1]).sum(1), powers[lengths] * alive, lengths


def discounted_returns(rewards: torch.Tensor, ends: torch.Tensor, gamma: float) -> torch.Tensor:
    """Monte-Carlo returns: the discounted rewards up to the end of the sequence, which REINFORCE learns from.

        Gₜ = rₜ + γ (1 − endsₜ) Gₜ₊₁,   G_T = 0

    Nothing is bootstrapped, so what a truncation or the end of the rollout cuts off is missing.

    Source: Williams 1992; Sutton and Barto 2018, section 13.3.

    Args:
      rewards: float `[T, B]`.
      ends: bool `[T, B]`: terminal, truncated or a sequence's last token.
      gamma: discount γ.

    Returns:
      float `[T, B]`.
    """
    returns = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + gamma * (~ends[t]) * following
        returns[t] = following
    return returns


def leave_one_out(returns: torch.Tensor) -> torch.Tensor:
    """Each return minus the mean of the others in its group (RLOO).

    Source: Ahmadian et al. 2024, arXiv 2402.14740, eq. 6; Kool et al. 2019.

    Args:
      returns: float `[..., K]`: K ≥ 2 rollouts from one start.

    Returns:
      float `[..., K]`.
    """
    others = returns.shape[-1] - 1
    return returns - (returns.sum(-1, keepdim=True) - returns) / others


def group_normalised(returns: torch.Tensor) -> torch.Tensor:
    """Each return minus the mean of its group, in standard deviations of its group (GRPO).

    Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2. As in OpenRLHF the deviation is the sample's (K − 1).
    A group of equal returns gives 0, also where rounding tells them apart, as padding does with equal answers.

    Args:
      returns: float `[..., K]`: K ≥ 2 rollouts from one start.

    Returns:
      float `[..., K]`.
    """
    apart, deviation = returns - returns.mean(-1, keepdim=True), returns.std(-1, keepdim=True)
    return torch.where(deviation > _ROUNDING, apart / deviation, 0.0)


def normalised(advantages: torch.Tensor, valid: torch.Tensor, total: Total = ALONE.total) -> torch.Tensor:
    """Advantages with mean 0 and variance 1 over the valid steps; 0 elsewhere.

    Args:
      advantages: float `[...]`.
      valid: bool `[...]`.
      total: sums over all processes, whose steps count as one batch.

    Returns:
      float `[...]`; all 0 where the valid ones do not differ.
    """
    count, summed = total([valid.sum(), (advantages * valid).sum()])
    count = count.clamp(min=1)
    centred = torch.where(valid, advantages - summed / count, 0.0)
    [squares] = total([centred.square().sum()])
    return centred * (squares / count).clamp(min=1e-8).rsqrt()


def explained_variance(
    values: torch.Tensor, returns: torch.Tensor, valid: torch.Tensor, total: Total = ALONE.total
) -> torch.Tensor:
    """1 − Var(G − v) / Var(G) over the valid steps: 1 is a perfect critic, 0 a constant one.

    Args:
      values: float `[...]`.
      returns: float `[...]`.
      valid: bool `[...]`.
      total: sums over all processes, whose steps count as one batch.

    Returns:
      float `[]`; 0 where returns do not vary.
    """
    both = returns, returns - values
    count, *sums = total([valid.sum(), *((numbers * valid).sum() for numbers in both)])
    apart = [numbers - summed / count for numbers, summed in zip(both, sums, strict=True)]
    spread, error = total([(numbers.square() * valid).sum() for numbers in apart])
    return torch.where(spread > 0, 1 - error / spread, 0.0)
