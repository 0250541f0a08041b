"""Contenders: the training loops of the original experiment and of Stable-Baselines3.

The original's are rewritten on ptan's public interface, in plain fp32 PyTorch. They share no code with lib, so that
optimising lib does not change them. Where a detail of the original is unknown, the faster choice is taken.
Contenders are built once and work in pieces; a piece returns how many steps (or labels) it took.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import ptan
import torch
from ptan.common.wrappers import BufferWrapper, ImageToPyTorch
from stable_baselines3 import A2C
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from torch import nn
from torch.nn import functional as F

from lib.preferences.segments import load_segment

ENV = "SeaquestNoFrameskip-v4"
GAMES = 16
_FRAME_LIMIT = 20_000  # emulator frames; 5000 steps
_GAMMA, _ROLLOUT, _BATCH, _ENTROPY, _CLIP = 0.99, 5, 128, 0.01, 0.1
_LEARNING_RATE, _EPSILON = 7e-4, 1e-5
_FIT_LEARNING_RATE, _FIT_BATCH = 1e-4, 64
_PAIRS_AT_ONCE = 8

gymnasium.register_envs(ale_py)


class StableBaselines:
    """Stable-Baselines3's A2C with its own defaults, its own Atari wrappers and its own vector environments."""

    def __init__(self, dev: str, processes: bool, games: int = GAMES, updates_a_piece: int = 5) -> None:
        kind: type[DummyVecEnv | SubprocVecEnv] = SubprocVecEnv if processes else DummyVecEnv
        # Named with its module: a process that begins anew has to import it before it knows the id.
        self._env = VecFrameStack(make_atari_env(f"ale_py:{ENV}", n_envs=games, seed=0, vec_env_cls=kind), 4)
        # No seed: with one it would switch cuDNN to deterministic algorithms, for us as well.
        self.model = A2C("CnnPolicy", self._env, device=dev)
        self.model.set_logger(Logger(None, []))
        self._piece = updates_a_piece * self.model.n_steps * games

    def __call__(self) -> int:
        before = self.model.num_timesteps
        self.model.learn(self._piece, reset_num_timesteps=False)
        return self.model.num_timesteps - before

    def close(self) -> None:
        self._env.close()


class OriginalPolicy(nn.Module):
    """conv 32@8/4, 64@4/2, 64@3/1, then a 512-unit head each for the policy and the value."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        convs: list[nn.Module] = []
        channels = 4
        for filters, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            convs += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
            channels = filters
        self.conv = nn.Sequential(*convs, nn.Flatten())
        self.policy, self.value = (
            nn.Sequential(nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, outputs))
            for outputs in (num_actions, 1)
        )

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 `[N, 4, 84, 84]` to logits `[N, A]` and values `[N]`."""
        features = self.conv(observations.float() / 255)
        return self.policy(features), self.value(features).squeeze(-1)


class OriginalReward(nn.Module):
    """Four convolutions of 16 filters (7/3, 5/2, 3/1, 3/1) with batch norm and dropout, the action, 64 units, 1."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self._num_actions = num_actions
        convs: list[nn.Module] = []
        channels = 3
        for kernel, stride in ((7, 3), (5, 2), (3, 1), (3, 1)):
            convs += [
                nn.Conv2d(channels, 16, kernel, stride),
                nn.BatchNorm2d(16),
                nn.Dropout(0.5),
                nn.LeakyReLU(),
            ]
            channels = 16
        self.conv = nn.Sequential(*convs, nn.Flatten())
        features = self.conv(torch.zeros(2, 3, 210, 160)).shape[1]
        self.out = nn.Sequential(nn.Linear(features + num_actions, 64), nn.LeakyReLU(), nn.Linear(64, 1))

    def forward(self, frames: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """uint8 `[N, 210, 160, 3]` and int64 `[N]` to float32 `[N]`."""
        features = self.conv(frames.permute(0, 3, 1, 2).float() / 255)
        return self.out(torch.cat([features, F.one_hot(actions, self._num_actions).float()], 1)).squeeze(-1)


class PaysPerStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Calls the reward model, on the CPU and in fp32, with the one frame of every step of one environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], network: OriginalReward) -> None:
        super().__init__(env)
        self._network = network
        self._frame: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._frame, info = self.env.reset(**options)
        return self._frame, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with torch.no_grad():
            paid = self._network(torch.from_numpy(self._frame[None]), torch.tensor([int(action)]))
        self._frame, _, terminated, truncated, info = self.env.step(action)
        return self._frame, float(paid[0]), terminated, truncated, info


class OriginalTraining:
    """The original's A2C: ptan's vector experience source and wrappers, 16 games, batches of 128, Adam.

    With a reward model it is its finetuning: convolutions frozen, and every step of every game paid for by a call.
    The original called it below the frame skip, four times a step; here it stands above it. Records nothing.

    Args:
      dev: of the policy.
      reward: finetune on a reward model.
      games: environments.
      batch: transitions an update.
    """

    def __init__(self, dev: str, reward: bool = False, games: int = GAMES, batch: int = _BATCH) -> None:
        self._device, self._batch_size = torch.device(dev), batch
        self._reward = OriginalReward(18).eval().requires_grad_(False) if reward else None
        # Games take turns in one process, as in the original.
        self._env = gymnasium.vector.SyncVectorEnv([self._game] * games)
        self.network = OriginalPolicy(int(self._env.single_action_space.n)).to(self._device)  # type: ignore[attr-defined]
        self.network.conv.requires_grad_(not reward)
        trainable = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(trainable, lr=_LEARNING_RATE, eps=_EPSILON)
        agent = ptan.agent.PolicyAgent(
            lambda states: self.network(states)[0], device=self._device, apply_softmax=True
        )
        self._source = ptan.experience.VectorExperienceSourceFirstLast(
            self._env, agent, gamma=_GAMMA, steps_count=_ROLLOUT
        )
        self._experience: Iterator[Any] = iter(self._source)

    def _game(self) -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(ENV, max_episode_steps=_FRAME_LIMIT)
        if self._reward is None:
            wrapped: gymnasium.Env[Any, Any] = ptan.common.wrappers.wrap_dqn(env)
            return wrapped
        # What wrap_dqn does, with the frame skip below the reward model instead of above it.
        env = PaysPerStep(MaxAndSkipEnv(env, skip=4), self._reward)
        env = AtariWrapper(env, noop_max=0, frame_skip=1, clip_reward=False)
        stacked: gymnasium.Env[Any, Any] = BufferWrapper(ImageToPyTorch(env), 4)
        return stacked

    def __call__(self) -> int:
        """One update."""
        batch = [next(self._experience) for _ in range(self._batch_size)]
        self._source.pop_rewards_steps()
        states = torch.as_tensor(np.asarray([step.state for step in batch])).to(self._device)
        actions = torch.as_tensor(np.asarray([step.action for step in batch])).long().to(self._device)
        returns = self._returns(batch)

        logits, values = self.network(states)
        log_probs = logits.log_softmax(1)
        chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
        policy_loss = -((returns - values.detach()) * chosen).mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        loss = policy_loss + F.mse_loss(values, returns) - _ENTROPY * entropy
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), _CLIP)
        self._optimizer.step()
        return len(batch)

    def _returns(self, batch: list[Any]) -> torch.Tensor:
        returns = np.asarray([step.reward for step in batch], np.float32)
        going_on = [at for at, step in enumerate(batch) if step.last_state is not None]
        if going_on:
            last = torch.as_tensor(np.asarray([batch[at].last_state for at in going_on])).to(self._device)
            with torch.no_grad():
                returns[going_on] += _GAMMA**_ROLLOUT * self.network(last)[1].cpu().numpy()
        return torch.from_numpy(returns).to(self._device)

    def close(self) -> None:
        self._env.close()


@dataclass
class EpisodeStep:
    """A step as the original's segments hold it."""

    obs: np.ndarray
    act: int


def write_original_segment(path: Path, segment: Path) -> None:
    """Writes a segment of ours as the original would: an uncompressed pickle of a list of steps."""
    loaded = load_segment(segment)
    steps = [
        EpisodeStep(frame, int(action)) for frame, action in zip(loaded.frames, loaded.actions, strict=True)
    ]
    path.write_bytes(pickle.dumps(steps))


def read_original_segment(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames uint8 `[T, H, W, 3]` and actions int64 `[T]`. Unpickles without checks: only for our own files."""
    steps: list[EpisodeStep] = pickle.loads(path.read_bytes())
    frames = torch.from_numpy(np.stack([step.obs for step in steps]))
    return frames, torch.tensor([step.act for step in steps])


class OriginalFit:
    """The original's fit: pickles reread in every epoch, both clips through the network in fp32, on the CPU.

    Batches of 64 pairs, but at most 8 of them at once, or they would not fit into memory. A fifth is held out.

    Args:
      pairs: segments as `write_original_segment` writes them, and the preference μ for the first.
      num_actions: of the environment.
      epochs: of a fit.
    """

    def __init__(self, pairs: list[tuple[Path, Path, float]], num_actions: int, epochs: int) -> None:
        held_out = max(1, len(pairs) // 5)
        self._test, self._train = pairs[:held_out], pairs[held_out:]
        self._num_actions, self._epochs = num_actions, epochs
        self._rng = np.random.default_rng(0)

    def __call__(self) -> int:
        """A fit; returns the number of labels used, the held-out ones included."""
        network = OriginalReward(self._num_actions)
        optimizer = torch.optim.Adam(network.parameters(), lr=_FIT_LEARNING_RATE)
        for _ in range(self._epochs):
            network.train()
            order = [self._train[at] for at in self._rng.permutation(len(self._train))]
            for start in range(0, len(order), _FIT_BATCH):
                batch = order[start : start + _FIT_BATCH]
                optimizer.zero_grad()
                for at in range(0, len(batch), _PAIRS_AT_ONCE):
                    part = self._read(batch[at : at + _PAIRS_AT_ONCE])
                    (self._loss(network, *part) / len(batch)).backward()
                optimizer.step()
            network.eval()
            with torch.no_grad():
                for at in range(0, len(self._test), _PAIRS_AT_ONCE):
                    self._loss(network, *self._read(self._test[at : at + _PAIRS_AT_ONCE]))
        return self._epochs * (len(self._train) + len(self._test))

    @staticmethod
    def _read(
        pairs: list[tuple[Path, Path, float]],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        sides = [
            [read_original_segment(path) for path in paths]
            for paths in ([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        ]
        frames, actions = ([torch.stack([clip[part] for clip in side]) for side in sides] for part in (0, 1))
        return frames, actions, torch.tensor([pair[2] for pair in pairs])

    @staticmethod
    def _loss(
        network: OriginalReward,
        frames: list[torch.Tensor],
        actions: list[torch.Tensor],
        preference: torch.Tensor,
    ) -> torch.Tensor:
        """Cross-entropy of both columns, summed over the pairs."""
        returns = [
            network(clips.flatten(0, 1), acts.flatten()).view(len(clips), -1).sum(1)
            for clips, acts in zip(frames, actions, strict=True)
        ]
        wanted = torch.stack([preference, 1 - preference], 1)
        loss = F.binary_cross_entropy_with_logits(torch.stack(returns, 1), wanted, reduction="none")
        return loss.mean(1).sum()
