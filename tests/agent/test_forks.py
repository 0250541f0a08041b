"""Clips that fork: they begin alike and go apart, and are compared with each other."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.agent.checkpoints import save_policy
from lib.agent.config import TrainConfig
from lib.agent.dqn import QNet
from lib.cli import UserError
from lib.learner import Alone
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import FORK, save_segment
from lib.preferences.strategies import make_strategy
from lib.preferences.teachers import label_with_teacher
from lib.training import train as training
from lib.training.train import train
from tests.preferences.test_strategies import segment

FORKS = {"record_only": True, "fork": 3, "num_envs": 6, "record_prob": 0.1, "event_prob": 1.0}


def recorded(root: Path, **more: object) -> SegmentDB:
    """Forks of untaught play, 80 steps of each environment."""
    where = {"db_path": root / "db", "runs": root / "runs"}
    flags = {"name": "x", "steps": 480, "hold_shortest": 20, "hold_longest": 30, **FORKS, **where, **more}
    train(TrainConfig(**flags))  # type: ignore[arg-type]
    return SegmentDB(root / "db")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> SegmentDB:
    return recorded(tmp_path_factory.mktemp("forks"))


def test_the_clips_of_a_moment_begin_alike_and_go_apart(db: SegmentDB) -> None:
    moments: dict[str, list[str]] = {}
    for name in db.names:
        sidecar = db.load(name).sidecar
        assert sidecar is not None
        assert sidecar.forked
        moments.setdefault(sidecar.reason, []).append(name)
    assert len(moments) > 1
    for reason, names in moments.items():
        source, _, number = reason.removeprefix("fork of ").partition("/")
        assert f"{source}/{number}.dat" in names
        assert {name[3:] for name in names} == {f"{number}.dat"}
        assert len({int(name[:2]) // 3 for name in names}) == 1
        clips = [db.load(name) for name in names]
        assert all(np.array_equal(clip.frames[0], clips[0].frames[0]) for clip in clips)
        assert all((clip.actions[:20] == clip.actions[0]).all() for clip in clips)
        held = {int(clip.actions[0]) for clip in clips}
        assert len({clip.frames[-1].tobytes() for clip in clips}) >= len(held)


def test_the_strategy_asks_about_clips_of_one_moment_alone(db: SegmentDB) -> None:
    queries = make_strategy("fork", db, random_share=0).propose(
        db.names, set(), 100, np.random.default_rng(0)
    )
    reasons = [{db.load(name).sidecar.reason for name in query.pair} for query in queries]  # type: ignore[union-attr]
    assert all(len(of_pair) == 1 for of_pair in reasons)
    assert {query.strategy for query in queries} == {"fork"}
    moments = [db.load(name).sidecar.reason for name in db.names]  # type: ignore[union-attr]
    sizes = [moments.count(moment) for moment in set(moments)]
    assert len({query.pair for query in queries}) == sum(size * (size - 1) // 2 for size in sizes)
    summary = label_with_teacher(db.root, "score", 2, strategy="fork", random_share=0)
    assert summary.written == 2


def test_without_forks_pairs_are_drawn_at_random(tmp_path: Path) -> None:
    # Of one number, as clips of environments that are stepped together may be; one has no fellow of its moment.
    for env in range(3):
        clip = segment(env)
        assert clip.sidecar is not None
        if env == 0:
            forked = dataclasses.replace(clip.sidecar, reason=f"{FORK}00/00000000")
            clip = dataclasses.replace(clip, sidecar=forked)
        save_segment(tmp_path / f"{env:02d}" / "00000000.dat", clip)
    db = SegmentDB(tmp_path)
    queries = make_strategy("fork", db, random_share=0).propose(db.names, set(), 3, np.random.default_rng(0))
    assert len(queries) == 3
    assert {query.strategy for query in queries} == {"random"}


class Second(Alone):
    """The second of several processes, as far as it plays."""

    rank = 1


@pytest.mark.slow
def test_processes_fork_at_moments_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"num_envs": 3, "record_prob": 0.02, "event_prob": 0.0, "steps": 300}
    first = recorded(tmp_path / "first", **few)
    cpu = torch.device("cpu")
    monkeypatch.setattr(training, "begin", lambda *_: (Second(), cpu, False, range(3)))
    second = recorded(tmp_path / "second", **few)
    assert min(name[3:] for name in first.names) != min(name[3:] for name in second.names)


@pytest.mark.slow
def test_events_fork_as_well(tmp_path: Path) -> None:
    """Untaught play that goes up and down meets a diver soon."""
    db = recorded(tmp_path, num_envs=3, record_prob=0.0, event_kinds="pickup", steps=1200, hold_prob=0.1)
    assert len(db.names) >= 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"fork": 4}, "--fork 4: expected to divide the 6 environments of a process into whole groups"),
        ({"record_only": False}, "--fork expects a run that only records: add --record-only"),
        ({"env": "MovingDot-v0", "event_prob": 0.0}, "--fork works for Atari games only"),
    ],
)
def test_what_cannot_fork_is_refused(flags: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        recorded(tmp_path, **flags)


@pytest.mark.parametrize("taught", [False, True])
def test_dqn_plays_its_forks_at_random_if_untaught_and_else_as_often_as_asked(
    tmp_path: Path, taught: bool
) -> None:
    flags: dict[str, object] = {}
    if taught:
        flags = {"model": tmp_path / "q.dat", "epsilon": 1.0}
        save_policy(tmp_path / "q.dat", QNet(18), 0, {}, {}, {})
    db = recorded(tmp_path, algo="dqn", hold_prob=0.0, hold_longest=20, env_threads=1, **flags)
    actions = np.concatenate([db.load(name).actions[20:] for name in db.names])
    assert len(np.unique(actions)) > 10
