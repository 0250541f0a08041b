"""Preferences in your own training code: wrappers that record clips and pay the learned reward."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from lib.cli import UserError
from lib.envs.adapter import EnvAdapter
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from lib.preferences.transfer import Copied, copy_preferences
from lib.preferences.wrappers import Tape, lives_in
from lib.reward.live import LiveReward as LiveReward  # users import it from here

if TYPE_CHECKING:  # PyTorch is needed only where a model is loaded
    from lib.reward.model import RewardModel

_log = logging.getLogger(__name__)
_NO_FRAMES = np.empty((0, 0, 0, 3), np.uint8)
_Rate = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
"""Of frames, actions, where a game begins, and vectors; see `lib.reward.model.ObservingRewards.rewards`."""


class Rewards(Protocol):
    """A fitted reward model, or anything else that rewards frames and actions."""

    def rewards(self, frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The rewards of N steps.

        Args:
          frames: uint8 [N, H, W, 3], each the one its action was chosen on.
          actions: int64 [N], or float32 [N, A] in −1 … 1 where they are continuous.

        Returns:
          float32 [N].
        """
        ...


class _Preferences:
    """Everything that PreferenceEnv and PreferenceVectorEnv share."""

    env: Any
    _model: "RewardModel | None" = None  # the newest, whether or not it fits

    def __init__(
        self,
        env: Any,
        db: str | Path | None = None,
        reward: str | Path | LiveReward | Rewards | None = None,
        frame_fn: Callable[[Any], np.ndarray] | None = None,
        *,
        record_prob: float = 0.001,
        env_index: int = 0,
        seed: int = 0,
        policy: str = "",
        max_mb: float | None = None,
        true_reward_first: bool = False,
    ) -> None:
        self._adapter = EnvAdapter(env, frame_fn, many=isinstance(self, gymnasium.vector.VectorWrapper))
        super().__init__(env)  # type: ignore[call-arg]  # the other base is a wrapper of Gymnasium's
        self._live: LiveReward | None = None
        self._rate: _Rate | None = None
        self._rates_frames = True
        if isinstance(reward, str | Path):
            reward = LiveReward(reward)
        if isinstance(reward, LiveReward):
            self._live = reward
            if not reward.refresh() and reward.model is None and reward.problem:
                raise UserError(reward.problem)
            self._model = reward.model
        elif reward is not None:
            from lib.reward.model import RewardModel

            if isinstance(reward, RewardModel):
                self._model = reward
            else:
                rewards = reward.rewards
                self._rate = lambda frames, actions, _first, _vectors: rewards(frames, actions)
        if self._rate is not None or (self._model is not None and self._model.spec.observation_size is None):
            self._adapter.check_picture()
        self._path = Path("reward") if self._live is None else self._live.path
        self._predicted = reward is not None
        self._true_reward_first = true_reward_first
        self._adopted: RewardModel | None = None
        self._refused: RewardModel | None = None
        self._db = None if db is None else Path(db)
        self._tape = None
        if db is not None:
            self._tape = Tape(
                self._adapter, db, env_index, record_prob=record_prob, seed=seed, policy=policy, max_mb=max_mb
            )
        count = self._adapter.num_envs
        self._observations: Any = None
        self._ended = np.zeros(count, bool)  # games whose next step resets them
        self._first = np.ones(count, bool)  # games whose next step is the first the model sees
        # With this autoreset the step after the last one only resets the game: it is left out.
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._next_step = isinstance(env, gymnasium.vector.VectorEnv) and mode == AutoresetMode.NEXT_STEP

    @property
    def using_reward_from_predictor(self) -> bool:
        """Whether a reward model pays the steps now."""
        return self._predicted and self._rate is not None

    def switch_to_true_reward(self) -> None:
        """From the next step on, pay the environment's own reward."""
        self._predicted = False

    def switch_to_predicted_reward(self) -> None:
        """From the next step on, pay the learned reward.

        Raises:
          UserError: the wrapper was made without a reward model.
        """
        if self._live is None and self._model is None and self._rate is None:
            raise UserError(f"{self._adapter.env_id}: expected reward=, a reward model to pay by, got none")
        if not self._predicted:
            self._first[:] = True
        self._predicted = True

    @property
    def recorder(self) -> SegmentRecorder:
        """Counts what was stored, and takes the name of the policy that plays.

        Raises:
          UserError: the wrapper was made without a DB.
        """
        self._own_db()
        assert self._tape is not None
        return self._tape.recorder

    def save_preferences(self, folder: str | Path) -> Copied:
        """Copy the DB's labels and the segments they name to another DB. See `copy_preferences`."""
        return copy_preferences(self._own_db(), Path(folder))

    def load_preferences(self, folder: str | Path) -> Copied:
        """Add the labels of another DB of this environment and the segments they name. See `copy_preferences`."""
        own = self._own_db()
        SegmentDB(Path(folder)).check_environment(self._adapter.env_id)
        return copy_preferences(Path(folder), own)

    def _own_db(self) -> Path:
        if self._db is None:
            raise UserError(f"{self._adapter.env_id}: expected db=, a folder for clips and labels, got none")
        return self._db

    def _begin(self, observations: Any, lives: np.ndarray, games: np.ndarray) -> None:
        """These games (bool [B]) were reset by a call."""
        self._observations = observations
        self._ended &= ~games
        self._first |= games
        if self._tape is not None:
            self._tape.begin(games, lives)
        self._take_up()

    def _before(self, actions: Any) -> np.ndarray | None:
        """Note the actions; returns the model's pay for them, float32 [B], if it pays."""
        self._take_up()
        recording = self._tape is not None and self._tape.recorder.recording.any()
        if not (recording or self.using_reward_from_predictor):  # rendering costs more than all the rest
            return None
        # The environments have not moved since, so these are the frames that the actions were chosen on.
        actions, frames, vectors = self._adapter.from_env(actions), _NO_FRAMES, None
        if recording or self._rates_frames:
            frames = self._adapter.frames(self._observations)
        if recording or not self._rates_frames:
            vectors = self._adapter.vectors(self._observations)
        if self._tape is not None:
            self._tape.recorder.before(frames, actions, vectors)
        if not self._predicted or self._rate is None:
            return None
        return self._rate(frames, actions, self._first, vectors)

    def _after(
        self,
        learned: np.ndarray | None,
        observations: Any,
        score: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        lives: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Note the outcome; returns the pay, float64 [B], and which games only reset in this step, bool [B]."""
        ended = terminated | truncated
        reset = self._ended if self._next_step else np.zeros_like(ended)
        over = np.zeros_like(ended) if self._next_step else ended
        self._observations, self._ended, self._first = observations, ended, reset | over
        if self._tape is not None:
            self._tape.after(score, terminated, truncated, lives, reset, over)
        if learned is not None:
            paid = np.where(reset, 0.0, learned.astype(np.float64))
        elif not self._predicted or self._true_reward_first:
            paid = score.astype(np.float64)
        else:
            paid = np.zeros(len(score))
        return paid, reset

    def _take_up(self) -> None:
        """Look for a newer model."""
        if not self._predicted:
            return
        if self._live is not None:
            self._live.poll()
            self._model = self._live.model
        model, adapter = self._model, self._adapter
        if model is None or model is self._adopted or model is self._refused:
            return
        try:
            spec = adapter.spec
            # A model of pictures makes them from the frames, whatever a policy sees.
            if model.spec.observation_size is None:
                height, width, _ = adapter.frames(self._observations).shape[1:]
                spec = dataclasses.replace(spec, observation_shape=None, frame_shape=(height, width, 3))
            model.check(spec, self._path, adapter.env_id)
        except UserError as error:
            if self._adopted is None:
                raise
            self._refused = model
            _log.warning("%s; the previous model stays", error)
            return
        from lib.reward.model import ObservingRewards

        self._adopted = model
        self._rates_frames = model.spec.observation_size is None
        self._rate = ObservingRewards(model, adapter.num_envs).rewards  # which has seen no step of any game

    def _close(self) -> None:
        if self._tape is not None:
            self._tape.recorder.close()


class PreferenceEnv(_Preferences, gymnasium.Wrapper[Any, Any, Any, Any]):
    """A single environment taught by preferences, for any training library.

    The wrapper records 50-step segments into a DB, for the labelling page or a simulated teacher. It pays the learned
    reward of each step in place of the environment's own, which goes to `info["score"]`. The model's file may appear
    later, and be replaced while it is used; until there is one, steps pay 0.

    The learned reward is neither clipped nor reduced to its sign. Switch off clipping above it
    (`AtariWrapper(..., clip_reward=False)`), or its size is lost. The wrapper belongs *below* preprocessing (the frame
    is what a person sees) and *above* frame skipping (a step is one decision of the agent):

        env = gymnasium.make("SeaquestNoFrameskip-v4")
        env = MaxAndSkipEnv(env, skip=4)                # stable_baselines3.common.atari_wrappers
        env = PreferenceEnv(env, db="db/seaquest", reward="rewards/reward-v1.dat")
        env = AtariWrapper(env, frame_skip=1, noop_max=7, clip_reward=False)

    A life is lost where `info["lives"]` falls; the segment marks that and continues.

    Args:
      env: environment with discrete or bounded actions.
      db: folder of the segments, created if missing; its content is kept. None records nothing.
      reward: path of a reward model, checked every second; or a `LiveReward`, which several wrappers may share; or any
        `Rewards`. None pays the environment's own reward.
      frame_fn: from the observation (of a vector: of one environment) to the frame, uint8 [H, W, 3]. None takes the
        observation if it is a picture, else `env.render()`. No frame is needed if nothing is recorded and `reward` sees
        vectors.
      record_prob: probability that a step begins a segment, unless one is being recorded.
      env_index: number of this environment among several, or of the first of a vector; each needs its own.
      seed: decides, with `env_index`, which steps begin a segment.
      policy: checkpoint of the recording policy, for the sidecar.
      max_mb: size of the DB at which recording stops: what lay in it, and the clips of this wrapper.
      true_reward_first: until there is a model, pay the environment's own reward rather than 0.

    Raises:
      UserError: env is of another kind, its actions are neither discrete nor bounded, it
        shows no picture although one is needed, or the checkpoint cannot be used. From `reset` and `step`: the first
        model was fitted on other frames, observations or actions, or needs a picture; a picture is malformed, or of
        another size than the first.
      OSError: the DB cannot be created; from `step`: a segment cannot be written.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new game; an unfinished segment is dropped. See `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._begin(observation, lives_in(info), np.ones(1, bool))
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step. See `gymnasium.Env.step`."""
        learned = self._before(action)
        observation, score, terminated, truncated, info = self.env.step(action)
        ends = np.array([terminated], bool), np.array([truncated], bool)
        lives = lives_in(info)
        paid, _ = self._after(learned, observation, np.array([float(score)]), *ends, lives)
        return observation, float(paid[0]), terminated, truncated, {**info, "score": float(score)}

    def close(self) -> None:
        """End the recording and close the environment."""
        self._close()
        super().close()


class PreferenceVectorEnv(_Preferences, gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector of environments that is taught by preferences; see `PreferenceEnv`, whose arguments it takes.

    Each step is rewarded in one call. `info["score"]` holds the environments' own rewards [B], `info["_score"]` where
    the step was one of a game. With next-step autoreset the step that begins a new game ignores its action: it pays 0
    and is in no segment. Same-step autoreset and none (`reset(options={"reset_mask": ...})`) have no such step.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new games, of all environments or of those in `options["reset_mask"]`. See `VectorEnv.reset`."""
        # Gymnasium's own take the mask out of the options; a wrapper above needs it still.
        observations, infos = self.env.reset(seed=seed, options=None if options is None else dict(options))
        mask = (options or {}).get("reset_mask")
        games = np.ones(self.num_envs, bool) if mask is None else mask.copy()
        self._begin(observations, self._lives_in(infos), games)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a step in every environment. See `VectorEnv.step`."""
        learned = self._before(actions)
        observations, score, terminated, truncated, infos = self.env.step(actions)
        ends = np.asarray(terminated, bool), np.asarray(truncated, bool)
        paid, reset = self._after(learned, observations, np.asarray(score), *ends, self._lives_in(infos))
        return observations, paid, terminated, truncated, {**infos, "score": score, "_score": ~reset}

    def close(self, **kwargs: Any) -> None:
        """End the recording and close the environments."""
        self._close()
        super().close(**kwargs)

    def _lives_in(self, infos: dict[str, Any]) -> np.ndarray:
        lives = np.asarray(infos.get("lives"))
        if lives.shape != (self.num_envs,) or lives.dtype.kind not in "iuf":
            return np.full(self.num_envs, -1)
        return np.where(infos.get("_lives", True), lives, -1)


class RewardModelWrapper(PreferenceEnv):
    """A `PreferenceEnv` that records nothing and pays an existing reward model.

    Args:
      env: environment with discrete or bounded actions.
      reward: a reward model, or the path of one's checkpoint.
      frame_fn: as for `PreferenceEnv`.

    Raises:
      UserError: as from `PreferenceEnv`, or the checkpoint is missing.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        reward: Rewards | str | Path,
        frame_fn: Callable[[Any], np.ndarray] | None = None,
    ) -> None:
        live = LiveReward(reward, wait=False) if isinstance(reward, str | Path) else reward
        super().__init__(env, reward=live, frame_fn=frame_fn)
