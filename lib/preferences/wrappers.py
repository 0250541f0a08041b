"""Records segments around a single Gymnasium environment, for any training library."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from lib.cli import UserError
from lib.envs.adapter import EnvAdapter
from lib.envs.world import Step
from lib.preferences.recorder import SegmentRecorder

_log = logging.getLogger(__name__)


class Tape:
    """Passes the steps of B Gymnasium environments to a recorder.

    Attributes:
      recorder: counts what was stored; see `SegmentRecorder`.

    Args:
      adapter: how to see the environments.
      db_path: the DB, created if missing.
      env_index: of the first environment.
      **recorder: further arguments of `SegmentRecorder`.

    Raises:
      UserError: there is no picture to record, or the DB holds clips of another environment.
      OSError: the DB cannot be created.
    """

    def __init__(self, adapter: EnvAdapter, db_path: str | Path, env_index: int, **recorder: Any) -> None:
        adapter.check_picture()
        self._env_id = adapter.env_id
        self.recorder = SegmentRecorder(
            *(Path(db_path), adapter.num_envs, adapter.env_id, adapter.spec.num_actions),
            first_env=env_index,
            action_names=adapter.action_names,
            **recorder,
        )
        self._lives = np.full(adapter.num_envs, -1)
        self._db_path, self._said = db_path, ""

    def begin(self, games: np.ndarray, lives: np.ndarray) -> None:
        """These games (bool [B]) were reset between two steps; their unfinished segments are dropped.

        Args:
          games: bool [B].
          lives: int [B], −1 where not known.
        """
        self._lives = np.where(games, lives, self._lives)
        self.recorder.cut(games)

    def after(
        self,
        score: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        lives: np.ndarray,
        reset: np.ndarray,
        over: np.ndarray,
    ) -> None:
        """Note a step.

        Args:
          score: float [B], the environments' own rewards.
          terminated, truncated: bool [B].
          lives: int [B], −1 where not known. A life is lost where they fall.
          reset: bool [B], where the step began a new game and ignored its action.
          over: bool [B], where it ended a game and no step is to come for the reset.

        Raises:
          UserError: a reward is not finite.
          OSError: a segment cannot be written.
        """
        if not np.isfinite(score).all():
            raise UserError(f"{self._env_id} failed: expected finite rewards, got others")
        life_lost = (lives >= 0) & (lives < self._lives)
        self._lives = lives
        self.recorder.after(
            Step(
                frames=np.empty(
                    (len(score), 0, 0, 3), np.uint8
                ),  # the recorder takes frames from `before` alone
                score=score.astype(np.float32),
                terminal=terminated | life_lost,
                truncated=truncated,
                reset=reset,
            )
        )
        # At once, as the last game of a run may never be reset.
        if over.any():
            self.recorder.cut(over)
        obstacle = self.recorder.obstacle
        if obstacle and obstacle != self._said:
            _log.warning("%s: no clips come in: %s", self._db_path, obstacle)
        self._said = obstacle


def lives_in(info: dict[str, Any]) -> np.ndarray:
    """The lives left in one environment, [1]; −1 where its info has no number of them."""
    lives = info.get("lives")
    return np.array([lives if isinstance(lives, int | float | np.number) else -1])


class EpisodeRecorderWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records 50-step segments of what a person would see, for the labelling page or a simulated teacher.

    It changes nothing that passes through it. It records the environment it is put around, so it belongs *below*
    preprocessing (the frame is what a person sees, not the policy's stack of grey pictures) and below anything that
    changes the reward (the sidecar holds the game's own score), and *above* frame skipping, so that a step is one
    decision of the agent. For Atari with Stable-Baselines3 that means taking the frame skip out of `AtariWrapper`:

        env = gymnasium.make("SeaquestNoFrameskip-v4")
        env = MaxAndSkipEnv(env, skip=4)                # stable_baselines3.common.atari_wrappers
        env = EpisodeRecorderWrapper(env, "db/seaquest")
        env = AtariWrapper(env, frame_skip=1, noop_max=7)

    Put below `MaxAndSkipEnv` instead, a segment would span 50 emulator frames, less than a second. The steps that
    wrappers above take by themselves (the no-ops and FIRE of a new game) are steps of the game like any others.
    A life is lost where `info["lives"]` falls; this is marked, and the segment continues.

    Attributes:
      recorder: counts what was stored; see `SegmentRecorder`.

    Args:
      env: environment with discrete or bounded actions.
      db_path: the DB, created if missing. Segments in it stay as they are.
      env_index: which of several environments this is; each needs its own.
      record_prob: probability that a step begins a segment, unless one is being recorded.
      frame_fn: from the newest observation to the frame, uint8 [H, W, 3]. None takes the observation where it is
        a picture, else `env.render()`.
      seed: decides, together with `env_index`, which steps begin a segment.
      policy: checkpoint of the recording policy, for the sidecar.
      max_mb: size of the DB from which on nothing more is recorded: what lay in it, and this wrapper's clips. Several
        wrappers on one DB get a part each.

    Raises:
      UserError: it is no single environment of Gymnasium, the actions are neither discrete nor bounded, there is
        no picture, or the DB holds clips of another environment. From `step`: a frame is not a picture, or differs in
        size from the first, or a reward is not finite.
      OSError: the DB cannot be created; from `step`: a segment cannot be written.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        db_path: str | Path,
        env_index: int = 0,
        record_prob: float = 0.0002,
        frame_fn: Callable[[Any], np.ndarray] | None = None,
        seed: int = 0,
        policy: str = "",
        max_mb: float | None = None,
    ) -> None:
        self._adapter = EnvAdapter(env, frame_fn)
        super().__init__(env)
        self._tape = Tape(
            self._adapter,
            db_path,
            env_index,
            record_prob=record_prob,
            seed=seed,
            policy=policy,
            max_mb=max_mb,
        )
        self.recorder = self._tape.recorder
        self._observation: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new game; an unfinished segment is dropped. See `gymnasium.Env.reset`."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._tape.begin(np.ones(1, bool), lives_in(info))
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step and record it. See `gymnasium.Env.step`."""
        if self.recorder.recording[0]:  # rendering costs more than all the rest
            # The environment has not moved since, so this is the frame that the action was chosen on.
            adapter, seen = self._adapter, self._observation
            self.recorder.before(adapter.frames(seen), adapter.from_env(action), adapter.vectors(seen))
        self._observation, score, terminated, truncated, info = self.env.step(action)
        self._tape.after(
            np.array([score]),
            np.array([terminated], bool),
            np.array([truncated], bool),
            lives_in(info),
            reset=np.zeros(1, bool),
            over=np.array([terminated or truncated], bool),
        )
        return self._observation, score, terminated, truncated, info

    def close(self) -> None:
        """End the recording and close the environment."""
        self.recorder.close()
        super().close()
