"""Any Gymnasium environment that shows a picture and takes discrete actions, as a world."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ale_py
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from lib.cli import UserError, one_line
from lib.envs import moving_dot
from lib.envs.world import Step

gymnasium.register_envs(ale_py)
gymnasium.register_envs(moving_dot)

Environment = gymnasium.Env[Any, Any]
VectorEnvironment = gymnasium.vector.VectorEnv[Any, Any, Any]


def env_name(env: Environment | VectorEnvironment) -> str:
    """What to call an environment, or those of a vector: its registered id, or its class where it has none."""
    if env.spec is not None:
        return env.spec.id
    inner = env.unwrapped
    if isinstance(inner, gymnasium.vector.SyncVectorEnv):
        return env_name(inner.envs[0])
    if isinstance(inner, gymnasium.vector.AsyncVectorEnv):
        spec = inner.get_attr("spec")[0]
        return type(inner).__name__ if spec is None else spec.id
    return type(inner).__name__


def is_picture(space: spaces.Space[Any]) -> bool:
    """Whether observations of this space are RGB pictures: uint8 [H, W, 3]."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[2] == 3
    )


@dataclass(frozen=True)
class Eye:
    """What wrappers see of B environments, single or vector, in the form in which the rest of the house takes it."""

    num_envs: int
    num_actions: int
    env_id: str
    _picture: Callable[[Any], np.ndarray]
    _first_action: int
    _source: str

    def frames(self, observations: Any) -> np.ndarray:
        """What a person sees now.

        Args:
            observations: the newest ones, as the environment gave them.

        Returns:
            uint8 [B, H, W, 3]; valid until the next step.

        Raises:
            UserError: it is no picture.
        """
        frames = self._picture(observations)
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
            raise UserError(
                f"{self._source} of {self.env_id}: expected pictures, uint8 [H, W, 3], "
                f"got {frames.dtype} {list(frames.shape[1:])}"
            )
        return frames

    def actions(self, actions: Any) -> np.ndarray:
        """The environment's own actions, one or B of them, as int64 [B] from 0."""
        return np.asarray(actions, np.int64).reshape(self.num_envs) - self._first_action


def look_at(env: Environment | VectorEnvironment, frame_fn: Callable[[Any], np.ndarray] | None) -> Eye:
    """How to see a single environment, or those of a vector.

    Args:
        env: with discrete actions.
        frame_fn: from one environment's observation to the frame, uint8 [H, W, 3]. None takes the observation where
            it is an RGB picture, else `env.render()`.

    Raises:
        UserError: the actions are not discrete; or there is no frame_fn, observations are no pictures and the
            environment was not made with render_mode="rgb_array".
    """
    name, vector = env_name(env), isinstance(env, gymnasium.vector.VectorEnv)
    if isinstance(env, gymnasium.vector.VectorEnv):
        space, num_envs = env.single_observation_space, env.num_envs
        actions = discrete_actions(env.single_action_space, name)
    else:
        space, num_envs = env.observation_space, 1
        actions = discrete_actions(env.action_space, name)

    def from_function(observations: Any) -> np.ndarray:
        assert frame_fn is not None
        each = iterate(env.observation_space, observations) if vector else [observations]
        return np.stack([np.asarray(frame_fn(observation)) for observation in each])

    def rendered(_: Any) -> np.ndarray:
        pictures = env.render()
        return np.stack(pictures if vector else [np.asarray(pictures)])  # type: ignore[arg-type]

    picture: Callable[[Any], np.ndarray]
    if frame_fn is not None:
        source, picture = "frame_fn", from_function
    elif is_picture(space):
        source = "the observation"
        picture = np.asarray if vector else lambda observation: np.asarray(observation)[None]
    elif env.render_mode == "rgb_array":
        source, picture = "render()", rendered
    else:
        raise UserError(
            f"{name} shows no picture: its observation is {_brief(space)} and its render mode "
            f"{env.render_mode}; make it with render_mode='rgb_array', or pass frame_fn"
        )
    return Eye(num_envs, int(actions.n), name, picture, int(actions.start), source)


def discrete_actions(space: spaces.Space[Any], name: str) -> spaces.Discrete:
    """The action space of an environment that takes one of n actions.

    Args:
        space: the action space of a single environment.
        name: what the environment is called.

    Returns:
        The same; the environment's own actions are `space.start` + 0 … n − 1.

    Raises:
        UserError: actions are of another kind.
    """
    if not isinstance(space, spaces.Discrete):
        raise UserError(f"{name} cannot serve: expected one of n actions (Discrete), got {_brief(space)}")
    return space


class GymWorld:
    """B copies of a Gymnasium environment as a `lib.envs.world.World`.

    The frame is the observation where that is an RGB uint8 picture, else what `render()` draws. `terminal` is the
    environment's own `terminated`; lives are not looked at. Atari games are better served by `AtariWorld`, which
    skips frames and is faster.

    Args:
        env_id: as `gymnasium.make` takes it; `module:Name-v0` imports the module first.
        num_envs: B.
        vectorization_mode: "sync" steps the copies in turn; "async" gives each a process, which pays where a
            step takes much longer than handing a frame over (about 0.1 ms).
        **env_kwargs: handed to each environment.

    Raises:
        UserError: the id is unknown, its packages are missing, or the environment has no picture or no discrete
            actions.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        vectorization_mode: Literal["sync", "async"] = "sync",
        **env_kwargs: Any,
    ) -> None:
        with _make(env_id, env_kwargs) as probe:
            actions = discrete_actions(probe.action_space, env_name(probe))
            self._renders = not is_picture(probe.observation_space)
            if self._renders and "rgb_array" not in probe.metadata.get("render_modes", []):
                raise UserError(
                    f"{env_id} cannot serve: expected a picture, got observations of {_brief(probe.observation_space)} "
                    f"and render modes {probe.metadata.get('render_modes', [])} without 'rgb_array'"
                )
            meanings = getattr(probe.unwrapped, "get_action_meanings", lambda: map(str, range(actions.n)))
            self.action_names = [str(name) for name in meanings()]
            shape = probe.observation_space.shape
        if self._renders:
            env_kwargs = {**env_kwargs, "render_mode": "rgb_array"}
            with _make(env_id, env_kwargs) as probe:
                shape = _rendered_shape(env_id, probe)
        assert shape is not None
        self.frame_shape = (shape[0], shape[1], shape[2])
        self.env_id = env_id
        self.num_envs = num_envs
        self.num_actions = int(actions.n)
        self._first_action = int(actions.start)
        # In processes of their own the copies write their observations while the last ones are still being read.
        copy = vectorization_mode == "async"
        self._envs = gymnasium.make_vec(
            env_id,
            num_envs,
            vectorization_mode,
            vector_kwargs={"copy": copy},
            disable_env_checker=True,
            **env_kwargs,
        )
        self._ended = np.zeros(num_envs, bool)
        self._actions = np.zeros(num_envs, np.int64)

    def reset(self, seed: int) -> Step:
        """Start a new game in every environment. See `World.reset`."""
        # Spread, so that the worlds of seeds 0 and 1 do not share all but one of their games.
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1
        observations, _ = self._envs.reset(seed=[int(each) for each in seeds])  # type: ignore[arg-type]  # a list will do
        self._ended = np.zeros(self.num_envs, bool)
        off = np.zeros(self.num_envs, bool)
        return Step(self._frames(observations), np.zeros(self.num_envs, np.float32), off, off, ~off)

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next actions. See `World.send`."""
        if isinstance(self._envs, gymnasium.vector.AsyncVectorEnv):
            self._envs.step_async(actions + self._first_action)
        else:
            self._actions = actions + self._first_action

    def recv(self) -> Step:
        """Wait for the outcome of the actions sent last. See `World.recv`."""
        if isinstance(self._envs, gymnasium.vector.AsyncVectorEnv):
            observations, score, terminated, truncated, _ = self._envs.step_wait()
        else:
            observations, score, terminated, truncated, _ = self._envs.step(self._actions)
        reset = self._ended
        self._ended = terminated | truncated
        # Some environments report both at the limit; a game that ended by itself needs no bootstrap.
        return Step(
            self._frames(observations),
            score.astype(np.float32),
            terminated.copy(),
            truncated & ~terminated,
            reset,
        )

    def close(self) -> None:
        """Close the environments. See `World.close`."""
        if not self._envs.closed:
            self._envs.close()

    def _frames(self, observations: np.ndarray) -> np.ndarray:
        if not self._renders:
            return observations
        pictures = self._envs.render()
        assert pictures is not None
        return np.stack([np.asarray(picture) for picture in pictures])


def _make(env_id: str, env_kwargs: dict[str, Any]) -> Environment:
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        name = env_id.rpartition(":")[2]
        folded = {known.casefold(): known for known in gymnasium.registry}
        near = [
            folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.7)
        ]
        mend = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "write module:Name-v0 for an id a module registers"
        )
        raise UserError(f"no environment {env_id!r} is registered; {mend}") from error
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"environment {env_id!r} cannot be made: {one_line(str(error))}") from error


def _rendered_shape(env_id: str, env: Environment) -> tuple[int, ...]:
    try:
        env.reset(seed=0)
        picture = np.asarray(env.render())
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"environment {env_id!r} cannot draw itself: {one_line(str(error))}") from error
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise UserError(
            f"{env_id} cannot serve: expected render() to give uint8 [H, W, 3], "
            f"got {picture.dtype} {list(picture.shape)}"
        )
    return picture.shape


def _brief(space: spaces.Space[Any]) -> str:
    """A space in a few words: a Box prints every bound it has."""
    if isinstance(space, spaces.Box):
        return f"Box {space.dtype} {list(space.shape)}"
    return one_line(str(space))
