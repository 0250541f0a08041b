"""Runs with a replay, from flags to files."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.agent.checkpoints import load_policy
from lib.agent.config import TrainConfig
from lib.agent.dqn import QNet
from lib.agent.off_policy import OffPolicy
from lib.agent.play_config import PlayConfig
from lib.cli import UserError
from lib.runs import parse_resumable
from lib.tools.lineage import lineage_text
from lib.tools.play_games import play_games
from lib.training.train import _LEARNERS, train
from tests.envs import reach
from tests.reward.models import save_unfitted
from tests.training.evaluations import one_game
from tests.training.test_resume import differences, run_in, state_of

train_quickly = partial(train, evaluate=one_game)

REACH = f"{reach.__name__}:Reach-v0"
FLAGS: dict[str, dict[str, Any]] = {
    "sac": {"env": REACH, "batch_size": 16},
    "dqn": {"env": "MovingDot-v0", "batch_size": 4, "quantiles": 3, "dueling": True, "hold_prob": 0.3},
}
FORMS: dict[str, dict[str, Any]] = {
    "sac": {
        "frame_shape": (reach.SIZE, reach.SIZE, 3),
        "num_actions": 2,
        "continuous": True,
        "observation_size": 5,
    },
    "dqn": {"frame_shape": (84, 84, 3), "num_actions": 5},
}


def small(root: Path, algo: str, **flags: Any) -> TrainConfig:
    kept: dict[str, Any] = {
        **{
            "num_envs": 2,
            "learning_starts": 10,
            "replay_steps": 200,
            "replay_ratio": 0.25,
            "eval_every": 1000,
        },
        **{"eval_games": 1, "runs": root / "runs", "save": root / "save", "steps": 40, "threads": 1},
    }
    return TrainConfig(name="x", algo=algo, **(kept | FLAGS[algo] | flags))


def reward_file(path: Path, algo: str, input: str = "observation", seed: int = 0) -> Path:
    return save_unfitted(path, **FORMS[algo], input=input, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("algo", FLAGS)
def test_a_run_resumes_with_all_that_it_had_and_its_policy_plays(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small(tmp_path, algo, priority=0.5, n_step=2))
    said = capsys.readouterr().out
    assert "replay: up to 200 steps, " in said
    assert "saved with the state" in said
    before = state_of(tmp_path)
    assert (before["steps"], before["updates"]) == (40, 8)
    assert before["replay"]["filled"] == 20

    policy = tmp_path / "save" / "latest.dat"
    assert algo in lineage_text(policy)
    play_games(PlayConfig(model=policy, games=1))
    assert f"{FLAGS[algo]['env']}: score" in capsys.readouterr().out

    resumed: list[OffPolicy] = []

    def keep(*arguments: Any, **parts: Any) -> OffPolicy:
        resumed.append(_LEARNERS[algo](*arguments, **parts))
        return resumed[0]

    again = parse_resumable(TrainConfig, ("steps",), ["--resume", str(run_in(tmp_path)), "--steps", "60"])
    train(again, make_learner=keep)
    after = state_of(tmp_path)
    assert (after["steps"], after["updates"]) == (60, 13)
    # The rows of before, the cut game's last, and the new ones.
    assert after["replay"]["filled"] == 20 + 1 + 10
    assert torch.equal(after["replay"]["actions"][:20], before["replay"]["actions"][:20])

    learner = resumed[0]
    learner.load_state(before)
    assert differences(before["network"], learner.state()["network"]) == []
    assert differences(before["optimizers"], learner.state()["optimizers"]) == []
    assert differences(before["target"], learner.state()["target"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("algo", FLAGS)
def test_a_replay_may_be_left_out_of_the_state(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_quickly(small(tmp_path, algo, save_replay=False))
    assert "not saved: a resumed run refills it" in capsys.readouterr().out
    assert state_of(tmp_path)["replay"] is None
    again = parse_resumable(TrainConfig, ("steps",), ["--resume", str(run_in(tmp_path)), "--steps", "60"])
    train_quickly(again)
    after = state_of(tmp_path)
    assert after["steps"] == 60
    assert after["updates"] == 8 + 3  # none until it was filled again


@pytest.mark.slow
@pytest.mark.parametrize("algo", FLAGS)
def test_a_policy_is_continued_on_a_learned_reward(algo: str, tmp_path: Path) -> None:
    train_quickly(small(tmp_path / "first", algo))
    model = tmp_path / "first" / "save" / "latest.dat"
    reward = reward_file(tmp_path / "reward.dat", algo)
    # It never learns: what is saved is what it began with, and no action was random.
    config = small(tmp_path, algo, model=model, reward=reward, learning_starts=100, finetune=True)
    train(config)
    saved, content = load_policy(tmp_path / "save" / "latest.dat")
    began, _ = load_policy(model)
    assert differences(began.state_dict(), saved.state_dict()) == []
    assert content["parents"]["policy"]["file"] == str(model)
    assert content["parents"]["reward"]["config"] == {"seed": 0}
    assert state_of(tmp_path)["replay"]["learned"][:-1].abs().min() > 0
    assert config.lr == pytest.approx(TrainConfig(name="x", algo=algo).lr / 10)


@pytest.mark.slow
@pytest.mark.parametrize("algo", FLAGS)
def test_each_new_reward_model_pays_for_the_whole_replay(algo: str, tmp_path: Path) -> None:
    reward = reward_file(tmp_path / "reward.dat", algo)

    made: list[Any] = []

    def make(*arguments: Any, **parts: Any) -> OffPolicy:
        learner = _LEARNERS[algo](*arguments, **parts)
        advance = learner.advance

        def then() -> Any:
            """Another model lies in the file after some steps."""
            if learner.steps == 30:
                reward_file(reward, algo, seed=1)
            if learner.steps == 34:  # which a replay cannot be rated by: it is skipped
                reward_file(reward, algo, seed=2, input="frame")
            return advance()

        learner.advance = then
        made.append(learner)
        return learner

    train_quickly(small(tmp_path, algo, reward=reward, watch_reward=True), make_learner=make)
    learner = made[0]
    batch = learner.replay.sample(100, torch.Generator())
    newest = learner.player.reward
    assert newest.origin["config"] == {"seed": 1}
    with torch.no_grad():
        expected = newest.pay(torch.empty(0), batch.actions, batch.observations)
    counts = batch.weights > 0
    torch.testing.assert_close(batch.returns[counts], expected[counts], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("algo", FLAGS)
def test_what_a_replay_cannot_have_is_refused(algo: str, tmp_path: Path) -> None:
    frames = reward_file(tmp_path / "frames.dat", algo, input="frame")
    with pytest.raises(UserError, match=r"frames.dat: a reward model of frames.*--input observation"):
        train_quickly(small(tmp_path, algo, reward=frames, watch_reward=True))
    train_quickly(small(tmp_path / "fixed", algo, reward=frames, steps=12))  # paid when it happened
    assert state_of(tmp_path / "fixed")["replay"]["learned"][:-1].abs().min() > 0
    with pytest.raises(UserError, match=r"--replay-steps 200, --replay-mb 0\.0001: expected room"):
        train_quickly(small(tmp_path, algo, replay_mb=0.0001))


@pytest.mark.slow
def test_policies_of_other_algorithms_and_other_environments_are_refused(tmp_path: Path) -> None:
    train_quickly(small(tmp_path / "sac", "sac"))
    model = tmp_path / "sac" / "save" / "latest.dat"
    with pytest.raises(UserError, match=r"--algo dqn expects discrete actions, but .*Reach-v0 has"):
        train_quickly(small(tmp_path, "dqn", env=REACH))
    config = TrainConfig(name="x", env=REACH, model=model, num_envs=2, eval_games=1, runs=tmp_path / "runs")
    with pytest.raises(
        UserError, match=r"latest.dat: expected a policy that --algo a2c can continue, got one of sac"
    ):
        train_quickly(config)
    with pytest.raises(UserError, match="--algo sac expects vectors and continuous actions, but CartPole-v1"):
        train_quickly(small(tmp_path, "sac", env="CartPole-v1"))
    message = "--network small needs a policy that sees pictures, but CartPole-v1 shows vectors"
    with pytest.raises(UserError, match=message):
        train_quickly(small(tmp_path, "dqn", env="CartPole-v1", network="small"))


def test_a_policy_keeps_its_kind_of_network(tmp_path: Path) -> None:
    first = small(tmp_path / "a", "dqn", env="CartPole-v1", hold_prob=0.0, steps=4)
    train_quickly(first)
    again = dataclasses.replace(
        first, model=tmp_path / "a" / "save" / "latest.dat", save=tmp_path / "b", runs=tmp_path / "r"
    )
    plain = tmp_path / "a" / "plain"
    train_quickly(dataclasses.replace(first, dueling=False, save=plain))
    others: tuple[dict[str, Any], ...] = (
        {"quantiles": 5},
        {"network": "small"},
        {"model": plain / "latest.dat", "dueling": True},
    )
    for other, kept in zip(others, ("quantiles 3", "network shared", "dueling off"), strict=True):
        with pytest.raises(UserError, match=f"latest.dat has --{kept} and keeps it; leave this flag out"):
            train_quickly(dataclasses.replace(again, **other))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]  # refused before anything is made
    train_quickly(dataclasses.replace(again, quantiles=1, dueling=False))  # the defaults
    network, _ = load_policy(tmp_path / "b" / "latest.dat")
    assert isinstance(network, QNet)
    assert (network.quantiles, network.dueling) == (3, True)
