"""Any Gymnasium environment that shows or draws a picture and takes discrete or bounded actions, as a world."""

import contextlib
import dataclasses
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from lib.cli import UserError, one_line
from lib.envs.adapter import SEVERAL_AGENTS, EnvAdapter, Environment, brief
from lib.envs.pictures import PictureCheck, larger, smaller
from lib.envs.world import TIME_LIMIT, LazyFrames, Step, WorldFailed

Made = TypeVar("Made")
Closed = TypeVar("Closed", Environment, gymnasium.vector.VectorEnv[Any, Any, Any])

_OLD_GYM = "one of the old Gym is wrapped by shimmy (docs/environments.md)"


class GymWorld:
    """B copies of a Gymnasium environment as a `lib.envs.world.World`.

    The frame is the observation where that is a picture (`to_picture`), else what `render()` draws when it is asked
    for. The policy sees the picture too where the observation is one or does not fit into a vector (`vector_size`);
    else the flattened observation. Frames below 43 pixels a side are enlarged by a whole factor (`larger`), and
    drawn ones above 400 made smaller by one (`smaller`). `terminal` is the environment's own `terminated`; lives are
    ignored. Games are cut off after `TIME_LIMIT` steps unless `gymnasium.register` or the caller sets a limit.
    `AtariWorld` serves Atari games better: it skips frames and is faster.

    Args:
      env_id: as `gymnasium.make` takes it; `module:Name-v0` imports the module first.
      num_envs: B.
      **env_kwargs: handed to each environment.

    Raises:
      UserError: the id is unknown, its packages are missing, or the environment has no picture, or neither discrete
        nor bounded actions.
    """

    def __init__(self, env_id: str, num_envs: int, **env_kwargs: Any) -> None:
        _draw_into_memory()
        self.env_id, self.num_envs = env_id, num_envs
        self._check = PictureCheck("render()", env_id)
        with _closing(_make(env_id, gymnasium.make, **env_kwargs)) as env:
            single, modes, space = (
                EnvAdapter(env),
                (env.metadata or {}).get("render_modes", []),  # None behind shimmy's wrapper of an old one
                env.observation_space,
            )
            if not single.shows_pictures and "rgb_array" not in modes:
                raise UserError(
                    f"{env_id} cannot be used: expected a picture, got observations of {brief(space)} "
                    f"and render modes {modes} without 'rgb_array'; add it to metadata['render_modes'], and a render() "
                    f"that returns uint8 [H, W, 3]"
                )
            _try(env_id, env, single)
            if env.spec is None or env.spec.max_episode_steps is None:
                env_kwargs = {"max_episode_steps": TIME_LIMIT, **env_kwargs}
        if single.shows_pictures:
            first = single.frames(np.zeros(space.shape or (), np.uint8))[0]
        else:
            env_kwargs = {**env_kwargs, "render_mode": "rgb_array"}
            with _closing(_make(env_id, gymnasium.make, **env_kwargs)) as env:
                first = self._frame(_drawn(env_id, env))
        height, width, _ = first.shape
        self._shape = (num_envs, height, width, 3)
        self.spec = dataclasses.replace(single.spec, frame_shape=(height, width, 3))
        self.action_names = single.action_names or [str(action) for action in range(self.spec.num_actions)]
        envs = _make(
            env_id,
            gymnasium.make_vec,
            num_envs=num_envs,
            vectorization_mode="sync",
            vector_kwargs={"copy": False},
            wrappers=[_WithoutInfo],
            **env_kwargs,
        )
        assert isinstance(envs, gymnasium.vector.SyncVectorEnv)
        self._envs = envs
        self._adapter = EnvAdapter(self._envs, many=True)
        self._ended = np.zeros(num_envs, bool)
        self._actions: np.ndarray = np.zeros(num_envs, np.int64)
        self._lazy: LazyFrames | None = None

    def reset(self, seed: int) -> Step:
        """Start a new game in every environment. See `World.reset`."""
        # Spread, so that the worlds of seeds 0 and 1 do not share all but one of their games.
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1
        with self._as_world_failed():
            observations, _ = self._envs.reset(seed=[int(each) for each in seeds])
        self._ended = np.zeros(self.num_envs, bool)
        off = np.zeros(self.num_envs, bool)
        score = np.zeros(self.num_envs, np.float32)
        return Step(self._frames(observations), score, off, off, ~off, self._vectors(observations))

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next actions. See `World.send`."""
        self._actions = self._adapter.to_env(actions)

    def recv(self) -> Step:
        """Wait for the outcome of the actions sent last. See `World.recv`."""
        with self._as_world_failed():
            observations, score, terminated, truncated, _ = self._envs.step(self._actions)
        with np.errstate(over="ignore"):
            score = score.astype(np.float32)
        if not np.isfinite(score).all():
            raise WorldFailed(f"{self.env_id} failed: expected scores of finite numbers, got others")
        reset = self._ended
        self._ended = terminated | truncated
        # Some environments report both at the limit; a game that ended by itself needs no bootstrap.
        return Step(
            self._frames(observations),
            score,
            terminated.copy(),
            truncated & ~terminated,
            reset,
            self._vectors(observations),
        )

    def close(self) -> None:
        """Close the environments. See `World.close`."""
        _close(self._envs)

    def _vectors(self, observations: Any) -> np.ndarray | None:
        with self._as_world_failed():
            return self._adapter.vectors(observations)

    def _frames(self, observations: Any) -> np.ndarray:
        if self._adapter.shows_pictures:
            return self._adapter.frames(observations)
        if self._lazy is not None:
            self._lazy.expired = True
        self._lazy = LazyFrames(self._draw, self._shape)
        return cast(np.ndarray, self._lazy)

    def _draw(self, env: int) -> np.ndarray:
        with self._as_world_failed():
            drawn = self._envs.envs[env].render()
        return self._frame(drawn)

    def _frame(self, drawn: Any) -> np.ndarray:
        """The frame of what `render()` drew."""
        return larger(smaller(self._check(drawn)))

    @contextlib.contextmanager
    def _as_world_failed(self) -> Iterator[None]:
        """Turns what the environments' own code raises into one line.

        Raises:
          WorldFailed: an observation does not fit its space, or an exception, with the line that raised it.
        """
        try:
            yield
        except WorldFailed:
            raise
        except (Exception, SystemExit) as error:
            newest: list[Any] = self._envs._env_obs  # Gymnasium's own copy, before it stacks them
            for seen in newest:
                if seen is not None:  # as before the first reset
                    _check_space(self.env_id, self._envs.single_observation_space, "reset() or step()", seen)
            raise WorldFailed(f"environment {self.env_id!r} failed: {_described(error)}") from error


class _WithoutInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells nothing beside, as a vector fails where that differs in kind or shape between environments."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = self.env.reset(seed=seed, options=options)
        return observation, {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, score, terminated, truncated, _ = self.env.step(action)
        return observation, score, terminated, truncated, {}


def _make(env_id: str, make: Callable[..., Made], **env_kwargs: Any) -> Made:
    if ":" in env_id and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where a module of the user's own may lie, as for python -m
    try:
        return make(env_id, disable_env_checker=True, **env_kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        module, _, name = env_id.rpartition(":")
        folded = {known.casefold(): known for known in gymnasium.registry}
        near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.7)
        mend = "write module:Name-v0 for an id a module registers"
        if module:
            mend = f"{module} registers no such id"
            if "gym" in sys.modules:
                mend += f" with Gymnasium; {_OLD_GYM}"
        if near:
            likely = " or ".join(f"{module}:{folded[match]}".removeprefix(":") for match in near)
            mend = f"did you mean {likely}? If not, {mend}"
        raise UserError(f"no environment {env_id!r} is registered; {mend}") from error
    except (Exception, SystemExit) as error:
        # From Gymnasium, a missing package, or somebody else's environment.
        mend = ""
        if "inherit from the gymnasium.Env" in str(error):
            mend = f"; {SEVERAL_AGENTS}"
        elif "No module named 'gym'" in str(error):
            mend = f"; {_OLD_GYM}"
        elif "missing" in str(error) and "required" in str(error):
            mend = "; gymnasium.register(..., kwargs={...}) hands it arguments"
        elif "entry_point is not specified" in str(error):
            mend = "; wrap a vector in PreferenceVectorEnv, in training code of your own (docs/wrapper.md)"
        raise UserError(f"environment {env_id!r} cannot be made: {_reason(error)}{mend}") from error


@contextlib.contextmanager
def _closing(env: Closed) -> Iterator[Closed]:
    try:
        yield env
    finally:
        _close(env)


def _close(env: Environment | gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
    """Closes it; where its own code fails, what was learned in it is worth more."""
    try:
        env.close()
    except Exception as error:
        print(f"an environment fails in close(): {_described(error)}", file=sys.stderr)


def _try(env_id: str, env: Environment, adapter: EnvAdapter) -> None:
    """A reset and a step, which must return what Gymnasium and the environment's own space promise.

    Raises:
      UserError: they do not, or fail.
    """
    call, results = "reset()", "two results, observation and info, of reset(seed=None, options=None)"
    try:
        seen, _ = env.reset(seed=0)
        _check_space(env_id, env.observation_space, call, seen)
        adapter.vectors(seen)
        call, results = "step()", "five results, observation, reward, terminated, truncated and info"
        made: Any = env.step(env.action_space.sample())
        seen, score, _, _, _ = made
        _check_space(env_id, env.observation_space, call, seen)
        if np.ndim(score):
            got = f"{np.asarray(score).dtype} {list(np.shape(score))}"
            raise UserError(f"{env_id} cannot be used: expected one number as reward from {call}, got {got}")
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        unlike = "to unpack" in str(error) or "unexpected keyword" in str(error)
        mend = f"; expected {results}" if unlike else ""
        raise UserError(f"environment {env_id!r} fails in {call}: {_described(error)}{mend}") from error


def _described(error: BaseException) -> str:
    """An exception, and the line that it comes from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return one_line(f"{type(error).__name__} {error} ({Path(last.filename).name}, line {last.lineno})")


def _check_space(env_id: str, space: gymnasium.Space[Any], call: str, seen: Any) -> None:
    """Refuses an observation that does not fit among those of other environments, as a vector keeps them."""
    room: Any = create_empty_array(space, 1)
    try:
        concatenate(space, [seen], room)
    except (ValueError, TypeError, LookupError) as error:
        single = isinstance(space, gymnasium.spaces.Box)
        got = f"{np.asarray(seen).dtype} {list(np.shape(seen))}" if single else one_line(repr(seen))
        raise WorldFailed(
            f"{env_id} cannot be used: expected observations of its observation_space, {brief(space)}, got {got} from "
            f"{call}; mend one or the other"
        ) from error


def _draw_into_memory() -> None:
    """Tells SDL (classic control) and MuJoCo to draw without a screen, unless the user has chosen."""
    os.environ.setdefault("SDL_VIDEODRIVER", "offscreen")  # under "dummy" highway-env draws nothing
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _drawn(env_id: str, env: Environment) -> Any:
    """The first picture that an environment draws."""
    try:
        env.reset(seed=0)
        return env.render()
    except (Exception, SystemExit) as error:
        # Without a display, each library that draws fails in its own way.
        raise UserError(f"environment {env_id!r} cannot draw itself: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The error message of an environment's own code."""
    said = one_line(str(error)).rstrip(".")
    return said if said and isinstance(error, Exception) else f"{type(error).__name__} {said}".strip()
