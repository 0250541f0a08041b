"""DQN: values of discrete actions, learned from a replay; double, dueling, n-step and quantiles are settings.

Sources: Mnih et al. 2015; double: van Hasselt et al. 2016, arXiv 1509.06461; dueling: Wang et al. 2016, arXiv 1511.06581;
quantiles: Dabney et al. 2018, arXiv 1710.10044.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lib.agent.config import MAX_QUANTILES, TrainConfig
from lib.agent.network import autocast, with_weights
from lib.agent.off_policy import OffPolicy
from lib.agent.replay import Batch
from lib.cli import UserError
from lib.convolutions import Convolutions, kind_of_pictures
from lib.envs.play import Decision
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION, World
from lib.heads import mlp

_HIDDEN = 256
_PLAYED_EPSILON = 0.01  # a greedy policy can be caught in a loop
_MAX_HIDDEN = 4096


def quantile_huber_loss(values: torch.Tensor, targets: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """The distance of a return's quantiles from those of a distribution of targets, for each step.

        Σᵢ meanⱼ |τᵢ − 1{uᵢⱼ < 0}| huber(uᵢⱼ),   uᵢⱼ = targetⱼ − θᵢ

    Source: arXiv 1710.10044, eq. 10, κ = 1.

    Args:
      values: float `[N, Q]`, θ.
      targets: float `[N, Q′]`.
      levels: float `[Q]`, τ.

    Returns:
      float `[N]`.
    """
    errors = targets[:, None, :] - values[:, :, None]
    huber = F.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    return ((levels[:, None] - (errors.detach() < 0).float()).abs() * huber).mean(2).sum(1)


class QNet(nn.Module):
    """Values of A actions, or Q quantiles of each one's return.

    Pictures: Mnih et al.'s convolutions and 512 units, or those of 2013 and 256 units; vectors: two layers of 256 units.

    Args:
      num_actions: A.
      observation_size: D of vectors; None for pictures.
      dueling: Q = V + A − mean A, of two streams.
      quantiles: Q; 1 learns the mean.
      hidden: units of each of the two layers for vectors.
      kind: "shared" or, for pictures, "small"; as in `PolicyNet`.

    Attributes:
      spec: what the policy sees and does.
      levels: τ, the middles of Q equal parts of 0 … 1, float32 `[Q]`.
    """

    levels: torch.Tensor

    def __init__(
        self,
        num_actions: int,
        observation_size: int | None = None,
        dueling: bool = False,
        quantiles: int = 1,
        hidden: int = _HIDDEN,
        kind: str = "shared",
    ) -> None:
        super().__init__()
        self.kind = kind
        self.spec = Spec(
            num_actions, False, PICTURE_SHAPE if observation_size is None else (observation_size,)
        )
        self.register_buffer("levels", (torch.arange(quantiles) + 0.5) / quantiles)
        if observation_size is None:
            self.body: nn.Module = (convolutions := Convolutions("small" if kind == "small" else "separate"))
            sizes = [convolutions.features, convolutions.units]
        else:
            self.body, sizes = nn.Identity(), [observation_size, hidden, hidden]
        self.actions = mlp([*sizes, num_actions * quantiles], nn.ReLU)
        self.value = mlp([*sizes, quantiles], nn.ReLU) if dueling else None

    @property
    def quantiles(self) -> int:
        return len(self.levels)

    @property
    def dueling(self) -> bool:
        return self.value is not None

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Uint8 `[N, 4, 84, 84]` or float32 `[N, D]` to float32 `[N, A, Q]`."""
        features = self.body(observations)
        found: torch.Tensor = self.actions(features).unflatten(1, (self.spec.num_actions, -1))
        if self.value is not None:
            found = self.value(features)[:, None] + found - found.mean(1, keepdim=True)
        return found

    def acting(self, bf16: bool = False) -> "QPolicy":
        """The policy of its weights, which follows their changes."""
        return QPolicy(self, bf16)


class QPolicy:
    """Takes the action of the highest value, and sometimes a random one.

    Args:
      network: on the device it computes on.
      bf16: whether it computes in bf16.
      epsilon: share of random actions.

    Attributes:
      network: the same.
      spec: what it sees and does.
    """

    def __init__(self, network: QNet, bf16: bool = False, epsilon: float = _PLAYED_EPSILON) -> None:
        self.network, self.spec = network, network.spec
        self._bf16, self._epsilon = bf16, epsilon

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        """See `lib.envs.play.Policy`."""
        device, shape = observations.device, (len(observations),)
        with autocast(device, self._bf16):
            best = self.network(observations).mean(2).argmax(1)
        others = torch.randint(self.spec.num_actions, shape, generator=generator, device=device)
        explores = torch.rand(shape, generator=generator, device=device) < self._epsilon
        return Decision(torch.where(explores, others, best))


class DQN(OffPolicy):
    """The learner of DQN; see `OffPolicy` for its arguments."""

    network: QNet
    target: QNet
    network_kind = QNet

    def __init__(self, network: QNet, *arguments: Any, **parts: Any) -> None:
        super().__init__(network, *arguments, **parts)
        self.optimizers = {"values": torch.optim.Adam(network.parameters(), lr=self._config.lr, fused=True)}

    @staticmethod
    def new_network(config: TrainConfig, world: World) -> QNet:
        """A network with new weights.

        Raises:
          UserError: the world's actions are continuous.
        """
        if world.spec.continuous:
            raise UserError(
                f"--algo dqn expects discrete actions, but {world.env_id} has continuous ones: take another "
                "--algo"
            )
        parts = world.spec.num_actions, world.spec.observation_size, config.dueling, config.quantiles
        return QNet(*parts, kind=config.network)

    @staticmethod
    def explorer(network: QNet, config: TrainConfig, bf16: bool) -> QPolicy:
        """The policy that plays where nothing is learned; of a new network, whose actions may all be alike, at random."""
        return QPolicy(network, bf16, 1.0 if config.model is None else config.epsilon)

    @property
    def critics(self) -> QNet:
        return self.network

    @property
    def epsilon(self) -> float:
        """The share of random actions now."""
        config = self._config
        falls = config.exploration * self._planned
        left = 0.0 if config.model is not None or not falls else max(0.0, 1 - self.steps / falls)
        return config.epsilon + (1 - config.epsilon) * left

    def policy(self) -> QPolicy:
        return self.network.acting(self._bf16)

    def choose(self, observations: torch.Tensor) -> torch.Tensor:
        policy = QPolicy(self.network, self._bf16, self.epsilon)
        return policy.act(observations, self.player.generator).actions

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        """One update towards G + γᵐ Q̄(s′, a*), with a* = argmax Q(s′, ·), or argmax Q̄(s′, ·) if not double."""
        network, config = self.network, self._config
        rows = torch.arange(len(batch.actions), device=self._device)
        with autocast(self._device, self._bf16):
            with torch.no_grad():
                after = self.target(batch.following)
                choice = network(batch.following) if config.double else after
            values = network(batch.observations)[rows, batch.actions]
        after = after[rows, choice.mean(2).argmax(1)]
        targets = batch.returns[:, None] + batch.discounts[:, None] * after
        if network.quantiles == 1:
            losses = F.smooth_l1_loss(values, targets, reduction="none").squeeze(1)
        else:
            losses = quantile_huber_loss(values, targets, network.levels)
        loss = (batch.weights * losses).mean()

        self.differentiate({"values": loss})
        norm = nn.utils.clip_grad_norm_(network.parameters(), config.grad_clip or math.inf)
        self.optimizers["values"].step()
        errors = (targets.mean(1) - values.detach().mean(1)).abs()
        self.replay.prioritise(batch.at, errors)
        parts = {
            "loss_total": loss,
            "values": (batch.weights * values.detach().mean(1)).mean(),
            "td_error": (batch.weights * errors).mean(),
            "batch_rewards": (batch.weights * batch.returns).mean(),
        }
        return self.of_all(parts) | {"grad_norm": norm}


def network_from_state(state: dict[str, torch.Tensor], source: str) -> QNet:
    """A network with the weights of a state_dict.

    Raises:
      UserError: the weights are of another network; says what differs.
    """
    last = 2 if "body.0.weight" in state else 4
    first, head = state.get("actions.0.weight"), state.get(f"actions.{last}.weight")
    shapes = [] if first is None or head is None else [*first.shape, *head.shape]
    quantiles = state["levels"].numel()
    if len(shapes) != 4 or not 1 <= quantiles <= MAX_QUANTILES:
        raise UserError(f"{source}: expected the weights of a policy of --algo dqn, got others with levels")
    hidden, size, num_actions = shapes[0], shapes[1], shapes[2] // quantiles
    if not (1 <= num_actions <= MAX_ACTIONS and 1 <= size <= MAX_OBSERVATION):
        raise UserError(
            f"{source}: expected at most {MAX_ACTIONS} actions and {MAX_OBSERVATION} numbers seen, got {num_actions} and {size}"
        )
    if hidden > _MAX_HIDDEN:
        raise UserError(f"{source}: expected at most {_MAX_HIDDEN} units, got {hidden}")
    observation_size = None if last == 2 else size
    dueling = "value.0.weight" in state
    kind = "small" if kind_of_pictures(state, "body") == "small" else "shared"
    return with_weights(
        lambda: QNet(num_actions, observation_size, dueling, quantiles, hidden, kind), state, source
    )
