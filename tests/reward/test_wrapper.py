"""Paying the learned reward around a single environment."""

from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import A2C

from lib.cli import UserError
from lib.envs.moving_dot import MovingDotEnv, dot_position
from lib.envs.observation import Observer
from lib.preferences.segment_db import SegmentDB
from lib.preferences.wrappers import EpisodeRecorderWrapper
from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.wrapper import RewardModelWrapper


class ToTheLeft:
    """Pays the dot's pixels left of the middle, ten times over, less a tenth of the action."""

    def rewards(self, frames: np.ndarray, actions: np.ndarray) -> np.ndarray:
        assert frames.dtype == np.uint8
        assert frames.shape == (1, 84, 84, 3)
        assert actions.dtype == np.int64
        assert actions.shape == (1,)
        return (10 * (41.5 - dot_position(frames)[:, 0]) - actions / 10).astype(np.float32)


def test_pays_for_the_frame_that_the_action_was_chosen_on() -> None:
    env, plain = RewardModelWrapper(MovingDotEnv(), ToTheLeft()), MovingDotEnv()
    frame, _ = env.reset(seed=3)
    plain.reset(seed=3)
    paid = []
    for t in range(100):
        x = dot_position(frame)[0]
        frame, reward, terminated, truncated, info = env.step(t % 5)
        plain_frame, score, *plain_ends, plain_info = plain.step(t % 5)
        assert reward == pytest.approx(10 * (41.5 - x) - (t % 5) / 10)
        assert isinstance(reward, float)
        assert info["score"] == score
        assert np.array_equal(frame, plain_frame)
        assert [terminated, truncated] == plain_ends
        assert set(info) == set(plain_info) | {"score"}
        paid.append(reward)
    assert truncated
    assert max(np.abs(paid)) > 10  # neither clipped nor signed
    assert len(set(np.abs(paid))) > 1


def test_a_checkpoint_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward-none\.dat"):
        RewardModelWrapper(MovingDotEnv(), str(tmp_path / "reward-none.dat"))


def test_takes_the_path_of_a_reward_model_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "reward-dot.dat"
    model = RewardModel([Member(RewardNet((84, 84, 3), 5), mean=2.0, std=0.25)], torch.device("cpu"))
    save_reward_model(path, model, config={}, parents={}, results={})
    env = RewardModelWrapper(MovingDotEnv(), path)
    frame, _ = env.reset(seed=0)
    _, reward, *_ = env.step(2)
    assert reward == pytest.approx(model.rewards(frame[None], np.array([2]))[0], abs=1e-5)

    with pytest.raises(UserError, match=r"reward-dot\.dat.*MovingDotEnv"):
        RewardModelWrapper(MovingDotEnv(size=94, dot=14), str(path)).reset()


def test_a_model_of_observations_is_shown_the_last_four_steps_of_this_game(tmp_path: Path) -> None:
    path = tmp_path / "reward-dot.dat"
    torch.manual_seed(0)
    network = RewardNet((84, 84, 3), 5, input="observation")
    torch.nn.init.normal_(network.out.get_submodule("2").weight)  # type: ignore[arg-type]
    model = RewardModel([Member(network.eval(), mean=0.0, std=1.0)], torch.device("cpu"))
    save_reward_model(path, model, config={}, parents={}, results={})
    env, observer = RewardModelWrapper(MovingDotEnv(), path), Observer(1, (84, 84, 3), torch.device("cpu"))
    for game in range(2):
        frame, _ = env.reset(seed=game)
        for t in range(6):
            seen = observer.push(torch.from_numpy(frame[None]), torch.tensor([t == 0])).numpy()
            expected = model.rewards(frame[None], np.array([2]), seen)[0]
            frame, reward, *_ = env.step(2)
            assert reward == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_stable_baselines3_trains_on_it_while_the_score_is_recorded(tmp_path: Path) -> None:
    recorder = EpisodeRecorderWrapper(MovingDotEnv(), tmp_path, record_prob=0.05)
    model = A2C("CnnPolicy", RewardModelWrapper(recorder, ToTheLeft()), seed=0, device="cpu")
    model.learn(210)
    assert model.ep_info_buffer is not None
    returns = [game["r"] for game in model.ep_info_buffer]
    assert returns
    assert max(map(abs, returns)) > 100  # no score of 100 steps comes to that
    db = SegmentDB(tmp_path)
    for name in db.names:
        sidecar = db.load(name).sidecar
        assert sidecar is not None
        assert (sidecar.scores >= 0).all()
        assert (sidecar.scores <= 1).all()
    assert db.names
