"""The policy network: separate policy and value heads on Mnih et al.'s convolutions, or on a vector."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar, cast

import torch
from torch import nn

from lib.agent.distributions import sample_actions
from lib.cli import UserError
from lib.convolutions import Convolutions, kind_of_pictures
from lib.envs.play import Decision
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION, bounded_actions
from lib.heads import mlp
from lib.learner import ALONE, Total

Network = TypeVar("Network", bound=nn.Module)

_CLIP = 10.0  # standard deviations of an observation


class Normaliser(nn.Module):
    """Vector observations to mean 0 and standard deviation 1, clipped to ±10, by statistics of all that was seen.

    Numbers of a simulation have any size, and learning from MuJoCo's fails without this: Andrychowicz et al. 2021,
    arXiv 2006.05990, section 3.3; the bound is that of OpenAI's baselines. `update` is called by training alone,
    between one update and the next rollout, so that a rollout is judged by the statistics that it was played by.
    """

    mean: torch.Tensor  # float32 [D]
    var: torch.Tensor  # float32 [D]
    count: torch.Tensor  # float64 []

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Float32 `[..., D]` to the same."""
        return ((observations - self.mean) / (self.var + 1e-8).sqrt()).clamp(-_CLIP, _CLIP)

    @torch.no_grad()
    def update(self, observations: torch.Tensor, total: Total = ALONE.total) -> None:
        """Includes more observations, float32 `[..., D]`: joins means and variances of both parts (Chan et al. 1979).

        With `total`, those of all processes.
        """
        more = observations.flatten(0, -2).double()
        new, summed = total([torch.full_like(self.count, len(more)), more.sum(0)])
        mean = summed / new
        [squares] = total([(more - mean).square().sum(0)])
        count = self.count + new
        share = new / count
        apart = mean - self.mean
        var = self.var * (1 - share) + squares / new * share
        var = var + apart.square() * share * (1 - share)
        # Some environments show float32's largest number for "nothing there", whose square is beyond float32.
        self.var.copy_(var.clamp(max=torch.finfo(self.var.dtype).max))
        self.mean.copy_(self.mean + apart * share)
        self.count.copy_(count)


class _WithSpread(nn.Module):
    """Puts the logarithms of the standard deviations, the same in every state, behind the means: `[N, A]` to `[N, 2A]`."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def forward(self, means: torch.Tensor) -> torch.Tensor:
        return torch.cat([means, self.log_std.expand_as(means)], -1)


class PolicyNet(nn.Module):
    """A policy and a value head, behind convolutions if the policy sees pictures.

    Pictures, by kind: "separate", conv 32@8/4, 64@4/2, 64@3/1, then 512 units for each head (Mnih et al. 2015); "shared",
    512 units under both, as in Stable-Baselines3's CnnPolicy; "small", conv 16@8/4, 32@4/2, then 256 units for each head
    (Mnih et al. 2016). Parameter names are those of the original experiment, whose checkpoints load as they are.
    Vectors: normalised, then two tanh layers of 64 units for each head, as in Schulman et al. 2017, arXiv 1707.06347.

    Attributes:
      spec: what it sees and does. Continuous actions are a Gaussian's; see lib.agent.distributions.
      kind: of network, if it sees pictures; the layer of 512 units of a "shared" one belongs to the body.
    """

    def __init__(
        self,
        num_actions: int,
        continuous: bool = False,
        observation_size: int | None = None,
        kind: str = "separate",
    ) -> None:
        super().__init__()
        seen = PICTURE_SHAPE if observation_size is None else (observation_size,)
        self.spec, self.kind = Spec(num_actions, continuous, seen), kind
        if observation_size is None:
            self.conv = Convolutions(kind)
            sizes = [self.conv.features] if kind == "shared" else [self.conv.features, self.conv.units]
            activation = cast(type[nn.Module], nn.ReLU)
        else:
            self.normaliser = Normaliser(observation_size)
            sizes, activation = [observation_size, 64, 64], nn.Tanh
        self.policy = mlp([*sizes, num_actions], activation)
        self.value = mlp([*sizes, 1], activation)
        self._initialise()
        if continuous:
            self.policy.append(_WithSpread(num_actions))

    def acting(self, bf16: bool = False) -> "ActorPolicy":
        """The policy of its weights, which follows their changes."""
        return ActorPolicy(self, bf16)

    @property
    def body(self) -> nn.Module:
        """The part below both heads: the convolutions or the normaliser, which a finetune leaves unchanged."""
        return self.conv if self.spec.observation_size is None else self.normaliser

    def _initialise(self) -> None:
        """Orthogonal weights; a nearly uniform first policy (Andrychowicz et al. 2021, arXiv 2006.05990)."""
        gains = {f"policy.{len(self.policy) - 1}.weight": 0.01, f"value.{len(self.value) - 1}.weight": 1.0}
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, gain=gains.get(name, math.sqrt(2)))

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Distribution parameters and values.

        Args:
          observations: uint8 `[N, 4, 84, 84]`, or float32 `[N, D]`.

        Returns:
          float32 logits `[N, A]`, or `[N, 2A]` of a Gaussian (`lib.agent.distributions`), and float32 values `[N]`.
        """
        features = self.features(observations)
        return self.dist_params(features), self.values(features)

    def features(self, observations: torch.Tensor) -> torch.Tensor:
        """The body's features of observations, `[N, F]`: all that the heads see."""
        return cast(torch.Tensor, self.body(observations))

    def dist_params(self, features: torch.Tensor) -> torch.Tensor:
        """The policy head: float32 logits `[N, A]`, or `[N, 2A]` of a Gaussian."""
        return cast(torch.Tensor, self.policy(features))

    def values(self, features: torch.Tensor) -> torch.Tensor:
        """The value head: float32 `[N]`."""
        return cast(torch.Tensor, self.value(features)).squeeze(-1)


class ActorPolicy:
    """The policy of a network.

    Args:
      network: on the device it computes on.
      bf16: whether it computes in bf16.

    Attributes:
      network: the same.
      spec: what it sees and does.
    """

    def __init__(self, network: PolicyNet, bf16: bool = False) -> None:
        self.network, self.spec = network, network.spec
        self._bf16 = bf16

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        """Draws actions; see `lib.envs.play.Policy`."""
        dist_params = self.dist_params(observations)
        drawn = sample_actions(dist_params, generator, self.spec.continuous)
        return Decision(bounded_actions(drawn, self.spec.continuous), dist_params)

    def dist_params(self, observations: torch.Tensor) -> torch.Tensor:
        """The parameters of the distribution it acts by, of observations as `act` takes them."""
        with autocast(observations.device, self._bf16):
            return self.network.dist_params(self.network.features(observations))


def autocast(device: torch.device, enabled: bool) -> AbstractContextManager[None]:
    """bf16 arithmetic in the networks where `enabled`; weights, sums and losses stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


def policy_from_state(state: dict[str, torch.Tensor], source: str) -> PolicyNet:
    """A policy with the weights of a state_dict, ours or the original's.

    Args:
      state: the weights; the kind of the policy and the number of actions are read from them.
      source: file they came from, for messages.

    Raises:
      UserError: the weights are of another network; says what differs.
    """
    seen = state.get("normaliser.mean")
    observation_size = None if seen is None else seen.numel()
    kind = kind_of_pictures(state)
    last = 4 if observation_size is not None else 0 if kind == "shared" else 2
    head = state.get(f"policy.{last}.weight")
    if head is None or head.ndim != 2:
        raise UserError(
            f"{source}: expected the weights of a policy (conv.* or normaliser.*, policy.*, value.*), "
            f"got {', '.join(sorted(state)[:3]) or 'none'}…; is it a reward model?"
        )
    if not 1 <= head.shape[0] <= MAX_ACTIONS:
        raise UserError(f"{source}: expected a policy of 1 to {MAX_ACTIONS} actions, got {head.shape[0]}")
    if observation_size is not None and not 1 <= observation_size <= MAX_OBSERVATION:
        raise UserError(
            f"{source}: expected a policy that sees 1 to {MAX_OBSERVATION} numbers, got {observation_size}"
        )
    return with_weights(
        lambda: PolicyNet(
            head.shape[0],
            continuous=f"policy.{last + 1}.log_std" in state,
            observation_size=observation_size,
            kind=kind,
        ),
        state,
        source,
    )


def with_weights(make: Callable[[], Network], state: dict[str, torch.Tensor], source: str) -> Network:
    """A network with the weights of a state_dict, which must have exactly these weights.

    Args:
      make: makes the network.
      state: the weights.
      source: file they came from, for messages.

    Raises:
      UserError: the weights are of another network; says what differs.
    """
    with torch.device("meta"):  # first weights take longer to draw than anything else here
        network = make()
    network.to_empty(device="cpu")
    expected = network.state_dict()
    for name, value in expected.items():
        if name not in state:
            raise UserError(f"{source}: expected a weight {name}, which is missing")
        if state[name].shape != value.shape:
            raise UserError(
                f"{source}: expected {name} of shape {tuple(value.shape)}, got {tuple(state[name].shape)}"
            )
    unknown = sorted(set(state) - set(expected))
    if unknown:
        raise UserError(f"{source}: weights of another network: {', '.join(unknown[:3])} do not belong here")
    network.load_state_dict(state)
    return network
