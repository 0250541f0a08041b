"""What the policy sees: the last four frames in grey, area-resized to 84×84 (Mnih et al. 2015).

The recorder, the reward model and this module share one source of colour frames. On a CPU the batch is one tall picture,
which OpenCV greys and resizes in two calls; on a GPU the same arithmetic is two matrix products. Both agree with
`ptan.common.wrappers.wrap_dqn` to one grey level.
"""

import cv2
import numpy as np
import torch

from lib.envs.spec import PICTURE_SHAPE
from lib.envs.world import Step, World

STACK, SIZE, _ = PICTURE_SHAPE
"""The steps that an observation spans, and its height and width in pixels."""

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what cv2.COLOR_RGB2GRAY uses
_MAX_ROWS = 32_000  # OpenCV indexes rows with 16 bits in places; taller batches go in parts


def grey_resize_cpu(frames: np.ndarray) -> np.ndarray:
    """Greys and area-resizes a batch with OpenCV.

    Args:
      frames: uint8 `[B, H, W, 3]`, RGB, C-contiguous.

    Returns:
      uint8 `[B, 84, 84]`.
    """
    batch, height, width, _ = frames.shape
    if height < SIZE or width < SIZE:
        # Enlarging interpolates between rows, which must not mix neighbours in the tall picture.
        return np.stack([_grey_resize_small(frame) for frame in frames])
    per_part = max(1, _MAX_ROWS // height)
    parts = [
        _grey_resize_picture(frames[i : i + per_part].reshape(-1, width, 3), min(per_part, batch - i))
        for i in range(0, batch, per_part)
    ]
    tall = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return tall.reshape(batch, SIZE, SIZE)


def _grey_resize_picture(picture: np.ndarray, count: int) -> np.ndarray:
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.resize(grey, (SIZE, count * SIZE), interpolation=cv2.INTER_AREA))


def _grey_resize_small(picture: np.ndarray) -> np.ndarray:
    # One side at a time: where either grows, OpenCV samples the other rather than averaging over it.
    grey = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    rows = cv2.resize(grey.astype(np.float32), (picture.shape[1], SIZE), interpolation=cv2.INTER_AREA)
    return np.rint(cv2.resize(rows, (SIZE, SIZE), interpolation=cv2.INTER_AREA)).astype(np.uint8)


def area_weights(source: int, target: int = SIZE) -> torch.Tensor:
    """Weights of area resampling along one axis: what share of each source cell a target cell averages.

    Args:
      source: length of the axis before.
      target: length of the axis after.

    Returns:
      float32 `[target, source]`; rows sum to 1.
    """
    scale = source / target
    starts = torch.arange(target, dtype=torch.float64).unsqueeze(1) * scale
    cells = torch.arange(source, dtype=torch.float64).unsqueeze(0)
    overlap = torch.minimum(cells + 1, starts + scale) - torch.maximum(cells, starts)
    return (overlap.clamp(min=0) / scale).float()


def grey_resize_torch(frames: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """`grey_resize_cpu` as matrix products, for any device.

    Args:
      frames: uint8 `[B, H, W, 3]`.
      rows: float32 `[84, H]`, from `area_weights(H)`.
      columns: float32 `[84, W]`, from `area_weights(W)`.

    Returns:
      uint8 `[B, 84, 84]`.
    """
    red, green, blue = (weight * channel for weight, channel in zip(_LUMA, frames.unbind(-1), strict=True))
    grey = (red + green + blue).round()
    with torch.autocast(frames.device.type, enabled=False):  # bf16 cannot tell the greys above 128 apart
        return (rows @ grey @ columns.T).round().to(torch.uint8)


def stacked_clip(grey: np.ndarray) -> np.ndarray:
    """The observations along consecutive steps of one game.

    The clip's first frame replaces the three before it, which are not known.

    Args:
      grey: uint8 `[T, 84, 84]`, as `grey_resize_cpu` makes them.

    Returns:
      uint8 `[T, 4, 84, 84]`, oldest frame first.
    """
    before = np.arange(len(grey))[:, None] + np.arange(1 - STACK, 1)
    return grey[before.clip(min=0)]


class Observer:
    """Turns the frames of a batch of environments into stacked observations, on one device."""

    def __init__(self, num_envs: int, frame_shape: tuple[int, int, int], device: torch.device) -> None:
        self._stack = torch.zeros(num_envs, *PICTURE_SHAPE, dtype=torch.uint8, device=device)
        self._on_cpu = device.type == "cpu"
        if not self._on_cpu:
            self._rows = area_weights(frame_shape[0]).to(device)
            self._columns = area_weights(frame_shape[1]).to(device)

    def push(
        self, frames: torch.Tensor, reset: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Adds the newest frame of every environment.

        Args:
          frames: uint8 `[B, H, W, 3]` on the observer's device.
          reset: bool `[B]`: where a new game begins, the earlier three frames become black, as in `wrap_dqn`.
          out: uint8 `[B, 4, 84, 84]`, where the observations are to lie; the caller leaves them as they are until the
            next call. None for the same place as before.

        Returns:
          uint8 `[B, 4, 84, 84]`, oldest frame first: `out`. Without that, the tensor is overwritten by the next call.
        """
        before, stack = self._stack[:, 1:], self._stack if out is None else out
        stack[:, :-1] = before.clone() if stack.data_ptr() == self._stack.data_ptr() else before
        self._stack = stack
        if self._on_cpu:
            if reset.any():
                stack[reset] = 0
            stack[:, -1] = torch.from_numpy(grey_resize_cpu(frames.numpy()))
        else:
            # Indexing by a mask would make the host wait for the device.
            stack.masked_fill_(reset[:, None, None, None], 0)
            stack[:, -1] = grey_resize_torch(frames, self._rows, self._columns)
        return stack

    def take(self, sources: np.ndarray) -> torch.Tensor:
        """Environment i continues from what environment `sources[i]` has shown, int64 `[B]`; returns as `push`."""
        self._stack[:] = self._stack[torch.from_numpy(sources).to(self._stack.device)]
        return self._stack


class Viewer:
    """What networks see of a world's steps, on one device: the policy's observations, and frames where they are asked for.

    Attributes:
      shape, dtype: of the observations.
      observations: what `look` returned last.
    """

    observations: torch.Tensor

    def __init__(self, world: World, device: torch.device) -> None:
        self._device = device
        self._observer: Observer | None = None
        self._frames: torch.Tensor | None = None
        self._pinned: torch.Tensor | None = None
        shape, frame_shape = world.spec.observation_shape, world.spec.frame_shape
        assert shape is not None
        assert frame_shape is not None
        self.shape, self.dtype = (world.num_envs, *shape), torch.float32
        if shape == PICTURE_SHAPE:
            self._observer, self.dtype = Observer(world.num_envs, frame_shape, device), torch.uint8

    def look(self, step: Step, out: torch.Tensor | None = None) -> torch.Tensor:
        """The observations of the newest step of every environment.

        Args:
          step: what the world said.
          out: where they are to lie, and to stay as they are until the next call; None for anywhere.

        Returns:
          uint8 `[B, 4, 84, 84]` or float32 `[B, D]`. Without `out` the next call may overwrite the tensor.
        """
        self._step, self._frames = step, None
        if step.observations is not None:
            seen = torch.from_numpy(step.observations)
            self.observations = seen.to(self._device, non_blocking=True) if out is None else out.copy_(seen)
        else:
            assert self._observer is not None
            reset = torch.from_numpy(step.reset).to(self._device, non_blocking=True)
            self.observations = self._observer.push(self.frames(), reset, out)
        return self.observations

    def take(self, step: Step, sources: np.ndarray) -> torch.Tensor:
        """The observations where environment i continues from what environment `sources[i]` has shown, int64 `[B]`.

        Args:
          step: what the world has shown since; it shows pictures.
          sources: see above.

        Returns:
          uint8 `[B, 4, 84, 84]`, as `look`.
        """
        assert self._observer is not None
        self._step, self._frames = step, None
        self.observations = self._observer.take(sources)
        return self.observations

    def frames(self) -> torch.Tensor:
        """The frames of the newest step, uint8 `[B, H, W, 3]`; a world that draws them does so now."""
        if self._frames is None:
            frames = torch.from_numpy(np.asarray(self._step.frames))
            if self._device.type == "cuda":
                # Copying from pinned memory does not wait. It has ended before that memory is written again, because the
                # actions that were chosen on these frames have been copied back by then.
                if self._pinned is None:
                    self._pinned = torch.empty_like(frames, pin_memory=True)
                frames = self._pinned.copy_(frames)
            self._frames = frames.to(self._device, non_blocking=True)
        return self._frames
