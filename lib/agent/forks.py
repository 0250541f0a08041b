"""Clips that fork: several continuations of one moment, to be compared with each other."""

import numpy as np
import torch

from lib.agent.exploration import HeldActions
from lib.agent.rollout import Player
from lib.envs.play import Policy
from lib.envs.world import Step
from lib.preferences.events import Events
from lib.preferences.recorder import SegmentRecorder


class Forks:
    """Plays, and occasionally lets a group of K environments continue from one moment, recording each.

    Two clips of one moment differ in what was done, like two answers to one prompt; two clips of different moments
    differ mostly in where they were cut. After the fork each environment holds a random action of its own for a
    while, then follows the policy, and keeps the resulting game.

    Args:
      player: of B environments that show pictures; its world can `take` games, and its recorder is this one.
      recorder: begins no segments by itself.
      held: the player's.
      size: K, of which B is a multiple.
      prob: chance per step of an environment that its group forks there.
      events: of B environments, at which a group forks as well; None for none.
      event_prob: chance that it does.
      seed: of these choices.
    """

    def __init__(
        self,
        player: Player,
        recorder: SegmentRecorder,
        held: HeldActions,
        size: int,
        prob: float,
        events: Events | None,
        event_prob: float,
        seed: int,
    ) -> None:
        self._player, self._recorder, self._held = player, recorder, held
        self._size, self._prob, self._events, self._event_prob = size, prob, events, event_prob
        self._rng = np.random.default_rng([seed, 2])
        self._observations = player.look()
        self._step: Step | None = None

    @torch.no_grad()
    def play(self, policy: Policy) -> None:
        """One step of every environment."""
        if self._step is not None:
            sources = self._choose(self._step)
            forking = sources >= 0
            if forking.any():
                self._observations = self._player.take(np.where(forking, sources, np.arange(len(sources))))
                self._held.begin(forking)
                self._recorder.fork(sources)
        actions = policy.act(self._observations, self._player.generator).actions
        self._step = self._player.play(actions, self._observations).step
        self._observations = self._player.viewer.observations

    def _choose(self, step: Step) -> np.ndarray:
        """The environment that each continues from, int64 `[B]`; −1 if its group does not fork."""
        chosen = self._rng.random(len(step.score)) < self._prob
        if self._events is not None:
            shown = self._events.shown(np.asarray(step.frames), step.observations)
            happened = self._events.happened(step.score, step.terminal)
            seen = np.array([bool(one or other) for one, other in zip(shown, happened, strict=True)])
            chosen |= seen & (self._rng.random(len(seen)) < self._event_prob)
        groups = (chosen & ~(step.terminal | step.truncated | step.reset)).reshape(-1, self._size)
        busy = self._recorder.recording.reshape(groups.shape).any(1)
        firsts = groups.argmax(1) + self._size * np.arange(len(groups))
        return np.repeat(np.where(groups.any(1) & ~busy, firsts, -1), self._size)
