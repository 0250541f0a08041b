"""What an environment shows and takes, and what differs between two."""

from dataclasses import dataclass

PICTURE_SHAPE = (4, 84, 84)
"""Observations of Atari games and other environments without a vector: the last four frames, grey, 84×84."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What an environment shows and takes, or what a clip, a policy or a reward model expects from one.

    Attributes:
      num_actions: A, how many actions there are; where they are continuous, how many numbers one action is.
      continuous: whether an action is A numbers, each from −1 to 1.
      observation_shape: what the policy sees, `PICTURE_SHAPE` or (D,); None where it does not matter.
      frame_shape: (H, W, 3), what a person sees; None if it does not matter.
    """

    num_actions: int
    continuous: bool = False
    observation_shape: tuple[int, ...] | None = PICTURE_SHAPE
    frame_shape: tuple[int, int, int] | None = None

    @property
    def observation_size(self) -> int | None:
        """D of vector observations; None for pictures."""
        return (
            self.observation_shape[0] if self.observation_shape and len(self.observation_shape) == 1 else None
        )

    def difference(self, other: "Spec") -> tuple[str, str] | None:
        """The first thing that differs, as each side has it, such as ("18 actions", "6 actions").

        Returns:
          None if the two fit together; a field that does not matter to one of them always fits.
        """
        if (self.num_actions, self.continuous) != (other.num_actions, other.continuous):
            return _actions(self), _actions(other)
        mine, theirs = self.observation_shape, other.observation_shape
        if mine is not None and theirs is not None and mine != theirs:
            return _observation(mine), _observation(theirs)
        if (
            self.frame_shape is not None
            and other.frame_shape is not None
            and self.frame_shape != other.frame_shape
        ):
            return _frames(self.frame_shape), _frames(other.frame_shape)
        return None


def _actions(spec: Spec) -> str:
    return f"actions of {spec.num_actions} numbers" if spec.continuous else f"{spec.num_actions} actions"


def _observation(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"observations of {shape[0]} numbers"
    return "observations that are pictures" + ("" if shape == PICTURE_SHAPE else f" of the shape {shape}")


def _frames(shape: tuple[int, int, int]) -> str:
    return f"frames of {shape[0]}×{shape[1]} pixels"
