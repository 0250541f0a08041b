"""What a person sees of a Gymnasium environment: pictures made RGB, checked, and of a size that can be used."""

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from gymnasium import spaces

from lib.envs.world import WorldFailed

_LEAST_SIDE, _LARGEST_SIDE = 16, 400  # pixels of a picture
_LEAST_FRAME = 43  # pixels a side that a reward model of frames needs
_LARGEST_FRAME = 4096  # as a segment can hold


def to_picture(space: spaces.Space[Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """How to make a picture for people from an observation.

    Args:
      space: of the observations. Pictures are uint8 of 16 pixels a side or more: RGB [H, W, 3] or [3, H, W], or grey
        [H, W], [H, W, 1] or [1, H, W]. Smaller ones are boards or symbols.

    Returns:
      A function from one observation or a batch to RGB [..., H, W, 3]; None where observations are no pictures.
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or not 2 <= len(space.shape) <= 3:
        return None
    flat = len(space.shape) == 2
    shape = (*space.shape, 1) if flat else space.shape
    planes = shape[2] not in (1, 3)  # channels first
    channels, sides = (shape[0], shape[1:]) if planes else (shape[2], shape[:2])
    if channels not in (1, 3) or min(sides) < _LEAST_SIDE:
        return None

    def convert(observations: np.ndarray) -> np.ndarray:
        pictures = np.asarray(observations)
        if flat:
            pictures = pictures[..., None]
        elif planes:
            pictures = np.ascontiguousarray(np.moveaxis(pictures, -3, -1))
        return pictures if channels == 3 else pictures.repeat(3, -1)

    return convert


class PictureCheck:
    """Passes on what an environment draws if it is a picture of the same size as the first.

    Args:
      source: what draws, for the error.
      name: what the environment is called.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self._shape: tuple[int, ...] | None = None  # of the first

    def __call__(self, given: Any) -> np.ndarray:
        """The picture, uint8 [H, W, 3].

        Raises:
          WorldFailed: it is not a picture, or not of the first one's size.
        """
        try:
            picture = np.asarray(given)
        except ValueError:
            picture, got = np.empty(0), f"a {type(given).__name__} of unequal parts"
        else:
            got = "None" if given is None else f"{picture.dtype} {list(picture.shape)}"
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
            raise WorldFailed(
                f"{self._source} of {self._name}: expected pictures, uint8 [H, W, 3], got {got}"
            )
        self._shape = self._shape or picture.shape
        if picture.shape != self._shape:
            first, now = (f"{height}×{width}" for height, width, _ in (self._shape, picture.shape))
            raise WorldFailed(
                f"{self._source} of {self._name}: expected every picture to be of {first} pixels as the first was, "
                f"got {now}; resize them to one size"
            )
        return picture


def smaller(picture: np.ndarray) -> np.ndarray:
    """A picture, uint8 [H, W, 3], with both sides cut to a half, a third, … where one exceeds 400 pixels.

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

    Reward models of frames need as many. Narrow pictures that would grow beyond 4,096 pixels stay as they are.
    """
    height, width = pictures.shape[-3:-1]
    times = -(-_LEAST_FRAME // min(height, width))
    if times == 1 or times * max(height, width) > _LARGEST_FRAME:
        return pictures
    return pictures.repeat(times, -3).repeat(times, -2)
