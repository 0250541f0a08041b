"""One Atari game through ptan's wrappers: slow; the fast path is tested against it."""

import gymnasium
import numpy as np
import ptan

from lib.cli import UserError
from lib.envs.atari import atari_settings, time_limit
from lib.envs.spec import Spec
from lib.envs.world import Step


class LastFrames(gymnasium.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Keeps the last two emulator frames, below `wrap_dqn`, which reduces them to 84×84 grey pixels."""

    def reset(self, **kwargs: object) -> tuple[np.ndarray, dict[str, object]]:
        observation, info = super().reset(**kwargs)  # type: ignore[arg-type]
        self._older = self._newest = observation
        return observation, info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        observation, score, terminated, truncated, info = super().step(action)
        self._older, self._newest = self._newest, observation
        return observation, float(score), terminated, truncated, info

    @property
    def picture(self) -> np.ndarray:
        """uint8 `[H, W, 3]`: the maximum over the last two frames, in colour."""
        return np.maximum(self._older, self._newest)


class ReferenceWorld:
    """A `World` of one game under `ptan.common.wrappers.wrap_dqn`, with every life and the unclipped score.

    `Step.observations` are ptan's own, uint8 [1, 4, 84, 84]. A game begins with 1 to 30 no-ops, FIRE and UP, the latter
    two four emulator frames each.

    Args:
      env_id: an Atari id with `NoFrameskip`.

    Raises:
      UserError: another id.
    """

    num_envs = 1

    def __init__(self, env_id: str) -> None:
        if atari_settings(env_id) is None or "NoFrameskip" not in env_id:
            raise UserError(
                f"--env {env_id}: ptan's wrappers take only an Atari id with NoFrameskip, such as "
                "SeaquestNoFrameskip-v4; leave out --reference"
            )
        self._emulator = LastFrames(gymnasium.make(env_id, max_episode_steps=-1))
        wrapped = ptan.common.wrappers.wrap_dqn(
            self._emulator, episodic_life=False, clip_reward=False, noop_max=30
        )
        self._env = gymnasium.wrappers.TimeLimit(wrapped, time_limit(env_id))
        self._game = self._emulator.unwrapped
        height, width, _ = self._emulator.observation_space.shape or ()
        self.env_id = env_id
        self.action_names: list[str] = list(self._game.get_action_meanings())  # type: ignore[attr-defined]
        self.spec = Spec(len(self.action_names), frame_shape=(height, width, 3))
        self._ended, self._lives = True, 0

    def reset(self, seed: int) -> Step:
        """Start a new game. See `World.reset`."""
        # wrap_dqn passes no seed on: the emulator and the number of no-ops are seeded below it.
        self._emulator.reset(seed=seed)
        self._game.np_random = np.random.default_rng(seed)
        return self._begin()

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next action. See `World.send`."""
        self._action = int(actions[0])

    def recv(self) -> Step:
        """Play the action. See `World.recv`."""
        if self._ended:
            return self._begin()
        observation, score, over, cut, _ = self._env.step(self._action)
        self._ended = over or cut
        before, self._lives = self._lives, self._lives_left()
        return self._step(observation, float(score), over or self._lives < before, cut and not over)

    def close(self) -> None:
        """Free the emulator. See `World.close`."""
        self._env.close()

    def _begin(self) -> Step:
        observation, _ = self._env.reset()
        self._ended, self._lives = False, self._lives_left()
        return self._step(observation, reset=True)

    def _lives_left(self) -> int:
        lives: int = self._game.ale.lives()  # type: ignore[attr-defined]
        return lives

    def _step(
        self,
        observation: np.ndarray,
        score: float = 0.0,
        terminal: bool = False,
        truncated: bool = False,
        reset: bool = False,
    ) -> Step:
        return Step(
            self._emulator.picture[None],
            np.array([score], np.float32),
            np.array([terminal]),
            np.array([truncated]),
            np.array([reset]),
            observation[None],
        )
