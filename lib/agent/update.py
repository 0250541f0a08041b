"""One update: what the steps of a rollout were worth, and the passes over them that the policy learns by."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from lib.agent.actor_critic import actor_critic_loss, log_prob_of
from lib.agent.config import TrainConfig
from lib.agent.leash import Leash
from lib.agent.network import PolicyNet
from lib.agent.returns import explained_variance, lambda_advantages, normalised
from lib.agent.rollout import Rollout, autocast


class Batch(NamedTuple):
    """What the passes of an update go over: the N = T·B steps of a rollout, on the device."""

    seen: (
        torch.Tensor
    )  # features [N, F] where the rollout has them, else observations, uint8 [N, 4, 84, 84] or float32 [N, D]
    actions: torch.Tensor  # int64 [N], or float32 [N, A] as they were drawn
    old_log_probs: torch.Tensor  # float32 [N], of the acting policy
    old_values: torch.Tensor  # float32 [N], of the acting policy
    advantages: torch.Tensor  # float32 [N]
    returns: torch.Tensor  # float32 [N]
    valid: torch.Tensor  # bool [N]


def assess(
    rollout: Rollout, config: TrainConfig, leash: Leash | None, bf16: bool
) -> tuple[Batch, dict[str, torch.Tensor]]:
    """What every step of a rollout was worth: rewards, the price of the leash, advantages and returns.

    Args:
      rollout: T steps of B environments.
      config: discount, λ, and what is paid.
      leash: to the reference policy, where there is one.
      bf16: whether the reference computes in bf16.

    Returns:
      The batch to learn from, and scalars on the device by chart name; reading them is left to whoever logs, so that
      nothing waits here.
    """
    device = rollout.actions.device
    terminal, truncated, valid = (
        torch.from_numpy(flags).to(device, non_blocking=True)
        for flags in (rollout.terminal, rollout.truncated, rollout.valid & ~rollout.held)
    )
    weight = valid / valid.sum().clamp(min=1)
    parts: dict[str, torch.Tensor] = {}
    if rollout.learned is None or config.score_weight:
        score = torch.from_numpy(rollout.score).to(device, non_blocking=True)
        score = score.sign() if config.clip_score else score
    if rollout.learned is None:
        rewards = score
    else:
        rewards = rollout.learned
        mean = (rewards * weight).sum()
        parts["reward_mu"] = mean
        parts["reward_std"] = ((rewards - mean).square() * weight).sum().sqrt()
        if config.score_weight:
            rewards = rewards + config.score_weight * score
    if leash is not None:
        rewards, scalars = leash.pull(rollout, rewards, valid, bf16)
        parts |= scalars

    values = rollout.values.detach()
    advantages = lambda_advantages(rewards, values, terminal, truncated, config.gamma, config.gae_lambda)
    values = values[:-1]
    returns = advantages + values
    parts["advantage"] = (advantages * weight).sum()
    parts["batch_rewards"] = (returns * weight).sum()
    parts["explained_variance"] = explained_variance(values, returns, valid)
    if config.normalise_advantages:
        advantages = normalised(advantages, valid)
    old = log_prob_of(rollout.logits.detach(), rollout.actions)
    seen = rollout.observations if rollout.features is None else rollout.features
    steps = (seen, rollout.actions, old, values, advantages, returns, valid)
    return Batch(*(rows.flatten(0, 1) for rows in steps)), parts


def update(
    network: PolicyNet,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: TrainConfig,
    bf16: bool,
    leash: Leash | None = None,
    stop: Callable[[], bool] | None = None,
) -> dict[str, torch.Tensor]:
    """The passes over one rollout: one for A2C, several over minibatches for PPO.

    Args:
      network: the policy that gathered the rollout.
      optimizer: of its trainable parameters.
      rollout: T steps of B environments.
      config: what is paid, passes, clips and weights of the loss.
      bf16: whether networks compute in bf16.
      leash: to the reference policy, where there is one.
      stop: asked before every minibatch but the first whether to leave it at that.

    Returns:
      Scalars on the device by chart name, averaged over the passes. Only `--target-kl` waits for the device, once
      a pass.
    """
    batch, parts = assess(rollout, config, leash, bf16)
    device, count = batch.actions.device, len(batch.actions)
    passes: list[dict[str, torch.Tensor]] = []
    for epoch in range(config.epochs):
        for rows in _minibatches(count, config.minibatches, device):
            if passes and stop is not None and stop():
                break
            part = Batch(*(column[rows] for column in batch))
            if config.one_pass and rollout.logits.requires_grad:
                logits, values = rollout.logits.flatten(0, 1), rollout.values[:-1].flatten()
            else:
                with autocast(device, bf16):
                    features = network.features(part.seen) if rollout.features is None else part.seen
                    logits, values = network.logits(features), network.values(features)
            loss, scalars = actor_critic_loss(
                logits,
                values,
                part.actions,
                None if config.one_pass else part.old_log_probs,
                part.old_values,
                part.advantages,
                part.returns,
                part.valid,
                clip=config.clip_range,
                value_clip=config.value_clip_range,
                entropy_coef=config.entropy,
                value_coef=config.value_coef,
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            passes.append(scalars | _gradient_scalars(gradients, norm))
            nn.utils.clip_grads_with_norm_(parameters, config.grad_clip, norm)
            optimizer.step()
        last = epoch == config.epochs - 1
        if config.target_kl and not last and passes[-1]["approx_kl"] > config.target_kl:
            break
    means = torch.stack([torch.stack(list(scalars.values())) for scalars in passes]).mean(0)
    parts |= dict(zip(passes[0], means.unbind(), strict=True))
    return parts | {"epochs_done": torch.full((), epoch + 1.0, device=device)}


def _minibatches(count: int, parts: int, device: torch.device) -> Sequence[slice | torch.Tensor]:
    """Rows of each minibatch of a pass, in random order; all as they are where there is but one."""
    if parts == 1:
        return [slice(None)]
    return torch.randperm(count, device=device).tensor_split(parts)


def _gradient_scalars(gradients: list[torch.Tensor], norm: torch.Tensor) -> dict[str, torch.Tensor]:
    """Root mean square, largest size and variance of all components, before clipping; `norm` is that of all together."""
    count = sum(gradient.numel() for gradient in gradients)
    squares = norm.square() / count
    # aminmax goes over the data once; an L∞ norm took 25 times as long on a CPU.
    largest = torch.stack([torch.stack(gradient.aminmax()).abs().max() for gradient in gradients]).max()
    mean = torch.stack([gradient.sum() for gradient in gradients]).sum() / count
    return {"grad_l2": squares.sqrt(), "grad_max": largest, "grad_var": squares - mean.square()}
