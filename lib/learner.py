"""The interface between a learner and the run around it.

A learner plays and learns. It gets its settings when it is made, and knows nothing of files, clocks and charts. The loop
(`lib.training.loop`) knows no algorithm. A new algorithm is a module with a class that has these methods.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn

from lib.envs.play import Policy


class Game(NamedTuple):
    """A finished full game."""

    score: float
    steps: int
    learned: float
    """Sum of the learned reward; 0 where none is paid."""


class LearnedPolicy(Policy, Protocol):
    """A policy that can be saved."""

    @property
    def network(self) -> nn.Module:
        """Its weights."""
        ...


class Advance(NamedTuple):
    """What a learner returns from one `advance`."""

    steps: int
    """Steps that it made, all environments together."""
    scalars: dict[str, torch.Tensor | float]
    """By chart name; tensors are scalars on the device, which nothing here waits for. Where there are any, `loss_total`,
    which is watched, is one of them."""
    games: list[Game]
    """Games that ended."""


class Learner(Protocol):
    """Plays and learns.

    Attributes:
      steps: made so far, all environments together.
    """

    steps: int

    def advance(self) -> Advance:
        """Acts and learns once."""
        ...

    def play(self) -> None:
        """Acts without learning, which fills the DB before there is a reward model."""
        ...

    def use_reward(self, model: Any, another: bool = True) -> None:
        """Lets a reward model pay from now on.

        Args:
          model: a `RewardModel`, or a `TextRewardModel`, on the learner's device.
          another: whether it differs from the previous model.
        """
        ...

    def policy(self) -> Any:
        """Its policy, for evaluations and checkpoints: a `LearnedPolicy`, or a `LanguageModel`."""
        ...

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Everything that must stay finite, by name."""
        ...

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs, as a checkpoint can hold it."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        ...


T = TypeVar("T")

Total = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""Sums each of some tensors over all processes that learn together."""


class Alone:
    """The processes that learn together if there is only one; `lib.training.ranks.Ranks` has several.

    Every process calls the same methods in the same order, and all of them get the same answers.

    Attributes:
      rank: this process's, from 0; the first one evaluates, charts, saves and prints.
      size: how many processes there are.
    """

    rank, size = 0, 1

    def everyone(self, number: int) -> list[int]:
        """Each process's number, by rank."""
        return [number]

    def together(self, decision: bool) -> bool:
        """Makes one decision for all: whether any process says so."""
        return any(self.everyone(int(decision)))

    def total(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sums each tensor over all processes; those of one call are on one device."""
        return tensors

    def gather(self, thing: T) -> list[T]:
        """What each process has, by rank, on the CPU and of any type that can be pickled."""
        return [thing]

    def share(self, count: int) -> range:
        """This process's share of so many things, such as environments."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)


ALONE = Alone()
