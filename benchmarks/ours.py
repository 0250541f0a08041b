"""This project's side of every comparison: what 01_a2c.py does in its loop, from the same functions and defaults."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.agent.config import TrainConfig
from lib.agent.network import PolicyNet
from lib.agent.rollout import Collector
from lib.agent.trainer import update
from lib.envs.make import make_world
from lib.preferences.recorder import SegmentRecorder
from lib.reward.model import Member, RewardModel, RewardNet, load_reward_model, save_reward_model
from lib.runs import has_fast_bf16, resolve_device

UPDATES_A_PIECE = 5
FRAME_SHAPE, NUM_ACTIONS = (210, 160, 3), 18


class Stopwatch:
    """Where the time of one thread goes, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added to a name."""

        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return timed


def train_config(dev: str, num_envs: int | None, **changes: Any) -> TrainConfig:
    """The defaults of 01_a2c.py."""
    if num_envs is not None:
        changes["num_envs"] = num_envs
    return TrainConfig(name="benchmark", dev=dev, **changes)


class Training:
    """Rollouts and updates of 01_a2c.py: on the score, or with a reward model as a finetune (convolutions frozen).

    The curves, which touch the device every two seconds, and the evaluations are left out.

    Args:
      config: the flags; `db_path` records.
      watch: takes the time of the parts.
      learn: also update; without, it only plays.
    """

    def __init__(self, config: TrainConfig, watch: Stopwatch | None = None, learn: bool = True) -> None:
        around: Callable[..., Any] = (lambda name, function: function) if watch is None else watch.around
        device = resolve_device(config.dev)
        self._config, self._learn, self.device = config, learn, device
        self._bf16 = has_fast_bf16(device) if config.bf16 is None else config.bf16
        torch.manual_seed(config.seed)
        self.world = make_world(config.env, config.num_envs, config.env_threads)
        for name, label in (("send", "emulator"), ("recv", "emulator")):
            setattr(self.world, name, around(label, getattr(self.world, name)))
        self.network = PolicyNet(self.world.num_actions)
        self.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.conv.requires_grad_(not config.convs_frozen)
        trainable = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(trainable, lr=config.learning_rate, eps=1e-5, fused=True)
        reward = None if config.reward is None else load_reward_model(config.reward, device, self._bf16)
        self.recorder = None
        if config.db_path is not None:
            self.recorder = SegmentRecorder(
                config.db_path,
                self.world.num_envs,
                config.env,
                self.world.num_actions,
                config.record_prob,
                config.seed,
            )
            for name in ("before", "after"):
                setattr(self.recorder, name, around("recorder", getattr(self.recorder, name)))
        self._collector = Collector(
            self.world,
            config.rollout,
            device,
            config.seed,
            self._bf16,
            None if reward is None else around("reward model", reward.pay),
            self.recorder,
        )
        self._update = around("update", update)

    def __call__(self) -> int:
        """A few rollouts and updates; the device has done them all when it returns."""
        steps = 0
        for _ in range(UPDATES_A_PIECE):
            rollout = self._collector.collect(self.network)
            if self._learn:
                self._update(self.network, self._optimizer, rollout, self._config, self._bf16)
            steps += rollout.score.size
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return steps

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
        self.world.close()


class Emulator:
    """The vector environment of a configuration alone, under random actions."""

    def __init__(self, config: TrainConfig) -> None:
        self._world = make_world(config.env, config.num_envs, config.env_threads)
        self._actions = np.random.default_rng(0).integers(
            0, self._world.num_actions, (UPDATES_A_PIECE * config.rollout, config.num_envs)
        )
        self._world.reset(config.seed)

    def __call__(self) -> int:
        for actions in self._actions:
            self._world.send(actions)
            self._world.recv()
        return self._actions.size

    def close(self) -> None:
        self._world.close()


def write_reward_model(path: Path) -> RewardNet:
    """A reward checkpoint of the default network with random weights: how fast it is does not depend on them."""
    torch.manual_seed(0)
    network = RewardNet(FRAME_SHAPE, NUM_ACTIONS).eval()
    save_reward_model(path, RewardModel([Member(network, 0.0, 1.0)], torch.device("cpu")), {}, {}, {})
    return network


def record_segments(
    db: Path,
    count: int,
    dev: str = "cpu",
    model: Path | None = None,
    games: int = 16,
    record_prob: float = 0.005,
) -> None:
    """Fills a DB with segments of a policy's play: of a checkpoint, or one that has learned nothing.

    Segments begin at random, by default every 250 steps of each of the games on average.
    """
    from lib.agent.checkpoints import load_policy

    playing = Training(train_config(dev, games, db_path=db, record_prob=record_prob), learn=False)
    with contextlib.closing(playing):
        if model is not None:
            playing.network.load_state_dict(load_policy(model)[0].state_dict())
        assert playing.recorder is not None
        while playing.recorder.stored < count:
            playing()


def finetune_config(config: TrainConfig, reward: Path) -> TrainConfig:
    """The same run as a finetune on a learned reward: convolutions frozen, as --finetune does."""
    return dataclasses.replace(config, reward=reward, freeze_convs=True)
