"""Any Gymnasium environment that shows or draws a picture and takes discrete or bounded actions, as a world."""

import difflib
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, cast

import ale_py
import cv2
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from lib.cli import UserError, one_line
from lib.envs import control, moving_dot
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.envs.world import MAX_ACTIONS, MAX_OBSERVATION, TIME_LIMIT, LazyFrames, Step, bounded_actions

gymnasium.register_envs(ale_py)
gymnasium.register_envs(moving_dot)
gymnasium.register_envs(control)

Environment = gymnasium.Env[Any, Any]
VectorEnvironment = gymnasium.vector.VectorEnv[Any, Any, Any]

_LEAST_SIDE, _LARGEST_SIDE = 16, 400  # pixels of a picture
_LEAST_FRAME = 43  # pixels a side that a reward model of frames needs
_LARGEST_FRAME = 4096  # as a segment can hold
_AGENTS = "an environment of several agents has to be wrapped as a gymnasium.Env of one"


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


def action_names(env: Environment | VectorEnvironment) -> list[str]:
    """What an environment, or the first of a synchronous vector, calls its actions; [] where it does not say."""
    inner = env.unwrapped
    if isinstance(inner, gymnasium.vector.SyncVectorEnv):
        inner = inner.envs[0].unwrapped
    return [str(name) for name in getattr(inner, "get_action_meanings", list)()]


def to_picture(space: spaces.Space[Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """How observations of a space are the picture that a person sees, None where they are none.

    Args:
      space: uint8 of 16 pixels a side or more is a picture where it is RGB [H, W, 3] or [3, H, W], or grey [H, W],
        [H, W, 1] or [1, H, W]. Smaller ones are boards or symbols.

    Returns:
      A function from one observation or a batch [..., H, W, 3] and the like to RGB [..., H, W, 3].
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or not 2 <= len(space.shape) <= 3:
        return None
    *sides, last = space.shape
    if not sides or min(sorted(space.shape)[-2:]) < _LEAST_SIDE:
        return None
    if len(sides) == 1:
        return lambda grey: np.repeat(np.asarray(grey)[..., None], 3, -1)
    if last == 3:
        return np.asarray
    if last == 1:
        return lambda grey: np.repeat(np.asarray(grey), 3, -1)
    if sides[0] in (1, 3):
        return lambda planes: np.ascontiguousarray(
            np.broadcast_to(
                np.moveaxis(np.asarray(planes), -3, -1), (*planes.shape[:-3], *space.shape[1:], 3)
            )
        )
    return None


def vector_size(space: spaces.Space[Any]) -> int | None:
    """How many numbers observations of a space are once flattened, None where the policy had better see a picture.

    Args:
      space: any of Gymnasium's. Dicts and tuples are laid end to end, one of n becomes n numbers of which one is 1
        (`gymnasium.spaces.utils.flatten`). Spaces without a fixed size and those of more than
        `MAX_OBSERVATION` numbers, such as stacks of pictures, are none.
    """
    if to_picture(space) is not None or not space.is_np_flattenable:
        return None
    size = int(spaces.utils.flatdim(space))
    return size if 1 <= size <= MAX_OBSERVATION else None


def observation_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """What a policy sees where observations are of a space: (D,), or `PICTURE_SHAPE`; see `vector_size`."""
    size = vector_size(space)
    return PICTURE_SHAPE if size is None else (size,)


class ActionAdapter:
    """What actions of an environment look like in the rest of the house: numbers from 0, or vectors in −1 … 1.

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
                f"{name} cannot serve: expected one of n actions (Discrete) or floating-point numbers within bounds "
                f"(Box), got {_brief(space)}; "
                + (_AGENTS if several else "wrap it in a gymnasium.ActionWrapper that takes one of these")
            )
        if not 1 <= self.count <= MAX_ACTIONS:
            raise UserError(
                f"{name} cannot serve: expected 1 to {MAX_ACTIONS} {what}, got {self.count}; wrap it in a "
                f"gymnasium.ActionWrapper that takes as many"
            )
        if not isinstance(space, spaces.Box):
            return
        self._low, self._high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            spans = self._high - self._low
        if not np.isfinite(spans).all():
            raise UserError(
                f"{name} cannot serve: expected numbers with a least and a largest value each, a finite distance "
                f"apart, got {_brief(space)} from {self._low.min():g} to {self._high.max():g}; wrap it in a "
                f"gymnasium.ActionWrapper that bounds them"
            )
        self._spans = np.where(spans > 0, spans, 1.0)

    def from_env(self, actions: Any, num_envs: int) -> np.ndarray:
        """The environments' own actions, one or B of them, as int64 [B] from 0 or float32 [B, A] in −1 … 1."""
        if isinstance(self._space, spaces.Discrete):
            return np.asarray(actions, np.int64).reshape(num_envs) - int(self._space.start)
        assert isinstance(self._space, spaces.Box)
        each = np.asarray(actions, np.float64).reshape(num_envs, *self._space.shape)
        shares = bounded_actions((each - self._low) / self._spans * 2 - 1, True)
        return shares.astype(np.float32).reshape(num_envs, self.count)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """The other way: B actions as the environments take them."""
        if isinstance(self._space, spaces.Discrete):
            return actions + int(self._space.start)
        assert isinstance(self._space, spaces.Box)
        shares = (bounded_actions(actions, True).reshape(-1, *self._space.shape) + 1) / 2
        each = (self._low + shares * self._spans).clip(self._low, self._high)
        return np.asarray(each.astype(self._space.dtype))


class _PictureCheck:
    """Passes on what an environment gives for pictures if they are such, and all of one size.

    Args:
      source: what gives them.
      name: what the environment is called.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self._shape: tuple[int, ...] | None = None  # of the first

    def __call__(self, given: Any) -> np.ndarray:
        """A picture as uint8 [H, W, 3].

        Raises:
          UserError: it is none, or of another size than the first.
        """
        try:
            picture = np.asarray(given)
        except ValueError:
            picture, got = np.empty(0), f"a {type(given).__name__} of unequal parts"
        else:
            got = "None" if given is None else f"{picture.dtype} {list(picture.shape)}"
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
            raise UserError(f"{self._source} of {self._name}: expected pictures, uint8 [H, W, 3], got {got}")
        self._shape = self._shape or picture.shape
        if picture.shape != self._shape:
            first, now = (f"{height}×{width}" for height, width, _ in (self._shape, picture.shape))
            raise UserError(
                f"{self._source} of {self._name}: expected every picture to be of {first} pixels as the first was, "
                f"got {now}; resize them to one size"
            )
        return picture


class EnvAdapter:
    """What wrappers see of B environments, single or vector, in the form in which the rest of the house takes it.

    Attributes:
      env_id: what the environments are called.
      num_envs: B.
      spec: what they show and take; the shape of frames is known from the first frame on and not kept.
      action_names: what the environments call their actions; [] where they do not say.

    Args:
      env: with discrete or bounded actions.
      frame_fn: from one environment's observation to the frame, uint8 [H, W, 3]. None takes the observation where
        it is a picture, else `env.render()`.
      many: whether it has to be a vector.

    Raises:
      UserError: it is no environment of that kind, or its actions cannot serve.
    """

    def __init__(
        self,
        env: Environment | VectorEnvironment,
        frame_fn: Callable[[Any], np.ndarray] | None,
        many: bool = False,
    ) -> None:
        _check_kind(env, many)
        self.env_id = env_name(env)
        self._many: spaces.Space[Any] | None = None  # observations of all, where they come together
        self.num_envs, single = 1, ""
        if isinstance(env, gymnasium.vector.VectorEnv):
            self._many, self.num_envs, single = env.observation_space, env.num_envs, "single_"
        self._space = _space(env, f"{single}observation_space", self.env_id)
        self._actions = ActionAdapter(_space(env, f"{single}action_space", self.env_id), self.env_id)
        self.spec = Spec(self._actions.count, self._actions.continuous, observation_shape(self._space))
        self.action_names = action_names(env)
        self._env, self._frame_fn, self._shown = env, frame_fn, to_picture(self._space)
        source = "the observation" if self._shown is not None else "render()"
        self._check = _PictureCheck(source if frame_fn is None else "frame_fn", self.env_id)

    def check_picture(self) -> None:
        """Refuses an environment of which nothing can be shown.

        Raises:
          UserError: there is no frame_fn, observations are no pictures and the environment was not made with
            render_mode="rgb_array".
        """
        if self._frame_fn is None and self._shown is None and self._env.render_mode != "rgb_array":
            raise UserError(
                f"{self.env_id} shows no picture: its observation is {_brief(self._space)} and its render mode "
                f"{self._env.render_mode}; make it with render_mode='rgb_array', or pass frame_fn"
            )

    def frames(self, observations: Any) -> np.ndarray:
        """What a person sees now.

        Args:
          observations: the newest ones, as the environment gave them.

        Returns:
          uint8 [B, H, W, 3], see `larger`; valid until the next step.

        Raises:
          UserError: there is no picture, or it is of another size than the first.
        """
        if self._frame_fn is not None:
            pictures: Any = [self._frame_fn(each) for each in self._apart(observations)]
        elif self._shown is not None:
            frames = self._shown(observations if self._many is not None else np.asarray(observations)[None])
            self._check(frames[0])  # the others are in the same array
            return larger(frames)
        else:
            self.check_picture()
            pictures = self._env.render()
            pictures = pictures if self._many is not None else [pictures]
        return larger(np.stack([self._check(each) for each in pictures]))

    def vectors(self, observations: Any) -> np.ndarray | None:
        """What a policy sees now, float32 [B, D], a copy; None where that is a picture.

        Raises:
          UserError: it is not finite.
        """
        if self.spec.observation_size is None:
            return None
        return vectors(self._space, self._apart(observations), self.env_id)

    def actions(self, actions: Any) -> np.ndarray:
        """The environments' own actions, one or B of them, as int64 [B] from 0 or float32 [B, A] in −1 … 1."""
        return self._actions.from_env(actions, self.num_envs)

    def _apart(self, observations: Any) -> Iterable[Any]:
        return [observations] if self._many is None else iterate(self._many, observations)


def vectors(space: spaces.Space[Any], observations: Iterable[Any], name: str) -> np.ndarray:
    """Observations laid out flat.

    Args:
      space: of each.
      observations: B of them.
      name: what their environment is called.

    Returns:
      float32 [B, D]; see `vector_size`.

    Raises:
      UserError: they are not finite.
    """
    if not isinstance(space, spaces.Box):
        observations = [spaces.utils.flatten(space, each) for each in observations]
    elif not isinstance(observations, np.ndarray):
        observations = list(observations)
    flat = np.array(observations, np.float32)
    flat = flat.reshape(len(flat), -1)
    if not np.isfinite(flat).all():
        raise UserError(f"{name} went wrong: expected observations of finite numbers, got others")
    return flat


class GymWorld:
    """B copies of a Gymnasium environment as a `lib.envs.world.World`.

    The frame is the observation where that is a picture (`to_picture`), else what `render()` draws, when somebody looks
    at it. The policy sees the picture too where the observation is one, or is nothing that fits into a vector
    (`vector_size`); else the flattened observation. Frames are of 43 to 400 pixels a side, as far as a whole factor
    makes them so (`smaller`, `larger`). `terminal` is the environment's own `terminated`; lives are not looked
    at. Where neither `gymnasium.register` nor the caller sets a limit, games are cut off after `TIME_LIMIT` steps. Atari games are better served by `AtariWorld`, which skips frames and is faster.

    Args:
      env_id: as `gymnasium.make` takes it; `module:Name-v0` imports the module first.
      num_envs: B.
      vectorization_mode: "sync" steps the copies in turn; "async" gives each a process, which pays where a
        step takes much longer than handing a frame over (about 0.1 ms). There, frames are drawn at every step.
      **env_kwargs: handed to each environment.

    Raises:
      UserError: the id is unknown, its packages are missing, or the environment has no picture, or neither discrete
        nor bounded actions.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        vectorization_mode: Literal["sync", "async"] = "sync",
        **env_kwargs: Any,
    ) -> None:
        _draw_into_memory()
        with _make(env_id, env_kwargs) as probe:
            name = env_name(probe)
            self._space = _space(probe, "observation_space", name)
            self._form = ActionAdapter(_space(probe, "action_space", name), name)
            self.num_actions, self.continuous = self._form.count, self._form.continuous
            self._picture = to_picture(self._space)
            modes = probe.metadata.get("render_modes", [])
            if self._picture is None and "rgb_array" not in modes:
                raise UserError(
                    f"{env_id} cannot serve: expected a picture, got observations of {_brief(self._space)} "
                    f"and render modes {modes} without 'rgb_array'"
                )
            self.action_names = action_names(probe) or [str(action) for action in range(self.num_actions)]
            if probe.spec is None or probe.spec.max_episode_steps is None:
                env_kwargs = {"max_episode_steps": TIME_LIMIT, **env_kwargs}
        self._check = _PictureCheck("render()", env_id)
        if self._picture is None:
            env_kwargs = {**env_kwargs, "render_mode": "rgb_array"}
            with _make(env_id, env_kwargs) as probe:
                first = self._drawing(_drawn(env_id, probe))
        else:
            first = larger(self._picture(np.zeros(self._space.shape or (), np.uint8)))
        height, width, _ = first.shape
        self.frame_shape = (height, width, 3)
        self.env_id = env_id
        self.num_envs = num_envs
        shape = observation_shape(self._space)
        self.spec = Spec(self.num_actions, self.continuous, shape, self.frame_shape)
        self.observation_size = self.spec.observation_size
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
        self._actions: np.ndarray = np.zeros(num_envs, np.int64)
        self._frames_now: LazyFrames | None = None

    def reset(self, seed: int) -> Step:
        """Start a new game in every environment. See `World.reset`."""
        # Spread, so that the worlds of seeds 0 and 1 do not share all but one of their games.
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1
        observations, _ = self._envs.reset(seed=[int(each) for each in seeds])  # type: ignore[arg-type]  # a list will do
        self._ended = np.zeros(self.num_envs, bool)
        off = np.zeros(self.num_envs, bool)
        score = np.zeros(self.num_envs, np.float32)
        return Step(self._frames(observations), score, off, off, ~off, self._vectors(observations))

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next actions. See `World.send`."""
        actions = self._form.to_env(actions)
        if isinstance(self._envs, gymnasium.vector.AsyncVectorEnv):
            self._envs.step_async(actions)
        else:
            self._actions = actions

    def recv(self) -> Step:
        """Wait for the outcome of the actions sent last. See `World.recv`."""
        if isinstance(self._envs, gymnasium.vector.AsyncVectorEnv):
            observations, score, terminated, truncated, _ = self._envs.step_wait()
        else:
            observations, score, terminated, truncated, _ = self._envs.step(self._actions)
        if not np.isfinite(score).all():
            raise UserError(f"{self.env_id} went wrong: expected scores of finite numbers, got others")
        reset = self._ended
        self._ended = terminated | truncated
        # Some environments report both at the limit; a game that ended by itself needs no bootstrap.
        return Step(
            self._frames(observations),
            score.astype(np.float32),
            terminated.copy(),
            truncated & ~terminated,
            reset,
            self._vectors(observations),
        )

    def close(self) -> None:
        """Close the environments. See `World.close`."""
        if not self._envs.closed:
            self._envs.close()

    def _frames(self, observations: Any) -> np.ndarray:
        if self._picture is not None:
            return larger(self._picture(observations))
        envs = self._envs
        if isinstance(envs, gymnasium.vector.SyncVectorEnv):
            if self._frames_now is not None:
                self._frames_now.expired = True
            self._frames_now = LazyFrames(
                lambda env: self._drawing(envs.envs[env].render()), (self.num_envs, *self.frame_shape)
            )
            return cast(np.ndarray, self._frames_now)
        pictures = envs.render()
        assert pictures is not None
        return np.stack([self._drawing(picture) for picture in pictures])

    def _drawing(self, given: Any) -> np.ndarray:
        """What `render()` gave as a frame."""
        return larger(smaller(self._check(given)))

    def _vectors(self, observations: Any) -> np.ndarray | None:
        """float32 [B, D], a copy; None where the policy sees pictures."""
        if self.observation_size is None:
            return None
        if isinstance(self._space, spaces.Box):
            return vectors(self._space, observations, self.env_id)
        return vectors(self._space, iterate(self._envs.observation_space, observations), self.env_id)


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
    except (Exception, SystemExit) as error:
        # Of Gymnasium, of a missing package, or of somebody else's environment.
        mend = f"; {_AGENTS}" if "inherit from the gymnasium.Env" in str(error) else ""
        raise UserError(f"environment {env_id!r} cannot be made: {_reason(error)}{mend}") from error


def _draw_into_memory() -> None:
    """Tells SDL (classic control) and MuJoCo to draw without a screen; what the user has set holds."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # which else complains
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def smaller(picture: np.ndarray) -> np.ndarray:
    """A drawn picture, uint8 [H, W, 3], with both sides cut to a half, a third, … where one is beyond 400 pixels.

    Windows of classic control are made for screens; clips of them would fill the disk with empty background.
    """
    height, width, _ = picture.shape
    every = -(-max(height, width) // _LARGEST_SIDE)
    if every == 1:
        return picture
    sides = (max(1, width // every), max(1, height // every))
    return np.asarray(cv2.resize(picture, sides, interpolation=cv2.INTER_AREA))


def larger(pictures: np.ndarray) -> np.ndarray:
    """Pictures, uint8 [..., H, W, 3], with both sides doubled, tripled, … where one is below 43 pixels.

    Reward models of frames can do with no less. Lines that would have to grow beyond 4,096 pixels stay as they are.
    """
    height, width = pictures.shape[-3:-1]
    times = -(-_LEAST_FRAME // min(height, width))
    if times == 1 or times * max(height, width) > _LARGEST_FRAME:
        return pictures
    return pictures.repeat(times, -3).repeat(times, -2)


def _drawn(env_id: str, env: Environment) -> Any:
    """The first thing that an environment draws."""
    try:
        env.reset(seed=0)
        return env.render()
    except (Exception, SystemExit) as error:
        # Without a display, each library that draws fails in its own way.
        raise UserError(f"environment {env_id!r} cannot draw itself: {_reason(error)}") from error


def _check_kind(env: Any, many: bool) -> None:
    """Refuses what is no environment of Gymnasium, single or `many`."""
    kinds = (gymnasium.Env, gymnasium.vector.VectorEnv)
    if isinstance(env, kinds[many]):
        return
    mend = f"wrap those of another library's vector one by one; {_AGENTS}"
    if isinstance(env, kinds):
        mend = "take PreferenceEnv for it" if many else "take PreferenceVectorEnv for it"
    expected = "gymnasium.vector.VectorEnv" if many else "gymnasium.Env"
    raise UserError(f"expected a {expected}, got {type(env).__name__}; {mend}")


def _space(env: Environment | VectorEnvironment, which: str, name: str) -> spaces.Space[Any]:
    """An environment's space of observations or actions."""
    space = getattr(env, which, None)
    if not isinstance(space, spaces.Space):
        raise UserError(
            f"{name} cannot serve: expected its {which} to be one of gymnasium.spaces, got {type(space).__name__}; "
            f"set it in __init__"
        )
    return space


def _reason(error: BaseException) -> str:
    """What somebody else's code said when it failed."""
    said = one_line(str(error)).rstrip(".")
    return said if said and isinstance(error, Exception) else f"{type(error).__name__} {said}".strip()


def _brief(space: spaces.Space[Any]) -> str:
    """A space in a few words: a Box prints every bound it has."""
    if isinstance(space, spaces.Box):
        return f"Box {space.dtype} {list(space.shape)}"
    return one_line(str(space))
