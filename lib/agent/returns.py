"""Returns and advantages as pure functions over `[T, B]`: T steps of B environments.

Time runs as in `lib.envs.world`: row t holds what followed action aₜ, chosen on observation sₜ. A terminal
(life lost, game over) has no future; a truncation (time limit) has one that is only bootstrapped.
"""

import torch


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

    Raises:
      ValueError: the shapes do not fit together.
    """
    if values.shape[0] != rewards.shape[0] + 1 or values.shape[1:] != rewards.shape[1:]:
        raise ValueError(
            f"expected values [T+1, B] for rewards {tuple(rewards.shape)}, got {tuple(values.shape)}"
        )
    alive = (~terminal).to(rewards.dtype)
    goes_on = alive * (~truncated).to(rewards.dtype)
    deltas = rewards + gamma * alive * values[1:] - values[:-1]
    advantages = torch.empty_like(deltas)
    advantage = torch.zeros_like(deltas[0])
    for t in range(deltas.shape[0] - 1, -1, -1):
        advantage = deltas[t] + gamma * lambda_ * goes_on[t] * advantage
        advantages[t] = advantage
    return advantages
