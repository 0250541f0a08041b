"""Rollouts: T steps of B environments, gathered for one update."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch

from lib.agent.actor_critic import sample_actions
from lib.agent.network import PolicyNet
from lib.envs.observation import Viewer
from lib.envs.world import World, bounded_actions
from lib.interrupt import Stopped
from lib.preferences.recorder import SegmentRecorder

RewardFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Frames uint8 `[B, H, W, 3]`, actions as the environment takes them, int64 `[B]` or float32 `[B, A]`, and observations
as the policy sees them, uint8 `[B, 4, 84, 84]` or float32 `[B, D]`, to float32 `[B]`, all on one device."""


class Rollout(NamedTuple):
    """What an update learns from. Row t is about action aₜ chosen on sₜ; see `lib.envs.world.Step`."""

    observations: torch.Tensor  # uint8 [T, B, 4, 84, 84] or float32 [T, B, D] on the device
    actions: torch.Tensor  # int64 [T, B], or float32 [T, B, A] as they were drawn, on the device
    logits: (
        torch.Tensor
    )  # float32 [T, B, A or 2A] on the device, of the acting policy; with their graph if asked for
    values: torch.Tensor  # float32 [T+1, B] on the device, as the logits; the last row never has a graph
    learned: torch.Tensor | None  # float32 [T, B] on the device: the learned reward, where one is paid
    score: np.ndarray  # float32 [T, B]: the game's own reward
    terminal: np.ndarray  # bool [T, B]
    truncated: np.ndarray  # bool [T, B]
    valid: np.ndarray  # bool [T, B]; False where the environment ignored the action
    held: np.ndarray  # bool [T, B]; True where a held action was played in place of the policy's
    features: torch.Tensor | None = None
    """`[T, B, F]` on the device, where asked for: what the network's body made of the observations."""


def autocast(device: torch.device, enabled: bool) -> AbstractContextManager[None]:
    """bf16 arithmetic in the networks where `enabled`; weights, sums and losses stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


class HeldActions:
    """Exploration in time: now and then an environment holds one random action for a number of steps.

    What takes many steps of one action, such as a climb to the surface, independent random actions never find. Source:
    ε-greedy with temporally extended options, Dabney et al. 2021, arXiv 2006.01782; action repetition is what lets
    actor-critics refuel in Seaquest, Sharma et al. 2017, arXiv 1702.06054. Durations are uniform here.

    Args:
      num_envs: B.
      num_actions: actions to choose from.
      prob: chance per step that an environment that follows its policy begins to hold an action.
      shortest, longest: steps that an action is held for, each length as likely as any other.
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
        begins = (self._left == 0) & (self._rng.random(len(actions)) < self._prob)
        count = int(begins.sum())
        self._action[begins] = self._rng.integers(self._num_actions, size=count)
        self._left[begins] = self._rng.integers(self._shortest, self._longest + 1, size=count)
        held = self._left > 0
        self._left[held] -= 1
        return np.where(held, self._action, actions), held

    def drop(self, games: np.ndarray) -> None:
        """Ends the holding where a new game began, bool `[B]`."""
        self._left[games] = 0


class Collector:
    """Plays the policy in a world and keeps what happened.

    Buffers are allocated once and overwritten by every `collect`. While the emulator works on a step, the
    reward model judges it and the recorder takes its frames; per step the actions are the only thing that
    is copied from the device.

    Attributes:
      reward_input: what the reward looks at; it may change while another reward pays.
    """

    def __init__(
        self,
        world: World,
        num_steps: int,
        device: torch.device,
        seed: int,
        bf16: bool,
        reward: RewardFunction | None = None,
        recorder: SegmentRecorder | None = None,
        reward_input: str = "frame",
        held: HeldActions | None = None,
    ) -> None:
        """Begins the games.

        Args:
          world: B environments; they are reset.
          num_steps: T.
          device: where the networks lie.
          seed: of the games and the actions.
          bf16: whether the policy computes in bf16.
          reward: what pays in place of the score.
          recorder: of segments.
          reward_input: what `reward` looks at; frames are not drawn for one that looks at observations.
          held: exploration by held actions. Such steps are recorded, and not learned from: the return before them is
            bootstrapped from the value of the state that the holding began in.
        """
        steps, envs = num_steps, world.num_envs
        self._world, self._device, self._bf16 = world, device, bf16
        self._reward, self._recorder = reward, recorder
        self._generator = torch.Generator(device).manual_seed(seed)
        self._viewer = Viewer(world, device)
        # One row more than a rollout has, for what its last step led to.
        self._observations = torch.empty(
            steps + 1, *self._viewer.shape, dtype=self._viewer.dtype, device=device
        )
        self._newest = 0  # row
        self._actions = (
            torch.empty(steps, envs, world.num_actions, device=device)
            if world.continuous
            else torch.empty(steps, envs, dtype=torch.int64, device=device)
        )
        self.reward_input = reward_input
        self._no_frames = torch.empty(0, dtype=torch.uint8, device=device)
        self._learned = None if reward is None else torch.empty(steps, envs, device=device)
        self._score = np.empty((steps, envs), np.float32)
        self._terminal, self._truncated, self._valid, self._held = np.zeros((4, steps, envs), bool)
        self._hold = held
        self._step = world.reset(seed)
        self._viewer.look(self._step, self._observations[0])

    @property
    def generator(self) -> torch.Generator:
        """What the actions are drawn with."""
        return self._generator

    def collect(
        self,
        network: PolicyNet,
        keep_graph: bool = False,
        stop: Callable[[], bool] | None = None,
        keep_features: bool = False,
    ) -> Rollout:
        """T steps further.

        Args:
          network: the policy to act by.
          keep_graph: keep what the logits and the values but the last were computed from. An update that looks at
            its rollout once can then begin with the way back.
          stop: asked at every step whether to give up.
          keep_features: keep what the network's body made of the observations. Where the body is frozen, nobody who
            looks at the rollout need work that out again.

        Returns:
          Views of the collector's own buffers, valid until the next call.

        Raises:
          Stopped: `stop` said so; the steps so far are lost.
        """
        all_logits, all_features = [], []
        observations = self._observations
        observations[0] = observations[self._newest]
        # One context for all steps: the weights are cast to bf16 once.
        with torch.no_grad(), autocast(self._device, self._bf16):
            for t in range(len(self._actions)):
                if stop is not None and stop():
                    raise Stopped
                with torch.set_grad_enabled(keep_graph):
                    all_features.append(network.features(observations[t]))
                    logits = network.logits(all_features[t])
                all_logits.append(logits)
                self._actions[t] = sample_actions(logits, self._generator, network.continuous)
                actions = bounded_actions(self._actions[t], network.continuous)
                chosen = actions.cpu().numpy()
                if self._hold is not None:
                    chosen, self._held[t] = self._hold.replace(chosen)
                    actions = torch.from_numpy(chosen).to(self._device)
                    if t > 0:
                        self._truncated[t - 1] |= self._held[t] & ~self._held[t - 1]
                self._world.send(chosen)

                if self._reward is not None and self._learned is not None:
                    frames = self._viewer.frames() if self.reward_input == "frame" else self._no_frames
                    self._learned[t] = self._reward(frames, actions, observations[t])
                if self._recorder is not None:
                    self._recorder.before(self._step.frames, chosen, self._step.observations)

                self._step = self._world.recv()
                if self._recorder is not None:
                    self._recorder.after(self._step)
                self._score[t] = self._step.score
                self._terminal[t] = self._step.terminal
                self._truncated[t] = self._step.truncated
                self._valid[t] = ~self._step.reset
                if self._hold is not None:
                    self._hold.drop(self._step.reset)
                self._newest = t + 1
                self._viewer.look(self._step, observations[t + 1])
            last = network.values(network.features(observations[-1]))
            with torch.set_grad_enabled(keep_graph):
                logits, features = torch.stack(all_logits), torch.stack(all_features)
                # Nobody acts by the values, and one product over all steps is cheaper than one for each.
                values = torch.cat([network.values(features), last.unsqueeze(0)])
        return Rollout(
            observations[:-1],
            self._actions,
            logits,
            values,
            self._learned,
            self._score,
            self._terminal,
            self._truncated,
            self._valid,
            self._held,
            features.detach() if keep_features else None,
        )


class Game(NamedTuple):
    """A finished full game."""

    score: float
    steps: int
    learned: float  # sum of the learned reward; 0 where none is paid


class GameLog:
    """Adds up the games of B environments as their steps come in."""

    def __init__(self, num_envs: int) -> None:
        self._sums = np.zeros((3, num_envs))  # score, steps, learned

    def miss(self) -> None:
        """Steps were made that it is not told of: the games under way count as none."""
        self._sums[1] = -np.inf  # whatever is added

    def add(self, score: np.ndarray, valid: np.ndarray, learned: np.ndarray) -> list[Game]:
        """One step of every environment.

        Args:
          score: float32 `[B]`.
          valid: bool `[B]`; False marks the first frame of a new game, so the game before is complete.
          learned: float32 `[B]`.

        Returns:
          The games that this step shows to be over.
        """
        ended = ~valid & (self._sums[1] > 0)
        games = [Game(float(s), int(n), float(r)) for s, n, r in self._sums[:, ended].T]
        self._sums[:, ~valid] = 0
        self._sums += np.stack([score, np.ones_like(score), learned]) * valid
        return games
