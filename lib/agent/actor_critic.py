"""A2C and PPO: a learner that acts for a rollout, values its steps, and makes passes over them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from lib.agent.config import TrainConfig
from lib.agent.distributions import log_prob_of
from lib.agent.exploration import HeldActions
from lib.agent.kl import KLPenalty
from lib.agent.losses import actor_critic_loss
from lib.agent.network import ActorPolicy, Normaliser, PolicyNet, autocast
from lib.agent.returns import explained_variance, lambda_advantages, normalised
from lib.agent.rollout import Collector, GameLog, Recorder, Rollout
from lib.envs.world import World
from lib.learner import ALONE, Advance, Alone, Total
from lib.reward.model import RewardModel

_RARE = math.log(0.02)
"""Log-probability below which a held action is not made rarer still."""


class ActorCritic:
    """The learner of A2C and PPO; see `lib.learner.Learner`.

    Args:
      network: the policy and its critic, on `device`.
      world: B environments; they are reset.
      config: rollout, discount, passes, clip ranges, weights of the loss, learning rate.
      device: where everything is computed.
      bf16: whether networks compute in bf16.
      seed: of the games and the actions.
      reward: pays instead of the score.
      penalty: the KL penalty, if there is a reference policy.
      recorder: sees every step.
      held: exploration by held actions.
      ranks: the processes that learn together, each in its own environments.

    Attributes:
      network: see above.
      steps: made so far, all environments together.
      updates: made so far.
      collector: plays.
    """

    network_kind = PolicyNet

    def __init__(
        self,
        network: PolicyNet,
        world: World,
        config: TrainConfig,
        device: torch.device,
        bf16: bool,
        seed: int,
        reward: RewardModel | None = None,
        penalty: KLPenalty | None = None,
        recorder: Recorder | None = None,
        held: HeldActions | None = None,
        ranks: Alone = ALONE,
    ) -> None:
        self.network, self.steps, self.updates = network, 0, 0
        self.collector = Collector(world, config.rollout, device, seed, bf16, reward, recorder, held)
        self._config, self._device, self._bf16 = config, device, bf16
        self._penalty, self._ranks = penalty, ranks
        self._games = GameLog(world.num_envs)
        # Steps of an update, those of all processes together.
        self._steps_each = config.rollout * sum(ranks.everyone(world.num_envs))
        self._warm_until = config.critic_warmup
        network.body.requires_grad_(not config.freeze_convs)
        trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(trainable, lr=config.lr, eps=1e-5, fused=True)

    @staticmethod
    def new_network(config: TrainConfig, world: World) -> PolicyNet:
        """A policy with new weights."""
        spec = world.spec
        return PolicyNet(spec.num_actions, spec.continuous, spec.observation_size, config.network)

    @staticmethod
    def explorer(network: PolicyNet, config: TrainConfig, bf16: bool) -> ActorPolicy:
        """The policy that plays where nothing is learned; a new one's actions are as good as random."""
        return network.acting(bf16)

    def advance(self) -> Advance:
        """Acts for a rollout, and learns from it."""
        rollout = self.collector.collect(self.network, self._config.one_pass, self._config.freeze_convs)
        games = self._games.read(rollout)
        scalars = self.learn(rollout)
        self.steps += self._steps_each
        self.updates += 1
        return Advance(self._steps_each, scalars, games)

    def learn(self, rollout: Rollout) -> dict[str, torch.Tensor | float]:
        """Learns from its own rollout; returns scalars by chart name."""
        config, network = self._config, self.network
        lr = config.lr * max(0.0, 1 - self.steps / config.lr_decay_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        # While the critic warms up, nothing that the policy depends on moves, nor does the price of the KL.
        policy_moves = self.updates >= self._warm_until
        network.body.requires_grad_(policy_moves and not config.freeze_convs)
        network.policy.requires_grad_(policy_moves)
        parts = update(network, self._optimizer, rollout, config, self._bf16, self._penalty, self._ranks)
        if isinstance(network.body, Normaliser) and policy_moves and not config.freeze_convs:
            network.body.update(rollout.observations, self._ranks.total)
        if self._penalty is not None and policy_moves:
            self._penalty.adapt(parts["kl_ref"], self._steps_each)
        return {**parts, "lr": lr}

    def play(self) -> None:
        """Acts for a rollout without learning from it; its games are not reported."""
        self.collector.collect(self.network)
        self._games.miss()

    def use_reward(self, model: RewardModel, another: bool = True) -> None:
        """Lets a reward model pay from the next rollout on.

        Args:
          model: on the same device.
          another: whether it differs from the previous model; the critic then warms up again.
        """
        self.collector.reward = model
        if another:
            self._warm_until = self.updates + self._config.critic_warmup

    def policy(self) -> ActorPolicy:
        """Its current policy, which changes as the learner learns."""
        return self.network.acting(self._bf16)

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Everything that must stay finite, by name."""
        return self.network.named_parameters()

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs; unfinished games are lost."""
        penalty = self._penalty
        return {
            "steps": self.steps,
            "updates": self.updates,
            "new_reward_at": self._warm_until - self._config.critic_warmup,
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "reference": None if penalty is None else penalty.reference.state_dict(),
            "kl_coef": None if penalty is None else penalty.coef,
            "device": self._device.type,
            "actions": self.collector.generator.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned, from a learner with the same settings."""
        self.steps, self.updates = state["steps"], state["updates"]
        self._warm_until = state["new_reward_at"] + self._config.critic_warmup
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._penalty is not None:
            self._penalty.reference.load_state_dict(state["reference"])
            if state["kl_coef"] is not None:  # in older states of runs without --kl
                self._penalty.coef = state["kl_coef"].to(self._device)
        # The state is the first rank's. The others draw by the seeds that they have begun with.
        if state["device"] == self._device.type and self._ranks.rank == 0:
            self.collector.generator.set_state(state["actions"])


class Batch(NamedTuple):
    """The N = T·B steps of a rollout that an update's passes go over, on the device."""

    seen: torch.Tensor
    """Features `[N, F]` where the rollout has them, else observations, uint8 `[N, 4, 84, 84]` or float32 `[N, D]`."""
    actions: torch.Tensor  # int64 [N], or float32 [N, A] as they were drawn
    old_log_probs: torch.Tensor  # float32 [N], of the acting policy
    old_values: torch.Tensor  # float32 [N], of the acting policy
    advantages: torch.Tensor  # float32 [N]
    returns: torch.Tensor  # float32 [N]
    valid: torch.Tensor  # bool [N]


def assess(
    rollout: Rollout, config: TrainConfig, penalty: KLPenalty | None, bf16: bool, total: Total = ALONE.total
) -> tuple[Batch, dict[str, torch.Tensor]]:
    """What every step of a rollout was worth: rewards less the KL penalty, advantages and returns.

    A learned reward r̂ is paid as S (r̂ + C − β·KL) + W·score, with S `config.reward_scale`, C `config.reward_offset`
    and W `config.score_weight`.

    With `config.learn_held` the policy learns from held actions as if it had chosen them. They are drawn far more often
    than the policy would choose them, so those that it hardly ever chooses are not made rarer, or exploring would end
    itself; and what they led to is not what the policy is worth, so the critic is told there what it said itself.

    Args:
      rollout: T steps of B environments.
      config: discount, λ, and what is paid.
      penalty: the KL penalty, where there is a reference policy.
      bf16: whether the reference computes in bf16.
      total: sums over all processes; means and variances are over the steps of all.

    Returns:
      The batch to learn from, and scalars on the device by chart name; charts read them later, so nothing waits here.
    """
    device = rollout.actions.device
    terminal, truncated, valid = (
        torch.from_numpy(flags).to(device, non_blocking=True)
        for flags in (rollout.terminal, rollout.truncated, rollout.valid)
    )
    held = torch.from_numpy(rollout.held).to(device, non_blocking=True)
    if not config.learn_held:
        valid = valid & ~held
    [count] = total([valid.sum()])
    weight = valid / count.clamp(min=1)
    parts: dict[str, torch.Tensor] = {}
    score = torch.from_numpy(rollout.score).to(device, non_blocking=True)
    score = score.sign() if config.clip_score else score
    if rollout.learned is None:
        rewards = score
    else:
        rewards = rollout.learned
        [mean] = total([(rewards * weight).sum()])
        [variance] = total([((rewards - mean).square() * weight).sum()])
        parts |= {"reward_mu": mean, "reward_std": variance.sqrt()}
    if penalty is not None:
        rewards, scalars = penalty.charge(rollout, rewards, valid, bf16, total)
        parts |= scalars
    if rollout.learned is not None:
        rewards = config.reward_scale * (rewards + config.reward_offset) + config.score_weight * score

    values = rollout.values.detach()
    advantages = lambda_advantages(rewards, values, terminal, truncated, config.gamma, config.gae_lambda)
    values = values[:-1]
    returns = advantages + values
    means = total([(advantages * weight).sum(), (returns * weight).sum()])
    parts |= dict(zip(("advantage", "batch_rewards"), means, strict=True))
    parts["explained_variance"] = explained_variance(values, returns, valid, total)
    if config.normalise_advantages:
        advantages = normalised(advantages, valid, total)
    old = log_prob_of(rollout.dist_params.detach(), rollout.actions)
    if config.learn_held:
        advantages = torch.where(held & (advantages < 0) & (old < _RARE), 0.0, advantages)
        returns = torch.where(held, values, returns)
    seen = rollout.observations if rollout.features is None else rollout.features
    steps = (seen, rollout.actions, old, values, advantages, returns, valid)
    return Batch(*(rows.flatten(0, 1) for rows in steps)), parts


def update(
    network: PolicyNet,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: TrainConfig,
    bf16: bool,
    penalty: KLPenalty | None = None,
    ranks: Alone = ALONE,
) -> dict[str, torch.Tensor]:
    """The passes over one rollout: one for A2C, several over minibatches for PPO.

    Each of several processes has a rollout. They learn as one process would from all of these side by side: every loss
    is a sum over valid steps, divided by how many all have; gradients and scalars are added up.

    Args:
      network: the policy that gathered the rollout.
      optimizer: of its trainable parameters.
      rollout: T steps of B environments.
      config: what is paid, passes, clip ranges and weights of the loss.
      bf16: whether networks compute in bf16.
      penalty: the KL penalty, where there is a reference policy.
      ranks: the processes that learn together.

    Returns:
      Scalars on the device by chart name, averaged over the passes. Only `--target-kl` waits for the device, once
      a pass.
    """
    batch, parts = assess(rollout, config, penalty, bf16, ranks.total)
    device, (steps, envs) = batch.actions.device, rollout.score.shape
    passes: list[dict[str, torch.Tensor]] = []
    for epoch in range(config.epochs):
        for rows in _minibatches(steps, envs, config.minibatches, device, ranks):
            # Several times as fast as column[rows], which for pictures took a tenth of an update.
            part = batch if rows is None else Batch(*(column.index_select(0, rows) for column in batch))
            if config.one_pass and rollout.dist_params.requires_grad:
                dist_params, values = rollout.dist_params.flatten(0, 1), rollout.values[:-1].flatten()
            else:
                with autocast(device, bf16):
                    features = network.features(part.seen) if rollout.features is None else part.seen
                    dist_params, values = network.dist_params(features), network.values(features)
            [count] = ranks.total([part.valid.sum()])
            loss, scalars = actor_critic_loss(
                dist_params,
                values,
                part.actions,
                None if config.one_pass else part.old_log_probs,
                part.old_values,
                part.advantages,
                part.returns,
                part.valid,
                count,
                clip_range=config.clip_range,
                value_clip_range=config.value_clip_range,
                entropy_coef=config.entropy,
                value_coef=config.value_coef,
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            *summed, scalar_sums = ranks.total([*gradients, torch.stack(list(scalars.values()))])
            for gradient, of_all in zip(gradients, summed, strict=True):
                gradient.copy_(of_all)
            scalars = dict(zip(scalars, scalar_sums.unbind(), strict=True))
            norm = nn.utils.get_total_norm(gradients)
            passes.append(scalars | _gradient_scalars(gradients, norm))
            nn.utils.clip_grads_with_norm_(parameters, config.grad_clip or math.inf, norm)
            optimizer.step()
        last = epoch == config.epochs - 1
        if config.target_kl and not last and ranks.together(bool(passes[-1]["approx_kl"] > config.target_kl)):
            break
    means = torch.stack([torch.stack(list(scalars.values())) for scalars in passes]).mean(0)
    parts |= dict(zip(passes[0], means.unbind(), strict=True))
    return parts | {"epochs_done": torch.full((), epoch + 1.0, device=device)}


def _minibatches(
    steps: int, envs: int, parts: int, device: torch.device, ranks: Alone = ALONE
) -> Sequence[torch.Tensor | None]:
    """This process's rows of each minibatch of a pass, int64, in random order; None for all if there is only one minibatch.

    Every process draws the same order of all steps of all environments, as PyTorch's own generator is seeded and moved
    alike in all of them, and takes what it has of each minibatch: now more, now less, at times nothing.
    """
    if parts == 1:
        return [None]
    of_each = ranks.everyone(envs)
    order = torch.randperm(steps * sum(of_each), device=device)
    if ranks.size == 1:
        return order.tensor_split(parts)
    step, env = order // sum(of_each), order % sum(of_each) - sum(of_each[: ranks.rank])
    mine = (env >= 0) & (env < envs)
    rows = step * envs + env
    return [
        part[there] for part, there in zip(rows.tensor_split(parts), mine.tensor_split(parts), strict=True)
    ]


def _gradient_scalars(gradients: list[torch.Tensor], norm: torch.Tensor) -> dict[str, torch.Tensor]:
    """Root mean square, largest size and variance of all components, before clipping; `norm` is that of all together."""
    count = sum(gradient.numel() for gradient in gradients)
    squares = norm.square() / count
    # aminmax goes over the data once; an L∞ norm took 25 times as long on a CPU.
    largest = torch.stack([torch.stack(gradient.aminmax()).abs().max() for gradient in gradients]).max()
    mean = torch.stack([gradient.sum() for gradient in gradients]).sum() / count
    return {"grad_l2": squares.sqrt(), "grad_max": largest, "grad_var": squares - mean.square()}
