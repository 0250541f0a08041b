"""The interface of every world: batches of frames, scores and flags as NumPy arrays."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from lib.cli import UserError
from lib.envs.spec import Spec

if TYPE_CHECKING:
    import torch

Actions = TypeVar("Actions", np.ndarray, "torch.Tensor")

STEPS_PER_SECOND = 15
"""An Atari game's own pace: 60 emulator frames a second, 4 a step."""

TIME_LIMIT = 5000
"""Steps after which a game is truncated (not terminated) if nothing else sets a limit."""

MAX_ACTIONS = 1024
MAX_OBSERVATION = 4096  # numbers that a policy sees; of what has more it sees the picture


class WorldFailed(UserError):
    """An environment's own code raised something, or gave what does not fit its spaces."""


class Step(NamedTuple):
    """The result of a reset or a step in a world of B environments.

    `frames` are the frames the *next* actions are chosen on; every other field is about the transition that led to
    them. After `World.reset` there was no transition: scores are 0, `terminal` and `truncated` False, `reset` True.

    A game ends over two steps (next-step autoreset). The step that ends it sets `terminal` or `truncated` and shows the
    last frame of the old game. The next step sets `reset`: it ignored the action, its score is 0 and its frame is the
    first of the new game. So `terminal` means game over where the next step sets `reset`, else a lost life.
    Transitions with `reset` must be left out of losses and clips.
    """

    frames: np.ndarray
    """uint8 [B, H, W, 3]: what a person sees now. A world that has to draw them hands out `LazyFrames`, which draw on
    access: `frames[env]` one, `np.asarray(frames)` all."""
    score: np.ndarray
    """float32 [B]: the game's own reward of the transition, unclipped."""
    terminal: np.ndarray
    """bool [B]: a life was lost or the game is over; the return is not bootstrapped across it."""
    truncated: np.ndarray
    """bool [B]: the time limit ended the game; the return is bootstrapped from this frame, then cut."""
    reset: np.ndarray
    """bool [B]: the transition's action was ignored; this is the first frame of a new game."""
    observations: np.ndarray | None = None
    """What the policy sees now, float32 [B, D] or uint8 [B, 4, 84, 84]; None where it is made from the frames."""


class LazyFrames:
    """Frames of B environments, each drawn on first access, which must come before the next step.

    Drawing often takes longer than the rest of the step, and most frames are never needed.

    Args:
      draw: the frame of an environment as it is now, uint8 [H, W, 3].
      shape: (B, H, W, 3).

    Attributes:
      expired: whether the environments have moved on; asking for a frame that was not drawn is an error then.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, draw: Callable[[int], np.ndarray], shape: tuple[int, int, int, int]) -> None:
        self.shape, self.expired = shape, False
        self._draw = draw
        self._drawn: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Any) -> np.ndarray:
        if not isinstance(at, int):
            part: np.ndarray = np.asarray(self)[at]
            return part
        if at not in self._drawn:
            if self.expired:
                raise RuntimeError("a frame was asked for after the step that followed it")
            self._drawn[at] = self._draw(at)
        return self._drawn[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.stack([self[env] for env in range(len(self))])


def bounded_actions(actions: Actions, continuous: bool) -> Actions:
    """Actions as an environment takes them: continuous ones clipped to their bounds, others as they are.

    Recorders and reward models get these, so that nothing beyond the bounds is paid for. A policy learns from the actions
    it drew.

    Args:
      actions: int64 [...] or float32 [..., A], an array or a tensor.
      continuous: which of the two.

    Returns:
      The same type and shape.
    """
    return actions.clip(-1, 1) if continuous else actions


class World(Protocol):
    """A batch of B environments stepped together: `send`, then `recv`, with other work in between.

    Attributes:
      spec: what the environments show and take. Where the observation is a picture, `Observer` makes it from the frames.
        In a continuous action, −1 and 1 stand for the environment's own bounds.
      action_names: A of them.
    """

    env_id: str
    num_envs: int
    spec: Spec
    action_names: list[str]

    def reset(self, seed: int) -> Step:
        """Start a new game in every environment. Equal seeds give equal games.

        Args:
          seed: environment i is seeded from this and i, so that no two play the same game.

        Returns:
          The first frames; `reset` is set everywhere.
        """
        ...

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next actions; do not wait for their outcome.

        Args:
          actions: int64 [B], each in 0 .. num_actions − 1, or float32 [B, num_actions], clipped to ±1.
        """
        ...

    def recv(self) -> Step:
        """Wait for the outcome of the actions sent last.

        Returns:
          The step. Its arrays are valid and unchanged until the next `recv` or `reset`: copy what must outlive it.
        """
        ...

    def close(self) -> None:
        """Free the emulators. Calling it again does nothing."""
        ...
