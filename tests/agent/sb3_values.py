"""What Stable-Baselines3 computes on given weights and a given batch: writes tests/agent/data/sb3_*.pt.

    python -m tests.agent.sb3_values

The tests read these files, so that they neither need Stable-Baselines3 nor change with it. Its optimisers are plain
gradient descent here, so that a gradient is what a step changed, divided by the rate.
"""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch.distributions import normal

DATA = Path(__file__).parent / "data"
COUNT, SIZE, ACTIONS, HIDDEN = 12, 5, 3, 16
GAMMA, RATE = 0.97, 1.0


def batch(generator: torch.Generator, actions: torch.Tensor) -> ReplayBufferSamples:
    """Steps of which a third ended a game."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    dones = (torch.arange(COUNT) % 3 == 0).float()[:, None]
    return ReplayBufferSamples(drawn(COUNT, SIZE), actions, drawn(COUNT, SIZE), dones, drawn(COUNT, 1), None)


def train_once(algorithm: Any, samples: ReplayBufferSamples) -> dict[str, float]:
    """One update on the samples; what the algorithm logged."""
    algorithm._logger = Logger(None, [])
    algorithm.replay_buffer.sample = lambda *args, **kwargs: samples
    algorithm.train(1, COUNT)
    return {name: float(value) for name, value in algorithm.logger.name_to_value.items()}


def copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def sac() -> dict[str, Any]:
    """One update of SAC: its noise, its weights before and after, its losses."""
    environment = Empty(spaces.Box(-1, 1, (ACTIONS,)))
    algorithm = SAC(
        "MlpPolicy",
        environment,
        gamma=GAMMA,
        learning_rate=RATE,
        seed=3,
        device="cpu",
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN], "optimizer_class": torch.optim.SGD},
    )
    log_alpha = algorithm.log_ent_coef
    assert log_alpha is not None
    algorithm.ent_coef_optimizer = torch.optim.SGD([log_alpha], lr=RATE)  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():  # not all alike, as they are at first
        log_alpha.fill_(-1.2)
        for value in algorithm.critic_target.parameters():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.1)
    samples = batch(generator, torch.rand(COUNT, ACTIONS, generator=generator) * 2 - 1)
    noise = 0.5 * torch.randn(2, COUNT, ACTIONS, generator=generator)
    before = {
        "actor": copied(algorithm.actor),
        "critic": copied(algorithm.critic),
        "target": copied(algorithm.critic_target),
        "log_alpha": log_alpha.detach().clone(),
    }
    with mock.patch.object(normal, "_standard_normal", side_effect=list(noise)):
        logged = train_once(algorithm, samples)
    after = {
        "actor": copied(algorithm.actor),
        "critic": copied(algorithm.critic),
        "target": copied(algorithm.critic_target),
        "log_alpha": log_alpha.detach().clone(),
    }
    return {"samples": samples._asdict(), "noise": noise, "before": before, "after": after, "logged": logged}


def dqn() -> dict[str, Any]:
    """One update of DQN: its weights before and after, its loss."""
    environment = Empty(spaces.Discrete(ACTIONS))
    algorithm = DQN(
        "MlpPolicy",
        environment,
        gamma=GAMMA,
        learning_rate=RATE,
        max_grad_norm=0.2,
        seed=3,
        device="cpu",
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN], "optimizer_class": torch.optim.SGD},
    )
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for value in algorithm.q_net_target.parameters():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    samples = batch(generator, torch.randint(ACTIONS, (COUNT, 1), generator=generator))
    before = {"online": copied(algorithm.q_net), "target": copied(algorithm.q_net_target)}
    logged = train_once(algorithm, samples)
    return {
        "samples": samples._asdict(),
        "before": before,
        "after": {"online": copied(algorithm.q_net)},
        "logged": logged,
    }


class Empty:
    """Spaces alone, which is all that an algorithm asks of its environment before it plays."""

    def __new__(cls, actions: Any) -> Any:
        import gymnasium

        class Spaces(gymnasium.Env[np.ndarray, Any]):
            observation_space = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
            action_space = actions

        return Spaces()


if __name__ == "__main__":
    torch.save(sac(), DATA / "sb3_sac.pt")
    torch.save(dqn(), DATA / "sb3_dqn.pt")
