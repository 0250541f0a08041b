"""Passes over labelled pairs: returns of segments, their loss, an epoch of fitting, evaluation, output statistics."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from lib.cli import UserError
from lib.reward.config import FitConfig
from lib.reward.data import Pairs
from lib.reward.loss import original_loss, preference_accuracy, preference_loss
from lib.reward.model import RewardModel
from lib.reward.store import SegmentStore

_PAIRS_AT_ONCE = 16  # bounds memory: a batch goes through the network in parts of this many pairs
_STEPS_AT_ONCE = 160  # when pairs are judged: 1,600 half-size frames leave the cache, and take a core 1.6 times as long each
_PAIRS_FOR_NORMS = 32  # enough for 16 filters' means and variances; all would take two fifths of an epoch

PairLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of returns R₁, R₂ and preferences μ, float `[N]` each: the loss of each pair, float `[N]`."""
StepRewards = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""r̂, float32 `[N]`, of inputs (frames uint8 `[N, H, W, 3]`, or observations uint8 `[N, 4, 84, 84]` or float32 `[N, D]`)
and actions (int64 `[N]`, or float32 `[N, A]`): a `RewardNet`, an ensemble of them, or a policy in their place."""


def pair_loss(config: FitConfig) -> PairLoss:
    """The loss that the flags ask for."""
    if config.loss == "original":
        return original_loss
    return functools.partial(preference_loss, error_rate=config.error_rate)


def segment_returns(
    rewards: StepRewards,
    segments: SegmentStore,
    indices: np.ndarray,
    device: torch.device,
    stride: int,
    offset: int,
) -> torch.Tensor:
    """R̂ = Σₜ r̂(oₜ, aₜ) of some segments, estimated from every `stride`-th step.

    Args:
      rewards: r̂.
      segments: where the frames lie.
      indices: int64 `[K]`, which segments.
      device: where to compute.
      stride: 1 sums every step; n sums every n-th (at least one) and multiplies by the share left out.
      offset: first step, below stride.

    Returns:
      float32 `[K]`.
    """
    seen, counts, scales = [], [], []
    for index in map(int, indices):
        length = segments.length(index)
        every = min(stride, length)
        seen.append(segments.inputs(index, every, offset % every))
        counts.append(len(seen[-1][1]))
        scales.append(length / counts[-1])
    all_rewards = rewards(*_on_device(seen, device))
    owner_of = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(device)
    sums = torch.zeros(len(counts), device=device).index_add(0, owner_of, all_rewards)
    return sums * torch.tensor(scales, device=device)


def _on_device(seen: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device) -> list[torch.Tensor]:
    """The inputs and the actions of several segments, each in one tensor."""
    return [torch.from_numpy(np.concatenate(parts)).to(device) for parts in zip(*seen, strict=True)]


def both_returns(
    rewards: StepRewards,
    segments: SegmentStore,
    pairs: Pairs,
    device: torch.device,
    bf16: bool,
    stride: int = 1,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """R̂₁ and R̂₂ of N pairs, float32 `[N]` each, as `segment_returns`."""
    both = np.concatenate([pairs.first, pairs.second])
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        returns = segment_returns(rewards, segments, both, device, stride, offset)
    return returns[: len(pairs)], returns[len(pairs) :]


def _parts(pairs: Pairs, at_once: int = _PAIRS_AT_ONCE) -> Iterator[Pairs]:
    """The pairs in their order, so many at a time."""
    for at in range(0, len(pairs), at_once):
        yield pairs.subset(np.arange(at, min(at + at_once, len(pairs))))


def train_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    segments: SegmentStore,
    pairs: Pairs,
    config: FitConfig,
    rng: np.random.Generator,
    bf16: bool,
    should_stop: Callable[[], bool] = lambda: False,
    penalty: Callable[[], torch.Tensor | None] = lambda: None,
) -> float | None:
    """One pass over the training pairs in random order.

    Args:
      network, optimizer: what is fitted.
      segments: what the network sees.
      pairs: the training pairs.
      config: loss, weight of the better clip's likelihood, batch size and stride.
      rng: draws the order of the pairs, and which steps of a segment are used.
      bf16: whether the network computes in bf16.
      should_stop: asked before every update.
      penalty: a scalar that each update adds to the loss, or None; the mean loss leaves it out.

    Returns:
      The mean loss of the comparisons alone; None if the pass was stopped.
    """
    network.train()
    device = next(network.parameters()).device

    def returns(part: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        offset = int(rng.integers(config.frame_stride))
        return both_returns(network, segments, part, device, bf16, config.frame_stride, offset)

    return fit_pairs(returns, optimizer, pairs, config, rng, device, should_stop=should_stop, penalty=penalty)


def fit_pairs(
    returns: Callable[[Pairs], tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
    pairs: Pairs,
    config: FitConfig,
    rng: np.random.Generator,
    device: torch.device,
    *,
    at_once: int = _PAIRS_AT_ONCE,
    should_stop: Callable[[], bool] = lambda: False,
    penalty: Callable[[], torch.Tensor | None] = lambda: None,
) -> float | None:
    """One pass over pairs in random order, of whatever has returns; `train_epoch` says what it takes and returns.

    Args:
      returns: R₁ and R₂ of some pairs, float `[N]` on `device`, with gradients.
      at_once: pairs whose activations are in memory together.
    """
    loss_of = pair_loss(config)
    order, total = rng.permutation(len(pairs)), torch.zeros((), device=device)
    for start in range(0, len(order), config.batch_size):
        if should_stop():
            return None
        batch = order[start : start + config.batch_size]
        optimizer.zero_grad(set_to_none=True)
        for part in _parts(pairs.subset(batch), at_once):
            return1, return2 = returns(part)
            preference1, weight = (
                torch.from_numpy(each).to(device) for each in (part.preference1, part.weight)
            )
            loss = (loss_of(return1, return2, preference1) * weight).sum()
            total += loss.detach()
            if config.nll_weight:  # R̂ is β Σ log π, less what no weight changes
                better = torch.where(preference1 > 0.5, return1, return2)
                loss = loss - config.nll_weight * (better * weight * (preference1 != 0.5)).sum()
            (loss / float(pairs.weight[batch].sum())).backward()
        if (extra := penalty()) is not None:
            extra.backward()
        optimizer.step()
    return float(total) / float(pairs.weight.sum())


@torch.no_grad()
def renew_batch_norms(
    network: nn.Module,
    segments: SegmentStore,
    pairs: Pairs,
    config: FitConfig,
    rng: np.random.Generator,
    bf16: bool,
) -> None:
    """Sets the means and variances of batch norms to what the weights as they now are make of some training pairs.

    Those kept while fitting are of earlier weights. In a world of few colours they lag so far behind that a network which has learned
    all its pairs guesses in evaluation mode (Wu and Johnson 2021, *Rethinking "Batch" in BatchNorm*, arXiv 2105.07576, section 3).

    Args:
      network: in evaluation mode afterwards, if it has any.
      segments, config, bf16: as for `train_epoch`.
      pairs: the training pairs.
      rng: draws at most 32 of them.
    """
    norms = [(layer, layer.momentum) for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not norms:
        return  # policies and networks of vectors have none
    network.eval()
    device = next(network.parameters()).device
    for layer, _ in norms:
        layer.train().reset_running_stats()
        layer.momentum = None  # the mean over the batches that follow
    for part in _parts(pairs.subset(rng.permutation(len(pairs))[:_PAIRS_FOR_NORMS])):
        offset = int(rng.integers(config.frame_stride))
        both_returns(network, segments, part, device, bf16, config.frame_stride, offset)
    for layer, momentum in norms:
        layer.eval().momentum = momentum


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Loss and accuracy of a reward model on pairs it was not fitted on."""

    loss: float
    correct: int
    decided: int
    """The number of pairs that are not ties; accuracy is over those."""
    chosen: float = math.nan
    """Mean R̂ of the better ones of these; of a policy β Σ log π/π_ref, which DPO may push below 0."""
    rejected: float = math.nan
    """Of the worse ones."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.decided if self.decided else float("nan")

    def __str__(self) -> str:
        known = f"{self.accuracy:.1%} ({self.correct} of {self.decided} decided pairs)"
        return f"accuracy {known if self.decided else 'unknown (only ties)'}, loss {self.loss:.3f}"

    def figures(self) -> dict[str, float]:
        """As the checkpoint keeps them."""
        return {
            "held_out_loss": self.loss,
            "held_out_correct": self.correct,
            "held_out_decided": self.decided,
        }


def judged(return1: torch.Tensor, return2: torch.Tensor, pairs: Pairs, loss_of: PairLoss) -> HeldOut:
    """Loss and accuracy of R₁ and R₂, float64 `[N]` on the CPU, on N pairs."""
    preference1, weight = (torch.from_numpy(each).double() for each in (pairs.preference1, pairs.weight))
    loss = (loss_of(return1, return2, preference1) * weight).sum() / weight.sum()
    hits = preference_accuracy(return1, return2, preference1)
    first, decided = preference1 > 0.5, preference1 != 0.5
    chosen = torch.where(first, return1, return2)[decided].mean()
    rejected = torch.where(first, return2, return1)[decided].mean()
    return HeldOut(float(loss), int(hits.sum()), len(hits), float(chosen), float(rejected))


@torch.no_grad()
def evaluate_pairs(
    rewards: StepRewards,
    segments: SegmentStore,
    pairs: Pairs,
    loss_of: PairLoss,
    device: torch.device,
    bf16: bool,
    stride: int = 1,
) -> HeldOut:
    """Loss and accuracy over every `stride`-th step of some pairs.

    Args:
      rewards: r̂; a network must be in evaluation mode.
      segments: what it sees.
      pairs: the pairs.
      loss_of: the loss.
      device: where to compute.
      bf16: whether to compute in bf16.
      stride: as for `segment_returns`.
    """
    longest = max(segments.length(int(index)) for index in (*pairs.first, *pairs.second))
    found = [
        both_returns(rewards, segments, part, device, bf16, stride, stride // 2)
        for part in _parts(pairs, max(1, _STEPS_AT_ONCE * stride // (2 * longest)))
    ]
    return1, return2 = (torch.cat(each).double().cpu() for each in zip(*found, strict=True))
    return judged(return1, return2, pairs, loss_of)


def evaluate_ensemble(
    model: RewardModel, segments: SegmentStore, pairs: Pairs, loss_of: PairLoss, device: torch.device
) -> HeldOut:
    """Loss and accuracy of the reward that an ensemble pays, the mean of its members' standardised rewards.

    Standardised rewards have lost the unit in which differences of returns are log-odds, and the zero, which matters where
    clips differ in length. `RewardModel.as_fitted` restores both, so that loss and accuracy compare with the members'.
    """
    return evaluate_pairs(
        lambda inputs, actions: model.as_fitted(model.combine(model.each(inputs, actions))),
        segments,
        pairs,
        loss_of,
        device,
        bf16=False,  # the model decides for itself
    )


def _steps(segments: SegmentStore, stride: int, device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Inputs and actions of every `stride`-th step of every segment, with varying first steps.

    A batch is of `stride` segments, as many steps as one whole segment has.
    """
    for start in range(0, len(segments), stride):
        part = range(start, min(start + stride, len(segments)))
        seen = [segments.inputs(index, stride, index % min(stride, segments.length(index))) for index in part]
        yield _on_device(seen, device)


def mean_disagreement(
    model: RewardModel, segments: SegmentStore, device: torch.device, stride: int = 1
) -> float:
    """The disagreement of an ensemble's members, over every `stride`-th step of every segment.

    Returns:
      The mean over the steps of the members' standard deviation, in units of the standardised reward.
    """
    apart = [
        model.each(inputs, actions).std(0, correction=0)
        for inputs, actions in _steps(segments, stride, device)
    ]
    return float(torch.cat(apart).mean())


@torch.no_grad()
def output_statistics(
    network: nn.Module, segments: SegmentStore, bf16: bool, stride: int = 1
) -> tuple[float, float]:
    """Mean and standard deviation of r̂ over every `stride`-th step of every segment.

    Raises:
      UserError: r̂ is the same for everything, and so cannot teach anything.
    """
    network.eval()
    device = next(network.parameters()).device
    outputs = []
    for inputs, actions in _steps(segments, stride, device):
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            outputs.append(network(inputs, actions))
    rewards = torch.cat(outputs).double()
    return checked_statistics(float(rewards.mean()), float(rewards.std()))


def checked_statistics(mean: float, std: float) -> tuple[float, float]:
    """The statistics of r̂.

    Raises:
      UserError: r̂ is the same for everything, and so cannot teach anything.
    """
    if not std > 1e-6 * max(1.0, abs(mean)):
        raise UserError("the reward model pays the same for everything; label more pairs, and fewer as alike")
    return mean, std
