"""The learner of language models: PPO, REINFORCE, RLOO and GRPO on whole answers, with the roles of `lib.text.roles`.

Source: Ziegler et al. 2019, arXiv 1909.08593; Ouyang et al. 2022, arXiv 2203.02155.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
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
from lib.preferences.prompts import Prompt
from lib.text.language import LanguageModel
from lib.text.reward import TextRewardModel
from lib.text.roles import Actor, Critic, Experience, Roles
from lib.text.sampling import answer

KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of an algorithm; the defaults are those of the flags."""

    algo: str = "ppo"
    """An estimator of `lib.agent.sequences.answer_advantages`."""
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
class EncodedPrompt:
    """A prompt, and the tokens that an answer continues."""

    prompt: Prompt
    tokens: tuple[int, ...]


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
      rank: of adapters on all layers, which learn in place of layers; `at` is 0 then.

    Attributes:
      steps: answers given so far.
      updates: made so far.
      language, settings: see above.
      roles: actor, reference, critic and what pays now.
      kl_coef: β as it is now, float32 `[]`.
    """

    def __init__(
        self,
        language: LanguageModel,
        at: int,
        reward: TextRewardModel,
        prompts: Sequence[EncodedPrompt],
        settings: LearnerSettings,
        bf16: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
        ranks: Alone = ALONE,
        rank: int = 0,
    ) -> None:
        self.language, self.settings, self.steps, self.updates = language, settings, 0, 0
        self._prompts, self._should_stop, self._ranks = prompts, should_stop, ranks
        critic = Critic(reward, bf16) if settings.algo == "ppo" else None
        shared = settings.temperature, settings.micro_batch
        actor = Actor(language, at, bf16, rank, settings.seed)
        self.roles = Roles(language, actor, at, reward, critic, *shared)
        trained = [weight for _, weight in self.weights()]
        self._optimizer = torch.optim.Adam(trained, lr=settings.lr, eps=1e-8)
        self._warm_until = settings.critic_warmup  # updates
        self.kl_coef = torch.tensor(settings.kl, device=language.device)

    def advance(self) -> Advance:
        """Answers prompts and learns from the answers. Does nothing if a stop was requested."""
        settings, prompts = self.settings, list(self._next_prompts())
        share = self._ranks.share(len(prompts))
        ours, before = [prompts[at] for at in share], share.start * settings.answers
        answers = self.answer(ours, [settings.seed, self.updates], settings.answers, before=before)
        if self._ranks.together(answers is None) or answers is None:
            return Advance(0, {}, [])
        parts = self.learn(self.roles.experience(answers))
        made = len(prompts) * settings.answers
        self.steps += made
        self.updates += 1
        return Advance(made, parts, [])

    def play(self) -> None:
        """Does nothing: `lib.text.record` samples answers for a DB."""

    def use_reward(self, model: TextRewardModel, another: bool = True) -> None:
        """Lets a reward model pay from now on.

        Args:
          model: on the same device, of the layers that the first one has (`lib.text.roles.kind_of`).
          another: whether it differs from the previous model; the critic, which keeps learning, then warms up again.
        """
        self.roles.reward = model
        if another:
            self._warm_until = self.updates + self.settings.critic_warmup

    def policy(self) -> LanguageModel:
        """The finetuned model, which changes as the learner learns."""
        return dataclasses.replace(self.language, network=self.roles.actor.network())

    def weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Everything that learns and must stay finite, by name."""
        yield from self.roles.actor.weights.items()
        if self.roles.critic is not None:
            yield from self.roles.critic.network.named_parameters(prefix="critic")

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs. Random numbers depend on the seed and the number of the update alone."""
        critic = self.roles.critic
        return {
            "steps": self.steps,
            "updates": self.updates,
            "new_reward_at": self._warm_until - self.settings.critic_warmup,
            "top": self.roles.actor.state(),
            "critic": None if critic is None else critic.network.state_dict(),
            "critic_of": None if critic is None else critic.state(),
            "optimizer": self._optimizer.state_dict(),
            "kl_coef": self.kl_coef,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned, from a learner with the same settings.

        Raises:
          UserError: the critic has other layers.
        """
        self.steps, self.updates = state["steps"], state["updates"]
        self.roles.actor.load_state(state["top"])
        critic = self.roles.critic
        # Older states lack two of these.
        self._warm_until = state.get("new_reward_at", 0) + self.settings.critic_warmup
        if critic is not None:
            critic.load_state(state["critic"], state.get("critic_of") or critic.state())
        self._optimizer.load_state_dict(state["optimizer"])
        self.kl_coef = state["kl_coef"].to(self.language.device)

    # --- Answers ---------------------------------------------------------------------------------------------

    def answer(
        self,
        prompts: Sequence[EncodedPrompt],
        seed: list[int],
        each: int = 1,
        reference: bool = False,
        before: int = 0,
    ) -> list[Answer] | None:
        """Answers to prompts, those to one prompt side by side; None if a stop was requested.

        Args:
          prompts: what to answer.
          seed: of the answers.
          each: how many answers to each prompt.
          reference: whether the reference answers, rather than the actor.
          before: how many answers of the same seed come before these; each has random numbers of its own.
        """
        settings, policy = self.settings, self.language if reference else self.policy()
        asked = [(prompt.prompt, prompt.tokens) for prompt in prompts for _ in range(each)]
        rngs = (np.random.default_rng([*seed, before + place]) for place in range(len(asked)))
        chances = np.array([rng.random(settings.tokens) for rng in rngs])
        return answer(policy, asked, chances, settings.temperature, settings.batch_size, self._should_stop)

    def _next_prompts(self) -> Iterator[EncodedPrompt]:
        """The prompts of this update, from endless rounds through all of them, each in its own order."""
        count = self.settings.rollout // self.settings.answers
        for place in range(self.updates * count, (self.updates + 1) * count):
            turn, at = divmod(place, len(self._prompts))
            order = np.random.default_rng([self.settings.seed, turn]).permutation(len(self._prompts))
            yield self._prompts[order[at]]

    # --- Updates ------------------------------------------------------------------------------------------------

    def learn(self, experience: Experience) -> dict[str, torch.Tensor | float]:
        """The passes over an experience; returns scalars by chart name."""
        settings, mask, total = self.settings, experience.mask, self._ranks.total
        scores = experience.scores
        finished = torch.tensor([answer.finished for answer in experience.answers], device=mask.device)
        if settings.unfinished_score is not None:
            scores = torch.where(finished, scores, settings.unfinished_score)
        kl = KL_ESTIMATORS[settings.kl_estimator](experience.log_probs, experience.reference)
        rewards = token_rewards(scores, kl, mask, self.kl_coef, settings.score_clip or math.inf)
        advantages, returns = answer_advantages(
            settings.algo,
            rewards,
            experience.values,
            mask,
            settings.answers,
            lambda_=settings.gae_lambda,
            total=total,
        )
        falls = 1 - self.updates / settings.lr_decay if settings.lr_decay else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = settings.lr * max(0.0, falls)
        rng = np.random.default_rng([settings.seed, self.updates])
        ours, of_each = len(experience.answers), self._ranks.everyone(len(experience.answers))
        before, answers = sum(of_each[: self._ranks.rank]), sum(of_each)
        steps = [
            self._step(
                experience,
                (rows[(rows >= before) & (rows < before + ours)] - before).tolist(),
                advantages,
                returns,
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
        if self.roles.critic is not None:
            parts["explained_variance"] = explained_variance(experience.values, returns, mask, total)
        if settings.kl_target and self._acts():
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
        names += ["loss_value"] if self.roles.critic is not None else []
        sums = {name: torch.zeros((), device=count.device) for name in names}
        for micro in self.roles.micro(rows):
            losses = self._losses(experience, micro, advantages, returns)
            loss = losses["loss_total"] / count
            loss.backward()
            for name, part in losses.items():
                sums[name] = sums[name] + part.detach() / count
        learning = [weight for name, weight in self.weights() if acts or name.startswith("critic.")]
        if self._ranks.size > 1:
            gradients = [
                torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in learning
            ]
            *summed, of_all = total([*gradients, torch.stack([*sums.values()])])
            sums = dict(zip(sums, of_all.unbind(), strict=True))
            for weight, gradient in zip(learning, summed, strict=True):
                weight.grad = gradient
        sums["grad_norm"] = nn.utils.clip_grad_norm_(learning, settings.grad_clip or math.inf)
        optimizer.step()
        return sums

    def _acts(self) -> bool:
        """Whether the actor learns now, and not only the critic."""
        return self.updates >= self._warm_until or self.roles.critic is None

    def _losses(
        self, experience: Experience, rows: list[int], advantages: torch.Tensor, returns: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Sums over the tokens of some answers, by chart name."""
        settings, where = self.settings, experience.mask[:, rows].T
        tokens, old, old_values, advantages, returns = (
            grid[:, rows].T[where]
            for grid in (experience.tokens, experience.log_probs, experience.values, advantages, returns)
        )
        parts = {}
        total = torch.zeros((), device=where.device)
        if self._acts():
            log_probs = self.roles.log_probs([experience.actor[row] for row in rows], tokens)
            log_ratio = log_probs - old
            policy = surrogate_loss(log_ratio, advantages, settings.clip_range).sum()
            moved = log_ratio.detach()
            parts["loss_policy"] = policy
            parts["approx_kl"] = (moved.exp() - 1 - moved).sum()
            if settings.clip_range:
                parts["clip_fraction"] = ((moved.exp() - 1).abs() > settings.clip_range).float().sum()
            total = total + policy
        if self.roles.critic is not None:
            values = self.roles.critic.values([experience.critic[row] for row in rows])
            value = value_error(values, old_values, returns, settings.value_clip_range).sum()
            parts["loss_value"] = value
            total = total + settings.value_coef * value
        return parts | {"loss_total": total}
