"""Training on a reward model that is replaced meanwhile: what is taken, what is not, who waits for what."""

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.agent.actor_critic import ActorCritic
from lib.agent.config import TrainConfig
from lib.agent.rollout import Rollout
from lib.cli import UserError
from lib.preferences.labels import Label, LabelLog
from lib.preferences.schedule import ProgressReader
from lib.preferences.segment_db import SegmentDB
from lib.reporting import Charts
from lib.training import newest_reward
from lib.training.train import train
from tests.reward.test_live import publish
from tests.scripts import wait_until
from tests.training.evaluations import one_game

train_quickly = partial(train, evaluate=one_game)


def dot(root: Path, **flags: Any) -> TrainConfig:
    small: dict[str, Any] = {
        **{
            "env": "MovingDot-v0",
            "network": "small",
            "num_envs": 2,
            "eval_games": 1,
            "runs": root / "runs",
            "eval_every": 1000,
        },
        **{
            "reward": root / "reward.dat",
            "watch_reward": True,
            "rollout": 5,
            "steps": 40,
            "save": root / "save",
            "network": "shared",  # half as large to make and to save
        },
        **{"labels": 40, "opening_labels": 4},
    }
    return TrainConfig(name="x", **(small | flags))


@pytest.fixture
def charted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Steps and the version of the reward model on the chart."""
    points: list[tuple[int, float]] = []

    def scalars(self: Charts, values: dict[str, float], step: int) -> None:
        if "reward_version" in values:
            points.append((step, values["reward_version"]))

    monkeypatch.setattr(Charts, "scalars", scalars)
    return points


class Noting(ActorCritic):
    """Lets something happen within given updates, counted from 1, and notes whether the policy moved in each.

    Attributes:
      happens: by update.
      moves: of all updates so far.
    """

    happens: dict[int, Callable[[], object]]
    moves: list[bool]

    def learn(self, rollout: Rollout) -> dict[str, torch.Tensor | float]:
        self.happens.get(self.updates + 1, lambda: None)()
        parts = super().learn(rollout)
        self.moves.append(next(self.network.policy.parameters()).requires_grad)
        return parts


def noting(happens: dict[int, Callable[[], object]]) -> type[Noting]:
    return type("Noting", (Noting,), {"happens": happens, "moves": []})


@pytest.mark.slow
def test_a_new_model_pays_from_the_next_update_on_and_is_charted(
    tmp_path: Path, charted: list[tuple[int, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    config = dot(tmp_path, db_path=tmp_path / "db")
    path = tmp_path / "reward.dat"
    publish(path, 1)
    events: dict[int, Callable[[], object]] = {
        2: lambda: publish(path, 2),
        3: lambda: path.write_bytes(b"half a mod"),
        4: path.unlink,
    }
    saved = train_quickly(config, make_learner=noting(events), seconds=0.0).checkpoint
    assert charted == [(10, 1), (20, 1), (30, 2), (40, 2)]
    said = capsys.readouterr().out
    assert "0 steps: loaded reward model 1, of 10 labels" in said
    assert "20 steps: loaded reward model 2, of 20 labels" in said
    assert "not used, keeping version 2" in said
    assert saved is not None
    parent = torch.load(saved, weights_only=True)["parents"]["reward"]
    assert (parent["version"], parent["parents"]["labels"]) == (2, 20)
    progress = ProgressReader(tmp_path / "db").read()
    assert progress is not None
    assert (progress.steps, progress.phase, progress.reward_version, progress.due) == (40, "over", 2, 40)


def test_the_critic_warms_up_to_each_new_reward(tmp_path: Path) -> None:
    config = dot(tmp_path, critic_warmup=2, steps=70)
    path = tmp_path / "reward.dat"
    publish(path, 1)
    learner = noting({3: lambda: publish(path, 2)})
    train_quickly(config, make_learner=learner)
    assert learner.moves == [False, False, True, False, False, True, True]


@pytest.mark.slow
def test_before_there_is_a_model_clips_are_recorded_and_nothing_is_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dot(tmp_path, db_path=tmp_path / "db", record_prob=0.5, steps=10, opening_labels=10)
    path = tmp_path / "reward.dat"
    phases: list[tuple[str, int, int]] = []
    reader = ProgressReader(tmp_path / "db")

    def others() -> None:
        def waits() -> bool:
            progress = reader.read()
            return progress is not None and progress.phase == "waiting"

        wait_until(waits, pause=0.01)
        progress = reader.read()
        assert progress is not None
        phases.append((progress.phase, progress.steps, progress.due))
        path.write_bytes(b"half")
        time.sleep(3 * newest_reward._POLL_SECONDS)
        publish(path, 1)

    thread = threading.Thread(target=others, daemon=True)
    thread.start()
    train_quickly(config)
    thread.join()
    assert phases == [("waiting", 0, 10)]
    assert (
        20 <= len(SegmentDB(tmp_path / "db").names) <= 22
    )  # two for each label of the opening; then no more
    said = capsys.readouterr().out
    assert f"no reward model in {path} yet: waiting for one, and recording 20 clips" in said
    assert "not used, waiting for another" in said
    assert "0 steps: loaded reward model 1" in said
    assert "10 steps: score" in said


@pytest.mark.slow
def test_an_opening_that_was_cut_resumes_with_the_clips_it_has(tmp_path: Path) -> None:
    config = dot(tmp_path, db_path=tmp_path / "db", record_prob=0.5, steps=10, opening_labels=10)

    def later(clips: int) -> threading.Thread:
        def cut() -> None:
            wait_until(lambda: len(list((tmp_path / "db").glob("*/*.dat"))) >= clips, pause=0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        return thread

    thread = later(4)
    train_quickly(config)
    thread.join()
    before = len(SegmentDB(tmp_path / "db").names)
    assert 4 <= before < 20
    (run,) = (tmp_path / "runs").iterdir()
    thread = later(20)  # not fewer: those that there were count once
    train_quickly(dataclasses.replace(config, resume=run))
    thread.join()
    assert 20 <= len(SegmentDB(tmp_path / "db").names) <= 22


def test_an_opening_too_small_for_any_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--opening-labels 4: expected at least 10"):
        train_quickly(dot(tmp_path, db_path=tmp_path / "db"))
    with pytest.raises(UserError, match="--opening-labels 8: expected at least 10"):
        train_quickly(dot(tmp_path, db_path=tmp_path / "db", labels=8, opening_labels=500))


def test_training_waits_for_labels_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """40 labels over 40 steps, 4 of them at the start and up to 6 of slack: 10 steps are free, then labels must come."""
    config = dot(tmp_path, db_path=tmp_path / "db", wait_for_labels=6)
    publish(tmp_path / "reward.dat", 1)
    reader, log = ProgressReader(tmp_path / "db"), LabelLog(tmp_path / "db" / "labels.json")
    waited: list[tuple[int, int]] = []

    def labeller() -> None:
        given = 0
        while given < 25:
            progress = reader.read()
            if progress is not None and progress.phase == "waiting" and progress.due > given + 6:
                waited.append((progress.steps, progress.due))
                while progress.due > given + 6:
                    given += 1
                    log.append(Label(f"00/{given}.dat", f"01/{given}.dat", 1))
            time.sleep(0.005)

    thread = threading.Thread(target=labeller, daemon=True)
    thread.start()
    train_quickly(config)
    thread.join()
    assert waited == [(10, 13), (20, 22), (30, 31)]
    assert "waiting for labels, " in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_resumes_with_whatever_model_is_there_then(
    tmp_path: Path, charted: list[tuple[int, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    config = dot(tmp_path, db_path=tmp_path / "db")
    publish(tmp_path / "reward.dat", 1)
    train_quickly(config)
    publish(tmp_path / "reward.dat", 5)
    (run,) = (tmp_path / "runs").iterdir()
    train_quickly(dataclasses.replace(config, resume=run, steps=60), seconds=0.0)
    assert charted[-2:] == [(50, 5), (60, 5)]
    assert "40 steps: loaded reward model 5" in capsys.readouterr().out
    assert json.loads((tmp_path / "db" / "progress.json").read_text())["steps"] == 60


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_a_resumed_run_knows_its_own_reward_model_from_another(tmp_path: Path, version: int) -> None:
    """To its own the critic has warmed up, and what it found best stays so; both pay 1 for everything."""
    config = dot(tmp_path, critic_warmup=2, eval_every=20)
    publish(tmp_path / "reward.dat", 1, paid=1.0)
    learner = noting({})
    train_quickly(config, make_learner=learner)
    best = (tmp_path / "save" / "best-learned.dat").readlink()
    if version == 2:
        publish(tmp_path / "reward.dat", 2, paid=1.0)
    (run,) = (tmp_path / "runs").iterdir()
    train_quickly(dataclasses.replace(config, resume=run, steps=60), make_learner=learner)
    assert learner.moves == [False, False, True, True, *[version == 1] * 2]
    assert ((tmp_path / "save" / "best-learned.dat").readlink() == best) == (version == 1)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"reward": None}, "add -r FILE"),
        ({"wait_for_labels": 5}, "add --db-path DB"),
        ({"db_drop_oldest": True}, "add --db-max-mb N"),
    ],
)
def test_flags_that_lack_another(tmp_path: Path, flags: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UserError, match=wanted):
        dot(tmp_path, **flags)
