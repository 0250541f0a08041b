"""What relabelling is compared with, and the table."""

from pathlib import Path
from typing import Any

import pytest
import torch

import online
from experiments.kept_rewards import KeepsRewards
from experiments.pipeline import Pipeline
from experiments.relabelling import RelabellingConfig, learn, table
from lib.agent.config import TrainConfig
from lib.agent.sac import SACNet
from lib.checkpoints import save_checkpoint
from lib.envs.spec import Spec
from lib.runs import save_state, write_config
from tests.agent.worlds import Bandit, Pays


def test_kept_rewards_are_those_of_the_model_that_first_paid() -> None:
    world = Bandit(2, Spec(1, True, (2,)))
    config = TrainConfig(name="x", algo="sac", env="Bandit-v0", learning_starts=10**6)

    def new() -> KeepsRewards:
        return KeepsRewards(SACNet(2, 1, 8), world, config, torch.device("cpu"), False, 0)

    learner = new()

    def pays(worth: float) -> Any:
        return Pays(lambda frames, actions, observations: torch.full((len(actions),), worth), "observation")

    learner.play()
    for worth in (1.0, 2.0, 3.0):
        learner.use_reward(pays(worth))
        learner.advance()
    assert learner.replay.state()["learned"][:4, 0].tolist() == [1.0, 1.0, 2.0, 3.0]
    resumed = new()
    resumed.load_state(learner.state())
    resumed.use_reward(pays(4.0))
    resumed.advance()
    paid = resumed.replay.state()["learned"][:6, 0].tolist()
    assert (paid[:4], paid[5]) == ([1.0, 1.0, 2.0, 3.0], 4.0)  # between them new games began


def test_only_kept_rewards_have_a_trainer_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, list[str]]] = []
    monkeypatch.setattr(online, "together", started.append)
    for arm in ("kept", "relabelled", "ppo"):
        policy = {"state_dict": {}, "evaluation": {"scores": [1.0]}}
        save_checkpoint(tmp_path / f"{arm}-100-0" / "policy" / "latest.dat", "policy", policy, {}, {})
        learn(RelabellingConfig(out=tmp_path), Pipeline(tmp_path), arm, 100, 0)
    kept, relabelled, ppo = (stages["agent"] for stages in started)
    assert kept[:2] == ["-m", "experiments.kept_rewards"]
    assert relabelled[0] == ppo[0] == "01_a2c.py"
    assert ("sac" in kept, "sac" in relabelled, "ppo" in ppo) == (True, True, True)


def test_a_finished_run_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was killed before its line was written."""
    monkeypatch.setattr(online, "together", lambda stages: pytest.fail("started"))
    config, folder = RelabellingConfig(out=tmp_path, steps=600), tmp_path / "ppo-100-0"
    run = folder / "runs" / "agent" / "run"
    save_state(run, "01_a2c.py", {"examined": 600}, {}, {})
    write_config(run, {"env": config.env})
    policy = {"state_dict": {}, "evaluation": {"scores": [1.0, 2.0]}}
    save_checkpoint(folder / "policy" / "latest.dat", "policy", policy, {}, {})
    pipeline = Pipeline(tmp_path)
    assert learn(config, pipeline, "ppo", 100, 0) == [1.0, 2.0]
    assert pipeline.done("ppo-100-0")


def test_the_table() -> None:
    page = table(RelabellingConfig(), {("kept", 100): [-300.0, -320.0], ("score", 0): [-150.0, -152.0]})
    assert "| SAC, rewards kept as first paid | 100 | -300, -320 | -310 ± 127 |" in page
    assert "| SAC on the score itself | – | -150, -152 | -151 ± 13 |" in page
