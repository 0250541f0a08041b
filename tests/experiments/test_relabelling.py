"""What relabelling is compared with, and the table."""

from typing import Any

import torch

from experiments.kept_rewards import KeepsRewards
from experiments.relabelling import RelabellingConfig, table
from lib.agent.config import TrainConfig
from lib.agent.sac import SACNet
from lib.envs.spec import Spec
from tests.agent.worlds import Bandit, Pays


def test_kept_rewards_are_those_of_the_model_that_first_paid() -> None:
    world = Bandit(2, Spec(1, True, (2,)))
    config = TrainConfig(name="x", algo="sac", env="Bandit-v0", learning_starts=10**6)
    learner = KeepsRewards(SACNet(2, 1, 8), world, config, torch.device("cpu"), False, 0)

    def pays(worth: float) -> Any:
        return Pays(lambda frames, actions, observations: torch.full((len(actions),), worth), "observation")

    learner.play()
    for worth in (1.0, 2.0, 3.0):
        learner.use_reward(pays(worth))
        learner.advance()
    assert learner.replay.state()["learned"][:4, 0].tolist() == [1.0, 1.0, 2.0, 3.0]


def test_the_table() -> None:
    page = table(RelabellingConfig(), {("kept", 100): [-300.0, -320.0], ("score", 0): [-150.0, -152.0]})
    assert "| SAC, rewards kept as first paid | 100 | -300, -320 | -310 ± 127 |" in page
    assert "| SAC on the score itself | – | -150, -152 | -151 ± 13 |" in page
