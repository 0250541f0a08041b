"""Exploration beyond the policy's own randomness."""

import numpy as np
import torch


def state_entropy(states: torch.Tensor, others: torch.Tensor, neighbour: int = 5) -> torch.Tensor:
    """The distance of states from others: as a reward it increases the entropy of the states visited.

        r(s) = ‖s − sₖ‖ / mean ‖s − sₖ‖,   sₖ the k-th nearest of the others

    Each number of a state is measured in standard deviations over the others. Source: PEBBLE, Lee et al. 2021, arXiv
    2106.05091, section 4.1, with a mean of 1 in place of the logarithm: rewards below 0 would pay for early ends.

    Args:
      states: float32 `[N, D]`.
      others: float32 `[M, D]`, at least k; they may contain the states.
      neighbour: k.

    Returns:
      float32 `[N]`.
    """
    # Far from 0 the products that distances are made of would hide them.
    mean, scale = others.mean(0), others.std(0) + 1e-6
    states, others = (states - mean) / scale, (others - mean) / scale
    distances = torch.cdist(states, others).kthvalue(neighbour, dim=1).values
    return distances / distances.mean().clamp(min=1e-6)


class HeldActions:
    """Exploration in time: occasionally an environment holds one random action for a number of steps.

    Independent random actions never find what takes many steps of one action, such as a climb to the surface. Source:
    ε-greedy with temporally extended options, Dabney et al. 2021, arXiv 2006.01782; action repetition lets
    actor-critics refuel in Seaquest, Sharma et al. 2017, arXiv 1702.06054. Durations are uniform here.

    Args:
      num_envs: B.
      num_actions: actions to choose from.
      prob: chance per step that an environment that follows its policy begins to hold an action.
      shortest, longest: steps that an action is held for, each length equally likely.
      seed: of the choices.
    """

    def __init__(
        self, num_envs: int, num_actions: int, prob: float, shortest: int, longest: int, seed: int
    ) -> None:
        self._num_actions, self._prob = num_actions, prob
        self._shortest, self._longest = shortest, longest
        self._rng = np.random.default_rng([seed, 1])
        self._action = np.zeros(num_envs, np.int64)
        self._left = np.zeros(num_envs, np.int64)

    def replace(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Puts held actions in place of the policy's, for one step.

        Args:
          actions: int64 `[B]`, the policy's.

        Returns:
          The actions to play, int64 `[B]`, and where they are held, bool `[B]`.
        """
        self.begin((self._left == 0) & (self._rng.random(len(actions)) < self._prob))
        held = self._left > 0
        self._left[held] -= 1
        return np.where(held, self._action, actions), held

    def begin(self, games: np.ndarray) -> None:
        """Makes games, bool `[B]`, hold an action from the next step on, each its own."""
        count = int(games.sum())
        self._action[games] = self._rng.integers(self._num_actions, size=count)
        self._left[games] = self._rng.integers(self._shortest, self._longest + 1, size=count)

    def drop(self, games: np.ndarray) -> None:
        """Ends the holding where a new game began, bool `[B]`."""
        self._left[games] = 0
