"""DPO: finetuning a language model on labels alone, without a reward model (Rafailov et al. 2023, arXiv 2305.18290).

The distance of a policy from its reference implies a reward: r̂ = β log π/π_ref, except for a term
that answers to one prompt share. So the labels are fitted by the loop and the loss of a reward model
(`lib.reward.fit`), with a policy in its place.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.checkpoints import storable
from lib.cli import UserError
from lib.learner import ALONE
from lib.preferences.answers import hold_answers
from lib.provenance import made_by
from lib.reward.config import FitConfig
from lib.reward.epoch import HeldOut
from lib.reward.fit import AnyFit, fit
from lib.reward.model import Member
from lib.text.config import TextConfig
from lib.text.fit import AnswerMember, OnAnswers
from lib.text.language import LanguageModel, root_of, save_policy
from lib.text.layers import above, branch, log_probs_of
from lib.text.reward import States, above_states, before_tokens
from lib.text.roles import spread, token_grid

_AT_ONCE = 16


def implicit_rewards(
    log_probs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, beta: float
) -> torch.Tensor:
    """β log π/π_ref of whole answers: equation 5 without its last term, which differences do not have.

    `lib.reward.loss.preference_loss` of two of them is DPO's loss (equation 7); its `error_rate` allows for labels that
    are sometimes wrong.

    Args:
      log_probs: float `[T, B]`, log π of each token of B answers, anything on padding.
      reference: float `[T, B]`, log π_ref.
      mask: bool `[T, B]`, True for the tokens of answers.
      beta: β, above 0: nats cost as much as so much reward.

    Returns:
      float `[B]`.
    """
    return beta * torch.where(mask, log_probs - reference, 0.0).sum(0)


@dataclass(frozen=True)
class Spoken(States):
    """The frozen layers' output for one answer, and its tokens."""

    tokens: np.ndarray
    """int64 `[N]`."""
    reference: torch.Tensor
    """float32 `[N]`, log π_ref of each."""


class PolicyNet(nn.Module):
    """The upper layers of a language model, as a reward model of what it has learned.

    Args:
      language: the model that they begin as, the reference.
      at: how many layers are below them.
      beta: β.
    """

    def __init__(self, language: LanguageModel, at: int, beta: float) -> None:
        super().__init__()
        self.layers = copy.deepcopy(above(language.network.model, at)).float().requires_grad_(True)
        self._beta, self._head = beta, [language.network.lm_head]  # which is no part of this network

    def train(self, mode: bool = True) -> PolicyNet:
        """Changes nothing: the reference has no dropout."""
        return self

    def log_probs(self, batch: Sequence[States], tokens: Sequence[np.ndarray]) -> torch.Tensor:
        """log π of all tokens of B answers, one after the other: float32 `[N]`."""
        hidden = before_tokens(above_states(self.layers, batch), batch)
        return log_probs_of(self._head[0], hidden, torch.from_numpy(np.concatenate(tokens)).to(hidden.device))

    def forward(self, batch: Sequence[Spoken]) -> torch.Tensor:
        """r̂ of B answers, float32 `[B]`; differences are log-odds."""
        tokens = [one.tokens for one in batch]
        log_probs = self.log_probs(batch, tokens)
        mask, _ = token_grid(tokens, log_probs.device)
        reference = torch.cat([one.reference for one in batch]).to(mask.device)
        return implicit_rewards(spread(log_probs, mask), spread(reference, mask), mask, self._beta)


class PolicyMember(AnswerMember):
    """A policy being fitted."""

    def statistics(self) -> tuple[float, float]:
        return 0.0, 1.0  # it pays no agent

    def _rated(self, indices: np.ndarray) -> np.ndarray:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return super()._rated(indices)


class Policies(OnAnswers[LanguageModel]):
    """Trains a policy's layers above `--cut`, with this β."""

    def __init__(
        self,
        config: FitConfig,
        lines: Sequence[int] | None = None,
        *,
        beta: float,
        chat: bool | None = None,
    ) -> None:
        super().__init__(config, lines, chat)
        self.beta, self._root = beta, root_of(self.data.language, self.data.shape.at)

    @functools.cached_property
    def states(self) -> list[Spoken]:
        data, found = self.data, list[Spoken]()
        said = [tokens for _, tokens in data.spoken]
        reference = PolicyNet(data.language, data.shape.at, self.beta)
        for start in range(0, len(said), _AT_ONCE):
            batch = data.states[start : start + _AT_ONCE]
            tokens = [np.array(row, np.int64) for row in said[start : start + _AT_ONCE]]
            # In the arithmetic of the policy, so that r̂ begins at 0.
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                log_probs = reference.log_probs(batch, tokens)
            for one, row, each in zip(batch, tokens, log_probs.cpu().split([*map(len, tokens)]), strict=True):
                found.append(Spoken(one.states, one.start, row, each))
        return found

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        network = PolicyNet(self.data.language, self.data.shape.at, self.beta)
        return network, torch.optim.Adam(network.parameters(), lr=self.config.lr)

    def begin(self, train: np.ndarray, test: np.ndarray, number: int) -> PolicyMember:
        return PolicyMember(self, train, test, number)

    def model(
        self, members: Sequence[Member], held_out: Sequence[HeldOut], test: np.ndarray
    ) -> tuple[LanguageModel, HeldOut]:
        language, at = self.data.language, self.data.shape.at
        network = branch(language.network, at)
        above(network.model, at).load_state_dict(members[0].network.layers.state_dict())
        return dataclasses.replace(language, network=network), held_out[0]

    def save(
        self,
        path: Path,
        model: LanguageModel,
        config: Any,
        parents: dict[str, Any],
        results: dict[str, Any],
        refit: dict[str, Any] | None,
    ) -> None:
        about = storable({"config": config, "parents": parents, "results": results, **made_by()})
        try:
            save_policy(path, model, self._root, about)
        except OSError as error:
            raise UserError(f"--save {path}: could not be written: {error.strerror}") from error


def train_dpo(config: TextConfig) -> AnyFit[Any, Any]:
    """Finetunes a language model on the labels of a DB of its answers and writes it to `--save`/NAME.

    It ends after `--epochs` passes, or once the held-out loss has not fallen for two, and keeps the best pass.

    Returns:
      The fit; its `path` is the folder, which `-m` takes.

    Raises:
      UserError: the flags, the DB or the labels are wrong; says what to do.
    """
    assert config.db_path is not None
    assert config.name is not None
    assert config.save is not None
    if not hold_answers([config.db_path]):
        raise UserError(
            f"--db-path {config.db_path}: expected a DB of answers, found none in it; 01_text.py without --algo samples some"
        )
    fitting = FitConfig(
        dbs=[config.db_path],
        name=config.name,
        out=config.save,
        runs=config.runs,
        dev=config.dev,
        bf16=config.bf16,
        model=config.model,
        cut=0 if config.unfrozen == "all" else -int(config.unfrozen),
        upper=10_000,
        lr=config.lr,
        epochs=config.epochs,
        patience=2,
        seed=config.seed,
        l2=0.0,
        frame_stride=1,
    )
    policies = functools.partial(Policies, beta=config.kl, chat=config.chat)
    return fit(fitting, ALONE, policies, file="{}", resumable=False)
