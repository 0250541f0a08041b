"""What every world says to the rest of the house: batches of frames, scores and flags as NumPy arrays."""

from typing import NamedTuple, Protocol

import numpy as np

STEPS_PER_SECOND = 15
"""An Atari game's own pace: 60 emulator frames a second, 4 to a step."""


class Step(NamedTuple):
    """What a world says after a reset or after a step of its B environments.

    `frames` are the frames the *next* actions are chosen on; every other field is about the transition that led to
    them. After `World.reset` there was no transition: scores are 0, `terminal` and `truncated` False, `reset` True.

    A game that ends does so over two steps (next-step autoreset). The step that ends it has `terminal` or
    `truncated` set and shows the last frame of the old game. In the step after it `reset` is set: the action sent
    was ignored, the score is 0 and the frame is the first of the new game. So a `terminal` whose next step has
    `reset` was a game over, one whose next step has not was a lost life, and a transition with `reset` must be left
    out of losses and segments.
    """

    frames: np.ndarray
    """uint8 [B, H, W, 3]: what a person sees now."""
    score: np.ndarray
    """float32 [B]: the game's own reward of the transition, unclipped."""
    terminal: np.ndarray
    """bool [B]: a life was lost or the game is over; the return is not bootstrapped across it."""
    truncated: np.ndarray
    """bool [B]: the time limit ended the game; the return is bootstrapped from this frame, then cut."""
    reset: np.ndarray
    """bool [B]: the transition's action was ignored; this is the first frame of a new game."""


class World(Protocol):
    """A batch of B environments stepped together. `send` then `recv`: other work may go on between the two."""

    env_id: str
    num_envs: int
    num_actions: int
    frame_shape: tuple[int, int, int]
    action_names: list[str]

    def reset(self, seed: int) -> Step:
        """Start a new game in every environment; equal seeds give equal games.

        Args:
            seed: environment i is seeded from this and i, so that no two play the same game.

        Returns:
            The first frames; `reset` is set everywhere.
        """
        ...

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next actions without waiting for their outcome.

        Args:
            actions: int64 [B], each in 0 .. num_actions − 1.
        """
        ...

    def recv(self) -> Step:
        """Wait for the outcome of the actions sent last.

        Returns:
            The step. Its arrays stay valid and unchanged until the next `recv` or `reset` and no longer: copy what
            must outlive it.
        """
        ...

    def close(self) -> None:
        """Free the emulators. Calling it again does nothing."""
        ...
