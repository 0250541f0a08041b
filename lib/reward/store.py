"""The segments of a fit, in memory up to a budget."""

import dataclasses

import numpy as np
import torch

from lib.cli import UserError
from lib.envs.ids import same_environment
from lib.envs.observation import grey_resize_cpu, stacked_clip
from lib.envs.spec import PICTURE_SHAPE, Spec
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, Sidecar
from lib.reward.features import Features
from lib.reward.network import halved_cpu

_WHOLE_BELOW = 80  # pixels that halving must leave of both sides, unless it is asked for
_CONSTANT = 1e-6  # a standard deviation that is a rounding error


class SegmentStore:
    """The segments of a fit, each once: decoded and held as uint8 up to a budget, read from disk past it.

    Args:
      memory_mb: the budget.
      input: what the network will see, one of `lib.reward.network.INPUTS`; that is what is held. None: the vectors
        that the policy observed, where the first segment has any, else frames.
      features: of a policy, that the network sees in place of its observations.
      steps: how many of a segment's first steps are fitted to; None for all.
      half_frames: whether a network of frames will see them `halved`; None: where that leaves 80 pixels on both sides.

    Attributes:
      input: the same, not None once there is a segment.
      half_size: whether frames are halved, known once there is a segment.
      env_id: the environment; "" where no segment names it.
    """

    def __init__(
        self,
        memory_mb: float,
        input: str | None = None,
        features: Features | None = None,
        steps: int | None = None,
        half_frames: bool | None = False,
    ) -> None:
        self._half_frames, self.half_size = half_frames, False
        self._budget = memory_mb * 1e6
        self.input = input if features is None else "observation"
        self.features, self._steps = features, steps
        self.env_id = ""
        self._sources: list[tuple[SegmentDB, str]] = []
        self._held: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._sidecars: list[Sidecar | None] = []
        self._lengths: list[int] = []
        self._spec: Spec | None = None
        self._counted = False  # whether a segment said how many actions there are

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """(H, W, 3) of the segments, whether or not the network looks at frames."""
        assert self._spec is not None, "no segment yet"
        assert self._spec.frame_shape is not None
        return self._spec.frame_shape

    @property
    def spec(self) -> Spec:
        """What a network fitted to the segments sees and takes, as `RewardNet.spec`."""
        assert self._spec is not None, "no segment yet"
        if self.features is not None:
            return dataclasses.replace(self._spec, observation_shape=(self.features.size,), frame_shape=None)
        if self._spec.observation_size is not None:
            return dataclasses.replace(self._spec, frame_shape=None)
        return self._spec

    def set_num_actions(self, count: int) -> None:
        """Sets the size of the action set, where segments do not say it.

        Raises:
          UserError: the segments say another, or hold further actions.
        """
        if self._spec is None:
            return
        if self._counted and count != self._spec.num_actions:
            raise UserError(
                f"--num-actions {count}: the clips say that there are {self._spec.num_actions}; leave it out"
            )
        if count < self._spec.num_actions:
            raise UserError(
                f"--num-actions {count}: the clips hold actions up to {self._spec.num_actions - 1}"
            )
        self._spec = dataclasses.replace(self._spec, num_actions=count)

    def load(self, db: SegmentDB, name: str) -> Segment:
        """Reads a segment; raises SegmentError."""
        return db.load(name)

    def add(self, db: SegmentDB, name: str, segment: Segment) -> int:
        """Adds a segment and returns its index.

        Raises:
          UserError: its environment or action set differs from those before it.
        """
        env_id = "" if segment.sidecar is None else segment.sidecar.env_id
        if not same_environment(env_id, self.env_id):
            raise UserError(
                f"{db.root / name}: a clip of {env_id} among those of {self.env_id}; fit one model per environment"
            )
        self._take(db, name, segment)
        self.env_id = self.env_id or env_id
        self._sources.append((db, name))
        self._sidecars.append(segment.sidecar)
        self._lengths.append(len(segment.actions[: self._steps]))
        self._hold(len(self._sources) - 1, segment)
        return len(self._sources) - 1

    def survived(self, index: int) -> bool:
        """Whether no life is lost in a segment, as far as its sidecar says."""
        sidecar = self._sidecars[index]
        return sidecar is None or not sidecar.life_lost.any()

    def _take(self, db: SegmentDB, name: str, segment: Segment) -> None:
        """Checks what a segment shows and takes; raises UserError if that differs from those before it."""
        if self.features is not None and segment.observations is not None:
            raise UserError(
                f"{db.root / name}: expected a clip of pictures, which --features and --policy look at, got one of vectors"
            )
        here, counted = segment.spec, segment.sidecar is not None or segment.continuous
        if self._spec is None:
            self.input = self.input or ("frame" if segment.observations is None else "observation")
            self._spec = here
            if self.input == "frame":
                enough = min(self.frame_shape[:2]) // 2 >= _WHOLE_BELOW
                self.half_size = enough if self._half_frames is None else self._half_frames
        if self.input == "frame":
            here = dataclasses.replace(here, observation_shape=None)
        expected = self._spec
        if not (counted and self._counted):
            most = max(here.num_actions, expected.num_actions)
            here, expected = (dataclasses.replace(spec, num_actions=most) for spec in (here, expected))
        differs = expected.difference(here)
        if differs is not None:
            raise UserError(
                f"{db.root / name}: expected {differs[0]} like the clips before it, got {differs[1]}; fit one model per "
                f"environment"
            )
        self._spec, self._counted = here, self._counted or counted

    def _hold(self, index: int, segment: Segment) -> None:
        seen = self._seen(segment)
        if seen.nbytes <= self._budget:
            self._budget -= seen.nbytes
            self._held[index] = seen, segment.actions

    def _seen(self, segment: Segment) -> np.ndarray:
        if self.input == "frame":
            return halved_cpu(segment.frames) if self.half_size else segment.frames
        if segment.observations is not None:
            return segment.observations
        grey = grey_resize_cpu(np.ascontiguousarray(segment.frames))
        if self.features is None:
            return grey
        return self.features(torch.from_numpy(stacked_clip(grey)[: self._steps])).numpy()

    def get(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Frames uint8 `[T, H, W, 3]`, halved where a network of frames sees them so, actions int64 `[T]` or float32
        `[T, A]`, and for a network of vectors the observations float32 `[T, D]`, of a segment."""
        if self.input == "frame" and index in self._held:
            return *self._held[index], None
        segment = self._load(index)
        frames = self._seen(segment) if self.input == "frame" else segment.frames
        return frames, segment.actions, segment.observations

    def frames(self, index: int) -> np.ndarray:
        """Frames uint8 `[T, H, W, 3]` of a segment, whole, for people."""
        return self._load(index).frames if self.half_size else self.get(index)[0]

    def _load(self, index: int) -> Segment:
        db, name = self._sources[index]
        try:
            return db.load(name)
        except SegmentError as error:
            raise UserError(
                f"a clip that the fit began with can no longer be read: {error}; put it back and "
                "continue with --resume, or give more --memory-mb, which keeps clips in memory"
            ) from error

    def inputs(self, index: int, stride: int = 1, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """What the network sees of every `stride`-th step of a segment, from step `offset` on.

        Returns:
          Frames uint8 `[N, H, W, 3]`, whole or halved, observations uint8 `[N, 4, 84, 84]` or float32 `[N, D]`, or features float32
          `[N, F]`, and actions int64 `[N]`
          or float32 `[N, A]`.
        """
        if index in self._held:
            seen, actions = self._held[index]
        else:
            segment = self._load(index)
            seen, actions = self._seen(segment), segment.actions
        if self.spec.observation_shape == PICTURE_SHAPE:
            seen = stacked_clip(seen)
        steps = slice(offset, self._lengths[index], stride)
        return seen[steps], actions[steps]

    def observation_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each number of the observed vectors, float32 `[D]`; 1 for a constant."""
        seen = np.concatenate([self.inputs(index)[0] for index in range(len(self))]).astype(float)
        std = seen.std(0)
        return seen.mean(0).astype(np.float32), np.where(std > _CONSTANT, std, 1).astype(np.float32)

    def length(self, index: int) -> int:
        """T, the steps of a segment that are fitted to."""
        return self._lengths[index]

    def source(self, index: int) -> tuple[SegmentDB, str]:
        """A segment's DB and its name there."""
        return self._sources[index]

    def sidecar(self, index: int) -> Sidecar | None:
        """A segment's sidecar; None for the original format. Never shown to a model."""
        return self._sidecars[index]

    def policy(self, index: int) -> str:
        """The policy that recorded a segment; "" if unknown."""
        sidecar = self._sidecars[index]
        return "" if sidecar is None else sidecar.policy
