"""The networks of reward models: r̂ of a frame or an observation, and an action."""

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lib.cli import UserError
from lib.envs.observation import SIZE, STACK
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.reward.masks import Mask

INPUTS = ("frame", "observation")
"""What a reward network may see: the colour frame and the action, or the policy's observation. Of observations, it sees
pictures without the action and vectors with it."""

_KERNELS = ((7, 3), (5, 2), (3, 1), (3, 1))
_FILTERS = 16
_ACTION_STD = 0.3  # of a hidden unit's input over the pictures, as well
_CLIP = 10.0  # standard deviations of a number in a vector


class RewardNet(nn.Module):
    """Four convolutions of 16 filters (7/3, 5/2, 3/1, 3/1), then the one-hot action joined, 64 units, 1.

    The network sees the colour frame and the action, as the original's did, or the policy's observation without the
    action, as that of Christiano et al. (section A.2). Vector observations need no convolutions: they are standardised
    and joined by the action, then follow two layers of 64 units, as in their MuJoCo networks (section A.1), and a linear
    function of both is added, which few labels determine.

    A continuous action is joined as its A numbers, a discrete one as a one-hot vector of A.

    Each convolution is followed by batch norm, dropout and leaky ReLU. Parameter names are those of the original
    experiment, whose checkpoints load unchanged. Masked pixels are always black to the network. Dropout, shifts and
    noise apply while fitting only, not in evaluation mode.

    Attributes:
      spec: what the network sees and which actions it takes. A part that it does not see is None: observations in a
        network of frames, frames in one of vectors.
      input: one of `INPUTS`.
      frame_shape: (H, W, 3) of the segments, looked at or not.
      masks: rectangles of the frame that are hidden.
      half_size: whether it looks at frames of half their height and width.
      linear: the linear part; None in networks of pictures.

    Args:
      frame_shape: (H, W, 3).
      num_actions: A.
      dropout: probability, in the hidden layers.
      masks: rectangles of the frame to hide.
      shift: pixels by which frames are moved at random, at most.
      noise: standard deviation, of pixels in 0 … 1 or of standardised vectors.
      input: one of `INPUTS`.
      continuous: whether an action is A numbers.
      observation_size: D of vector observations; None for pictures.
      half_size: whether a network of frames looks at `halved` ones, a quarter of the work.
      linear: False for a network of vectors without the linear part, as before 0.2.0.

    Raises:
      UserError: the picture is too small for the convolutions.
    """

    mean: torch.Tensor  # float32 [D], of vectors over the segments of the fit
    std: torch.Tensor  # float32 [D]

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        num_actions: int,
        dropout: float = 0.0,
        masks: Sequence[Mask] = (),
        shift: int = 0,
        noise: float = 0.0,
        input: str = "frame",
        continuous: bool = False,
        observation_size: int | None = None,
        half_size: bool = False,
        linear: bool = True,
    ) -> None:
        super().__init__()
        size = None if input == "frame" else observation_size
        if size is not None:
            self.spec = Spec(num_actions, continuous, (size,))
        else:
            self.spec = Spec(
                num_actions, continuous, None if input == "frame" else PICTURE_SHAPE, frame_shape
            )
        self.frame_shape, self.masks, self.input = frame_shape, tuple(masks), input
        self.half_size = half_size and input == "frame"
        self._shift, self._noise = shift, noise
        self._joins_action = input == "frame" or size is not None
        self.linear: nn.Linear | None = None
        if size is not None:
            self.register_buffer("mean", torch.zeros(size))
            self.register_buffer("std", torch.ones(size))
            last = nn.Linear(64, 1)
            self.out = nn.Sequential(
                _joining(size, num_actions),
                nn.Dropout(dropout),
                nn.LeakyReLU(),
                nn.Linear(64, 64),
                nn.Dropout(dropout),
                nn.LeakyReLU(),
                last,
            )
            _begin_near_zero(last)
            if linear:
                self.linear = nn.Linear(size + num_actions, 1)
                _begin_near_zero(self.linear)
            return
        if input == "frame":
            channels, sides, joined = frame_shape[2], frame_shape[:2], num_actions
            self._black = self.masks
            if self.half_size:
                sides = sides[0] // 2, sides[1] // 2
                self._black = tuple(halved_mask(mask) for mask in self.masks)
        else:
            channels, sides, joined = STACK, (SIZE, SIZE), 0
            self._black = tuple(observed_mask(mask, frame_shape) for mask in self.masks)
        layers: list[nn.Module] = []
        for kernel, stride in _KERNELS:
            layers += [
                nn.Conv2d(channels, _FILTERS, kernel, stride),
                nn.BatchNorm2d(_FILTERS),
                nn.Dropout(dropout),
                nn.LeakyReLU(inplace=True),
            ]
            channels = _FILTERS
        self.conv = nn.Sequential(*layers, nn.Flatten())
        last = nn.Linear(64, 1)
        self.out = nn.Sequential(_joining(conv_features(sides), joined), nn.LeakyReLU(), last)
        _begin_near_zero(last)

    def forward(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """r̂ of single steps, before standardisation.

        Args:
          inputs: frames uint8 `[N, H, W, 3]`, whole or `halved` for a network of half size, or observations uint8
            `[N, 4, 84, 84]` or float32 `[N, D]`, as `input` says.
          actions: int64 `[N]` or float32 `[N, A]`; a network of observed pictures ignores them.

        Returns:
          float32 `[N]`.
        """
        if self.spec.observation_size is not None:
            vectors = ((inputs - self.mean) / self.std).clamp(-_CLIP, _CLIP)
            if self.training and self._noise:
                vectors = vectors + self._noise * torch.randn_like(vectors)
            return self._head(vectors, actions)
        if self.half_size and inputs.shape[1:3] == self.frame_shape[:2]:
            inputs = halved(inputs)
        pictures = _as_arithmetic(inputs.permute(0, 3, 1, 2) if self.input == "frame" else inputs)
        for x, y, width, height in self._black:
            pictures[:, :, y : y + height, x : x + width] = 0
        if self.training and self._shift:  # after the masks, so nothing moves out from under one
            pictures = randomly_shifted(pictures, self._shift)
        if self.training and self._noise:
            pictures = pictures + 255 * self._noise * torch.randn_like(pictures)
        # Pixels count 0 … 1; dividing the first layer's few weights saves a pass over all pixels.
        first = self.conv[0]
        assert isinstance(first, nn.Conv2d)
        features = F.conv2d(pictures, first.weight / 255, first.bias, first.stride)
        return self._head(self.conv[1:](features), actions)

    def _head(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        if self._joins_action:
            joined = actions if self.spec.continuous else F.one_hot(actions, self.spec.num_actions)
            features = torch.cat([features, joined.to(features.dtype)], 1)
        found = self.out(features).float()
        if self.linear is not None:
            found = found + self.linear(features)
        return found.squeeze(-1)

    @torch.no_grad()
    def see_in(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        """Standardises vectors by another mean and standard deviation, float32 `[D]`, and computes the same of all within the clip."""
        shift, ratio = (mean - self.mean) / self.std, std / self.std
        for layer in (self.out[0], self.linear):
            if isinstance(layer, nn.Linear):
                of_vector = layer.weight[:, : len(mean)]
                layer.bias.add_(of_vector @ shift)
                of_vector.mul_(ratio)
        self.mean.copy_(mean)
        self.std.copy_(std)

    def for_paying(self) -> "RewardNet":
        """A copy that computes the same in evaluation mode, but faster: batch norms folded, no dropout."""
        fast = RewardNet(
            self.frame_shape,
            self.spec.num_actions,
            masks=self.masks,
            input=self.input,
            continuous=self.spec.continuous,
            observation_size=self.spec.observation_size,
            half_size=self.half_size,
            linear=self.linear is not None,
        )
        fast.load_state_dict(self.state_dict())
        fast.eval()
        if self.spec.observation_size is not None:
            return fast.requires_grad_(False)
        layers: list[nn.Module] = []
        for layer in fast.conv:
            if isinstance(layer, nn.BatchNorm2d):
                layers[-1] = fuse_conv_bn_eval(layers[-1], layer)  # type: ignore[type-var]
            elif not isinstance(layer, nn.Dropout):
                layers.append(layer)
        fast.conv = nn.Sequential(*layers)
        return fast.requires_grad_(False)


def _joining(features: int, actions: int) -> nn.Linear:
    """The layer that joins features and an action.

    One input among 9,000 would hardly count: an action begins with as much weight as all features together.
    """
    layer = nn.Linear(features + actions, 64)
    nn.init.normal_(layer.weight[:, features:], std=_ACTION_STD)
    return layer


def _begin_near_zero(last: nn.Linear) -> None:
    """Makes sums over a segment start near 0.

    A loss that allows for a teacher's errors would take a large difference of the wrong sign for such an error, and
    never learn the pair.
    """
    nn.init.normal_(last.weight, std=1e-3)
    nn.init.zeros_(last.bias)


def conv_features(shape: tuple[int, ...]) -> int:
    """Length of the convolutions' flattened output.

    Args:
      shape: of the picture; rows and columns come first.

    Raises:
      UserError: the picture is too small for them.
    """
    sides = []
    for side in shape[:2]:
        for kernel, stride in _KERNELS:
            side = (side - kernel) // stride + 1
        sides.append(side)
    if min(sides) < 1:
        raise UserError(f"frames of {shape[0]}×{shape[1]} pixels are too small: expected at least 43×43")
    return _FILTERS * sides[0] * sides[1]


def halved(frames: torch.Tensor) -> torch.Tensor:
    """Frames of half the height and width: means of 2×2 pixels, rounded half up; an odd last row or column is dropped.

    Args:
      frames: uint8 `[N, H, W, 3]`.

    Returns:
      uint8 `[N, H/2, W/2, 3]`.
    """
    if frames.device.type == "cpu":
        return torch.from_numpy(halved_cpu(frames.numpy()))
    _, height, width, _ = frames.shape
    even = frames[:, : height // 2 * 2, : width // 2 * 2]
    means = F.avg_pool2d(even.permute(0, 3, 1, 2).float(), 2)
    return (means + 0.5).to(torch.uint8).permute(0, 2, 3, 1)


def halved_cpu(frames: np.ndarray) -> np.ndarray:
    """The same of uint8 `[N, H, W, 3]` in an array."""
    count, height, width, channels = frames.shape
    # One tall picture: its rows are even in number for each frame, so no block lies in two of them.
    tall = frames[:, : height // 2 * 2, : width // 2 * 2].reshape(-1, width // 2 * 2, channels)
    small = cv2.resize(tall, (width // 2, len(tall) // 2), interpolation=cv2.INTER_AREA)
    return small.reshape(count, height // 2, width // 2, channels)


def halved_mask(mask: Mask) -> Mask:
    """The pixels of a halved frame that overlap a rectangle of the frame."""
    x, y, width, height = mask
    left, top = x // 2, y // 2
    return left, top, (x + width + 1) // 2 - left, (y + height + 1) // 2 - top


def observed_mask(mask: Mask, frame_shape: tuple[int, int, int]) -> Mask:
    """The pixels of an observation that overlap a rectangle of the frame."""
    x, y, width, height = mask
    left, right = x * SIZE // frame_shape[1], -(-(x + width) * SIZE // frame_shape[1])
    top, bottom = y * SIZE // frame_shape[0], -(-(y + height) * SIZE // frame_shape[0])
    return left, top, right - left, bottom - top


def _as_arithmetic(pictures: torch.Tensor) -> torch.Tensor:
    """uint8 pixels in the current arithmetic; bf16 holds 0 … 255 exactly."""
    kind = pictures.device.type
    return pictures.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32)


def randomly_shifted(pictures: torch.Tensor, pixels: int) -> torch.Tensor:
    """Moves each picture by its own random number of pixels, edges repeated (as in DrQ, arXiv 2004.13649).

    Args:
      pictures: `[N, C, H, W]`.
      pixels: the most, up, down, left and right.

    Returns:
      `[N, C, H, W]`, channels last.
    """
    count, _, height, width = pictures.shape
    by = torch.randint(-pixels, pixels + 1, (2, count, 1), device=pictures.device)
    rows, columns = (
        (torch.arange(side, device=pictures.device) + offsets).clamp(0, side - 1)
        for side, offsets in zip((height, width), by, strict=True)
    )
    which = torch.arange(count, device=pictures.device)[:, None, None]
    return pictures.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
