"""Members of a reward model during the fit, and the material of the fit."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from lib.devices import random_state, set_random_state
from lib.reward.config import FitConfig
from lib.reward.data import Labelled, Pairs
from lib.reward.epoch import HeldOut
from lib.reward.model import Member
from lib.reward.split import Unit

_L2_STEP = 0.5  # by which share the weight of the ℓ2 regularisation is raised or lowered

Model = TypeVar("Model")
Data = TypeVar("Data", bound=Labelled)


class Material(ABC, Generic[Model, Data]):
    """The material of a fit: clips, or answers of a language model, and the labels of some DBs.

    Attributes:
      config: how to fit.
      data: what was read.
      device: where networks compute.
    """

    config: FitConfig
    data: Data
    device: torch.device

    @abstractmethod
    def __init__(self, config: FitConfig, lines: Sequence[int] | None = None) -> None:
        """Reads the material: so many lines of labels of each DB, all for None. Raises UserError."""

    @abstractmethod
    def __str__(self) -> str:
        """A description of the material, for a line of progress."""

    @abstractmethod
    def units(self) -> tuple[Pairs, list[Unit]]:
        """The units that must not be on both sides of a split: clips, whole moments of forks, or whole prompts.

        Returns:
          The pairs, with the numbers of units in place of those of clips; each unit.
        """

    @abstractmethod
    def begin(self, train: np.ndarray, test: np.ndarray, number: int) -> MemberFit:
        """A member with new weights; arguments as for `MemberFit`."""

    @abstractmethod
    def model(
        self, members: Sequence[Member], held_out: Sequence[HeldOut], test: np.ndarray
    ) -> tuple[Model, HeldOut]:
        """The model of some members, and its loss and accuracy on the held-out pairs.

        Args:
          members: at least one.
          held_out: theirs.
          test: int64, positions in `data.pairs` of the held-out pairs.
        """

    @abstractmethod
    def save(
        self,
        path: Path,
        model: Model,
        config: Any,
        parents: dict[str, Any],
        results: dict[str, Any],
        refit: dict[str, Any] | None,
    ) -> None:
        """Writes a checkpoint; arguments as for `lib.reward.checkpoints.save_reward_model`."""

    def parents(self) -> dict[str, Any]:
        """The model's origin, as its checkpoint records it."""
        return {"dbs": self.data.parents, "labels": len(self.data.pairs)}


class MemberFit(ABC):
    """One unfinished member: its network and everything that its next epoch depends on.

    Members of an ensemble differ in the weights they begin with and the order of the pairs (Lakshminarayanan et al. 2017,
    arXiv 1612.01474). Christiano et al. also draw each member's pairs with replacement; a few hundred labels are too
    few to lose a third of them.

    Args:
      material: what it is fitted to.
      train: int64, positions in `material.data.pairs` of the training pairs.
      test: int64, of the held-out pairs.
      number: of the member, from 0.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    """Its first group of parameters has the ℓ2 regularisation."""
    stops_early = True
    """It ends once its held-out loss has not fallen for `--patience` epochs, and keeps its best epoch that `counts`; else it
    keeps its last."""
    least_updates = 0
    """Before so many updates no epoch `counts`."""

    def __init__(
        self, material: Material[Any, Any], train: np.ndarray, test: np.ndarray, number: int
    ) -> None:
        config = self._config = material.config
        self._device = material.device
        seed = config.seed + 1000 * number  # fits with seeds 0, 1, 2, … share no member
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.pairs, self.test = material.data.pairs.subset(train), material.data.pairs.subset(test)
        updates = max(1, math.ceil(len(self.pairs) / config.batch_size))
        self._first = math.ceil(self.least_updates / updates)  # the first epoch that counts
        self.epoch = 0  # how many are over
        self.best: HeldOut | None = None
        self.best_epoch = 0
        self.best_state: dict[str, torch.Tensor] = {}

    @abstractmethod
    def train_epoch(self, should_stop: Callable[[], bool]) -> float | None:
        """One pass over the training pairs in random order: the mean loss, or None if it was stopped."""

    @abstractmethod
    def held_out(self, quick: bool = False) -> HeldOut:
        """Loss and accuracy on the held-out pairs; `quick` as epochs are compared."""

    @abstractmethod
    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation of r̂ over what it is fitted to.

        Raises:
          UserError: it is the same for everything.
        """

    @property
    def l2(self) -> float:
        """The weight of the ℓ2 regularisation in the next epoch."""
        return float(self.optimizer.param_groups[0]["weight_decay"])

    @property
    def counts(self) -> bool:
        """Whether the last epoch came after enough updates for its held-out loss to be compared with others."""
        return self.epoch >= self._first

    def begin_from(self, weights: dict[str, torch.Tensor]) -> bool:
        """Loads weights, unless they are of another form of network."""
        own = self.network.state_dict()
        fit = own.keys() == weights.keys() and all(own[name].shape == weights[name].shape for name in own)
        if fit:
            self.network.load_state_dict(weights)
            self._first = 0  # they have learned already
        return fit

    def epochs_left(self) -> int:
        """The number of epochs left; if it stops early the least, which is 0 when the best epoch is too long ago."""
        left = self._config.epochs - self.epoch
        if not self.stops_early:
            return left
        since_best = self.epoch - self.best_epoch
        return max(0, min(left, self._config.patience - since_best))

    def end_epoch(self, train_loss: float, result: HeldOut) -> None:
        """Counts an epoch, keeps its weights unless an earlier one that `counts` is better, and adapts ℓ2 for the next."""
        self.epoch += 1
        self.optimizer.param_groups[0]["weight_decay"] = adapted_l2(self.l2, train_loss, result.loss)
        too_early = self.best_epoch < self._first  # the best so far
        if self.best is None or not self.stops_early or too_early or result.loss < self.best.loss:
            self.best, self.best_epoch = result, self.epoch
            self.best_state = copy.deepcopy(self.network.state_dict())

    def state(self) -> dict[str, Any]:
        """A copy of everything that the next epoch depends on, including PyTorch's random generators."""
        return {
            "network": copy.deepcopy(self.network.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "epoch": self.epoch,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "best_state": self.best_state,
            "rng": self.rng.bit_generator.state,
            "random": random_state(self._device),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.best = state["epoch"], HeldOut(**state["best"])
        self.best_epoch, self.best_state = state["best_epoch"], state["best_state"]
        self.rng.bit_generator.state = state["rng"]
        set_random_state(state["random"], self._device)


def adapted_l2(l2: float, train_loss: float, held_out_loss: float) -> float:
    """The weight λ of ℓ2 regularisation (½ λ Σ θ² beside the loss) for the next epoch.

    Raised to 1.5 λ if the held-out loss is more than 1.5 times the training loss, lowered to 0.5 λ if it is less
    than 1.1 times that, as Christiano et al. adapt theirs (section 2.2.3). 0 stays 0.

    Args:
      l2: λ, at least 0.
      train_loss: mean loss over the training pairs, without the regularisation.
      held_out_loss: mean loss over the held-out pairs.
    """
    if held_out_loss > 1.5 * train_loss:
        return l2 * (1 + _L2_STEP)
    if held_out_loss < 1.1 * train_loss:
        return l2 * (1 - _L2_STEP)
    return l2
