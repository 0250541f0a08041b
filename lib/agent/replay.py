"""Replay: the last steps of B environments, drawn at random to learn from, and rated again when the reward model changes.

Time runs as in `lib.envs.world`: row t holds what followed action aₜ, chosen on observation sₜ, and sₜ₊₁ is the
observation of row t + 1, so each is kept once. A reset is a row as well, which is never learned from.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.agent.returns import n_step_returns
from lib.agent.rollout import Played
from lib.agent.sum_tree import SumTree
from lib.cli import UserError
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.reward.model import RewardModel

_LEAST_PRIORITY = 1e-6


class Batch(NamedTuple):
    """N steps to learn from."""

    observations: torch.Tensor  # uint8 [N, 4, 84, 84] or float32 [N, D]
    actions: torch.Tensor  # int64 [N] or float32 [N, A]
    returns: torch.Tensor  # float32 [N]: what was paid in up to n steps, discounted
    discounts: torch.Tensor  # float32 [N]: of the value of `following`; 0 after a terminal
    following: torch.Tensor  # as observations: what the last of these steps led to
    weights: torch.Tensor  # float32 [N]: of each step's loss, in a mean over all N
    at: torch.Tensor  # int64 [N], where they are kept, for `Replay.prioritise`


class Replay:
    """A ring of rows of B steps. Everything is allocated once, on one device; drawing waits for nothing there.

    Pictures are kept as one grey frame a step, 7 KB, and stacked when they are drawn.

    Args:
      spec: what the environments show and take.
      num_envs: B.
      steps: how many to keep, all environments together.
      device: where they are kept.
      pay: the reward of steps, of their learned reward and their score, float32 `[...]` each.
      gamma: discount.
      n_step: n of the returns.
      priority: α; steps are drawn in proportion to abs(error)^α (Schaul et al. 2016, arXiv 1511.05952); 0: uniformly.
      max_mb: memory limit in MB; fewer steps are kept if they would take more.

    Attributes:
      capacity: steps kept at most.
      megabytes: what these take.
      steps: kept now, those that are never drawn included.

    Raises:
      UserError: the limits leave room for too few steps.
    """

    def __init__(
        self,
        spec: Spec,
        num_envs: int,
        steps: int,
        device: torch.device,
        pay: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        gamma: float,
        n_step: int = 1,
        priority: float = 0.0,
        max_mb: float = float("inf"),
    ) -> None:
        assert spec.observation_shape is not None
        self._pictures = spec.observation_shape == PICTURE_SHAPE
        # Of the oldest rows the earlier frames are overwritten.
        self._lost = PICTURE_SHAPE[0] - 1 if self._pictures else 0
        kept_shape = PICTURE_SHAPE[1:] if self._pictures else spec.observation_shape
        columns: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "observations": (kept_shape, torch.uint8 if self._pictures else torch.float32),
            "age": ((), torch.uint8),  # steps since the game's first, of the observation; at most 3
            "actions": ((spec.num_actions,), torch.float32) if spec.continuous else ((), torch.int64),
            "learned": ((), torch.float32),
            "score": ((), torch.float32),
            "terminal": ((), torch.bool),
            "truncated": ((), torch.bool),
            "valid": ((), torch.bool),
        }
        step_bytes = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in columns.values())
        self._rows = int(min(steps, max_mb * 1e6 / step_bytes)) // num_envs
        least = self._lost + n_step + 2
        if self._rows < least:
            raise UserError(
                f"--replay-steps {steps}, --replay-mb {max_mb:g}: expected room for at least {least} steps of each of "
                f"--num-envs {num_envs} with --n-step {n_step}, each of {step_bytes} bytes"
            )
        self.capacity = self._rows * num_envs
        self.megabytes = self.capacity * step_bytes / 1e6
        self._kept = {
            name: torch.empty(
                self._rows + (name == "observations"), num_envs, *shape, dtype=dtype, device=device
            )
            for name, (shape, dtype) in columns.items()
        }
        self._kept["observations"][-1] = 0  # the row more stands for frames before a game, which are black
        for name in self._kept.keys() - {"observations"}:  # whose memory is taken as it fills
            self._kept[name].zero_()
        self._open = 0  # the row whose observation is known and whose action is not
        self._filled = 0  # rows before that one
        self._envs, self._device = num_envs, device
        self._pay, self._gamma, self._n_step, self._priority = pay, gamma, n_step, priority
        self._tree = SumTree(self.capacity, device) if priority else None
        self._highest = torch.ones((), dtype=torch.float64, device=device)

    @property
    def steps(self) -> int:
        return self._filled * self._envs

    def begin(self, observations: torch.Tensor) -> None:
        """New games begin; unfinished ones are cut, as by a time limit.

        Args:
          observations: uint8 `[B, 4, 84, 84]` or float32 `[B, D]`, what they show.
        """
        first = torch.ones(self._envs, dtype=torch.bool, device=self._device)
        if self._filled:
            self._kept["truncated"][self._open - 1] = True
            for name in ("terminal", "truncated", "valid"):
                self._kept[name][self._open] = False
            self._next(observations, first)
        else:
            self._show(observations, first)

    def add(self, played: Played, observations: torch.Tensor) -> None:
        """Keeps one more step of every environment.

        A return ends before the next held action, which was chosen at random, as at a time limit; the held steps
        themselves are learned from, each by itself.

        Args:
          played: the actions chosen on the last observations, and their outcome.
          observations: what the environments show now.
        """
        row, step = self._open, played.step
        flags = (step.terminal, step.truncated, ~step.reset, played.held, step.reset)
        terminal, truncated, valid, held, reset = (self._moved(flag) for flag in flags)
        self._kept["truncated"][row - 1] |= held
        score = self._moved(step.score)
        values = {
            "actions": played.actions,
            "learned": torch.zeros_like(score) if played.learned is None else played.learned,
            "score": score,
            "terminal": terminal,
            "truncated": truncated,
            "valid": valid,
        }
        for name, value in values.items():
            self._kept[name][row] = value
        self._next(observations, reset)

    def sample(self, count: int, generator: torch.Generator, beta: float = 1.0) -> Batch:
        """Draws steps with replacement.

        Args:
          count: N.
          generator: source of randomness on the device.
          beta: how far the weights make up for unequal priorities, 0 to 1: (N P)^−β over the largest in the batch.
        """
        kept = self._kept
        if self._tree is None:
            lost = self._lost if self._filled == self._rows - 1 else 0
            drawn = torch.randint(
                lost * self._envs, self.steps, (count,), generator=generator, device=self._device
            )
            index = (drawn + (self._open - self._filled) * self._envs) % self.capacity
            weights = kept["valid"].flatten()[index].float()
            weights = weights / weights.mean().clamp(min=1 / count)
        else:
            spread = torch.rand(count, generator=generator, dtype=torch.float64, device=self._device)
            places = torch.arange(count, device=self._device)
            index = self._tree.draw((places + spread) / count)
            priorities = self._tree.weights[index]
            weights = (priorities / priorities.min()).pow(-beta).float()
        row, env = index // self._envs, index % self._envs
        along = (row[:, None] + torch.arange(self._n_step, device=self._device)) % self._rows, env[:, None]
        returns, discounts, lengths = n_step_returns(
            self._pay(kept["learned"][along], kept["score"][along]),
            kept["terminal"][along],
            kept["truncated"][along] | (along[0] == (self._open - 1) % self._rows),
            self._gamma,
        )
        return Batch(
            self._seen(row, env),
            kept["actions"][row, env],
            returns,
            discounts,
            self._seen((row + lengths) % self._rows, env),
            weights,
            index,
        )

    def sample_states(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Observations of any steps, `[N, 4, 84, 84]` or `[N, D]`."""
        at = torch.randint(self.steps, (count,), generator=generator, device=self._device)
        at = (at + (self._open - self._filled) * self._envs) % self.capacity
        return self._seen(at // self._envs, at % self._envs)

    def prioritise(self, at: torch.Tensor, errors: torch.Tensor) -> None:
        """Sets the priorities of steps by the learner's error on them; does nothing without priorities.

        Args:
          at: int64 `[N]`, of the last batch.
          errors: float `[N]`, of its values.
        """
        if self._tree is not None:
            priorities = (errors.double().abs() + _LEAST_PRIORITY).pow(self._priority)
            self._highest = torch.maximum(self._highest, priorities.max())
            self._tree.set(at, priorities)

    @torch.no_grad()
    def relabel(self, model: RewardModel, another: bool = True) -> None:
        """Lets a reward model rate every kept step, so that no reward of an earlier model remains.

        Args:
          model: of observations, on the device of the replay: colour frames are not kept.
          another: whether it differs from the earlier one; what was known of the steps' errors is then out of date.
        """
        kept, envs = self._kept, torch.arange(self._envs, device=self._device)
        no_frames = torch.empty(0, dtype=torch.uint8, device=self._device)
        rows = torch.arange(self._open - self._filled, self._open, device=self._device) % self._rows
        at_once = 512 if self._pictures else 8192  # steps
        for part in rows.split(max(1, at_once // self._envs)):
            seen = self._seen(part[:, None], envs).flatten(0, 1)
            paid = model.pay(no_frames, kept["actions"][part].flatten(0, 1), seen)
            kept["learned"][part] = paid.view(len(part), self._envs)
        if self._tree is not None and another:
            known = torch.where(self._tree.weights > 0, self._highest, 0.0)
            self._tree.set(torch.arange(self.capacity, device=self._device), known)

    def state(self) -> dict[str, Any]:
        """All that `load_state` needs: of a full replay the columns themselves, as a copy may not fit beside them."""
        used = slice(None if self._filled == self._rows - 1 else self._open + 1)
        state = {name: column[used] for name, column in self._kept.items()}
        tree = None if self._tree is None else self._tree.weights
        return state | {"open": self._open, "filled": self._filled, "tree": tree, "highest": self._highest}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned, from a replay of the same size; call `begin` next."""
        self._open, self._filled = state["open"], state["filled"]
        for name, column in self._kept.items():
            column[: len(state[name])] = state[name]
        if self._tree is not None:
            self._tree.set(torch.arange(self.capacity, device=self._device), state["tree"].to(self._device))
        self._highest = state["highest"].to(self._device)

    def _next(self, observations: torch.Tensor, first: torch.Tensor) -> None:
        """Closes the open row, and opens the next."""
        closed = self._open
        self._open = (closed + 1) % self._rows
        self._filled = min(self._filled + 1, self._rows - 1)
        if self._tree is not None:
            envs = torch.arange(self._envs, device=self._device)
            self._tree.set(closed * self._envs + envs, self._highest * self._kept["valid"][closed])
            self._tree.set((self._open + self._lost) % self._rows * self._envs + envs, 0.0)
        self._show(observations, first)

    def _show(self, observations: torch.Tensor, first: torch.Tensor) -> None:
        """Keeps the observations on which the open row's actions are chosen."""
        row, age = self._open, self._kept["age"]
        self._kept["observations"][row] = observations[:, -1] if self._pictures else observations
        age[row] = torch.where(first, 0, (age[row - 1] + 1).clamp(max=3))

    def _seen(self, row: torch.Tensor, env: torch.Tensor) -> torch.Tensor:
        """The observations of steps, `[..., 4, 84, 84]` or `[..., D]`, of rows and environments that broadcast."""
        observations = self._kept["observations"]
        if not self._pictures:
            return observations[row, env]
        back = torch.arange(PICTURE_SHAPE[0] - 1, -1, -1, device=self._device)
        at = (row[..., None] - back) % self._rows * self._envs + env[..., None]
        at = torch.where(back > self._kept["age"][row, env][..., None], self.capacity, at)
        # Whole frames are copied many times as fast as by indexing.
        return observations.flatten(0, 1).index_select(0, at.flatten()).view(*at.shape, *PICTURE_SHAPE[1:])

    def _moved(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
