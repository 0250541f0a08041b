"""Recording segments around a single Gymnasium environment, whatever library trains on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from lib.envs.gym_world import discrete_actions, env_name, frame_source
from lib.envs.world import Step
from lib.preferences.recorder import SegmentRecorder


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
    A life is lost where `info["lives"]` falls; that is marked, and the segment goes on.

    Attributes:
        recorder: counts what was stored; see `SegmentRecorder`.

    Args:
        env: environment with discrete actions.
        db_path: the DB, created where there is none. Segments that it holds already stay as they are.
        env_index: which of several environments this is; each needs its own.
        record_prob: probability that a step begins a segment, unless one is being recorded.
        frame_fn: from the newest observation to the frame, uint8 [H, W, 3]. None takes the observation where it is
            an RGB picture, else `env.render()`.
        seed: decides, together with `env_index`, which steps begin a segment.
        policy: checkpoint of the recording policy, for the sidecar.
        max_mb: size of the DB from which on nothing more is recorded.

    Raises:
        UserError: the actions are not discrete, or there is no picture.
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
        super().__init__(env)
        actions = discrete_actions(env)
        self._first_action = int(actions.start)
        self._frame = frame_source(env) if frame_fn is None else frame_fn
        self._observation: Any = None
        self._lives: int | None = None
        self._in_game = False
        self.recorder = SegmentRecorder(
            Path(db_path),
            num_envs=1,
            env_id=env_name(env),
            num_actions=int(actions.n),
            record_prob=record_prob,
            seed=seed,
            max_mb=max_mb,
            policy=policy,
            first_env=env_index,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new game; a segment in the making is dropped. See `gymnasium.Env.reset`."""
        self._observation, info = self.env.reset(seed=seed, options=options)
        self._lives = info.get("lives")
        if self._in_game:
            self._outcome(score=0.0, terminal=False, reset=True)
        self._in_game = True
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step and record it. See `gymnasium.Env.step`."""
        if self.recorder.recording[0]:  # rendering costs more than all the rest
            # The environment has not moved since, so this is the frame that the action was chosen on.
            frame = self._frame(self._observation)
            self.recorder.before(frame[None], np.array([action - self._first_action]))
        self._observation, score, terminated, truncated, info = self.env.step(action)
        lives = info.get("lives")
        life_lost = lives is not None and self._lives is not None and lives < self._lives
        self._lives = lives
        self._outcome(float(score), terminated or life_lost, reset=False)
        if terminated:
            # Said at once that this was a game over, as nobody has to reset the last game of a run.
            self._outcome(score=0.0, terminal=False, reset=True)
            self._in_game = False
        return self._observation, score, terminated, truncated, info

    def close(self) -> None:
        """End the recording and close the environment."""
        self.recorder.close()
        super().close()

    def _outcome(self, score: float, terminal: bool, reset: bool) -> None:
        self.recorder.after(
            Step(
                frames=np.empty((1, 0, 0, 3), np.uint8),  # the recorder takes frames from `before` alone
                score=np.array([score], np.float32),
                terminal=np.array([terminal]),
                truncated=np.zeros(1, bool),
                reset=np.array([reset]),
            )
        )
