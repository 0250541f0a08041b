"""What learners with a replay share: they put steps into the replay and make updates from it."""

import copy
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from lib.agent.config import TrainConfig
from lib.agent.exploration import HeldActions, state_entropy
from lib.agent.replay import Batch, Replay
from lib.agent.rollout import GameLog, Player, Recorder
from lib.envs.world import World
from lib.learner import ALONE, Advance, Alone, Game, LearnedPolicy
from lib.reward.model import RewardModel

_OTHERS = 2048  # states that distances are measured to
_FIRST_BETA = 0.4  # arXiv 1511.05952, table 3


class OffPolicy:
    """A learner without its algorithm, which chooses actions and learns from a batch; see `lib.learner.Learner`.

    The algorithm is a subclass that sets `network_kind` and, when it is made, `optimizers`; it has `new_network`, which is
    static, as is `explorer` for --fork, `critics`, `choose`, `learn` and `policy`, and with --state-entropy `forget_values`.

    Args:
      network: the policy and its critics, on `device`.
      world: B environments; they are reset.
      config: replay, discount, updates, learning rate, what is paid.
      device: where everything is computed and the replay is kept.
      bf16: whether networks compute in bf16.
      seed: of the games and the actions.
      reward: pays instead of the score.
      recorder: sees every step.
      held: exploration by held actions.
      ranks: the processes that learn together, each in its own environments and from its own replay.

    Attributes:
      network: see above.
      target: a copy of its critics that follows slowly.
      steps: made so far, all environments together.
      updates: made so far.
      player: plays.
      replay: the steps learned from.
      optimizers: by name.
    """

    network: nn.Module
    target: nn.Module
    optimizers: dict[str, torch.optim.Optimizer]
    network_kind: ClassVar[type[nn.Module]]

    def __init__(
        self,
        network: nn.Module,
        world: World,
        config: TrainConfig,
        device: torch.device,
        bf16: bool,
        seed: int,
        reward: RewardModel | None = None,
        recorder: Recorder | None = None,
        held: HeldActions | None = None,
        ranks: Alone = ALONE,
    ) -> None:
        self.network, self.steps, self.updates = network, 0, 0
        self.player = Player(world, device, seed, reward, recorder, held)
        ours, of_each = world.num_envs, ranks.everyone(world.num_envs)
        before, self._all_envs = sum(of_each[: ranks.rank]), sum(of_each)
        self.replay = Replay(
            world.spec,
            ours,
            config.replay_steps * ours // self._all_envs,
            device,
            self._paid,
            gamma=config.gamma,
            n_step=config.n_step,
            priority=config.priority,
            max_mb=config.replay_mb * ours / self._all_envs,
        )
        first, last = (envs * config.batch_size // self._all_envs for envs in (before, before + ours))
        self._batch_size = max(1, last - first)
        # A resumed run may have to fill its replay anew; a small one is full before learning starts.
        rows = min(ranks.everyone(self.replay.capacity // ours))
        self._enough = min(config.learning_starts, (rows - 1) * self._all_envs)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self._spec, self._envs, self._ranks = world.spec, ours, ranks
        self._config, self._device, self._bf16 = config, device, bf16
        self._games = GameLog(world.num_envs)
        self._planned = config.steps  # which schedules span; a resumed run may make more
        self._due = 0.0  # updates
        self._observations = self.player.look()
        self.replay.begin(self._observations)

    @property
    def critics(self) -> nn.Module:
        """The part of the network that the target network follows."""
        raise NotImplementedError

    def choose(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions to explore by, int64 `[B]` or float32 `[B, A]` within ±1, on uint8 `[B, 4, 84, 84]` or float32 `[B, D]`."""
        raise NotImplementedError

    def forget_values(self) -> None:
        """Begins with new critics, because the old ones learned another reward."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        """One update; returns scalars on the device by chart name: the same every time, `loss_total` among them.

        It calls `differentiate` with its losses, `replay.prioritise` with the steps' errors, and `of_all` on means.

        Args:
          batch: this process's part. Its weights are such that the means of all processes add up to that of the whole.
        """
        raise NotImplementedError

    def policy(self) -> LearnedPolicy:
        """Its current policy, which changes as the learner learns."""
        raise NotImplementedError

    def advance(self) -> Advance:
        """One step of every environment, and the updates that are due for it."""
        games = self._act()
        self.steps += self._all_envs
        lr = self._config.lr * max(0.0, 1 - self.steps / self._config.lr_decay_steps)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = lr
        made = self._learn()
        means = torch.stack([torch.stack(list(each.values())) for each in made]).mean(0) if made else ()
        scalars = dict(zip(made[0], means, strict=True)) if made else {}
        return Advance(self._all_envs, {**scalars, "lr": lr}, games)

    def _learn(self) -> list[dict[str, torch.Tensor]]:
        """The updates that are due after a step of every environment."""
        if self.replay.steps // self._envs * self._all_envs >= self._enough:
            self._due += self._config.replay_ratio * self._all_envs
        made = [self.update() for _ in range(int(self._due))]
        self._due %= 1
        return made

    def play(self) -> None:
        """One step of every environment, without learning from rewards; its games are not reported.

        With --state-entropy the policy learns to visit states unlike those in the replay, unless rewards have taught it.
        """
        self._act()
        if self._config.state_entropy and self.steps == 0:
            self._learn()
        self._games.miss()

    @torch.no_grad()
    def _act(self) -> list[Game]:
        """One step of every environment, into the replay; the games that it shows to be over."""
        explores = self.updates == 0 and self._config.model is None  # a new policy's actions may all be alike
        actions = self._at_random() if explores else self.choose(self._observations)
        played = self.player.play(actions, self._observations)
        self._observations = self.player.viewer.observations
        self.replay.add(played, self._observations)
        step, learned = played.step, played.learned
        paid = np.zeros_like(step.score) if learned is None else learned.cpu().numpy()
        return self._games.add(step.score, ~step.reset, paid)

    def _at_random(self) -> torch.Tensor:
        """Uniformly random actions."""
        generator, count = self.player.generator, self._spec.num_actions
        if self._spec.continuous:
            return torch.empty(self._envs, count, device=self._device).uniform_(-1, 1, generator=generator)
        return torch.randint(count, (self._envs,), generator=generator, device=self._device)

    def update(self) -> dict[str, torch.Tensor]:
        """One batch, of which every process draws its part, and a move of the target network if one is due."""
        beta = _FIRST_BETA + (1 - _FIRST_BETA) * min(1.0, self.steps / self._planned)
        batch = self.replay.sample(self._batch_size, self.player.generator, beta)
        count = (batch.weights > 0).sum()
        [of_all] = self._ranks.total([count])
        batch = batch._replace(weights=batch.weights * (count / of_all.clamp(min=1)))
        if self._config.state_entropy and self.player.reward is None:
            others = self.replay.sample_states(_OTHERS, self.player.generator)
            batch = batch._replace(returns=state_entropy(batch.following, others))
        scalars = self.learn(batch)
        self.updates += 1
        if self.updates % self._config.target_every == 0:
            self.follow()
        return scalars

    def differentiate(self, losses: dict[str, torch.Tensor]) -> None:
        """Leaves gradients, summed over all processes, in the parameters of optimisers.

        Args:
          losses: float `[]`, by the name of the optimiser whose parameters alone get its gradients.
        """
        gradients: list[torch.Tensor] = []
        for name, loss in losses.items():
            optimizer = self.optimizers[name]
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            optimizer.zero_grad(set_to_none=True)
            loss.backward(inputs=parameters)
            gradients += [parameter.grad for parameter in parameters]
        for gradient, of_all in zip(gradients, self._ranks.total(gradients), strict=True):
            gradient.copy_(of_all)

    def of_all(self, scalars: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Scalars on the device by name, summed over all processes."""
        [summed] = self._ranks.total([torch.stack([scalar.detach() for scalar in scalars.values()])])
        return dict(zip(scalars, summed.unbind(), strict=True))

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the target network towards the critics."""
        target: list[torch.Tensor] = [*self.target.parameters()]
        torch._foreach_lerp_(target, [*self.critics.parameters()], self._config.target_step)

    def _paid(self, learned: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
        """The reward of steps, of their learned reward r̂ and score: S (r̂ + C) + W·score, as A2C and PPO pay it."""
        config = self._config
        score = score.sign() if config.clip_score else score
        if config.reward is None:
            return score
        return config.reward_scale * (learned + config.reward_offset) + config.score_weight * score

    def use_reward(self, model: RewardModel, another: bool = True) -> None:
        """Lets a reward model pay from now on, for every step in the replay as well.

        Args:
          model: of observations, on the same device.
          another: whether it differs from the previous model.
        """
        self.player.reward = model
        self.replay.relabel(model, another)
        if self._config.state_entropy and self.steps == 0:
            self.forget_values()

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Everything that must stay finite, by name."""
        return self.network.named_parameters()

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs; unfinished games are lost.

        So is the replay with --no-save-replay, or if several processes share it.
        """
        saves = self._config.save_replay and self._ranks.size == 1
        return {
            "steps": self.steps,
            "updates": self.updates,
            "planned": self._planned,
            "due": self._due,
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "replay": self.replay.state() if saves else None,
            "device": self._device.type,
            "actions": self.player.generator.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned, from a learner with the same settings."""
        self.steps, self.updates = state["steps"], state["updates"]
        self._due = state["due"]
        self._planned = state["planned"]
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        if state["replay"] is not None and self._ranks.size == 1:
            self.replay.load_state(state["replay"])
            self.replay.begin(self._observations)
        if state["device"] == self._device.type and self._ranks.rank == 0:
            self.player.generator.set_state(state["actions"])
