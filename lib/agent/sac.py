"""SAC: an actor that maximises reward and entropy, critics that learn from a replay, for vectors and continuous actions.

Source: Haarnoja et al. 2018, arXiv 1812.05905.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lib.agent.config import TrainConfig
from lib.agent.distributions import squashed_sample
from lib.agent.network import autocast, with_weights
from lib.agent.off_policy import OffPolicy
from lib.agent.replay import Batch
from lib.cli import UserError
from lib.envs.play import Decision
from lib.envs.spec import Spec
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION, World
from lib.heads import mlp

_HIDDEN = 256
_MAX_HIDDEN = 4096


class TwinCritics(nn.Module):
    """Two critics Q(s, a) of two hidden layers, each layer of both in one product.

    Under autocast, only the product of the hidden layers, which takes most of the time, is in bf16.

    Args:
      inputs: D + A.
      hidden: units of a layer.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        sizes = [(inputs, hidden), (hidden, hidden), (hidden, 1)]
        # As of nn.Linear: uniform within ±1/√inputs.
        self.weights = nn.ParameterList(torch.empty(2, n, m).uniform_(-(n**-0.5), n**-0.5) for n, m in sizes)
        self.biases = nn.ParameterList(torch.empty(2, 1, m).uniform_(-(n**-0.5), n**-0.5) for n, m in sizes)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Float32 `[N, D]` and `[N, A]` to values, float32 `[2, N]`."""
        x = torch.cat([observations, actions], -1).expand(2, -1, -1)
        first, hidden, last = zip(self.weights, self.biases, strict=True)
        with autocast(x.device, False):
            x = F.relu(torch.baddbmm(first[1], x, first[0]))
        x = F.relu(torch.baddbmm(hidden[1], x, hidden[0])).float()
        with autocast(x.device, False):
            return torch.baddbmm(last[1], x, last[0]).squeeze(-1)


class Actor(nn.Sequential):
    """Two hidden layers; float32 `[N, D]` to μ and log σ, `[N, 2A]`. Computes in bf16 what `TwinCritics` does."""

    def __init__(self, observation_size: int, num_actions: int, hidden: int) -> None:
        super().__init__(*mlp([observation_size, hidden, hidden, 2 * num_actions], nn.ReLU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self
        with autocast(x.device, False):
            x = first(x)
        for layer in others:
            x = layer(x)
        return x


class SACNet(nn.Module):
    """Actor, twin critics and temperature.

    Args:
      observation_size: D.
      num_actions: A.
      hidden: units of each of the two hidden layers.

    Attributes:
      spec: what the policy sees and does.
      actor: of a squashed Gaussian; see `Actor`.
      critics: see `TwinCritics`.
      log_alpha: the logarithm of the temperature α, float32 `[]`.
    """

    def __init__(self, observation_size: int, num_actions: int, hidden: int = _HIDDEN) -> None:
        super().__init__()
        self.spec = Spec(num_actions, True, (observation_size,))
        self.actor = Actor(observation_size, num_actions, hidden)
        self.critics = TwinCritics(observation_size + num_actions, hidden)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def acting(self, bf16: bool = False) -> "SACPolicy":
        """The policy of its weights, which follows their changes; it always computes in float32."""
        return SACPolicy(self)


class SACPolicy:
    """The mean action of an actor, tanh μ(s), by which SAC is evaluated.

    Args:
      network: on the device it computes on.

    Attributes:
      network: the same.
      spec: what it sees and does.
    """

    def __init__(self, network: SACNet) -> None:
        self.network, self.spec = network, network.spec

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        """The actions, without chance; see `lib.envs.play.Policy`."""
        return Decision(self.network.actor(observations).chunk(2, -1)[0].tanh())


class SAC(OffPolicy):
    """The learner of SAC; see `OffPolicy` for its arguments.

    Values and actions are float32, as returns are large beside the differences between actions.
    """

    network: SACNet
    target: TwinCritics
    network_kind = SACNet

    def __init__(self, network: SACNet, *arguments: Any, **parts: Any) -> None:
        super().__init__(network, *arguments, **parts)
        self._entropy = -float(network.spec.num_actions)  # the entropy aimed for
        self.optimizers = {
            name: torch.optim.Adam(parameters, lr=self._config.lr, fused=True)
            for name, parameters in (
                ("actor", network.actor.parameters()),
                ("critics", network.critics.parameters()),
                ("temperature", [network.log_alpha]),
            )
        }

    @staticmethod
    def new_network(config: TrainConfig, world: World) -> SACNet:
        """A network with new weights.

        Raises:
          UserError: the world shows or takes something else.
        """
        spec = world.spec
        if not spec.continuous or spec.observation_size is None:
            has = "discrete actions" if not spec.continuous else "observations that are pictures"
            raise UserError(
                f"--algo sac expects vectors and continuous actions, but {world.env_id} has {has}: take another --algo"
            )
        return SACNet(spec.observation_size, spec.num_actions)

    @property
    def critics(self) -> TwinCritics:
        return self.network.critics

    def policy(self) -> SACPolicy:
        return self.network.acting()

    def choose(self, observations: torch.Tensor) -> torch.Tensor:
        dist_params = self.network.actor(observations)
        noise = torch.empty(self._envs, self._spec.num_actions, device=self._device)
        return squashed_sample(dist_params, noise.normal_(generator=self.player.generator))[0]

    def forget_values(self) -> None:
        """Begins with new critics, as PEBBLE does; the actor, which visits different states, stays."""
        inputs, hidden = self.critics.weights[0].shape[1:]
        self.critics.load_state_dict(TwinCritics(inputs, hidden).state_dict())
        self.target.load_state_dict(self.critics.state_dict())
        self.optimizers["critics"].state.clear()

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        noise = torch.empty(2, *batch.actions.shape, device=self._device)
        return self.learn_with(batch, noise.normal_(generator=self.player.generator))

    def learn_with(self, batch: Batch, noise: torch.Tensor) -> dict[str, torch.Tensor]:
        """One update of the temperature, the critics and the actor, in this order.

            y = G + γᵐ (min Q̄(s′, a′) − α log π(a′|s′)),   a′ ~ π(·|s′)
            L_Q = ½ Σᵢ mean (Qᵢ(s, a) − y)²
            L_π = mean α log π(ã|s) − min Q(s, ã),   ã ~ π(·|s)
            L_α = −mean log α (log π(ã|s) + H̄)

        Args:
          batch: N steps.
          noise: float32 `[2, N, A]`, standard normal: of ã and a′.

        Returns:
          Scalars on the device by chart name.
        """
        network, weights = self.network, batch.weights
        alpha = network.log_alpha.detach().exp()
        actions, log_prob = self._sample(batch.observations, noise[0])
        temperature_loss = -(weights * network.log_alpha * (log_prob.detach() + self._entropy)).mean()

        with torch.no_grad():
            after, after_log_prob = self._sample(batch.following, noise[1])
            values = self._values(self.target, batch.following, after).amin(0) - alpha * after_log_prob
            targets = batch.returns + batch.discounts * values
        errors = self._values(self.critics, batch.observations, batch.actions) - targets
        critic_loss = (weights * errors.square()).mean(1).sum() / 2
        self._step({"temperature": temperature_loss, "critics": critic_loss})
        self.replay.prioritise(batch.at, errors.detach().abs().mean(0))

        values = self._values(self.critics, batch.observations, actions).amin(0)
        actor_loss = (weights * (alpha * log_prob - values)).mean()
        self._step({"actor": actor_loss})
        parts = {
            "loss_actor": actor_loss,
            "loss_critic": critic_loss,
            "loss_temperature": temperature_loss,
            "loss_total": critic_loss,
            "values": (weights * values).mean(),
            "entropy": -(weights * log_prob).mean(),
            "batch_rewards": (weights * batch.returns).mean(),
        }
        return self.of_all(parts) | {"temperature": alpha}

    # Contexts that end before a step of an optimiser: autocast remembers weights in bf16.

    def _sample(self, observations: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(self._device, self._bf16):
            return squashed_sample(self.network.actor(observations), noise)

    def _values(
        self, critics: TwinCritics, observations: torch.Tensor, actions: torch.Tensor
    ) -> torch.Tensor:
        with autocast(self._device, self._bf16):
            values: torch.Tensor = critics(observations, actions)
            return values

    def _step(self, losses: dict[str, torch.Tensor]) -> None:
        """One step of some optimisers."""
        self.differentiate(losses)
        for name in losses:
            self.optimizers[name].step()


def network_from_state(state: dict[str, torch.Tensor], source: str) -> SACNet:
    """A network with the weights of a state_dict.

    Raises:
      UserError: the weights are of another network; says what differs.
    """
    first, last = state.get("actor.0.weight"), state.get("actor.4.weight")
    shapes = [] if first is None or last is None else [*first.shape, *last.shape]
    if len(shapes) != 4:
        raise UserError(f"{source}: expected the weights of a policy of --algo sac, got others named actor.*")
    hidden, observation_size, num_actions = shapes[0], shapes[1], shapes[2] // 2
    limits = ((hidden, _MAX_HIDDEN), (observation_size, MAX_OBSERVATION), (num_actions, MAX_ACTIONS))
    if not all(1 <= size <= most for size, most in limits):
        raise UserError(
            f"{source}: expected at most {_MAX_HIDDEN} units, {MAX_OBSERVATION} numbers seen and {MAX_ACTIONS} of an "
            f"action, got {hidden}, {observation_size} and {num_actions}"
        )
    return with_weights(lambda: SACNet(observation_size, num_actions, hidden), state, source)
