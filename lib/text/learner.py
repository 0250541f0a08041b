"""The learner of language models: PPO, REINFORCE, RLOO and GRPO on whole answers, with four roles on one trunk.

Actor, reference, critic and reward model differ in their upper layers alone. An answer passes through the frozen layers
below once; what these make of it serves all roles and all passes. The reference is the model itself, which nothing
here can move.

Source: Ziegler et al. 2019, arXiv 1909.08593; Ouyang et al. 2022, arXiv 2203.02155.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.agent.kl import adapted, k1, k2, k3
from lib.agent.losses import surrogate_loss, value_error
from lib.agent.returns import explained_variance
from lib.agent.sequences import answer_advantages, token_rewards
from lib.learner import ALONE, Advance, Alone
from lib.preferences.answers import Answer, distinct_2
from lib.text.language import LanguageModel
from lib.text.layers import above, branch, log_probs_of, log_softmax_of
from lib.text.reward import States, TextRewardModel, TextRewardNet, above_states, before_tokens, trunk_states
from lib.text.sampling import as_answer, sample

KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
_POSITIONS = 256  # whose logits, of actor and reference, are in memory together


@dataclass(frozen=True)
class LearnerSettings:
    """What an algorithm needs to know; the defaults are those of the flags."""

    algo: str = "ppo"
    """Of `lib.agent.sequences.ESTIMATORS`."""
    rollout: int = 64
    """Answers of an update."""
    answers: int = 1
    """To each of its prompts."""
    tokens: int = 64
    """Longest answer."""
    temperature: float = 1.0
    batch_size: int = 32
    """Answers sampled together."""
    lr: float = 1e-4
    lr_decay: int = 0
    """Updates in which the learning rate falls linearly to 0; 0: it stays."""
    epochs: int = 2
    minibatches: int = 2
    micro_batch: int = 16
    """Answers whose activations are in memory together. The gradient is that of the whole minibatch."""
    clip_range: float = 0.2
    value_clip_range: float = 0.2
    value_coef: float = 0.5
    grad_clip: float = 1.0
    gamma: float = 1.0
    gae_lambda: float = 0.95
    kl: float = 0.05
    """β, the price of a nat away from the reference."""
    kl_estimator: str = "k1"
    kl_target: float = 0.0
    """KL of an answer, in nats, that β is adapted to hold; 0 leaves β."""
    kl_horizon: int = 1000
    """Answers in which β changes by at most a fifth."""
    score_clip: float = 5.0
    unfinished_score: float | None = None
    """Of answers that were cut off; None: what the reward model says."""
    critic_warmup: int = 0
    """Updates of the critic alone at the start."""
    seed: int = 0


@dataclass(frozen=True)
class Prompt:
    """What an answer is asked for."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Experience:
    """B answers of up to T tokens, and what they were worth; `[T, B]` on the device, anything on padding."""

    answers: list[Answer]
    actor: list[States]
    """What the frozen layers below the actor make of each."""
    critic: list[States]
    """And those below the critic."""
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


class TextLearner:
    """Learns to answer as a reward model likes; see `lib.learner.Learner`. A step is an answer.

    Args:
      language: the model to finetune, which stays as it is: the reference.
      at: how many layers stay frozen; the others and the last norm are trained. The embedding and the head stay.
      reward: pays. Where it was fitted on the same weights, layers that both have frozen run once for both.
      prompts: asked for answers, all of them once before any comes again.
      settings: of the algorithm.
      bf16: whether the trained layers compute in bf16; their weights are float32.
      should_stop: ends sampling between two tokens.
      ranks: the processes that learn together; each answers its share of the prompts.

    Attributes:
      steps: answers given so far.
      updates: made so far.
      actor: the whole network that samples, with the trained layers.
      at: see above.
      kl_coef: β as it is now, float32 `[]`.
    """

    def __init__(
        self,
        language: LanguageModel,
        at: int,
        reward: TextRewardModel,
        prompts: Sequence[Prompt],
        settings: LearnerSettings,
        bf16: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Alone = ALONE,
    ) -> None:
        self._ranks = ranks
        self.language, self.at, self.settings, self.steps, self.updates = language, at, settings, 0, 0
        self.actor = branch(language.network, at)
        self._prompts, self._bf16, self._should_stop = prompts, bf16, should_stop
        self._reference = above(language.network.model, at)
        # Adam needs float32, which sampling may not; where both are float32 they are the same weights.
        sampled = above(self.actor.model, at)
        self._trained = sampled if _is_float32(sampled) else copy.deepcopy(sampled).float()
        self._sampled = None if self._trained is sampled else sampled
        self._head = language.network.lm_head
        trained = list(self._trained.parameters())
        self._critic: TextRewardNet | None = None
        if settings.algo == "ppo":
            self._critic = copy.deepcopy(reward.members[0].network).requires_grad_(True)
            trained += self._critic.parameters()
        self._scale = reward.members[0].mean, reward.members[0].std
        self._reward = reward
        for weight in self._trained.parameters():
            weight.requires_grad_(True)
        self._optimizer = torch.optim.Adam(trained, lr=settings.lr, eps=1e-8)
        self.kl_coef = torch.tensor(settings.kl, device=language.device)

    def advance(self) -> Advance:
        """Answers prompts and learns from the answers. Does nothing where the end was asked for meanwhile."""
        settings, prompts = self.settings, list(self._next_prompts())
        share = self._ranks.share(len(prompts))
        ours, before = [prompts[at] for at in share], share.start * settings.answers
        answers = self.answer(ours, [settings.seed, self.updates], settings.answers, before=before)
        if self._ranks.together(answers is None) or answers is None:
            return Advance(0, {}, [])
        parts = self._learn(self.experience(answers))
        made = len(prompts) * settings.answers
        self.steps += made
        self.updates += 1
        return Advance(made, parts, [])

    def play(self) -> None:
        """Nothing: answers for a DB are sampled by `lib.text.record`."""

    def use_reward(self, model: TextRewardModel, another: bool = True) -> None:
        """Lets a reward model pay from now on; the critic learns on."""
        self._reward = model

    def policy(self) -> LanguageModel:
        """The finetuned model as it is now, which learns on as the learner does."""
        self._refresh()
        return dataclasses.replace(self.language, network=self.actor)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that must stay finite, by name."""
        yield from self._trained.named_parameters()
        if self._critic is not None:
            yield from self._critic.named_parameters(prefix="critic")

    def top(self) -> dict[str, torch.Tensor]:
        """The trained weights by their names above the cut."""
        state: dict[str, torch.Tensor] = self._trained.state_dict()
        return state

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs. Random numbers depend on the seed and the number of the update alone."""
        return {
            "steps": self.steps,
            "updates": self.updates,
            "top": self.top(),
            "critic": None if self._critic is None else self._critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "kl_coef": self.kl_coef,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes up what `state` said, of a learner with the same settings."""
        self.steps, self.updates = state["steps"], state["updates"]
        self._trained.load_state_dict(state["top"])
        if self._critic is not None:
            self._critic.load_state_dict(state["critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.kl_coef = state["kl_coef"].to(self.language.device)

    # --- Experience ---------------------------------------------------------------------------------------------

    def answer(
        self,
        prompts: Sequence[Prompt],
        seed: list[int],
        each: int = 1,
        reference: bool = False,
        before: int = 0,
    ) -> list[Answer] | None:
        """Answers to prompts, those to one side by side; None where the end was asked for meanwhile.

        Args:
          prompts: what to answer.
          seed: of the answers.
          each: how many answers to each prompt.
          reference: whether the reference answers, rather than the actor.
          before: how many answers of the same seed come before these; each has random numbers of its own.
        """
        settings, policy = self.settings, self.language if reference else self.policy()
        asked = [prompt for prompt in prompts for _ in range(each)]
        found: list[Answer] = []
        for at in range(0, len(asked), settings.batch_size):
            batch = asked[at : at + settings.batch_size]
            rngs = (np.random.default_rng([*seed, before + at + place]) for place in range(len(batch)))
            chances = np.stack([rng.random(settings.tokens) for rng in rngs])
            tokens = [prompt.tokens for prompt in batch]
            drawn = sample(policy, tokens, chances, settings.temperature, self._should_stop)
            if drawn is None:
                return None
            found += [
                as_answer(policy, prompt.text, prompt.tokens, one)
                for prompt, one in zip(batch, drawn, strict=True)
            ]
        return found

    def experience(self, answers: list[Answer]) -> Experience:
        """What each role says of answers of the actor."""
        spoken = [(answer.prompt_tokens.tolist(), answer.tokens.tolist()) for answer in answers]
        base, reward = self.language.network.model, self._reward
        together = reward.language.weights == self.language.weights
        cuts = {self.at, reward.shape.at} if together else {self.at}
        states = trunk_states(base, cuts, spoken)
        if not together:
            states |= {
                -1: trunk_states(reward.language.network.model, [reward.shape.at], spoken)[reward.shape.at]
            }
        actor, critic = states[self.at], states[reward.shape.at if together else -1]
        scores = torch.from_numpy(reward.pay(answers, critic)).float().to(self.language.device)
        mask, tokens = token_grid([answer.tokens for answer in answers], self.language.device)
        log_probs, reference, kl, values = (torch.zeros(mask.shape, device=mask.device) for _ in range(4))
        with torch.no_grad():
            for rows in self._micro(range(len(answers))):
                part, where = [actor[row] for row in rows], mask[:, rows]
                found = self._compare(part, tokens[:, rows].T[where.T])
                for grid, column in zip((log_probs, reference, kl), found, strict=True):
                    grid[:, rows] = spread(column, where)
                if self._critic is not None:
                    values[:, rows] = spread(self._values([critic[row] for row in rows]), where)
        return Experience(answers, actor, critic, tokens, mask, scores, log_probs, reference, kl, values)

    def _next_prompts(self) -> Iterator[Prompt]:
        """The prompts of this update: of endless rounds through all of them, each in an order of its own."""
        count = self.settings.rollout // self.settings.answers
        for place in range(self.updates * count, (self.updates + 1) * count):
            turn, at = divmod(place, len(self._prompts))
            order = np.random.default_rng([self.settings.seed, turn]).permutation(len(self._prompts))
            yield self._prompts[order[at]]

    @torch.no_grad()
    def _compare(
        self, batch: Sequence[States], tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of actor and reference, and the exact KL between them, of each token: float32 `[N]`."""
        actor = self._hidden(batch)
        reference = before_tokens(above_states(self._reference, batch), batch)
        found = []
        for at in range(0, len(tokens), _POSITIONS):
            place = tokens[at : at + _POSITIONS, None]
            ours, theirs = (
                log_softmax_of(self._head, states[at : at + _POSITIONS], self.settings.temperature)
                for states in (actor, reference)
            )
            kl = (ours.exp() * (ours - theirs)).sum(-1)
            found.append((ours.gather(1, place)[:, 0], theirs.gather(1, place)[:, 0], kl))
        log_probs, of_reference, kls = (torch.cat(column) for column in zip(*found, strict=True))
        return log_probs, of_reference, kls

    def _hidden(self, batch: Sequence[States]) -> torch.Tensor:
        """The actor's states before each token of the answers, `[N, D]`."""
        with torch.autocast(self.language.device.type, torch.bfloat16, enabled=self._bf16):
            return before_tokens(above_states(self._trained, batch), batch)

    def _values(self, batch: Sequence[States]) -> torch.Tensor:
        """The critic's values before each token of the answers, float32 `[N]`, in units of the learned reward."""
        assert self._critic is not None
        mean, std = self._scale
        with torch.autocast(self.language.device.type, torch.bfloat16, enabled=self._bf16):
            return (self._critic.before_tokens(batch) - mean) / std

    def _refresh(self) -> None:
        """Lets the sampling weights be the trained ones."""
        if self._sampled is not None:
            pairs = zip(self._sampled.parameters(), self._trained.parameters(), strict=True)
            with torch.no_grad():
                for sampled, trained in pairs:
                    sampled.copy_(trained)

    def _micro(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Rows in parts that fit into memory together."""
        for at in range(0, len(rows), self.settings.micro_batch):
            yield list(rows[at : at + self.settings.micro_batch])

    # --- Updates ------------------------------------------------------------------------------------------------

    def _learn(self, experience: Experience) -> dict[str, torch.Tensor | float]:
        """The passes over an experience; returns scalars by chart name."""
        settings, mask, total = self.settings, experience.mask, self._ranks.total
        scores = experience.scores
        finished = torch.tensor([answer.finished for answer in experience.answers], device=mask.device)
        if settings.unfinished_score is not None:
            scores = torch.where(finished, scores, settings.unfinished_score)
        kl = KL_ESTIMATORS[settings.kl_estimator](experience.log_probs, experience.reference)
        rewards = token_rewards(scores, kl, mask, self.kl_coef, settings.score_clip)
        worth = answer_advantages(
            *(settings.algo, rewards, experience.values, mask, settings.answers),
            *(settings.gamma, settings.gae_lambda),
            total,
        )
        falls = 1 - self.updates / settings.lr_decay if settings.lr_decay else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = settings.lr * max(0.0, falls)
        rng = np.random.default_rng([settings.seed, self.updates])
        ours, of_each = len(experience.answers), self._ranks.everyone(len(experience.answers))
        before, answers = sum(of_each[: self._ranks.rank]), sum(of_each)
        steps = [
            self._step(
                experience, (rows[(rows >= before) & (rows < before + ours)] - before).tolist(), *worth
            )
            for _ in range(settings.epochs)
            for rows in np.array_split(rng.permutation(answers), settings.minibatches)
        ]
        parts: dict[str, torch.Tensor | float] = {
            name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]
        }
        columns = {
            "learned": experience.scores,
            "kl_ref": (experience.exact_kl * mask).sum(0),
            "tokens": mask.sum(0).float(),
            "finished": finished.float(),
        }
        [sums] = total([torch.stack([column.sum() for column in columns.values()])])
        means = dict(zip(columns, sums / answers, strict=True))
        texts = self._ranks.gather([answer.text for answer in experience.answers])
        parts |= {
            **means,
            "kl_coef": self.kl_coef,
            "lr": self._optimizer.param_groups[0]["lr"],
            "distinct_2": torch.tensor(distinct_2(itertools.chain(*texts)), device=mask.device),
        }
        if self._critic is not None:
            parts["explained_variance"] = explained_variance(experience.values, worth[1], mask, total)
        if settings.kl_target and self.updates >= settings.critic_warmup:
            self.kl_coef = adapted(
                self.kl_coef, means["kl_ref"], settings.kl_target, answers, settings.kl_horizon
            )
        return parts

    def _step(
        self, experience: Experience, rows: list[int], advantages: torch.Tensor, returns: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """One step of the optimiser on some answers, of which this process has these; means over their tokens."""
        settings, optimizer, total = self.settings, self._optimizer, self._ranks.total
        optimizer.zero_grad(set_to_none=True)
        [count] = total([experience.mask[:, rows].sum()])
        acts = self._acts()
        names = [*(("loss_policy", "approx_kl") if acts else ()), "loss_total"]
        names += ["clip_fraction"] if acts and settings.clip_range else []
        names += ["loss_value"] if self._critic is not None else []
        sums = {name: torch.zeros((), device=count.device) for name in names}
        for micro in self._micro(rows):
            losses = self._losses(experience, micro, advantages, returns)
            loss = losses["loss_total"] / count
            loss.backward()
            for name, part in losses.items():
                sums[name] = sums[name] + part.detach() / count
        learning = [*(self._trained.parameters() if acts else ())]
        learning += [*(() if self._critic is None else self._critic.parameters())]
        if self._ranks.size > 1:
            gradients = [
                torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in learning
            ]
            *summed, of_all = total([*gradients, torch.stack([*sums.values()])])
            sums = dict(zip(sums, of_all.unbind(), strict=True))
            for weight, gradient in zip(learning, summed, strict=True):
                weight.grad = gradient
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        sums["grad_norm"] = nn.utils.clip_grad_norm_(weights, settings.grad_clip)
        optimizer.step()
        return sums

    def _acts(self) -> bool:
        """Whether the actor learns now, not the critic alone."""
        return self.updates >= self.settings.critic_warmup or self._critic is None

    def _losses(
        self, experience: Experience, rows: list[int], advantages: torch.Tensor, returns: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Sums over the tokens of some answers, by chart name."""
        settings, where = self.settings, experience.mask[:, rows].T
        flat = {
            name: grid[:, rows].T[where]
            for name, grid in (
                *(("tokens", experience.tokens), ("log_probs", experience.log_probs)),
                *(("values", experience.values), ("advantages", advantages), ("returns", returns)),
            )
        }
        parts = {}
        total = torch.zeros((), device=where.device)
        if self._acts():
            hidden = self._hidden([experience.actor[row] for row in rows])
            log_probs = log_probs_of(self._head, hidden, flat["tokens"], settings.temperature)
            log_ratio = log_probs - flat["log_probs"]
            policy = surrogate_loss(log_ratio, flat["advantages"], settings.clip_range).sum()
            moved = log_ratio.detach()
            parts["loss_policy"] = policy
            parts["approx_kl"] = (moved.exp() - 1 - moved).sum()
            if settings.clip_range:
                parts["clip_fraction"] = ((moved.exp() - 1).abs() > settings.clip_range).float().sum()
            total = total + policy
        if self._critic is not None:
            values = self._values([experience.critic[row] for row in rows])
            value = value_error(values, flat["values"], flat["returns"], settings.value_clip_range).sum()
            parts["loss_value"] = value
            total = total + settings.value_coef * value
        return parts | {"loss_total": total}


def token_grid(rows: Sequence[np.ndarray], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mask, bool, and tokens, int64, of answers: `[T, B]` both. Lengths say what is padding, never a token."""
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(int(lengths.max()), device=device)[:, None] < lengths
    tokens = torch.from_numpy(np.concatenate(rows)).to(device)
    return mask, spread(tokens, mask)


def spread(column: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Puts what is known of each token, one answer after the other, `[N]`, into a grid `[T, B]`; 0 on padding."""
    grid = column.new_zeros(mask.T.shape)
    grid[mask.T] = column
    return grid.T


def _is_float32(module: nn.Module) -> bool:
    return all(weight.dtype == torch.float32 for weight in module.parameters())
