"""DPO on clips: fits a policy directly to comparisons (Rafailov et al. 2023, arXiv 2305.18290).

The distance of a policy from its reference implies a reward (`lib.reward.implied`), except for a term of the state, which
clips of one moment share at their first step. On steps of a game in place of tokens this is
contrastive preference learning (Hejna et al. 2024, arXiv 2310.13639) with a reference. The labels are fitted by the loop
and the loss of a reward model (`lib.reward.fit`), with a policy in its place.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lib.agent.checkpoints import env_of, load_policy, save_policy
from lib.agent.network import PolicyNet
from lib.cli import UserError
from lib.envs.ids import same_environment
from lib.envs.make import probes
from lib.preferences.segment_db import SegmentDB, read_ahead
from lib.preferences.segments import Segment, SegmentError
from lib.provenance import lineage
from lib.reward.checkpoints import save_reward_model
from lib.reward.clips import ClipMember, Clips
from lib.reward.config import FitConfig
from lib.reward.data import Pairs
from lib.reward.epoch import (
    HeldOut,
    StepRewards,
    both_returns,
    fit_pairs,
    output_statistics,
    segment_returns,
)
from lib.reward.features import PolicyBody
from lib.reward.implied import PolicyRatio, log_likelihood
from lib.reward.model import Member, RewardModel
from lib.reward.store import SegmentStore

_KEPT_STRIDE = 5  # of the steps of a clip of --keep, every so many are used
_KEPT_AT_ONCE = 256  # in an update
_CLIPS_AT_ONCE = 32


class FittedPolicy(NamedTuple):
    """A policy fitted to comparisons, and the reward model that it implies."""

    policy: PolicyNet
    reward: RewardModel


class Policies(Clips):
    """Trains the head of the policy of `--policy`, or all of it, on each of the first `--steps` steps of every clip.

    Raises:
      UserError: as `Clips`; or the policy does not see pictures, or does not choose among actions.
    """

    def __init__(self, config: FitConfig, lines: Sequence[int] | None = None) -> None:
        assert config.policy is not None
        policy, self._origin = load_policy(config.policy)
        spec = policy.spec
        if not isinstance(policy, PolicyNet) or spec.observation_size is not None or spec.continuous:
            raise UserError(
                f"--policy {config.policy}: expected a policy that sees pictures and chooses among actions, from a2c or ppo"
            )
        self.policy = policy
        whole = config.all_layers
        super().__init__(
            # ℓ2 would pull the policy's weights to 0 rather than to what they were.
            dataclasses.replace(
                config, frame_stride=1, l2=0.0, input="observation" if whole else config.input
            ),
            lines,
            features=None if whole else PolicyBody(policy.state_dict(), config.policy),
        )
        self.kept: torch.Tensor | None = None
        if not len(self.data.segments):
            return
        clips = self.data.segments.spec
        if not whole:
            # They hold pictures, or PolicyBody could not have read them; their spec is of its features.
            clips = dataclasses.replace(clips, observation_shape=None)
        differs = policy.spec.difference(clips)
        if differs is not None:
            raise UserError(
                f"--policy {config.policy}: expected {differs[1]} like the clips, got {differs[0]}"
            )
        if config.keep is not None:
            self.kept = self._seen(config.keep)

    def _seen(self, path: Path) -> torch.Tensor:
        """What is seen in some steps of every clip of `--keep`, pictures uint8 `[N, 4, 84, 84]` or features float32 `[N, F]`, on the device."""
        db = SegmentDB(path)
        store = SegmentStore(
            self.config.memory_mb, self.data.segments.input, features=self.data.segments.features
        )
        seen: list[np.ndarray] = []
        where = self.config.kept_range()
        try:
            for name, clip in read_ahead(db.load, db.names):
                segment = clip.result()
                inputs, _ = store.inputs(store.add(db, name, segment), _KEPT_STRIDE)
                # A copy: a view would keep all of the clip's steps in memory.
                seen.append(inputs.copy() if where is None else inputs[_within(where, segment, store.env_id)])
        except SegmentError as error:
            raise UserError(f"--keep {path}: {error}") from error
        if not seen:
            raise UserError(f"--keep {path}: expected clips of ordinary play, found none")
        if not any(map(len, seen)):
            raise UserError(
                f"--keep-where {self.config.keep_where}: no step of {path} is in this range; widen it, or leave it "
                "out where the frames are not as the game draws them"
            )
        labelled = self.data.segments
        if not same_environment(labelled.env_id, store.env_id):
            raise UserError(
                f"--keep {path}: expected clips of {labelled.env_id} like the labelled clips, got {store.env_id}"
            )
        differs = store.spec.difference(labelled.spec)
        if differs is not None:
            raise UserError(f"--keep {path}: expected {differs[1]} like the labelled clips, got {differs[0]}")
        return torch.from_numpy(np.concatenate(seen)).to(self.device)

    def network(self) -> PolicyRatio:
        layers = self._layers(self.policy).to(self.device)
        return PolicyRatio(layers, self.config.beta, self.data.segments.frame_shape)

    def _layers(self, policy: PolicyNet) -> nn.Sequential:
        """Those of a policy that are fitted."""
        return nn.Sequential(*([policy.conv] if self.config.all_layers else []), *policy.policy)

    def begin(self, train: np.ndarray, test: np.ndarray, number: int) -> PolicyMember:
        return PolicyMember(self, train, test, number)

    def model(  # type: ignore[override]
        self, members: Sequence[Member], held_out: Sequence[HeldOut], test: np.ndarray
    ) -> tuple[FittedPolicy, HeldOut]:
        reward, best = super().model(members, held_out, test)
        policy = copy.deepcopy(self.policy)
        self._layers(policy).load_state_dict(members[0].network.policy.state_dict())
        return FittedPolicy(policy, reward), best

    def parents(self) -> dict[str, Any]:
        made_of = {"file": str(self.config.policy), **lineage(self._origin)}
        return {**super().parents(), "policy": made_of}

    def save(  # type: ignore[override]
        self,
        path: Path,
        model: FittedPolicy,
        config: Any,
        parents: dict[str, Any],
        results: dict[str, Any],
        refit: dict[str, Any] | None = None,
    ) -> None:
        config = {**config, "env": self.data.segments.env_id or env_of(self._origin)}
        save_policy(path, model.policy, self._origin.get("steps", 0), {}, config, parents, results=results)
        save_reward_model(self.config.reward_path, model.reward, config, parents, results)


def _within(where: tuple[str, float, float], segment: Segment, env_id: str) -> np.ndarray:
    """Which of a clip's steps that are used a probe puts between two values, bool `[N]`; raises UserError if there is no such probe."""
    name, low, high = where
    known = probes(env_id)
    if name not in known:
        expected = f"one of its probes, {', '.join(known)}" if known else "no range: it has no probes"
        raise UserError(f"--keep-where {name}={low:g}:{high:g}: expected for {env_id} {expected}")
    values = known[name](segment.as_step(slice(None, None, _KEPT_STRIDE)))
    kept: np.ndarray = (values >= low) & (values <= high)
    return kept


class PolicyMember(ClipMember):
    """A policy being fitted. Its last epoch is kept: a hundred noisy held-out pairs cannot say when to stop."""

    network: PolicyRatio
    stops_early = False
    least_updates = 0

    def __init__(self, policies: Policies, train: np.ndarray, test: np.ndarray, number: int) -> None:
        super().__init__(policies, train, test, number)
        self._kept = policies.kept

    @functools.cached_property
    def _reference(self) -> torch.Tensor:
        """β Σ log π_ref of each clip, float32 `[clips]`: the reference is frozen, so each passes through it once."""
        rewards, clips = self._likelihood(self.network.reference), np.arange(len(self._segments))
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            parts = np.array_split(clips, -(-len(clips) // _CLIPS_AT_ONCE))
            return torch.cat(
                [segment_returns(rewards, self._segments, part, self._device, 1, 0) for part in parts]
            )

    def _likelihood(self, layers: nn.Module) -> StepRewards:
        return lambda seen, actions: self.network.beta * log_likelihood(layers, seen, actions)

    def _returns(self, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        """What `PolicyRatio` pays for the clips of N pairs, float32 `[N]` each, with gradients."""
        new = both_returns(
            *(self._likelihood(self.network.policy), self._segments, pairs, self._device, self._bf16)
        )
        return new[0] - self._reference[pairs.first], new[1] - self._reference[pairs.second]

    def train_epoch(self, should_stop: Callable[[], bool] = lambda: False) -> float | None:
        return fit_pairs(
            *(self._returns, self.optimizer, self.pairs, self._config, self.rng, self._device),
            should_stop=should_stop,
            penalty=self.penalty,
        )

    def penalty(self) -> torch.Tensor | None:
        if self._kept is None:
            return None
        some = self.rng.integers(len(self._kept), size=_KEPT_AT_ONCE)
        return self._config.keep_weight * self.network.changed(self._kept[some])

    def statistics(self) -> tuple[float, float]:
        # In units of r̂ over the clips, but with its zero: what is as likely as before is worth nothing, or an agent would be
        # paid for every step that the comparisons say nothing about.
        _, std = output_statistics(self.network.for_paying(), self._segments, self._bf16)
        return 0.0, std
