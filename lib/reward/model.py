"""The reward model: the standardised r̂(frame, action) that an agent is paid."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from lib.cli import UserError
from lib.devices import keep_in_bf16
from lib.envs.observation import Observer, grey_resize_cpu, stacked_clip
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.preferences.segments import Segment
from lib.reward.features import PolicyBody
from lib.reward.implied import PolicyRatio
from lib.reward.network import RewardNet

Net = TypeVar("Net", bound=nn.Module, covariant=True)
Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Member(Generic[Net]):
    """One fitted network and the statistics of its output over what it was fitted on: steps, or answers."""

    network: Net
    mean: float
    std: float

    def saved(self) -> dict[str, Any]:
        """As checkpoints and states keep it."""
        return {"state_dict": self.network.state_dict(), "mean": self.mean, "std": self.std}


def unstandardised(members: Sequence[Member[Any]], each: np.ndarray) -> np.ndarray:
    """r̂ₘ of standardised rewards zₘ, float `[M, N]`; float64 `[M, N]`."""
    mean, std = np.array([(member.mean, member.std) for member in members]).T
    return np.asarray(each, float) * std[:, None] + mean[:, None]


class RewardModel:
    """The learned reward: r̂ standardised, averaged over the members of an ensemble.

        r̂(o, a) = z̄ − k (s − s_DB),  zₘ = (r̂ₘ(o, a) − meanₘ) / stdₘ,  s = sqrt(1/M Σₘ (zₘ − z̄)²)

    With a pessimism k above 0 the model pays less where its members disagree, that is, where it has seen little.
    s_DB, the mean of s over the segments of the fit, keeps the average reward at 0. Without it every step would cost
    something, and an agent that dies early would lose least.

    The statistics are fixed when the model is fitted (a running estimate would turn a steadily good state into 0), and
    the size of r̂ is kept: it is never clipped to its sign.

    Attributes:
      members: the networks and their statistics.
      spec: what the model sees and which actions it takes; see `RewardNet`.
      input: one of `lib.reward.network.INPUTS`.
      disagreement: s_DB.
      origin: where the model comes from, see `lib.provenance.lineage`; {} if unknown.

    Args:
      members: at least one.
      device: where the networks compute.
      bf16: whether they compute in bf16.
      origin: see above.
      pessimism: k.
      disagreement: see above.
      features: of a policy, that the members see instead of its observations; None if they see what `input` says.
    """

    def __init__(
        self,
        members: Sequence[Member[RewardNet | PolicyRatio]],
        device: torch.device,
        bf16: bool = False,
        origin: dict[str, Any] | None = None,
        pessimism: float = 0.0,
        disagreement: float = 0.0,
        features: PolicyBody | None = None,
    ) -> None:
        self.members = list(members)
        self.disagreement = disagreement
        network = self.members[0].network
        self.spec, self.input = network.spec, network.input
        self.features = None if features is None else features.to(device)
        if features is not None:
            self.spec = dataclasses.replace(
                network.spec, observation_shape=PICTURE_SHAPE, frame_shape=network.frame_shape
            )
        self.origin = origin or {}
        self._device, self._bf16, self._pessimism = device, bf16, pessimism
        self._fast = [
            member.network.for_paying().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            for member in self.members
        ]
        if bf16:
            for network in self._fast:
                keep_in_bf16(network)

    @torch.no_grad()
    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Each member's reward for a batch of steps.

        Args:
          inputs: what was seen when the action was chosen, on the model's device: frames uint8 `[N, H, W, 3]` or
            observations uint8 `[N, 4, 84, 84]` or float32 `[N, D]`, as `input` says.
          actions: int64 `[N]`, or float32 `[N, A]` in −1 … 1, on the same device.

        Returns:
          float32 `[M, N]`, zₘ, with standard deviation 1 for each member over the segments of the fit, and mean 0 unless a policy
          implies it (`lib.reward.implied`).
        """
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            if self.features is not None:
                inputs = self.features(inputs)
            return torch.stack(
                [
                    (network(inputs, actions) - member.mean) / member.std
                    for network, member in zip(self._fast, self.members, strict=True)
                ]
            )

    def unstandardised(self, each: np.ndarray) -> np.ndarray:
        """r̂ₘ as the loss sees it, its differences of returns being log-odds: zₘ, float `[M, N]`, to float64 `[M, N]`."""
        return unstandardised(self.members, each)

    def combine(self, each: torch.Tensor) -> torch.Tensor:
        """The reward paid, float32 `[N]`, of the members' rewards, float32 `[M, N]`."""
        if self._pessimism == 0:
            return each.mean(0)
        return each.mean(0) - self._pessimism * (each.std(0, correction=0) - self.disagreement)

    def as_fitted(self, paid: Numbers) -> Numbers:
        """What is paid for steps, float `[N]`, in the members' mean unit and from their mean zero, so that sums over clips of
        different lengths compare as those of r̂ do."""
        mean, std = np.mean([(member.mean, member.std) for member in self.members], 0).tolist()
        return paid * std + mean

    def pay(
        self, frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The learned reward of a batch of steps.

        Args:
          frames: uint8 `[N, H, W, 3]` on the model's device; a model of observations ignores them.
          actions: int64 `[N]`, or float32 `[N, A]` in −1 … 1, on the same device.
          observations: uint8 `[N, 4, 84, 84]` or float32 `[N, D]` on the same device; only a model of observations
            needs them.

        Returns:
          float32 `[N]`.

        Raises:
          ValueError: a model of observations got none.
        """
        inputs = frames if self.input == "frame" else observations
        if inputs is None:
            raise ValueError(f"a reward model of {self.input}s got none")
        return self.combine(self.each(inputs, actions))

    def rewards(
        self, frames: np.ndarray | None, actions: np.ndarray, observations: np.ndarray | None = None
    ) -> np.ndarray:
        """`pay` for NumPy arrays; actions are integers `[N]` or float32 `[N, A]`."""
        looked_at = torch.empty(0) if frames is None else self._on_device(frames)
        seen = None if observations is None else self._on_device(observations)
        return self.pay(looked_at, self._actions(actions), seen).cpu().numpy()

    def each_along(
        self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None
    ) -> np.ndarray:
        """`each` along a clip of T consecutive steps of one game.

        Args:
          frames: uint8 `[T, H, W, 3]`.
          actions: integers `[T]` or float32 `[T, A]`.
          observations: float32 `[T, D]`; only a model of vectors needs them.

        Returns:
          float32 `[M, T]`.

        Raises:
          ValueError: a model of vectors got none.
        """
        inputs = clip_inputs(frames, self.input) if self.spec.observation_size is None else observations
        if inputs is None:
            raise ValueError("a reward model of vectors got none")
        return self.each(self._on_device(inputs), self._actions(actions)).cpu().numpy()

    def rewards_along(
        self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None
    ) -> np.ndarray:
        """The reward paid along a clip, float32 `[T]`; takes the arguments of `each_along`."""
        return self.combine(torch.from_numpy(self.each_along(frames, actions, observations))).numpy()

    def _actions(self, actions: np.ndarray) -> torch.Tensor:
        tensor = self._on_device(actions)
        return tensor if self.spec.continuous else tensor.long()

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, device=self._device)

    def spec_of(self, segment: Segment) -> Spec:
        """The segment's spec. If it does not give the number of actions, it has the model's, or more if needed."""
        spec = segment.spec
        if segment.sidecar is not None or segment.continuous:
            return spec
        return dataclasses.replace(spec, num_actions=max(spec.num_actions, self.spec.num_actions))

    def check(self, spec: Spec, path: Path, env_id: str) -> None:
        """Refuses an environment for which the model was not fitted.

        Args:
          spec: the environment's.
          path: of the model, for the message.
          env_id: of the environment, for the message.

        Raises:
          UserError: says what differs.
        """
        differs = self.spec.difference(spec)
        if differs is not None:
            expected, got = differs
            raise UserError(
                f"{path}: a reward model for {expected}, but {env_id} has {got}; fit one on clips of that environment"
            )


class ObservingRewards:
    """Pays B environments step by step, stacking frames for a model of pictures.

    Args:
      model: the reward model.
      num_envs: B.
    """

    def __init__(self, model: RewardModel, num_envs: int) -> None:
        self._model = model
        self._observer = None
        if model.spec.observation_shape == PICTURE_SHAPE:
            frame_shape = model.spec.frame_shape
            assert frame_shape is not None
            self._observer = Observer(num_envs, frame_shape, torch.device("cpu"))

    def rewards(
        self, frames: np.ndarray, actions: np.ndarray, first: np.ndarray, vectors: np.ndarray | None = None
    ) -> np.ndarray:
        """The rewards of the games' next step.

        Args:
          frames: uint8 `[B, H, W, 3]`; a model of vectors ignores them.
          actions: integers `[B]`, or float32 `[B, A]` in −1 … 1.
          first: bool `[B]`, where a game begins.
          vectors: float32 `[B, D]`; only a model of vectors needs them.

        Returns:
          float32 `[B]`.
        """
        if self._observer is None:
            return self._model.rewards(frames, actions, vectors)
        observations = self._observer.push(torch.tensor(frames), torch.tensor(first))
        return self._model.rewards(frames, actions, observations.numpy())


def clip_inputs(frames: np.ndarray, input: str) -> np.ndarray:
    """A network's inputs along a clip.

    Args:
      frames: uint8 `[T, H, W, 3]`, of consecutive steps.
      input: one of INPUTS.

    Returns:
      The frames, or uint8 `[T, 4, 84, 84]`.
    """
    return frames if input == "frame" else stacked_clip(grey_resize_cpu(np.ascontiguousarray(frames)))
