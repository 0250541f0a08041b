"""The four roles of a finetune on one trunk: actor, reference, critic and reward model.

They differ only in their upper layers. An answer passes through the frozen layers below once; what these make of it
serves all roles and all passes. The reference is the language model itself, which nothing here can move.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lib.cli import UserError
from lib.preferences.answers import Answer
from lib.text.language import LanguageModel
from lib.text.layers import above, branch, log_probs_of, log_softmax_of, with_adapters
from lib.text.lora import adapters
from lib.text.reward import States, TextRewardModel, above_states, before_tokens, trunk_states

_POSITIONS = 256  # whose logits, of actor and reference, are in memory together


@dataclass(frozen=True)
class Experience:
    """B answers of up to T tokens, and their values; `[T, B]` on the device, anything on padding."""

    answers: list[Answer]
    actor: list[States]
    """What the frozen layers below the actor make of each."""
    critic: list[States]
    """And those below critic and reward model."""
    tokens: torch.Tensor
    """int64."""
    mask: torch.Tensor
    """bool, True for the tokens of answers."""
    scores: torch.Tensor
    """float32 `[B]`, what the reward model says."""
    log_probs: torch.Tensor
    """float32, of the actor before the update."""
    reference: torch.Tensor
    """float32, of the reference."""
    exact_kl: torch.Tensor
    """float32, KL(π ‖ π_ref) of the distribution that each token was drawn from."""
    values: torch.Tensor
    """float32, of the critic; 0 without one."""


class Actor:
    """The language model with its own upper layers, or adapters, which learn. The embedding and the head stay.

    Args:
      language: the model that it begins as.
      at: how many layers stay frozen.
      bf16: whether the trained layers compute in bf16; their weights are float32.
      rank: of adapters on all layers; 0: the layers themselves learn.
      seed: of the adapters.

    Attributes:
      weights: what learns, float32, by name.
    """

    def __init__(
        self, language: LanguageModel, at: int, bf16: bool = False, rank: int = 0, seed: int = 0
    ) -> None:
        base, self._bf16 = language.network, bf16
        self._network = with_adapters(base, rank, seed) if rank else branch(base, at)
        # Adam needs float32, which sampling may not; where both are float32 they are the same weights.
        sampled = above(self._network.model, at)
        the_same = bool(rank) or all(weight.dtype == torch.float32 for weight in sampled.parameters())
        self._layers = sampled if the_same else copy.deepcopy(sampled).float()
        self._sampled = None if the_same else sampled
        first = above(base.model, at)
        self._reference = first if the_same else copy.deepcopy(first).float()
        self.weights = adapters(self._layers) if rank else dict(self._layers.named_parameters())
        for weight in self.weights.values():
            weight.requires_grad_(True)

    def network(self) -> Any:
        """The whole current network, which samples."""
        if self._sampled is not None:
            with torch.no_grad():
                for sampled, trained in zip(self._sampled.parameters(), self.weights.values(), strict=True):
                    sampled.copy_(trained)
        return self._network

    def hidden(self, batch: Sequence[States]) -> torch.Tensor:
        """Its states before each token of the answers, `[N, D]`."""
        return self._through(self._layers, batch)

    def reference(self, batch: Sequence[States]) -> torch.Tensor:
        """Those of the model that it began as, in the same arithmetic, so that the KL between them begins at 0."""
        return self._through(self._reference, batch)

    def _through(self, layers: Any, batch: Sequence[States]) -> torch.Tensor:
        with torch.autocast(self._network.device.type, torch.bfloat16, enabled=self._bf16):
            return before_tokens(above_states(layers, batch), batch)

    def state(self) -> dict[str, torch.Tensor]:
        """The weights that learn."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    @torch.no_grad()
    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Restores what `state` returned."""
        for name, weight in self.weights.items():
            weight.copy_(state[name])


class Critic:
    """Values of unfinished answers, in units of the learned reward. It begins as a reward model, and keeps its scale.

    Args:
      reward: what it begins as: the first member.
      bf16: whether it computes in bf16; its weights are float32.

    Attributes:
      network: what learns.
    """

    def __init__(self, reward: TextRewardModel, bf16: bool = False) -> None:
        member = reward.members[0]
        self.network = copy.deepcopy(member.network).requires_grad_(True)
        self._mean, self._std, self._bf16 = member.mean, member.std, bf16
        self._device, self._of = reward.language.device.type, kind_of(reward)

    def values(self, batch: Sequence[States]) -> torch.Tensor:
        """Before each token of the answers, float32 `[N]`."""
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bf16):
            return (self.network.before_tokens(batch) - self._mean) / self._std

    def state(self) -> dict[str, Any]:
        """What `load_state` needs beside the network's weights."""
        return {"of": self._of, "scale": (self._mean, self._std)}

    def load_state(self, weights: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Restores a critic that began as another reward model with these layers.

        Raises:
          UserError: it had other layers.
        """
        if state["of"] != self._of:
            raise UserError(
                f"--resume: its critic has the layers {state['of']}, the reward model {self._of}; put one like the first "
                "back"
            )
        self.network.load_state_dict(weights)
        self._mean, self._std = state["scale"]


def kind_of(reward: TextRewardModel) -> dict[str, Any]:
    """The layers and the language model of a reward model."""
    return {"weights": reward.language.weights, **dataclasses.asdict(reward.shape)}


class Roles:
    """Actor, reference, critic and reward model.

    Args:
      language: the model to finetune, which stays as it is: the reference.
      actor: learns to answer.
      at: how many layers are below the actor's own.
      reward: pays. Where it was fitted on the same weights, layers that both have frozen run once for both.
      critic: learns values, if any is to.
      temperature: of the sampling.
      micro_batch: answers whose activations are in memory together.

    Attributes:
      reward: what pays now.
    """

    def __init__(
        self,
        language: LanguageModel,
        actor: Actor,
        at: int,
        reward: TextRewardModel,
        critic: Critic | None,
        temperature: float,
        micro_batch: int,
    ) -> None:
        self.language, self.actor, self.reward, self.critic = language, actor, reward, critic
        self._at, self._temperature, self._micro_batch = at, temperature, micro_batch
        self._head = language.network.lm_head

    def experience(self, answers: list[Answer]) -> Experience:
        """Each role's values of the actor's answers."""
        spoken = [(answer.prompt_tokens.tolist(), answer.tokens.tolist()) for answer in answers]
        base, reward = self.language.network.model, self.reward
        together = reward.language.weights == self.language.weights
        states = trunk_states(base, {self._at, reward.shape.at} if together else {self._at}, spoken)
        actor, critic = states[self._at], states.get(reward.shape.at, [])
        if not together:
            critic = trunk_states(reward.language.network.model, [reward.shape.at], spoken)[reward.shape.at]
        scores = torch.from_numpy(reward.pay(answers, critic)).float().to(self.language.device)
        mask, tokens = token_grid([answer.tokens for answer in answers], self.language.device)
        log_probs, reference, kl, values = (torch.zeros(mask.shape, device=mask.device) for _ in range(4))
        with torch.no_grad():
            for rows in self.micro(range(len(answers))):
                part, where = [actor[row] for row in rows], mask[:, rows]
                found = self._compare(part, tokens[:, rows].T[where.T])
                for grid, column in zip((log_probs, reference, kl), found, strict=True):
                    grid[:, rows] = spread(column, where)
                if self.critic is not None:
                    values[:, rows] = spread(self.critic.values([critic[row] for row in rows]), where)
        return Experience(answers, actor, critic, tokens, mask, scores, log_probs, reference, kl, values)

    def log_probs(self, batch: Sequence[States], tokens: torch.Tensor) -> torch.Tensor:
        """The actor's log-probabilities of all tokens of some answers, float32 `[N]`, through which it can learn."""
        return log_probs_of(self._head, self.actor.hidden(batch), tokens, self._temperature)

    def micro(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Rows in parts that fit into memory together."""
        for at in range(0, len(rows), self._micro_batch):
            yield list(rows[at : at + self._micro_batch])

    @torch.no_grad()
    def _compare(
        self, batch: Sequence[States], tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of actor and reference, and the exact KL between them, of each token: float32 `[N]`."""
        actor, reference = self.actor.hidden(batch), self.actor.reference(batch)
        found = []
        for at in range(0, len(tokens), _POSITIONS):
            place = tokens[at : at + _POSITIONS, None]
            ours, theirs = (
                log_softmax_of(self._head, states[at : at + _POSITIONS], self._temperature)
                for states in (actor, reference)
            )
            kl = (ours.exp() * (ours - theirs)).sum(-1)
            found.append((ours.gather(1, place)[:, 0], theirs.gather(1, place)[:, 0], kl))
        log_probs, of_reference, kls = (torch.cat(column) for column in zip(*found, strict=True))
        return log_probs, of_reference, kls


def token_grid(rows: Sequence[np.ndarray], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mask, bool, and tokens, int64, of answers: `[T, B]` both. Lengths mark the padding, never a token."""
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(int(lengths.max()), device=device)[:, None] < lengths
    tokens = torch.from_numpy(np.concatenate(rows)).to(device)
    return mask, spread(tokens, mask)


def spread(column: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Puts values of each token, one answer after the other, `[N]`, into a grid `[T, B]`; 0 on padding."""
    grid = column.new_zeros(mask.T.shape)
    grid[mask.T] = column
    return grid.T
