"""Any Gymnasium environment, single or vector, in the form that worlds, recorders and reward models share.

Importing this registers the environments of ale_py and of this project with Gymnasium.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from lib.cli import UserError, one_line
from lib.envs import control, lines, moving_dot
from lib.envs.pictures import PictureCheck, larger, to_picture
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION, WorldFailed

gymnasium.register_envs(ale_py)
gymnasium.register_envs(moving_dot)
gymnasium.register_envs(control)
gymnasium.register_envs(lines)

Environment = gymnasium.Env[Any, Any]
VectorEnvironment = gymnasium.vector.VectorEnv[Any, Any, Any]

SEVERAL_AGENTS = "wrap an environment of several agents as a gymnasium.Env of one"


class EnvAdapter:
    """Frames, vectors and actions of B environments, single or vector.

    Attributes:
      env_id: name of the environments.
      num_envs: B.
      spec: what they show and take, except for the shape of frames.
      action_names: names of the actions; [] if the environments give none.
      shows_pictures: whether the observation is the picture that a person sees.

    Args:
      env: with discrete or bounded actions.
      frame_fn: from one environment's observation to the frame, uint8 [H, W, 3]. None takes the observation where
        it is a picture, else `env.render()`.
      many: whether it must be a vector.

    Raises:
      UserError: `env` is of another kind, or its actions cannot be used.
    """

    def __init__(
        self,
        env: Environment | VectorEnvironment,
        frame_fn: Callable[[Any], np.ndarray] | None = None,
        many: bool = False,
    ) -> None:
        _check_kind(env, many)
        self.env_id = _name(env)
        self._many: spaces.Space[Any] | None = None  # the space of all observations of a vector together
        self.num_envs, single = 1, ""
        if isinstance(env, gymnasium.vector.VectorEnv):
            self._many, self.num_envs, single = env.observation_space, env.num_envs, "single_"
        self._space = _space(env, f"{single}observation_space", self.env_id)
        self._actions = ActionAdapter(_space(env, f"{single}action_space", self.env_id), self.env_id)
        size = vector_size(self._space)
        shape = PICTURE_SHAPE if size is None else (size,)
        self.spec = Spec(self._actions.count, self._actions.continuous, shape)
        self.action_names = _action_names(env)
        self._env, self._frame_fn, self._picture = env, frame_fn, to_picture(self._space)
        self.shows_pictures = self._picture is not None
        source = "the observation" if self.shows_pictures else "render()"
        self._check = PictureCheck(source if frame_fn is None else "frame_fn", self.env_id)

    def check_picture(self) -> None:
        """Refuses an environment that cannot be shown.

        Raises:
          UserError: there is no frame_fn, observations are no pictures, and the environment was not made with
            render_mode="rgb_array".
        """
        if self._frame_fn is None and not self.shows_pictures and self._env.render_mode != "rgb_array":
            raise UserError(
                f"{self.env_id} shows no picture: its observation is {brief(self._space)} and its render mode "
                f"{self._env.render_mode}; make it with render_mode='rgb_array', or pass frame_fn"
            )

    def frames(self, observations: Any) -> np.ndarray:
        """The pictures that a person sees now.

        Args:
          observations: the newest ones, as the environment gave them.

        Returns:
          uint8 [B, H, W, 3], see `larger`; valid until the next step.

        Raises:
          UserError: there is no picture, or not one of the first one's size.
        """
        if self._frame_fn is not None:
            pictures: Any = [self._frame_fn(each) for each in self._each(observations)]
        elif self._picture is not None:
            frames = self._picture(observations if self._many is not None else np.asarray(observations)[None])
            self._check(frames[0])  # the others are in the same array
            return larger(frames)
        else:
            self.check_picture()
            pictures = self._env.render()
            pictures = pictures if self._many is not None else [pictures]
        return larger(np.stack([self._check(each) for each in pictures]))

    def vectors(self, observations: Any) -> np.ndarray | None:
        """What a policy sees now, float32 [B, D], a copy; None if that is a picture.

        Args:
          observations: the newest ones, as the environment gave them.

        Raises:
          WorldFailed: a number is not finite, or there are more or fewer than the space says.
        """
        if self.spec.observation_size is None:
            return None
        each = self._each(observations)
        if not isinstance(self._space, spaces.Box):
            each = [spaces.utils.flatten(self._space, one) for one in each]
        flat = np.array(each, np.float32).reshape(self.num_envs, -1)
        if flat.shape[1] != self.spec.observation_size:
            raise WorldFailed(
                f"{self.env_id} failed: expected observations of {self.spec.observation_size} numbers, as their space says, "
                f"got {flat.shape[1]}"
            )
        if not np.isfinite(flat).all():
            raise WorldFailed(f"{self.env_id} failed: expected observations of finite numbers, got others")
        return flat

    def from_env(self, actions: Any) -> np.ndarray:
        """The environments' own actions, one or B of them, as int64 [B] from 0 or float32 [B, A] in −1 … 1."""
        return self._actions.from_env(actions, self.num_envs)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """The other way: B actions as the environments take them."""
        return self._actions.to_env(actions)

    def _each(self, observations: Any) -> Iterable[Any]:
        if self._many is None:
            return [observations]
        # Observations that are numbers lie in one array already.
        return observations if isinstance(self._many, spaces.Box) else iterate(self._many, observations)


class ActionAdapter:
    """Converts between an environment's own actions and the project's: integers from 0, or vectors in −1 … 1.

    Attributes:
      count: how many actions there are, or how many numbers an action is.
      continuous: which of the two.

    Args:
      space: the action space of a single environment: one of n, or numbers with finite bounds.
      name: what the environment is called.

    Raises:
      UserError: actions are of another kind, too many, or without bounds.
    """

    def __init__(self, space: spaces.Space[Any], name: str) -> None:
        self._space = space
        self.continuous = isinstance(space, spaces.Box)
        if isinstance(space, spaces.Discrete):
            self.count, what = int(space.n), "actions"
        elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            self.count, what = math.prod(space.shape), "numbers an action"
        else:
            several = isinstance(space, spaces.Tuple | spaces.Dict)
            raise UserError(
                f"{name} cannot be used: expected one of n actions (Discrete) or floating-point numbers within bounds "
                f"(Box), got {brief(space)}; wrap it in a gymnasium.ActionWrapper that takes one of these"
                + (f", or {SEVERAL_AGENTS}" if several else "")
            )
        if not 1 <= self.count <= MAX_ACTIONS:
            raise UserError(
                f"{name} cannot be used: expected 1 to {MAX_ACTIONS} {what}, got {self.count}; wrap it in a "
                f"gymnasium.ActionWrapper that takes as many"
            )
        if not isinstance(space, spaces.Box):
            return
        self._low, self._high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            spans = self._high - self._low
        if not np.isfinite(spans).all():
            raise UserError(
                f"{name} cannot be used: expected numbers with a lower and an upper bound, a finite distance "
                f"apart, got {brief(space)} from {self._low.min():g} to {self._high.max():g}; wrap it in a "
                "gymnasium.ActionWrapper that bounds them"
            )
        self._spans = np.where(spans > 0, spans, 1.0)

    def from_env(self, actions: Any, num_envs: int) -> np.ndarray:
        """The environments' own actions, one or B of them, as int64 [B] from 0 or float32 [B, A] in −1 … 1."""
        if isinstance(self._space, spaces.Discrete):
            return np.asarray(actions, np.int64).reshape(num_envs) - int(self._space.start)
        assert isinstance(self._space, spaces.Box)
        each = np.asarray(actions, np.float64).reshape(num_envs, *self._space.shape)
        shares = ((each - self._low) / self._spans * 2 - 1).clip(-1, 1)
        return shares.astype(np.float32).reshape(num_envs, self.count)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """The other way: B actions as the environments take them."""
        if isinstance(self._space, spaces.Discrete):
            return actions + int(self._space.start)
        assert isinstance(self._space, spaces.Box)
        shares = (actions.clip(-1, 1).reshape(-1, *self._space.shape) + 1) / 2
        each = (self._low + shares * self._spans).clip(self._low, self._high)
        return np.asarray(each.astype(self._space.dtype))


def vector_size(space: spaces.Space[Any]) -> int | None:
    """The number of values in a flattened observation of a space.

    Args:
      space: any of Gymnasium's. Dicts and tuples are laid end to end, one of n becomes n numbers of which one is 1
        (`gymnasium.spaces.utils.flatten`).

    Returns:
      None where the policy should see a picture instead: the observation is one, has no fixed size, or has more than
      `MAX_OBSERVATION` numbers, as a stack of pictures does.
    """
    try:
        if to_picture(space) is not None or not space.is_np_flattenable:
            return None
    except NotImplementedError:  # a space of somebody's own, such as MiniGrid's missions
        return None
    size = int(spaces.utils.flatdim(space))
    return size if 1 <= size <= MAX_OBSERVATION else None


def brief(space: spaces.Space[Any]) -> str:
    """A short description of a space: a Box would print every bound."""
    if isinstance(space, spaces.Box):
        return f"Box {space.dtype} {list(space.shape)}"
    return one_line(str(space))


def _name(env: Environment | VectorEnvironment) -> str:
    """An environment's registered id, that of a vector's environments, or its class if it has none."""
    if env.spec is not None:
        return env.spec.id
    inner = env.unwrapped
    if isinstance(inner, gymnasium.vector.SyncVectorEnv):
        return _name(inner.envs[0])
    if isinstance(inner, gymnasium.vector.AsyncVectorEnv):
        with inner.env_fns[0]() as one:  # as not every spec can be sent here from its process
            return type(inner).__name__ if one.spec is None else one.spec.id
    return type(inner).__name__


def _action_names(env: Environment | VectorEnvironment) -> list[str]:
    """The names of an environment's actions, or those of a synchronous vector's first one; [] if there are none."""
    inner = env.unwrapped
    if isinstance(inner, gymnasium.vector.SyncVectorEnv):
        inner = inner.envs[0].unwrapped
    try:
        return [str(name) for name in getattr(inner, "get_action_meanings", list)()]
    except Exception:  # somebody else's code; names are for show
        return []


def _check_kind(env: Any, many: bool) -> None:
    """Refuses anything but an environment of Gymnasium: a single one, or a vector if `many`."""
    kinds = (gymnasium.Env, gymnasium.vector.VectorEnv)
    if isinstance(env, kinds[many]):
        return
    mend = f"wrap those of another library's vector one by one; {SEVERAL_AGENTS}"
    if isinstance(env, kinds):
        mend = "use PreferenceEnv for it" if many else "use PreferenceVectorEnv for it"
    expected = "gymnasium.vector.VectorEnv" if many else "gymnasium.Env"
    raise UserError(f"expected a {expected}, got {type(env).__name__}; {mend}")


def _space(env: Environment | VectorEnvironment, which: str, name: str) -> spaces.Space[Any]:
    """An environment's space of observations or actions."""
    space = getattr(env, which, None)
    if not isinstance(space, spaces.Space):
        raise UserError(
            f"{name} cannot be used: expected its {which} to be one of gymnasium.spaces, got {type(space).__name__}; "
            f"set it in __init__"
        )
    return space
