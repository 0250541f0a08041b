"""Stable-Baselines3's off-policy algorithms learn from relabelled rewards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, SAC

from lib.cli import UserError
from lib.reward.checkpoints import save_reward_model
from lib.reward.live import LiveReward
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.sb3 import RelabelledNStepReplayBuffer, RelabelledReplayBuffer, RelabelWithNewest

CPU = torch.device("cpu")
PENDULUM: dict[str, Any] = {"num_actions": 1, "continuous": True, "observation_size": 3}
CARTPOLE: dict[str, Any] = {"num_actions": 2, "observation_size": 4}


def model_of(form: dict[str, Any], seed: int, input: str = "observation") -> RewardModel:
    torch.manual_seed(seed)
    return RewardModel([Member(RewardNet((84, 84, 3), input=input, **form).eval(), 0.0, 1e-2)], CPU)


def paid_by(model: RewardModel, buffer: RelabelledReplayBuffer) -> bool:
    """Whether all rewards in the buffer are that model's, rated one by one."""
    rows = buffer.size()
    for env in range(buffer.n_envs):
        actions = buffer.actions[:rows, env]
        actions = actions if model.spec.continuous else actions[:, 0]
        expected = model.rewards(None, actions, buffer.observations[:rows, env])
        if not np.allclose(buffer.rewards[:rows, env], expected, atol=1e-5):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "env", "form", "n"),
    [
        (SAC, "Pendulum-v1", PENDULUM, 1),
        (SAC, "Pendulum-v1", PENDULUM, 3),
        (DQN, "CartPole-v1", CARTPOLE, 1),
    ],
)
def test_every_step_is_paid_by_the_newest_model(
    kind: Any, env: str, form: dict[str, Any], n: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "reward.dat"
    live = LiveReward(file, every=0.0)
    several = {"replay_buffer_kwargs": {"n_steps": n, "gamma": 0.9}} if n > 1 else {}
    algorithm = kind(
        *("MlpPolicy", env),
        replay_buffer_class=RelabelledReplayBuffer if n == 1 else RelabelledNStepReplayBuffer,
        **{"buffer_size": 60, "learning_starts": 20, "batch_size": 8, "gradient_steps": 1, "device": "cpu"},
        policy_kwargs={"net_arch": [8]},
        **several,
    )
    callback = RelabelWithNewest(live)
    algorithm.learn(15, callback=callback)
    buffer = algorithm.replay_buffer
    assert not buffer.rewards[:15].any()  # nobody was paid the environment's own
    models = [model_of(form, seed) for seed in (1, 2)]
    for steps, model in zip((15, 60), models, strict=True):  # the second time round the ring
        save_reward_model(file, model, {}, {}, {})
        algorithm.learn(steps, callback=callback, reset_num_timesteps=False)
        assert paid_by(model, buffer)
    assert not paid_by(models[0], buffer)
    save_reward_model(file, model_of(form, 3, input="frame"), {}, {}, {})
    with caplog.at_level("WARNING"):
        algorithm.learn(4, callback=callback, reset_num_timesteps=False)
    assert paid_by(models[1], buffer)
    assert [record.message.rpartition("; ")[2] for record in caplog.records] == ["the previous model stays"]
    if n > 1:
        rewards = buffer.sample(200).rewards
        assert rewards.abs().max() > np.abs(buffer.rewards).max()  # sums of several


def test_what_a_buffer_cannot_show_a_model_is_refused() -> None:
    buffer = RelabelledReplayBuffer(10, spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,)))
    for model, says in (
        (model_of(PENDULUM, 0, "frame"), "got one of frames, which .* fit one with --input observation"),
        (model_of(CARTPOLE, 0), "for actions of 1 numbers, got one for 2 actions"),
        (
            model_of(PENDULUM | {"num_actions": 2}, 0),
            "for actions of 1 numbers, got one for actions of 2 numbers",
        ),
        (
            model_of(PENDULUM | {"observation_size": 4}, 0),
            "of 3 numbers, got one for observations of 4 numbers",
        ),
    ):
        with pytest.raises(UserError, match=says):
            buffer.relabel(model)


def test_observations_that_a_buffer_keeps_in_another_form_are_to_be_flattened() -> None:
    for space in (spaces.Discrete(3), spaces.Box(-1, 1, (1, 3))):
        buffer = RelabelledReplayBuffer(10, space, spaces.Box(-1, 1, (1,)))
        with pytest.raises(UserError, match=r"3 numbers: wrap the environment in .*\.FlattenObservation"):
            buffer.relabel(model_of(PENDULUM, 0))


def test_an_algorithm_without_such_a_buffer_is_refused_before_it_learns(tmp_path: Path) -> None:
    newest = RelabelWithNewest(LiveReward(tmp_path / "reward.dat"))
    for kind in (DQN, A2C):
        algorithm = kind("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"net_arch": [8]})
        with pytest.raises(
            UserError, match=f"replay_buffer_class=RelabelledReplayBuffer, got {kind.__name__} without"
        ):
            algorithm.learn(1, callback=newest)


def test_several_environments_are_paid_together() -> None:
    buffer = RelabelledReplayBuffer(40, spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,)), n_envs=4)
    model, rng = model_of(PENDULUM, 3), np.random.default_rng(0)
    for step in range(25):
        seen = rng.standard_normal((2, 4, 3)).astype(np.float32)
        buffer.add(seen[0], seen[1], rng.uniform(-1, 1, (4, 1)), np.full(4, 9.0), np.zeros(4), [{}] * 4)
        if step == 9:
            buffer.relabel(model)
    assert buffer.full
    assert paid_by(model, buffer)
