"""One member of a reward model while it is fitted."""

import copy
from typing import Any

import numpy as np
import torch

from lib.cli import UserError
from lib.devices import random_state, set_random_state
from lib.reward.config import FitConfig
from lib.reward.data import PreferenceData
from lib.reward.epoch import HeldOut
from lib.reward.masks import Mask, masks_for
from lib.reward.network import RewardNet
from lib.reward.store import SegmentStore

_L2_STEP = 0.5  # by which share the weight of the ℓ2 regularisation is raised or lowered


class MemberFit:
    """One member under way: its network and all that its next epoch depends on.

    Each member of an ensemble begins with its own weights and is fitted to as many pairs as there are, drawn with
    replacement (Christiano et al., section 2.2.3).

    Args:
      config, data, train, device: as for `fit_model`.
      number: of the member, from 0.
    """

    def __init__(
        self,
        config: FitConfig,
        data: PreferenceData,
        train: np.ndarray,
        device: torch.device,
        number: int,
    ) -> None:
        self._config, self._device = config, device
        seed = config.seed + 1000 * number  # fits with seeds 0, 1, 2, … share no member
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        if config.ensemble > 1:
            train = self.rng.choice(train, len(train))
        self.pairs = data.pairs.subset(train)
        self.network = new_network(config, data.segments, device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr, weight_decay=config.l2)
        self.epoch = 0  # how many are over
        self.best: HeldOut | None = None
        self.best_epoch = 0
        self.best_state: dict[str, torch.Tensor] = {}

    @property
    def l2(self) -> float:
        """The weight of the ℓ2 regularisation in the next epoch."""
        return float(self.optimizer.param_groups[0]["weight_decay"])

    def epochs_left(self) -> int:
        """How many are left at least; 0 when the best one is too long ago."""
        since_best = self.epoch - self.best_epoch
        return max(0, min(self._config.epochs - self.epoch, self._config.patience - since_best))

    def end_epoch(self, train_loss: float, result: HeldOut) -> None:
        """Counts an epoch, keeps its weights if it is the best, and adapts ℓ2 for the next."""
        self.epoch += 1
        self.optimizer.param_groups[0]["weight_decay"] = adapted_l2(self.l2, train_loss, result.loss)
        if self.best is None or result.loss < self.best.loss:
            self.best, self.best_epoch = result, self.epoch
            self.best_state = copy.deepcopy(self.network.state_dict())

    def state(self) -> dict[str, Any]:
        """A copy of all that the next epoch depends on, PyTorch's random generators included."""
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

    Raised to 1.5 λ where the held-out loss is more than 1.5 times the training loss, lowered to 0.5 λ where it is less
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


def checked_masks(config: FitConfig, segments: SegmentStore) -> tuple[Mask, ...]:
    """The parts of the frames that are hidden from the network.

    Raises:
      UserError: a mask does not fit the frames, or the network sees no pixels to hide or to move.
    """
    for name, given in (("--mask", bool(config.mask)), ("--shift", config.shift > 0)):
        if given and segments.spec.observation_size is not None:
            raise UserError(
                f"{name} is about pixels, but the model sees vectors of {segments.spec.observation_size} numbers; "
                f"add --input frame"
            )
    return masks_for(config.mask, segments.frame_shape, segments.env_id)


def new_network(config: FitConfig, segments: SegmentStore, device: torch.device) -> RewardNet:
    """A network with new weights, for what the segments show and take."""
    spec = segments.spec
    network = RewardNet(
        segments.frame_shape,
        spec.num_actions,
        config.dropout,
        checked_masks(config, segments),
        config.shift,
        config.noise,
        segments.input or "frame",
        spec.continuous,
        spec.observation_size,
        config.half_frames,
    )
    if spec.observation_size is not None:
        mean, std = segments.observation_statistics()
        network.mean.copy_(torch.from_numpy(mean))
        network.std.copy_(torch.from_numpy(std))
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
