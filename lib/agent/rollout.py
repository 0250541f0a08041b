"""Playing while learning: one step at a time, and rollouts of T steps for one update."""

from typing import NamedTuple, Protocol

import numpy as np
import torch

from lib.agent.distributions import sample_actions
from lib.agent.exploration import HeldActions
from lib.agent.network import PolicyNet, autocast
from lib.envs.forking import ForkingAtari
from lib.envs.observation import Viewer
from lib.envs.world import Step, World, bounded_actions
from lib.learner import Game


class Rollout(NamedTuple):
    """The data of an update. Row t belongs to action aₜ chosen on sₜ; see `lib.envs.world.Step`."""

    observations: torch.Tensor  # uint8 [T, B, 4, 84, 84] or float32 [T, B, D] on the device
    actions: torch.Tensor  # int64 [T, B], or float32 [T, B, A] as they were drawn, on the device
    dist_params: torch.Tensor
    """float32 `[T, B, A or 2A]` on the device, of the acting policy; with their graph if asked for."""
    values: torch.Tensor  # float32 [T+1, B] on the device, likewise; the last row never has a graph
    learned: torch.Tensor | None  # float32 [T, B] on the device: the learned reward, where one is paid
    score: np.ndarray  # float32 [T, B]: the game's own reward
    terminal: np.ndarray  # bool [T, B]
    truncated: np.ndarray  # bool [T, B]
    valid: np.ndarray  # bool [T, B]; False where the environment ignored the action
    held: np.ndarray  # bool [T, B]; True where a held action was played in place of the policy's
    features: torch.Tensor | None = None
    """`[T, B, F]` on the device, if asked for: the features that the network's body computed from the observations."""


class Reward(Protocol):
    """Pays instead of the score, as a `RewardModel` does.

    Attributes:
      input: "frame" or "observation", what it looks at. Frames are not drawn for one that looks at observations.
    """

    input: str

    def pay(self, frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
        """Pays one step of every environment.

        Args:
          frames: uint8 `[B, H, W, 3]`; empty for one that looks at observations.
          actions: as the environment takes them, int64 `[B]` or float32 `[B, A]`.
          observations: as the policy sees them, uint8 `[B, 4, 84, 84]` or float32 `[B, D]`.

        Returns:
          float32 `[B]`, on the same device.
        """
        ...


class Recorder(Protocol):
    """Sees every step of every environment, as a `SegmentRecorder` does."""

    def before(self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None) -> None:
        """Takes in what the next step's actions are chosen on."""
        ...

    def after(self, step: Step) -> None:
        """Takes in the outcome."""
        ...


class Played(NamedTuple):
    """One step of every environment."""

    actions: torch.Tensor  # int64 [B] or float32 [B, A] on the device, as the environments took them
    learned: torch.Tensor | None  # float32 [B] on the device: the learned reward, where one is paid
    held: np.ndarray  # bool [B]; True where a held action was played in place of the one chosen
    step: Step  # what came of it; its arrays are overwritten by the next step


class Player:
    """Plays a world step by step; the caller chooses the actions.

    While the emulator works on a step, the reward model rates it and the recorder takes its frames. Only the actions are
    copied from the device.

    Args:
      world: B environments; they are reset.
      device: where the networks lie.
      seed: of the games and the actions.
      reward: what pays in place of the score.
      recorder: sees every step.
      held: exploration by held actions.

    Attributes:
      reward: see above; it may be replaced between two steps.
      generator: what the actions are drawn with.
      viewer: makes the observations.
    """

    def __init__(
        self,
        world: World,
        device: torch.device,
        seed: int,
        reward: Reward | None = None,
        recorder: Recorder | None = None,
        held: HeldActions | None = None,
    ) -> None:
        self.reward = reward
        self.generator = torch.Generator(device).manual_seed(seed)
        self.viewer = Viewer(world, device)
        self._world, self._device = world, device
        self._recorder, self._hold = recorder, held
        self._no_frames = torch.empty(0, dtype=torch.uint8, device=device)
        self._none_held = np.zeros(world.num_envs, bool)
        self._step = world.reset(seed)

    def look(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The observations for the first actions; `out` is that of `Viewer.look`."""
        return self.viewer.look(self._step, out)

    def take(self, sources: np.ndarray) -> torch.Tensor:
        """Environment i continues from where environment `sources[i]` is, int64 `[B]`, in a world that can `take` games.

        Returns:
          The observations for the next actions, as `look`.
        """
        assert isinstance(self._world, ForkingAtari)
        self._step = self._world.take(sources)
        return self.viewer.take(self._step, sources)

    def play(
        self, actions: torch.Tensor, observations: torch.Tensor, out: torch.Tensor | None = None
    ) -> Played:
        """One step further.

        Args:
          actions: int64 `[B]`, or float32 `[B, A]` in −1 … 1, chosen on `observations`.
          observations: what the viewer showed last.
          out: where the next observations are to lie, as `Viewer.look` takes it.
        """
        chosen, held = actions.cpu().numpy(), self._none_held
        if self._hold is not None:
            chosen, held = self._hold.replace(chosen)
            actions = torch.from_numpy(chosen).to(self._device)
        self._world.send(chosen)

        learned = None
        if self.reward is not None:
            frames = self.viewer.frames() if self.reward.input == "frame" else self._no_frames
            learned = self.reward.pay(frames, actions, observations)
        if self._recorder is not None:
            self._recorder.before(self._step.frames, chosen, self._step.observations)

        self._step = self._world.recv()
        if self._recorder is not None:
            self._recorder.after(self._step)
        if self._hold is not None:
            self._hold.drop(self._step.reset)
        self.viewer.look(self._step, out)
        return Played(actions, learned, held, self._step)


class Collector(Player):
    """Plays the policy in a world and keeps what happened.

    Buffers are allocated once and overwritten by every `collect`.

    Args:
      world, device, seed, reward, recorder: as for `Player`.
      num_steps: T.
      bf16: whether the policy computes in bf16.
      held: exploration by held actions. The return before them is bootstrapped from the value of the state that the
        holding began in.
    """

    def __init__(
        self,
        world: World,
        num_steps: int,
        device: torch.device,
        seed: int,
        bf16: bool,
        reward: Reward | None = None,
        recorder: Recorder | None = None,
        held: HeldActions | None = None,
    ) -> None:
        super().__init__(world, device, seed, reward, recorder, held)
        steps, envs = num_steps, world.num_envs
        self._bf16 = bf16
        # One row more than a rollout has, for what its last step led to: the first of the next rollout.
        self._observations = torch.empty(
            steps + 1, *self.viewer.shape, dtype=self.viewer.dtype, device=device
        )
        self._actions = (
            torch.empty(steps, envs, world.spec.num_actions, device=device)
            if world.spec.continuous
            else torch.empty(steps, envs, dtype=torch.int64, device=device)
        )
        self._learned = torch.empty(steps, envs, device=device)
        self._score = np.empty((steps, envs), np.float32)
        self._terminal, self._truncated, self._valid, self._held = np.zeros((4, steps, envs), bool)
        self.look(self._observations[-1])

    def collect(self, network: PolicyNet, keep_graph: bool = False, keep_features: bool = False) -> Rollout:
        """T steps further.

        Args:
          network: the policy to act by.
          keep_graph: keep what the distributions and the values but the last were computed from. An update that looks
            at its rollout once can then begin with the backward pass.
          keep_features: keep what the network's body made of the observations. Where the body is frozen, that need not
            be worked out again.

        Returns:
          Views of the collector's own buffers, valid until the next call.
        """
        all_params, all_features = [], []
        observations, continuous = self._observations, network.spec.continuous
        observations[0] = observations[-1]
        # One context for all steps: the weights are cast to bf16 once.
        with torch.no_grad(), autocast(self._device, self._bf16):
            for t in range(len(self._actions)):
                with torch.set_grad_enabled(keep_graph):
                    all_features.append(network.features(observations[t]))
                    all_params.append(network.dist_params(all_features[t]))
                self._actions[t] = sample_actions(all_params[t], self.generator, continuous)
                actions = bounded_actions(self._actions[t], continuous)
                played = self.play(actions, observations[t], observations[t + 1])
                if t > 0:
                    self._truncated[t - 1] |= played.held & ~self._held[t - 1]
                if played.learned is not None:
                    self._learned[t] = played.learned
                self._held[t] = played.held
                if played.held.any():
                    self._actions[t] = played.actions
                self._score[t] = played.step.score
                self._terminal[t] = played.step.terminal
                self._truncated[t] = played.step.truncated
                self._valid[t] = ~played.step.reset
            last = network.values(network.features(observations[-1]))
            with torch.set_grad_enabled(keep_graph):
                dist_params, features = torch.stack(all_params), torch.stack(all_features)
                # Acting needs no values, and one product over all steps is cheaper than one for each.
                values = torch.cat([network.values(features), last.unsqueeze(0)])
        return Rollout(
            observations[:-1],
            self._actions,
            dist_params,
            values,
            None if self.reward is None else self._learned,
            self._score,
            self._terminal,
            self._truncated,
            self._valid,
            self._held,
            features.detach() if keep_features else None,
        )


class GameLog:
    """Adds up the games of B environments as their steps come in."""

    def __init__(self, num_envs: int) -> None:
        self._sums = np.zeros((3, num_envs))  # score, steps, learned

    def miss(self) -> None:
        """Steps were made that it did not see: unfinished games do not count."""
        self._sums[1] = -np.inf  # whatever is added

    def read(self, rollout: Rollout) -> list[Game]:
        """The games that a rollout shows to be over.

        Call it before the update, or the copy of the learned rewards waits for the update.
        """
        learned = np.zeros_like(rollout.score) if rollout.learned is None else rollout.learned.cpu().numpy()
        rows = zip(rollout.score, rollout.valid, learned, strict=True)
        return [game for score, valid, paid in rows for game in self.add(score, valid, paid)]

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
