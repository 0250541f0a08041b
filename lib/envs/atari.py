"""Atari games as one vectorised emulator that hands out native colour frames."""

from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.envs.registration import EnvSpec

from lib.cli import UserError
from lib.envs.ids import atari_name, is_atari_id
from lib.envs.spec import Spec
from lib.envs.world import TIME_LIMIT, Step

FRAME_SKIP = 4
"""Emulator frames per step (one decision of the agent)."""

FAIR_WEATHER = 750
"""Steps of Enduro before its weather changes. Whatever is played, the sky grows lighter after 1,024 emulator frames and
the grass turns to snow after 3,072: step 768, or up to 7 earlier for the no-ops that a game begins with. Found by playing
with and without FIRE and watching the commonest colour of sky and ground."""

gymnasium.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner


_ENDURO = gymnasium.spec("EnduroNoFrameskip-v4")
gymnasium.register(
    id="EnduroFairWeatherNoFrameskip-v4",
    entry_point=_ENDURO.entry_point,
    max_episode_steps=FAIR_WEATHER * FRAME_SKIP,
    kwargs=_ENDURO.kwargs,
)


def time_limit(env_id: str) -> int:
    """The step limit of this id's games."""
    return FAIR_WEATHER if "FairWeather" in env_id else TIME_LIMIT


def atari_settings(env_id: str) -> dict[str, Any] | None:
    """The emulator settings behind an Atari id, or None if the id names no Atari game.

    Args:
      env_id: `SeaquestNoFrameskip-v4`, `ALE/Seaquest-v5` and the like, also behind `ale_py:`. Ids whose environment
        skips frames itself (`Seaquest-v4`) are refused.

    Returns:
      `{"game": "seaquest", "repeat_action_probability": 0.25, …}` as registered with Gymnasium.

    Raises:
      UserError: an id of the Atari family in a form that is not supported.
    """
    spec = _registered(env_id)
    entry = "" if spec is None else str(spec.entry_point)
    if spec is None or "ale_py" not in entry:
        return None
    if not is_atari_id(env_id) or spec.kwargs.get("obs_type") == "ram":
        raise UserError(
            f"--env {env_id}: expected an Atari id with pixels that lets us set the frame skip, such as "
            "SeaquestNoFrameskip-v4 or ALE/Seaquest-v5"
        )
    return dict(spec.kwargs)


def _registered(env_id: str) -> EnvSpec | None:
    """What `gymnasium.make` would find, the newest version by default; imports no module, because ids come from files."""
    name = atari_name(env_id)
    if not name:  # of a module that registers ids of its own
        return None
    versions = [spec for spec in gymnasium.registry.values() if spec.id.rpartition("-v")[0] == name]
    newest = max(versions, key=lambda spec: spec.version or 0, default=None)
    return gymnasium.registry.get(name, newest)


def shown_and_taken(env_id: str) -> tuple[list[str], tuple[int, int, int]]:
    """The names of a game's actions, and its native frame shape, at which no emulator resizes."""
    probe = gymnasium.make(env_id)
    names = list(probe.unwrapped.get_action_meanings())  # type: ignore[attr-defined]
    height, width, _ = probe.observation_space.shape or ()
    probe.close()
    return names, (height, width, 3)


class AtariWorld:
    """B games of one Atari title, stepped by the emulator's own thread pool.

    A step is four emulator frames; its picture is the maximum over the last two. Games begin with up to 30 no-ops and,
    where the game has it, a press of FIRE; after `time_limit` steps they are truncated. A lost life is a terminal that
    does not reset the game.
    """

    def __init__(
        self, env_id: str, num_envs: int, time_limit: int = TIME_LIMIT, num_threads: int = 0
    ) -> None:
        settings = atari_settings(env_id)
        if settings is None:
            raise UserError(f"--env {env_id}: no such Atari game; take, for example, SeaquestNoFrameskip-v4")
        self.env_id = env_id
        self.num_envs = num_envs
        self.action_names, (height, width, _) = shown_and_taken(env_id)
        self.spec = Spec(len(self.action_names), frame_shape=(height, width, 3))
        self._emulator = AtariVectorEnv(
            settings["game"],
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=time_limit * FRAME_SKIP,
            repeat_action_probability=settings.get("repeat_action_probability", 0.0),
            full_action_space=settings.get("full_action_space", False),
            img_height=height,
            img_width=width,
            grayscale=False,
            stack_num=1,
            frameskip=FRAME_SKIP,
            life_loss_info=True,
            reward_clipping=False,
        )
        self._game_frame = np.zeros(num_envs, np.int64)

    def reset(self, seed: int) -> Step:
        frames, info = self._emulator.reset(seed=seed)
        self._game_frame = info["episode_frame_number"].astype(np.int64)
        off = np.zeros(self.num_envs, bool)
        return Step(frames[:, 0], np.zeros(self.num_envs, np.float32), off, off, ~off)

    def send(self, actions: np.ndarray) -> None:
        self._emulator.send(actions)

    def recv(self) -> Step:
        frames, score, terminal, truncated, info = self._emulator.recv()
        game_frame = info["episode_frame_number"]
        # Lives do not tell when a game ends (some titles play on at 0); a frame count that falls does.
        reset = game_frame < self._game_frame
        self._game_frame = game_frame.astype(np.int64)
        return Step(frames[:, 0], score.astype(np.float32), terminal, truncated, reset)

    def close(self) -> None:
        self._emulator.close()
