"""Updates a second of learners with a replay against Stable-Baselines3's, and what relabelling a replay takes."""

import contextlib
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN as TheirDQN
from stable_baselines3 import SAC as TheirSAC
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from benchmarks.compare import alternate
from benchmarks.report import Row, Target, compared
from benchmarks.setup import Setup
from lib.agent.config import TrainConfig
from lib.agent.dqn import DQN
from lib.agent.off_policy import OffPolicy
from lib.agent.replay import Replay
from lib.agent.rollout import Played
from lib.agent.sac import SAC
from lib.devices import resolve_bf16, resolve_device
from lib.envs.make import make_world
from lib.envs.spec import Spec
from lib.envs.world import Step
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet

_PIECE = 10  # updates
_FILLED = 1000  # steps in the replay, which decide nothing about the speed
_RELABELLED = 300_000
_PENDULUM, _SEAQUEST = "Pendulum-v1", "SeaquestNoFrameskip-v4"


class OurUpdates:
    """A learner of ours with a filled replay, for `_PIECE` updates at a time."""

    def __init__(self, kind: type[SAC] | type[DQN], algo: str, env: str, dev: str, **flags: Any) -> None:
        device = resolve_device(dev)
        config = TrainConfig(name="bench", algo=algo, env=env, num_envs=1, replay_steps=2 * _FILLED, **flags)
        self._world = make_world(env, 1)
        network: Any = kind.new_network(config, self._world).to(device)
        bf16 = resolve_bf16(None, device)
        self.learner: OffPolicy = kind(network, self._world, config, device, bf16, 0)
        for _ in range(_FILLED):
            self.learner.play()

    def __call__(self) -> int:
        for _ in range(_PIECE):
            scalars = self.learner.update()
        scalars["loss_total"].item()  # so that a GPU has done it
        return _PIECE

    def close(self) -> None:
        self._world.close()


class TheirUpdates:
    """A learner of Stable-Baselines3 with a filled replay, which is handed its batch size."""

    def __init__(self, learner: Any, batch_size: int) -> None:
        self._learner, self._batch_size = learner, batch_size
        learner.learn(_FILLED)  # learning_starts is beyond these

    def __call__(self) -> int:
        self._learner.train(_PIECE, self._batch_size)
        return _PIECE

    def close(self) -> None:
        self._learner.get_env().close()


def updates_against_sb3(setup: Setup) -> list[Row]:
    """SAC on vectors and DQN on pictures, with the same networks and batches on both sides."""
    flags: dict[str, Any] = {"buffer_size": 2 * _FILLED, "learning_starts": 10**9, "device": setup.dev}
    pictures = VecFrameStack(make_atari_env(_SEAQUEST), 4)
    sac = (
        OurUpdates(SAC, "sac", _PENDULUM, setup.dev),
        TheirUpdates(TheirSAC("MlpPolicy", _PENDULUM, **flags), 256),
    )
    dqn = (
        OurUpdates(DQN, "dqn", _SEAQUEST, setup.dev, double=False),
        TheirUpdates(TheirDQN("CnnPolicy", pictures, **flags), 32),
    )
    titles = "SAC's updates, 2 × 256 units, batch 256", "DQN's updates, Mnih et al.'s network, batch 32"
    rows = []
    for name, title, (ours, theirs) in zip(("sac", "dqn"), titles, (sac, dqn), strict=True):
        with contextlib.closing(ours), contextlib.closing(theirs):
            result = alternate(ours, theirs, setup.repeats, setup.seconds)
        rows.append(
            compared(
                f"updates-{name}",
                f"{title}, against Stable-Baselines3's",
                *("updates/s", result, Target(2), "drawing the batch included"),
            )
        )
    return rows


def relabelling(setup: Setup) -> list[Row]:
    """Seconds in which three members pay again for a replay of vectors the size of Hopper's."""
    device, size, actions = resolve_device(setup.dev), 11, 3
    spec, envs, nothing = Spec(actions, True, (size,)), 100, np.zeros(100, bool)
    replay = Replay(spec, envs, _RELABELLED + envs, device, lambda learned, _: learned, gamma=0.99)
    step = Step(np.empty(0, np.uint8), np.zeros(envs, np.float32), nothing, nothing, nothing)
    replay.begin(torch.zeros(envs, size, device=device))
    for _ in range(_RELABELLED // envs):
        done = torch.zeros(envs, actions, device=device)
        replay.add(Played(done, None, nothing, step), torch.randn(envs, size, device=device))
    form: dict[str, Any] = {"input": "observation", "continuous": True, "observation_size": size}
    members = [Member(RewardNet((84, 84, 3), actions, **form).eval(), 0.0, 1.0) for _ in range(3)]
    model = RewardModel(members, device)
    taken = []
    for _ in range(1 + setup.repeats):
        began = time.perf_counter()
        replay.relabel(model)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    title = f"Relabelling {replay.steps:,} steps of {size} numbers, three members"
    target = Target(2, least=False, of_ratio=False)
    return [Row("relabel", title, "s", median(taken[1:]), repeats=setup.repeats, target=target)]
