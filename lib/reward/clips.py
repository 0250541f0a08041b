"""Fitting to clips: a member's passes over them, and the resulting model."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from lib.cli import UserError, as_flag
from lib.devices import resolve_bf16, resolve_device
from lib.reward.checkpoints import save_reward_model
from lib.reward.config import FitConfig
from lib.reward.data import Pairs, PreferenceData, load_preferences
from lib.reward.epoch import (
    HeldOut,
    evaluate_ensemble,
    evaluate_pairs,
    mean_disagreement,
    output_statistics,
    pair_loss,
    renew_batch_norms,
    train_epoch,
)
from lib.reward.features import Features, PolicyBody, policy_features
from lib.reward.masks import Mask, masks_for
from lib.reward.member import Material, MemberFit
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.split import Unit, by_unit
from lib.reward.store import SegmentStore


class Clips(Material[RewardModel, PreferenceData]):
    """The clips of a fit, read as `Material` says, or from `data` already read; or `features` of them."""

    save = staticmethod(save_reward_model)

    def __init__(
        self,
        config: FitConfig,
        lines: Sequence[int] | None = None,
        data: PreferenceData | None = None,
        features: Features | None = None,
    ) -> None:
        for name in ("model", "cut", "upper", "length_control"):
            if getattr(config, name):
                raise UserError(
                    f"{as_flag(name)} applies to answers of a language model, but {config.dbs[0]} holds clips; leave it out"
                )
        self.config, self.device = config, resolve_device(config.dev)
        self.bf16 = resolve_bf16(config.bf16, self.device)
        self.data = data or load_preferences(
            *(config.dbs, config.memory_mb, config.num_actions, config.weights(), config.only, config.input),
            lines=lines,
            features=features if config.features is None else policy_features(config.features),
            steps=config.steps,
            survived=config.survived,
            half_frames=config.half_frames,
        )
        if len(self.data.segments):
            checked_masks(config, self.data.segments)  # before anything is written

    def __str__(self) -> str:
        segments = self.data.segments
        return f"{len(segments)} clips of {segments.env_id or 'an unnamed game'}"

    def units(self) -> tuple[Pairs, list[Unit]]:
        segments = self.data.segments
        units = []
        for index in range(len(segments)):
            (db, name), sidecar = segments.source(index), segments.sidecar(index)
            units.append((str(db.root.resolve()), (sidecar and sidecar.moment) or name))
        return by_unit(self.data.pairs, units)

    def network(self) -> nn.Module:
        """A network with new weights."""
        return new_network(self.config, self.data.segments, self.device)

    def begin(self, train: np.ndarray, test: np.ndarray, number: int) -> "ClipMember":
        return ClipMember(self, train, test, number)

    def model(
        self, members: Sequence[Member], held_out: Sequence[HeldOut], test: np.ndarray
    ) -> tuple[RewardModel, HeldOut]:
        segments, config = self.data.segments, self.config
        disagreement, best = 0.0, held_out[0]
        if len(members) > 1:
            # Segments hold the features already, so this model takes those.
            model = RewardModel(members, self.device, self.bf16)
            disagreement = mean_disagreement(model, segments, self.device, config.frame_stride)
            pairs = self.data.pairs.subset(test)
            best = evaluate_ensemble(model, segments, pairs, pair_loss(config), self.device)
        features = segments.features
        assert features is None or isinstance(features, PolicyBody)
        return RewardModel(
            members, self.device, self.bf16, disagreement=disagreement, features=features
        ), best


class ClipMember(MemberFit):
    """A member that is fitted to clips."""

    # Of 100 labels 10 are held out, and half of those may be alike: by chance a network that has learned nothing yet can be the
    # best on them, and several of ten fits stopped at one (docs/results.md).
    least_updates = 60

    def __init__(self, clips: Clips, train: np.ndarray, test: np.ndarray, number: int) -> None:
        super().__init__(clips, train, test, number)
        config, self._segments, self._bf16 = clips.config, clips.data.segments, clips.bf16
        self.network = clips.network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr, weight_decay=config.l2)

    def begin_from(self, weights: dict[str, torch.Tensor]) -> bool:
        network = self.network
        if not isinstance(network, RewardNet) or network.spec.observation_size is None:
            return super().begin_from(weights)
        mean, std = network.mean.clone(), network.std.clone()
        fit = super().begin_from(weights)
        if fit:  # the first clips of a run do not show what later ones will
            network.see_in(mean, std)
        return fit

    def penalty(self) -> torch.Tensor | None:
        """A scalar that each update adds to the loss of its pairs, if any."""
        return None

    def train_epoch(self, should_stop: Callable[[], bool] = lambda: False) -> float | None:
        loss = train_epoch(
            *(self.network, self.optimizer, self._segments, self.pairs, self._config, self.rng, self._bf16),
            *(should_stop, self.penalty),
        )
        if loss is not None:
            renew_batch_norms(self.network, self._segments, self.pairs, self._config, self.rng, self._bf16)
        return loss

    def held_out(self, quick: bool = False) -> HeldOut:
        self.network.eval()
        # Epochs by as many steps as are fitted to: every step would take longer than the epoch.
        return evaluate_pairs(
            *(self.network, self._segments, self.test, pair_loss(self._config), self._device, self._bf16),
            self._config.frame_stride if quick else 1,
        )

    def statistics(self) -> tuple[float, float]:
        # Of the network that pays. Where pictures hardly change, rounding to bf16 before a batch norm that is not folded in
        # moves the mean by a standard deviation.
        assert isinstance(self.network, RewardNet)
        paying = self.network.for_paying().to(self._device)
        return output_statistics(paying, self._segments, self._bf16, self._config.frame_stride)


def checked_masks(config: FitConfig, segments: SegmentStore) -> tuple[Mask, ...]:
    """The parts of the frames that are hidden from the network.

    Raises:
      UserError: a mask does not fit the frames, or the network sees no pixels to hide or to move.
    """
    for name, given in (("--mask", bool(config.mask)), ("--shift", config.shift > 0)):
        if given and segments.spec.observation_size is not None:
            raise UserError(
                f"{name} applies to pixels, but the model sees vectors of {segments.spec.observation_size} "
                f"numbers; {'add --input frame' if config.features is None else 'leave out --features'}"
            )
    return masks_for(config.mask, segments.frame_shape, segments.env_id)


def new_network(config: FitConfig, segments: SegmentStore, device: torch.device) -> RewardNet:
    """A network with new weights, for what the segments show and take."""
    spec = segments.spec
    network = RewardNet(
        segments.frame_shape,
        spec.num_actions,
        dropout=config.dropout,
        masks=checked_masks(config, segments),
        shift=config.shift,
        noise=config.noise,
        input=segments.input or "frame",
        continuous=spec.continuous,
        observation_size=spec.observation_size,
        half_size=segments.half_size,
    )
    if spec.observation_size is not None:
        mean, std = segments.observation_statistics()
        network.mean.copy_(torch.from_numpy(mean))
        network.std.copy_(torch.from_numpy(std))
    return network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
