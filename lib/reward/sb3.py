"""Replay buffers for Stable-Baselines3's SAC, TD3 and DQN, whose rewards are always those of the newest reward model.

Only this module needs Stable-Baselines3.
"""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from lib.cli import UserError
from lib.envs.spec import Spec
from lib.reward.live import LiveReward

if TYPE_CHECKING:
    from lib.reward.model import RewardModel

_AT_ONCE = 4096  # rows
_log = logging.getLogger(__name__)


class RelabelledReplayBuffer(ReplayBuffer):
    """Gives every step in it the newest reward model's reward, and 0 before there is a model.

    Pass it as `replay_buffer_class`, and a `RelabelWithNewest` to `learn`. For `n_steps` above 1 pass
    `RelabelledNStepReplayBuffer`.
    """

    reward_model: "RewardModel | None" = None

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Keeps a step of every environment and ignores its own reward."""
        super().add(obs, next_obs, action, self._paid(obs, action), done, infos)

    def relabel(self, model: "RewardModel") -> None:
        """Lets a reward model rate everything in the buffer, now and later.

        Raises:
          UserError: the model does not take the observations or the actions that are kept here.
        """
        if model.input == "frame":
            raise UserError(
                "expected a reward model of observations, got one of frames, which a replay buffer does not keep: "
                "fit one with --input observation"
            )
        differs = model.spec.difference(self._spec)
        if differs is not None:
            mend = "fit one on clips of this environment"
            keeps_vectors = isinstance(self.observation_space, spaces.Box) and len(self.obs_shape) == 1
            if model.spec.observation_size is not None and not keeps_vectors:
                mend = "wrap the environment in gymnasium.wrappers.FlattenObservation"
            raise UserError(f"expected a reward model for {differs[1]}, got one for {differs[0]}: {mend}")
        self.reward_model = model
        for first in range(0, self.size(), _AT_ONCE):
            rows = slice(first, min(first + _AT_ONCE, self.size()))
            self.rewards[rows] = self._paid(self.observations[rows], self.actions[rows])

    @property
    def _spec(self) -> Spec:
        if isinstance(self.action_space, spaces.Discrete):
            return Spec(int(self.action_space.n), False, self.obs_shape)
        return Spec(self.action_dim, True, self.obs_shape)

    def _paid(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The rewards of steps, `[..., E]` of `[..., E, *shape]` and `[..., E, A]`; Box actions lie within −1 … 1 here."""
        lead = observations.shape[: observations.ndim - len(self.obs_shape)]
        if self.reward_model is None:
            return np.zeros(lead, np.float32)
        seen = observations.reshape(-1, *self.obs_shape)
        done = actions.reshape(len(seen), -1)
        done = done.astype(np.float32) if self.reward_model.spec.continuous else done[:, 0]
        if seen.dtype != np.uint8:
            seen = seen.astype(np.float32)
        return self.reward_model.rewards(None, done, seen).reshape(lead)


class RelabelledNStepReplayBuffer(RelabelledReplayBuffer, NStepReplayBuffer):
    """The same for n-step returns: pass `replay_buffer_kwargs={"n_steps": n, "gamma": γ}`."""


class RelabelWithNewest(BaseCallback):
    """Looks for a newer reward model as the algorithm learns, and relabels its replay buffer with it.

    Of a later model that does not fit it warns once, and keeps the one before.

    Args:
      reward: the file that reward models come in.
    """

    def __init__(self, reward: LiveReward) -> None:
        super().__init__()
        self.reward = reward
        self._refused: RewardModel | None = None

    def _on_training_start(self) -> None:
        if not isinstance(getattr(self.model, "replay_buffer", None), RelabelledReplayBuffer):
            raise UserError(
                "expected SAC, TD3 or DQN made with replay_buffer_class=RelabelledReplayBuffer, "
                f"got {type(self.model).__name__} without"
            )
        self.reward.refresh()
        self._relabel()

    def _on_step(self) -> bool:
        self.reward.poll()
        self._relabel()
        return True

    def _relabel(self) -> None:
        buffer: RelabelledReplayBuffer = self.model.replay_buffer  # type: ignore[attr-defined]
        newest = self.reward.model
        if newest is None or newest is buffer.reward_model or newest is self._refused:
            return
        try:
            buffer.relabel(newest)
        except UserError as error:
            if buffer.reward_model is None:
                raise
            self._refused = newest
            _log.warning("%s; the previous model stays", error)
