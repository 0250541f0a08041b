"""The reward model r̂(frame, action), as the original's network and as the standardised sum it pays out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from lib.checkpoints import check_weights, load_checkpoint, save_checkpoint
from lib.cli import UserError
from lib.envs.observation import SIZE, STACK, Observer, grey_resize_cpu, stacked_clip
from lib.envs.world import MAX_OBSERVATION, World
from lib.provenance import lineage
from lib.reward.masks import Mask

INPUTS = ("frame", "observation")
"""What a reward network may see: the colour frame and the action, or the policy's observation; pictures alone, vectors
with the action."""

_KERNELS = ((7, 3), (5, 2), (3, 1), (3, 1))
_FILTERS = 16
_CLIP = 10.0  # standard deviations of a number in a vector


class RewardNet(nn.Module):
    """Four convolutions of 16 filters (7/3, 5/2, 3/1, 3/1), the one-hot action joined behind them, 64 units, 1.

    Sees the colour frame and the action, as the original's did, or the policy's observation without the action, as
    that of Christiano et al. (section A.2). Of an observation that is a vector there is nothing to convolve: it is
    standardised and joined by the action, then two layers of 64 units, as theirs for MuJoCo (section A.1).

    A continuous action is joined as its A numbers, one of A as A numbers of which one is 1.

    Each convolution is followed by batch norm, dropout and leaky ReLU. Parameter names are those of the
    original experiment, whose checkpoints load as they are. Masks are blank (black) to it, whatever is there.
    Dropout, shifts and noise are for fitting only: in evaluation mode there are none.
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
    ) -> None:
        super().__init__()
        self.frame_shape, self.num_actions, self.masks = frame_shape, num_actions, tuple(masks)
        self.input, self.continuous = input, continuous
        self.observation_size = observation_size if input == "observation" else None
        self._shift, self._noise = shift, noise
        self._joins = input == "frame" or self.observation_size is not None
        if self.observation_size is not None:
            self.register_buffer("mean", torch.zeros(self.observation_size))
            self.register_buffer("std", torch.ones(self.observation_size))
            last = nn.Linear(64, 1)
            self.out = nn.Sequential(
                nn.Linear(self.observation_size + num_actions, 64),
                nn.Dropout(dropout),
                nn.LeakyReLU(),
                nn.Linear(64, 64),
                nn.Dropout(dropout),
                nn.LeakyReLU(),
                last,
            )
            _begin_near_zero(last)
            return
        if input == "frame":
            channels, sides, joined = frame_shape[2], frame_shape[:2], num_actions
            self._blank = self.masks
        else:
            channels, sides, joined = STACK, (SIZE, SIZE), 0
            self._blank = tuple(observed_mask(mask, frame_shape) for mask in self.masks)
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
        self.out = nn.Sequential(nn.Linear(conv_features(sides) + joined, 64), nn.LeakyReLU(), last)
        _begin_near_zero(last)

    def forward(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """r̂ of single steps, before standardisation.

        Args:
          inputs: frames uint8 `[N, H, W, 3]`, or observations uint8 `[N, 4, 84, 84]` or float32 `[N, D]`, as `input`
            says.
          actions: int64 `[N]` or float32 `[N, A]`; observed pictures are judged without.

        Returns:
          float32 `[N]`.
        """
        if self.observation_size is not None:
            vectors = ((inputs - self.mean) / self.std).clamp(-_CLIP, _CLIP)
            if self.training and self._noise:
                vectors = vectors + self._noise * torch.randn_like(vectors)
            return self._head(vectors, actions)
        pictures = _as_arithmetic(inputs.permute(0, 3, 1, 2) if self.input == "frame" else inputs)
        for x, y, width, height in self._blank:
            pictures[:, :, y : y + height, x : x + width] = 0
        if self.training and self._shift:  # after the masks, so that nothing moves out from under one
            pictures = randomly_shifted(pictures, self._shift)
        if self.training and self._noise:
            pictures = pictures + 255 * self._noise * torch.randn_like(pictures)
        # Pixels count 0 … 1; dividing the few weights of the first layer spares a pass over all pixels.
        first = self.conv[0]
        assert isinstance(first, nn.Conv2d)
        features = F.conv2d(pictures, first.weight / 255, first.bias, first.stride)
        return self._head(self.conv[1:](features), actions)

    def _head(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        if self._joins:
            joined = actions if self.continuous else F.one_hot(actions, self.num_actions)
            features = torch.cat([features, joined.to(features.dtype)], 1)
        return self.out(features).squeeze(-1).float()

    def for_paying(self) -> "RewardNet":
        """A copy that computes the same in evaluation mode with fewer passes: batch norms folded, no dropout."""
        fast = RewardNet(
            self.frame_shape,
            self.num_actions,
            masks=self.masks,
            input=self.input,
            continuous=self.continuous,
            observation_size=self.observation_size,
        )
        fast.load_state_dict(self.state_dict())
        fast.eval()
        if self.observation_size is not None:
            return fast.requires_grad_(False)
        layers: list[nn.Module] = []
        for layer in fast.conv:
            if isinstance(layer, nn.BatchNorm2d):
                layers[-1] = fuse_conv_bn_eval(layers[-1], layer)  # type: ignore[type-var]
            elif not isinstance(layer, nn.Dropout):
                layers.append(layer)
        fast.conv = nn.Sequential(*layers)
        return fast.requires_grad_(False)


def _begin_near_zero(last: nn.Linear) -> None:
    """Sums over a segment begin near 0.

    From large ones, a loss that allows for a teacher's errors takes what is wrong at first for such an error and never
    learns it.
    """
    nn.init.normal_(last.weight, std=1e-3)
    nn.init.zeros_(last.bias)


def conv_features(shape: tuple[int, ...]) -> int:
    """Length of the flattened output of the convolutions on pictures of so many rows and columns.

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


def observed_mask(mask: Mask, frame_shape: tuple[int, int, int]) -> Mask:
    """The pixels of an observation that show anything of a rectangle of the frame."""
    x, y, width, height = mask
    left, right = x * SIZE // frame_shape[1], -(-(x + width) * SIZE // frame_shape[1])
    top, bottom = y * SIZE // frame_shape[0], -(-(y + height) * SIZE // frame_shape[0])
    return left, top, right - left, bottom - top


def _as_arithmetic(pictures: torch.Tensor) -> torch.Tensor:
    """uint8 pixels in the arithmetic in force; bf16 holds 0 … 255 exactly."""
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


@dataclass(frozen=True)
class Member:
    """One fitted network and the statistics of its output over the segments it was fitted on."""

    network: RewardNet
    mean: float
    std: float


class RewardModel:
    """What the agent is paid by: the standardised r̂, averaged over the members of an ensemble.

        r̂(o, a) = z̄ − k (s − s_DB),  zₘ = (r̂ₘ(o, a) − meanₘ) / stdₘ,  s = sqrt(1/M Σₘ (zₘ − z̄)²)

    With a pessimism k above 0 the model pays less where its members disagree, which is where it has seen little.
    s_DB is the mean of s over the segments of the fit. Taking it off leaves the average at 0; without, every step would
    cost something, and an agent that dies soon would lose least.

    The statistics are fixed when the model is fitted (a running estimate would turn a steadily good state
    into 0), and the size of r̂ is kept: it is never clipped to its sign.
    """

    def __init__(
        self,
        members: Sequence[Member],
        device: torch.device,
        bf16: bool = False,
        origin: dict[str, Any] | None = None,
        pessimism: float = 0.0,
        disagreement: float = 0.0,
    ) -> None:
        self.members = list(members)
        self.disagreement = disagreement
        self.frame_shape = self.members[0].network.frame_shape
        self.num_actions = self.members[0].network.num_actions
        self.input = self.members[0].network.input
        self.continuous = self.members[0].network.continuous
        self.observation_size = self.members[0].network.observation_size
        self.origin = origin or {}
        self._device, self._bf16, self._pessimism = device, bf16, pessimism
        self._fast = [
            member.network.for_paying().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            for member in self.members
        ]

    @torch.no_grad()
    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """What each member makes of a batch of steps.

        Args:
          inputs: on the model's device, frames uint8 `[N, H, W, 3]` or observations uint8 `[N, 4, 84, 84]` or float32
            `[N, D]`, as `input` says: what was seen when the action was chosen.
          actions: int64 `[N]`, or float32 `[N, A]` in −1 … 1, on the same device.

        Returns:
          float32 `[M, N]`, zₘ; of each member, mean 0 and standard deviation 1 over the segments of the fit.
        """
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return torch.stack(
                [
                    (network(inputs, actions) - member.mean) / member.std
                    for network, member in zip(self._fast, self.members, strict=True)
                ]
            )

    def unstandardised(self, each: np.ndarray) -> np.ndarray:
        """r̂ₘ as the loss has it, in units in which differences of returns are log-odds: float `[M, N]`, zₘ, to float64."""
        mean, std = np.array([(member.mean, member.std) for member in self.members]).T
        return np.asarray(each, float) * std[:, None] + mean[:, None]

    def combine(self, each: torch.Tensor) -> torch.Tensor:
        """The reward paid for what the members say: float32 `[M, N]` to `[N]`."""
        if self._pessimism == 0:
            return each.mean(0)
        return each.mean(0) - self._pessimism * (each.std(0, correction=0) - self.disagreement)

    def pay(
        self, frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The learned reward of a batch of steps, in one call.

        Args:
          frames: uint8 `[N, H, W, 3]` on the model's device; not looked at where the model judges observations.
          actions: int64 `[N]`, or float32 `[N, A]` in −1 … 1, on the same device.
          observations: uint8 `[N, 4, 84, 84]` or float32 `[N, D]` on the same device; needed where the model judges those.

        Returns:
          float32 `[N]`.

        Raises:
          ValueError: the model judges observations, and there are none.
        """
        inputs = frames if self.input == "frame" else observations
        if inputs is None:
            raise ValueError(f"a reward model of {self.input}s was given none")
        return self.combine(self.each(inputs, actions))

    def rewards(
        self, frames: np.ndarray | None, actions: np.ndarray, observations: np.ndarray | None = None
    ) -> np.ndarray:
        """`pay` for NumPy arrays: uint8 `[N, H, W, 3]` and integers `[N]` or float32 `[N, A]` to float32 `[N]`."""
        looked_at = torch.empty(0) if frames is None else self._on_device(frames)
        seen = None if observations is None else self._on_device(observations)
        return self.pay(looked_at, self._actions(actions), seen).cpu().numpy()

    def each_along(
        self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None
    ) -> np.ndarray:
        """`each` along a clip: T consecutive steps of one game.

        Args:
          frames: uint8 `[T, H, W, 3]`.
          actions: integers `[T]` or float32 `[T, A]`.
          observations: float32 `[T, D]`; needed where the model judges vectors.

        Returns:
          float32 `[M, T]`.

        Raises:
          ValueError: the model judges vectors, and there are none.
        """
        inputs = clip_inputs(frames, self.input) if self.observation_size is None else observations
        if inputs is None:
            raise ValueError("a reward model of vectors was given none")
        return self.each(self._on_device(inputs), self._actions(actions)).cpu().numpy()

    def rewards_along(
        self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None
    ) -> np.ndarray:
        """What is paid along a clip: float32 `[T]`, of arguments as `each_along` takes them."""
        return self.combine(torch.from_numpy(self.each_along(frames, actions, observations))).numpy()

    def _actions(self, actions: np.ndarray) -> torch.Tensor:
        tensor = self._on_device(actions)
        return tensor if self.continuous else tensor.long()

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array, device=self._device)

    def fits(
        self,
        frame_shape: tuple[int, int, int],
        num_actions: int,
        continuous: bool = False,
        observation_size: int | None = None,
    ) -> bool:
        """Whether the model was fitted for an environment of these frames, actions and observations."""
        if self.num_actions != num_actions or self.continuous != continuous:
            return False
        if self.input == "observation" and self.observation_size != observation_size:
            return False
        return self.observation_size is not None or self.frame_shape == frame_shape

    def check(
        self,
        frame_shape: tuple[int, int, int],
        num_actions: int,
        path: Path,
        env_id: str,
        continuous: bool = False,
        observation_size: int | None = None,
    ) -> None:
        """Refuses an environment that the model was not fitted for.

        Raises:
          UserError: says what differs.
        """
        if self.fits(frame_shape, num_actions, continuous, observation_size):
            return
        ours = _seen(self.frame_shape, self.observation_size)
        theirs = _seen(frame_shape, observation_size) if self.input == "observation" else _shape(frame_shape)
        numbers = [
            f"{count} numbers an action" if many else f"{count}{noun}"
            for count, many, noun in (
                (self.num_actions, self.continuous, " actions"),
                (num_actions, continuous, " actions" if self.continuous else ""),
            )
        ]
        raise UserError(
            f"{path}: a reward model of {ours} and {numbers[0]}, "
            f"but {env_id} has {theirs} and {numbers[1]}; fit one on segments of that environment"
        )

    def check_world(self, world: World, path: Path) -> None:
        """`check` for a world."""
        self.check(
            *(world.frame_shape, world.num_actions, path, world.env_id),
            continuous=world.continuous,
            observation_size=world.observation_size,
        )


class ObservingRewards:
    """Pays, a step at a time, what a model of whatever kind makes of B environments."""

    def __init__(self, model: RewardModel, num_envs: int) -> None:
        self._model = model
        self._observer = (
            Observer(num_envs, model.frame_shape, torch.device("cpu"))
            if model.input == "observation" and model.observation_size is None
            else None
        )

    def rewards(
        self, frames: np.ndarray, actions: np.ndarray, first: np.ndarray, vectors: np.ndarray | None = None
    ) -> np.ndarray:
        """The rewards of the games' next step.

        Args:
          frames: uint8 `[B, H, W, 3]`; not looked at where the model judges vectors.
          actions: integers `[B]`, or float32 `[B, A]` in −1 … 1.
          first: bool `[B]`, where nothing of the game was seen before.
          vectors: float32 `[B, D]`; needed where the model judges those.

        Returns:
          float32 `[B]`.
        """
        if self._observer is None:
            return self._model.rewards(frames, actions, vectors)
        observations = self._observer.push(torch.tensor(frames), torch.tensor(first))
        return self._model.rewards(frames, actions, observations.numpy())


def clip_inputs(frames: np.ndarray, input: str) -> np.ndarray:
    """What a network sees along a clip.

    Args:
      frames: uint8 `[T, H, W, 3]`, of consecutive steps.
      input: one of INPUTS.

    Returns:
      The frames, or uint8 `[T, 4, 84, 84]`.
    """
    return frames if input == "frame" else stacked_clip(grey_resize_cpu(np.ascontiguousarray(frames)))


def _seen(frame_shape: tuple[int, int, int], observation_size: int | None) -> str:
    return (
        f"{_shape(frame_shape)} frames"
        if observation_size is None
        else f"observations of {observation_size} numbers"
    )


def _shape(frame_shape: tuple[int, int, int]) -> str:
    return "×".join(map(str, frame_shape))


def save_reward_model(
    path: Path,
    model: RewardModel,
    config: Any,
    parents: dict[str, Any],
    results: dict[str, Any],
    refit: dict[str, Any] | None = None,
) -> None:
    """Writes a reward checkpoint, atomically.

    Args:
      path: the file.
      model: what to keep.
      config: the configuration of the fit.
      parents: the DBs it was fitted on.
      results: figures of the fit to keep with it.
      refit: `version` and what the next refit needs (lib.reward.watch), where models follow each other.
    """
    payload = {
        "frame_shape": list(model.frame_shape),
        "num_actions": model.num_actions,
        "input": model.input,
        "continuous": model.continuous,
        "observation_size": model.observation_size,
        "disagreement": model.disagreement,
        "masks": [list(mask) for mask in model.members[0].network.masks],
        "members": [
            {"state_dict": member.network.state_dict(), "mean": member.mean, "std": member.std}
            for member in model.members
        ],
        "results": results,
        **(refit or {}),
    }
    save_checkpoint(path, "reward", payload, config, parents)


def load_reward_model(
    path: Path, device: torch.device | None = None, bf16: bool = False, pessimism: float = 0.0
) -> RewardModel:
    """Reads a reward checkpoint of ours, or a bare state_dict of the original's (Atari frames, unstandardised).

    Args:
      path: the file.
      device: where it will compute; the CPU when None.
      bf16: whether it computes in bf16.
      pessimism: k of `RewardModel`.

    Raises:
      UserError: no readable reward model there, or pessimism about one without an ensemble; says what was expected
        and what came.
    """
    payload = load_checkpoint(Path(path), "reward")
    device = device or torch.device("cpu")
    origin: dict[str, Any] = {}
    if payload.get("bare"):
        state = payload["state_dict"]
        hidden = state.get("out.0.weight")
        if hidden is None or hidden.ndim != 2:
            raise UserError(
                f"{path}: expected the weights of a reward model (conv.*, out.*); is it a policy?"
            )
        shape = (210, 160, 3)
        num_actions = hidden.shape[1] - conv_features(shape)
        if num_actions < 1:
            raise UserError(
                f"{path}: expected the reward network for {_shape(shape)} frames, whose out.0 takes "
                f"{conv_features(shape)} features and the actions; it takes {hidden.shape[1]} in all"
            )
        network = _network_from_state(state, shape, num_actions, path)
        members = [Member(network, 0.0, 1.0)]
    else:
        _check_payload(payload, path)
        height, width, channels = payload["frame_shape"]
        masks = [tuple(mask) for mask in payload.get("masks", [])]  # files of before there were any
        input = payload.get("input", "frame")  # as before
        if input not in INPUTS:
            raise UserError(
                f"{path}: expected a reward model of {'s or '.join(INPUTS)}s, got one of {input!r}"
            )
        members = [
            Member(
                _network_from_state(
                    member["state_dict"],
                    (height, width, channels),
                    payload["num_actions"],
                    path,
                    masks,
                    input,
                    payload.get("continuous", False),
                    payload.get("observation_size"),
                ),
                float(member["mean"]),
                float(member["std"]),
            )
            for member in payload["members"]
        ]
        origin = lineage(payload)
    if pessimism and len(members) == 1:
        raise UserError(
            f"{path}: --pessimism {pessimism:g} expected an ensemble, whose members can disagree, got a single "
            f"reward model; fit one with 03_reward_train.py --ensemble 3"
        )
    return RewardModel(members, device, bf16, origin, pessimism, float(payload.get("disagreement", 0.0)))


def _check_payload(payload: dict[str, Any], path: Path) -> None:
    """Refuses a reward checkpoint whose parts are not what this code wrote.

    Raises:
      UserError: names the part.
    """

    def are_numbers(values: Any, count: int, kinds: tuple[type, ...], low: float, high: float) -> bool:
        return (
            isinstance(values, (list, tuple))
            and len(values) == count
            and all(type(value) in kinds and low <= value <= high for value in values)
        )

    members, masks = payload.get("members"), payload.get("masks", [])
    right = {
        "frame_shape": are_numbers(payload.get("frame_shape"), 3, (int,), 1, 4096),
        "num_actions": are_numbers([payload.get("num_actions")], 1, (int,), 1, 1024),
        "input": isinstance(payload.get("input", "frame"), str),
        "continuous": isinstance(payload.get("continuous", False), bool),
        "observation_size": payload.get("observation_size") is None
        or are_numbers([payload["observation_size"]], 1, (int,), 1, MAX_OBSERVATION),
        "masks": isinstance(masks, (list, tuple)) and all(are_numbers(m, 4, (int,), 0, 4096) for m in masks),
        "disagreement": are_numbers([payload.get("disagreement", 0.0)], 1, (int, float), 0, 1e9),
        "members": isinstance(members, (list, tuple))
        and 1 <= len(members) <= 100
        and all(isinstance(member, dict) for member in members),
    }
    for key, fits in right.items():
        if not fits:
            raise UserError(f"{path}: expected a reward checkpoint of ours, its {key} is none; fit it again")
    for member in members or ():
        mean, std = member.get("mean"), member.get("std")
        if not are_numbers([mean], 1, (int, float), -1e9, 1e9) or not are_numbers(
            [std], 1, (int, float), 1e-9, 1e9
        ):
            raise UserError(
                f"{path}: expected a mean and a standard deviation above 0 of each member; fit it again"
            )
        check_weights(member.get("state_dict"), str(path))


def _network_from_state(
    state: dict[str, torch.Tensor],
    frame_shape: tuple[int, int, int],
    num_actions: int,
    path: Path,
    masks: Sequence[Mask] = (),
    input: str = "frame",
    continuous: bool = False,
    observation_size: int | None = None,
) -> RewardNet:
    try:
        network = RewardNet(
            frame_shape,
            num_actions,
            masks=masks,
            input=input,
            continuous=continuous,
            observation_size=observation_size,
        )
        network.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: expected the reward network for {_seen(frame_shape, observation_size)}: {reason[:200]}"
        ) from error
    return network
