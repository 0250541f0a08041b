"""Flags of 01_a2c.py that depend on each other."""

from pathlib import Path
from typing import Any

import pytest

from lib.agent.config import ALGORITHMS, TrainConfig
from lib.cli import UserError, parse

MODEL, REWARD = Path("policy.dat"), Path("reward.dat")


def test_an_algorithm_brings_its_defaults() -> None:
    a2c, ppo = TrainConfig(name="x"), TrainConfig(name="x", algo="ppo")
    assert (a2c.rollout, a2c.epochs, a2c.clip_range, a2c.gae_lambda, a2c.lr) == (5, 1, 0, 1, 7e-4)
    assert (ppo.rollout, ppo.epochs, ppo.clip_range, ppo.gae_lambda, ppo.lr) == (32, 4, 0.2, 0.95, 2.5e-4)
    assert ppo.normalise_advantages
    assert not a2c.normalise_advantages
    assert set(ALGORITHMS["a2c"]) == set(ALGORITHMS["ppo"])


def test_what_is_given_counts() -> None:
    config = parse(
        TrainConfig,
        [
            *("-n", "x", "--algo", "ppo", "--epochs", "2", "--clip", "0", "--no-normalise-advantages"),
            *("--finetune", "-m", "p", "--no-freeze-convs"),
        ],
    )
    assert (config.epochs, config.clip_range, config.normalise_advantages, config.freeze_convs) == (
        2,
        0,
        False,
        False,
    )
    assert config.minibatches == 4


def test_a_finetune_is_gentle() -> None:
    gentle = TrainConfig(name="x", model=MODEL, finetune=True)
    assert (gentle.lr, gentle.freeze_convs) == (7e-5, True)
    assert TrainConfig(name="x", model=MODEL, finetune=True, lr=1e-3).lr == 1e-3
    assert not TrainConfig(name="x", model=MODEL).freeze_convs


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"score_weight": 1.0}, "--score-weight expects a learned reward.*add -r FILE"),
        ({"record_only": True}, "--record-only expects a DB to fill: add --db-path DB"),
        ({"record_only": True, "db_path": MODEL, "save": MODEL}, "learns nothing: leave out --save"),
        ({"event_prob": 0.1}, "--event-prob expects a DB to record to: add --db-path DB"),
        ({"event_kinds": "refuel"}, "--event-kinds expects a chance that an event is recorded"),
        ({"kl": 0.1}, "--kl expects a policy to stay near: add -m FILE"),
        ({"kl_target": 0.1, "model": MODEL}, "--kl-target expects a KL penalty to adapt"),
        ({"kl_reference": MODEL, "model": MODEL}, "--kl-reference expects a KL penalty.*--kl 0.02"),
        ({"reward_offset": -1.0}, "--reward-offset expects a learned reward.*add -r FILE"),
        ({"reward_scale": 0.1}, "--reward-scale expects a learned reward.*add -r FILE"),
        (
            {"kl": 0.1, "kl_target": 0.1, "model": MODEL, "kl_horizon": 79},
            r"--kl-horizon 79: expected at least the 80 steps of an update \(--rollout 5 × --num-envs 16\)",
        ),
        (
            {"teacher": "score"},
            "--teacher expects a finetune, whose clips it compares: add -r FILE, or -m FILE with --finetune",
        ),
        ({"teacher": "score", "model": MODEL}, "--teacher expects a finetune"),
        (
            {"stop_on_drift": True},
            "--stop-on-drift expects a learned reward that may be exploited: add -r FILE",
        ),
        (
            {"clip_range": 0.1},
            "--clip-range expects an algorithm with several passes, but a2c makes one: add --algo ppo",
        ),
        ({"batch_size": 64}, "--batch-size has no effect with --algo a2c: leave it out"),
        ({"algo": "sac", "dueling": False}, "--dueling has no effect with --algo sac"),
        ({"algo": "sac", "state_entropy": True}, "--state-entropy expects reward models that arrive during"),
        (
            {"algo": "sac", "state_entropy": True, "watch_reward": True, "reward": REWARD, "n_step": 3},
            "--state-entropy pays for single states: expected --n-step 1, got 3",
        ),
        ({"algo": "dqn", "entropy": 0.1}, "--entropy has no effect with --algo dqn"),
        (
            {"algo": "dqn", "network": "separate"},
            "--network separate: dqn has one head; expected shared or small",
        ),
        ({"algo": "sac", "gae_lambda": 0.9}, "--gae-lambda has no effect with --algo sac"),
        ({"algo": "sac", "rollout": 5, "epochs": 1}, "--epochs has no effect with --algo sac"),
        ({"algo": "sac", "model": MODEL, "kl": 0.1}, "--kl has no effect with --algo sac"),
        ({"algo": "sac", "freeze_convs": True}, "--freeze-convs has no effect with --algo sac"),
        ({"db_max_mb": 5.0}, "--db-max-mb expects a DB to limit: add --db-path DB"),
        (
            {"record_only": True, "db_path": Path("db"), "model": MODEL, "kl": 0.1},
            "--record-only learns nothing: leave out --kl",
        ),
        (
            {"record_only": True, "db_path": Path("db"), "model": MODEL, "finetune": True},
            "--record-only learns nothing: leave out --finetune",
        ),
        ({"epochs": 3}, "--epochs expects"),
        ({"minibatches": 2}, "--minibatches expects"),
        ({"value_clip_range": 0.2}, "--value-clip-range expects"),
        ({"target_kl": 0.2}, "--target-kl expects"),
        (
            {"algo": "ppo", "rollout": 1, "num_envs": 2},
            r"--minibatches 4: expected at most the 2 steps of an update",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        TrainConfig(name="x", **flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"epochs": 1, "clip_range": 0.0},  # says no more than a2c does
        {"kl": 0.1, "kl_target": 0.01, "model": MODEL},
        {"reward": REWARD, "score_weight": 0.1},
        {"reward": REWARD, "teacher": "score", "stop_on_drift": True},
        {"model": MODEL, "finetune": True, "teacher": "score"},
        {"algo": "ppo", "rollout": 2, "num_envs": 2},
        {"clip_score": False},
        {"env": "CartPole-v1", "clip_score": True},
        {"algo": "sac", "n_step": 3, "model": MODEL, "finetune": True, "freeze_convs": False},
    ],
)
def test_what_goes_together_is_taken(flags: dict[str, Any]) -> None:
    config = TrainConfig(name="x", **flags)
    assert all(getattr(config, name) == value for name, value in flags.items())


@pytest.mark.parametrize(
    ("env", "clipped"),
    [
        ("SeaquestNoFrameskip-v4", True),
        ("ALE/Seaquest-v5", True),
        ("ale_py:ALE/Seaquest-v5", True),
        ("CartPole-v1", False),
        ("worlds.ALE:Mine-v0", False),
    ],
)
def test_the_score_of_atari_games_is_clipped(env: str, clipped: bool) -> None:
    assert TrainConfig(name="x", env=env).clip_score == clipped
