"""Paying the learned reward around a single Gymnasium environment, whatever library trains on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

import gymnasium
import numpy as np

from lib.envs.gym_world import discrete_actions, env_name, frame_source


class Rewards(Protocol):
    """What pays: a fitted reward model, or anything that judges frames and actions."""

    def rewards(self, frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Judge N steps.

        Args:
            frames: uint8 [N, H, W, 3], each the one its action was chosen on.
            actions: int64 [N].

        Returns:
            float32 [N].
        """
        ...


class RewardModelWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays the learned reward of a step in place of the game's own, which goes to `info["score"]`.

    The reward is passed on as the model gives it, neither clipped nor reduced to its sign; switch off what clips
    above it (`AtariWrapper(..., clip_reward=False)`), or its size is lost. The model judges the frame that the
    action was chosen on. Like `EpisodeRecorderWrapper` this belongs below preprocessing and above frame skipping,
    so that frames and steps are those the model was fitted on; of the two, the recorder goes below:

        env = gymnasium.make("SeaquestNoFrameskip-v4")
        env = MaxAndSkipEnv(env, skip=4)                # stable_baselines3.common.atari_wrappers
        env = EpisodeRecorderWrapper(env, "db/seaquest")
        env = RewardModelWrapper(env, "rewards/reward-v1.dat")
        env = AtariWrapper(env, frame_skip=1, noop_max=7, clip_reward=False)

    Args:
        env: environment with discrete actions.
        reward: a reward model, or the path of one's checkpoint.
        frame_fn: from the newest observation to the frame, uint8 [H, W, 3]. None takes the observation where it is
            an RGB picture, else `env.render()`.

    Raises:
        UserError: the actions are not discrete, there is no picture, or the checkpoint cannot be used.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        reward: Rewards | str | Path,
        frame_fn: Callable[[Any], np.ndarray] | None = None,
    ) -> None:
        super().__init__(env)
        actions = discrete_actions(env)
        self._first_action = int(actions.start)
        self._frame = frame_source(env) if frame_fn is None else frame_fn
        self._observation: Any = None
        self._check: Callable[[], None] = lambda: None
        self._begin: Callable[[], None] = lambda: None
        if isinstance(reward, str | Path):
            # Only here is PyTorch needed.
            from lib.reward.model import ObservingRewards, load_reward_model

            path, model = Path(reward), load_reward_model(Path(reward))
            self._check = lambda: model.check(
                self._frame(self._observation).shape, int(actions.n), path, env_name(env)
            )
            reward = model
            if model.input == "observation":
                reward = observing = ObservingRewards(model)
                self._begin = observing.begin
        self._reward: Rewards = reward

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new game. See `gymnasium.Env.reset`.

        Raises:
            UserError: the checkpoint's model was fitted on other frames or actions.
        """
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._check()
        self._begin()
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step that pays the learned reward. See `gymnasium.Env.step`."""
        # Before the step, when a rendered frame is still the one that the action was chosen on.
        frame = self._frame(self._observation)
        learned = self._reward.rewards(frame[None], np.array([action - self._first_action]))
        self._observation, score, terminated, truncated, info = self.env.step(action)
        return self._observation, float(learned[0]), terminated, truncated, {**info, "score": float(score)}
