"""Rivals of `benchmarks.time_to_score`: other libraries' A2C and PPO on Atari, with the settings that their authors publish.

Each is called to learn for a while and returns the steps it made; `score` plays full games, with its own wrappers, and
returns their unclipped scores. They share no code with lib.
"""

from collections.abc import Callable
from typing import Any, Protocol

import ale_py
import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from torch import nn

from lib.cli import UserError

gymnasium.register_envs(ale_py)

_BUDGET = 10_000_000
"""Steps after which their schedules end."""


class Rival(Protocol):
    """Another library's learner."""

    def __call__(self) -> int:
        """Learns for a while; returns the steps made."""
        ...

    def score(self, games: int, seed: int) -> np.ndarray:
        """Unclipped scores of full games, float64 `[games]`."""
        ...

    def close(self) -> None:
        """Frees the emulators."""
        ...


_SETTINGS: dict[str, tuple[type[A2C | PPO], int, int, dict[str, Any]]] = {
    "a2c": (
        A2C,
        16,
        100,
        {
            "vf_coef": 0.25,
            "policy_kwargs": {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}},
        },
    ),
    "ppo": (
        PPO,
        8,
        128,
        {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4, "clip_range": 0.1},
    ),
}
"""Of Stable-Baselines3's algorithms: the class, games at once, steps of each in one call, and what differs from its defaults."""


class ZooAgent:
    """A2C or PPO of Stable-Baselines3, with the settings of its zoo for Atari.

    Args:
      algo: a2c or ppo.
      env_id: Gymnasium's, without frame skip.
      seed: of weights, actions and games.
      dev: device of the network.
    """

    def __init__(self, algo: str, env_id: str, seed: int, dev: str) -> None:
        kind, games, steps, settings = _SETTINGS[algo]
        self._env_id, self._piece = env_id, games * steps
        self._env = self._games(games, seed)
        self.model: A2C | PPO = kind("CnnPolicy", self._env, ent_coef=0.01, seed=seed, device=dev, **settings)
        torch.backends.cudnn.deterministic = False  # which its seed sets for the whole process
        self.model.set_logger(Logger(None, []))

    def _games(self, count: int, seed: int) -> VecEnv:
        return VecFrameStack(make_atari_env(self._env_id, n_envs=count, seed=seed), 4)

    def __call__(self) -> int:
        # learn() would begin a schedule anew with each piece.
        left = 1 - self.model.num_timesteps / _BUDGET
        if isinstance(self.model, PPO):
            self.model.lr_schedule = lambda _: 2.5e-4 * left
            self.model.clip_range = lambda _: 0.1 * left
        before = self.model.num_timesteps
        self.model.learn(self._piece, reset_num_timesteps=False)
        return self.model.num_timesteps - before

    def score(self, games: int, seed: int) -> np.ndarray:
        env = self._games(games, seed)
        try:
            # Its Monitor sits below the wrappers that clip rewards and end a game with each life.
            scores, _ = evaluate_policy(
                self.model, env, games, deterministic=False, return_episode_rewards=True
            )
        finally:
            env.close()
        return np.array(scores, np.float64)

    def close(self) -> None:
        self._env.close()


class EnvPoolPPO:
    """PPO on EnvPool's emulators with CleanRL's settings: 8 games, 128 steps, 4 epochs of 4 minibatches, in float32.

    Huang et al. 2022, *The 37 Implementation Details of Proximal Policy Optimization*; written anew.

    Args:
      env_id: Gymnasium's, without frame skip.
      seed: of weights, actions and games.
      dev: device of the network.

    Raises:
      UserError: EnvPool is not installed.
    """

    games, rollout, epochs, minibatches = 8, 128, 4, 4
    gamma, gae_lambda, clip, entropy, value = 0.99, 0.95, 0.1, 0.01, 0.5

    def __init__(self, env_id: str, seed: int, dev: str) -> None:
        torch.manual_seed(seed)
        self._id, self._device = env_id.replace("NoFrameskip-v4", "-v5"), torch.device(dev)
        self._env = self._emulators(self.games, seed, learning=True)
        self.network = nn.Sequential(
            *(_layer(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(), _layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU()),
            *(
                _layer(nn.Conv2d(64, 64, 3, 1)),
                nn.ReLU(),
                nn.Flatten(),
                _layer(nn.Linear(3136, 512)),
                nn.ReLU(),
            ),
        ).to(self._device)
        self.actor = _layer(nn.Linear(512, self._env.action_space.n), 0.01).to(self._device)
        self.critic = _layer(nn.Linear(512, 1), 1).to(self._device)
        self._weights = [*self.network.parameters(), *self.actor.parameters(), *self.critic.parameters()]
        self._optimizer = torch.optim.Adam(self._weights, lr=2.5e-4, eps=1e-5)
        self._steps = 0
        self._observations = self._env.reset()[0]
        self._done = np.zeros(self.games, bool)

    def _emulators(self, games: int, seed: int, learning: bool) -> Any:
        try:
            import envpool
        except ImportError as error:
            raise UserError("cleanrl-ppo needs EnvPool: pip install envpool==1.2.5") from error
        return envpool.make(
            self._id,
            env_type="gymnasium",
            num_envs=games,
            episodic_life=learning,
            reward_clip=learning,
            seed=seed,
        )

    def _heads(self, observations: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        hidden = self.network(observations / 255)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)

    def __call__(self) -> int:
        """One rollout and its update."""
        self._optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - self._steps / _BUDGET)
        seen: list[torch.Tensor] = []
        played: list[list[torch.Tensor]] = []
        with torch.no_grad():
            for _ in range(self.rollout):
                observations = torch.as_tensor(self._observations, device=self._device)
                dist, values = self._heads(observations)
                actions = dist.sample()
                began = torch.as_tensor(self._done, device=self._device)
                self._observations, rewards, terminated, truncated, _ = self._env.step(actions.cpu().numpy())
                self._done = terminated | truncated
                seen.append(observations)
                paid = torch.as_tensor(rewards, device=self._device)
                played.append([actions, dist.log_prob(actions), values, paid, began])
            last = self._heads(torch.as_tensor(self._observations, device=self._device))[1]
        actions, log_probs, values, rewards, begun = (torch.stack(each) for each in zip(*played, strict=True))
        going = 1 - torch.cat([begun[1:], torch.as_tensor(self._done, device=self._device)[None]]).float()
        advantages = torch.zeros_like(values)
        ahead, following = torch.zeros(self.games, device=self._device), last
        for at in reversed(range(self.rollout)):
            delta = rewards[at] + self.gamma * following * going[at] - values[at]
            ahead = delta + self.gamma * self.gae_lambda * going[at] * ahead
            advantages[at], following = ahead, values[at]
        flat = [each.flatten() for each in (actions, log_probs, values, advantages, advantages + values)]
        self._learn(torch.stack(seen).flatten(0, 1), *flat)
        self._steps += self.rollout * self.games
        return self.rollout * self.games

    def _learn(
        self,
        observations: torch.Tensor,
        actions: torch.Tensor,
        log_probs: torch.Tensor,
        values: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> None:
        for _ in range(self.epochs):
            for part in torch.randperm(len(actions), device=self._device).chunk(self.minibatches):
                dist, value = self._heads(observations[part])
                ratio = (dist.log_prob(actions[part]) - log_probs[part]).exp()
                gain = advantages[part]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = -torch.min(
                    gain * ratio, gain * ratio.clamp(1 - self.clip, 1 + self.clip)
                ).mean()
                clipped = values[part] + (value - values[part]).clamp(-self.clip, self.clip)
                errors = torch.max((value - returns[part]) ** 2, (clipped - returns[part]) ** 2)
                loss = policy_loss + self.value * errors.mean() / 2 - self.entropy * dist.entropy().mean()
                self._optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self._weights, 0.5)
                self._optimizer.step()

    @torch.no_grad()
    def score(self, games: int, seed: int) -> np.ndarray:
        env = self._emulators(games, seed, learning=False)
        observations, _ = env.reset()
        scores, running = np.zeros(games), np.ones(games, bool)
        while running.any():
            dist, _ = self._heads(torch.as_tensor(observations, device=self._device))
            observations, rewards, terminated, truncated, _ = env.step(dist.sample().cpu().numpy())
            scores += rewards * running
            running &= ~(terminated | truncated)
        env.close()
        return scores

    def close(self) -> None:
        self._env.close()


def _layer(layer: Any, scale: float = 2**0.5) -> Any:
    nn.init.orthogonal_(layer.weight, scale)
    nn.init.zeros_(layer.bias)
    return layer


RIVALS: dict[str, Callable[[str, int, str], Rival]] = {
    "sb3-a2c": lambda env_id, seed, dev: ZooAgent("a2c", env_id, seed, dev),
    "sb3-ppo": lambda env_id, seed, dev: ZooAgent("ppo", env_id, seed, dev),
    "cleanrl-ppo": EnvPoolPPO,
}
"""By the name that --algos takes: environment, seed and device to a learner."""
