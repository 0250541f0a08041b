"""This project's side of every comparison: the very loop of 01_a2c.py, with its defaults."""

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.setup import Setup
from lib.agent.actor_critic import ActorCritic
from lib.agent.config import TrainConfig
from lib.agent.network import PolicyNet
from lib.devices import resolve_device
from lib.envs.make import make_world
from lib.learner import LearnedPolicy
from lib.preferences.segment_db import SegmentDB
from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.training import loop
from lib.training.train import Run, build

UPDATES_A_PIECE = 5
FRAME_SHAPE, NUM_ACTIONS = (210, 160, 3), 18
NEVER = 10**15  # steps


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


def train_config(folder: Path, dev: str, num_envs: int | None, **changes: Any) -> TrainConfig:
    """The defaults of 01_a2c.py, without evaluations and without an end.

    Args:
      folder: for the curves.
      dev: of the networks.
      num_envs: None for the default.
      changes: further flags.
    """
    if num_envs is not None:
        changes["num_envs"] = num_envs
    return TrainConfig(
        name="benchmark",
        dev=dev,
        runs=folder / "runs",
        steps=NEVER,
        eval_every=NEVER,
        eval_games=1,
        **changes,
    )


def ours_by_default(setup: Setup, **changes: Any) -> TrainConfig:
    """Training with its defaults, recording on."""
    return train_config(setup.folder, setup.dev, setup.num_envs, db_path=setup.folder / "db", **changes)


class Training:
    """A run of 01_a2c.py, curves and all, a few updates at a time.

    Args:
      config: the flags.
      stopwatch: takes the time of the parts.
      warm: begin with a few updates, which no clock sees.

    Attributes:
      together: makes one decision of the processes that learn together.
    """

    def __init__(self, config: TrainConfig, stopwatch: Stopwatch | None = None, warm: bool = True) -> None:
        self._on_gpu = resolve_device(config.dev).type == "cuda"
        with contextlib.ExitStack() as stack:
            # Its progress is written to the same place until it ends.
            with contextlib.redirect_stdout(io.StringIO()):
                self._run = build(config, stack)
                for hook in self._run.hooks:
                    hook.begin(self._run.learner)
            if stopwatch is not None:
                _time(self._run, stopwatch)
            if warm:
                self()
            self._stack = stack.pop_all()
        self.together = self._run.ranks.together

    @property
    def steps(self) -> int:
        """Made so far, those before the first call included."""
        return self._run.learner.steps

    @property
    def policy(self) -> LearnedPolicy:
        """The learner's, which changes as it learns."""
        return self._run.learner.policy()

    @property
    def network(self) -> PolicyNet:
        """The policy's network."""
        network = self.policy.network
        assert isinstance(network, PolicyNet)
        return network

    def __call__(self) -> int:
        """A few updates on from the last; the device has done them all when it returns."""
        learner, before = self._run.learner, self.steps
        for _ in range(UPDATES_A_PIECE):
            if self._run.stop():
                raise KeyboardInterrupt  # nothing else ends it: it takes the signal for itself
            loop.update(learner, self._run.hooks)
        if self._on_gpu:
            torch.cuda.synchronize()
        return self.steps - before

    def close(self) -> None:
        """Ends the run, which frees the emulators."""
        self._stack.close()


def _time(run: Run, stopwatch: Stopwatch) -> None:
    """Has the parts of a run take their time."""
    learner = run.learner
    assert isinstance(learner, ActorCritic)
    parts: tuple[tuple[str, object, tuple[str, ...]], ...] = (
        ("emulator", run.world, ("send", "recv")),
        ("reward model", learner.collector.reward, ("pay",)),
        ("recorder", run.recording.recorder, ("before", "after")),
        ("collect", learner.collector, ("collect",)),
        ("update", learner, ("learn",)),
    )
    for label, part, methods in parts:
        if part is not None:
            for method in methods:
                setattr(part, method, stopwatch.around(label, getattr(part, method)))


class Emulator:
    """The vector environment of a configuration alone, under random actions."""

    def __init__(self, config: TrainConfig) -> None:
        self._world = make_world(config.env, config.num_envs, config.env_threads)
        self._actions = np.random.default_rng(0).integers(
            0, self._world.spec.num_actions, (UPDATES_A_PIECE * config.rollout, config.num_envs)
        )
        self._world.reset(config.seed)

    def __call__(self) -> int:
        for actions in self._actions:
            self._world.send(actions)
            self._world.recv()
        return self._actions.size

    def close(self) -> None:
        self._world.close()


def finetune_files(folder: Path) -> dict[str, Any]:
    """The flags of a finetune, with checkpoints of the default networks: how fast they are does not depend on weights.

    Returns:
      Changes for `train_config`.
    """
    torch.manual_seed(0)
    policy, reward = folder / "policy.dat", folder / "reward.dat"
    torch.save(PolicyNet(NUM_ACTIONS).state_dict(), policy)
    network = RewardNet(FRAME_SHAPE, NUM_ACTIONS, half_size=True).eval()
    save_reward_model(reward, RewardModel([Member(network, 0.0, 1.0)], torch.device("cpu")), {}, {}, {})
    return {"finetune": True, "model": policy, "reward": reward}


def record_segments(
    db: Path,
    count: int,
    dev: str = "cpu",
    model: Path | None = None,
    games: int = 16,
    record_prob: float = 0.005,
) -> None:
    """Fills a DB with at least so many segments of a policy's play: of a checkpoint, or one that has learned nothing.

    Segments begin at random, by default every 250 steps of each of the games on average.
    """
    folder = db.parent
    config = train_config(folder, dev, games, lr=0.0, model=model, db_path=db, record_prob=record_prob)
    with contextlib.closing(Training(config)) as playing:
        recorded = SegmentDB(db)
        while len(recorded.names) < count:
            playing()
            recorded.refresh()
