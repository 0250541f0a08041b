"""What training does when the world around it fails, when its critic warms up, and what it charts."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.agent import trainer
from lib.agent.checkpoints import load_policy
from lib.agent.config import TrainConfig
from lib.agent.trainer import train
from lib.cli import UserError
from lib.preferences.recorder import SegmentRecorder
from lib.runs import Charts


def test_a_disk_that_fills_up_while_recording_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def after(self: SegmentRecorder, step: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(errno.ENOSPC, "No space left on device", "db/00/00000001.dat")

    monkeypatch.setattr(SegmentRecorder, "after", after)
    config = TrainConfig(
        name="x",
        env="MovingDot-v0",
        steps=10_000,
        num_envs=2,
        eval_games=1,
        save=tmp_path / "save",
        db_path=tmp_path / "db",
        runs=tmp_path / "runs",
    )
    with pytest.raises(UserError, match=r"stopped after 20 steps, saved .*could not record.*No space left"):
        train(config)
    assert torch.load(tmp_path / "save" / "latest.dat", weights_only=True)["steps"] == 20


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the moving dot to start from."""
    root = tmp_path_factory.mktemp("start")
    train(dot(root, steps=10, save=root))
    return root / "latest.dat"


def dot(root: Path, **flags: Any) -> TrainConfig:
    small: dict[str, Any] = {"env": "MovingDot-v0", "num_envs": 2, "eval_games": 1, "runs": root / "runs"}
    return TrainConfig(name="x", **(small | flags))


def moved(start: Path, tmp_path: Path, updates: int, **flags: Any) -> dict[str, bool]:
    """Whether each part of the policy changed within some updates of 4 steps of 2 environments."""
    path = train(
        dot(tmp_path, model=start, rollout=4, steps=8 * updates, save=tmp_path / str(updates), **flags)
    )
    assert path is not None
    before, after = load_policy(start)[0], load_policy(path)[0]
    return {
        part: any(
            not torch.equal(old, new)
            for old, new in zip(
                getattr(before, part).parameters(), getattr(after, part).parameters(), strict=True
            )
        )
        for part in ("conv", "policy", "value")
    }


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_the_critic_warms_up_before_anything_moves_the_policy(start: Path, tmp_path: Path, algo: str) -> None:
    flags = {"algo": algo, "critic_warmup": 3}
    assert moved(start, tmp_path, 3, **flags) == {"conv": False, "policy": False, "value": True}
    assert moved(start, tmp_path, 4, **flags) == {"conv": True, "policy": True, "value": True}


def test_frozen_convolutions_stay_frozen_behind_the_warm_up(start: Path, tmp_path: Path) -> None:
    changed = moved(start, tmp_path, 3, critic_warmup=1, freeze_convs=True)
    assert changed == {"conv": False, "policy": True, "value": True}


@pytest.fixture
def charted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What each update's charts say; they are written after every one."""
    points: list[dict[str, float]] = []

    def scalars(self: Charts, values: Mapping[str, float], step: int) -> None:
        points.append(dict(values))

    monkeypatch.setattr(Charts, "scalars", scalars)
    monkeypatch.setattr(trainer, "_LOG_SECONDS", 0.0)
    return points


ALWAYS = {
    *("loss_policy", "loss_value", "loss_entropy", "loss_total", "advantage", "values", "batch_rewards"),
    *("entropy", "grad_l2", "grad_max", "grad_var", "lr", "speed"),
    *("approx_kl", "clip_fraction", "explained_variance", "epochs_done"),
}


def test_charts_of_a2c(tmp_path: Path, charted: list[dict[str, float]]) -> None:
    train(dot(tmp_path, steps=20))
    assert set(charted[0]) == ALWAYS


def test_a_finetune_charts_the_kl_to_where_it_began(
    start: Path, tmp_path: Path, charted: list[dict[str, float]]
) -> None:
    train(dot(tmp_path, steps=40, model=start, finetune=True, lr=0.01))
    first, second = [point for point in charted if "lr" in point][:2]
    assert set(first) == ALWAYS | {"kl_ref", "kl_coef"}
    assert first["kl_ref"] == pytest.approx(0, abs=1e-6)  # before the first update they are one
    assert second["kl_ref"] > 1e-6
    assert second["kl_coef"] == 0


def test_the_leash_tightens_above_its_target_and_waits_for_the_warm_up(
    start: Path, tmp_path: Path, charted: list[dict[str, float]]
) -> None:
    """8 steps an update and a horizon of 16: by a tenth each time. Where nothing has moved the KL is below target."""
    flags = {"rollout": 4, "critic_warmup": 1, "lr": 0.02, "kl": 0.5, "kl_target": 1e-7, "kl_horizon": 16}
    train(dot(tmp_path, steps=32, model=start, eval_every=10**9, **flags))
    coefs = [point["kl_coef"] for point in charted if "kl_coef" in point]
    kls = [point["kl_ref"] for point in charted if "kl_ref" in point]
    assert coefs[:2] == [0.5, 0.5]
    assert max(kls[:2]) < 1e-7 < min(kls[2:])
    assert coefs[2:] == pytest.approx([0.5 * 0.9, 0.5 * 0.9 * 1.1], rel=1e-5)


def test_the_same_seed_gives_the_same_ppo(tmp_path: Path) -> None:
    """Its minibatches are drawn at random."""
    flags = {"algo": "ppo", "rollout": 8, "steps": 32}
    one, same, other = (
        train(dot(tmp_path, seed=seed, save=tmp_path / name, **flags))
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    assert one is not None
    assert same is not None
    assert other is not None
    weights = [
        torch.cat([p.flatten() for p in load_policy(path)[0].parameters()]) for path in (one, same, other)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
