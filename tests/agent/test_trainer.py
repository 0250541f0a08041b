"""What training does when the world around it fails."""

import errno
from pathlib import Path

import pytest
import torch

from lib.agent.config import TrainConfig
from lib.agent.trainer import train
from lib.cli import UserError
from lib.preferences.recorder import SegmentRecorder


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
