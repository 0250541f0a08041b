"""What training does when the world around it fails, when its critic warms up, and what it charts."""

import dataclasses
import errno
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent.actor_critic import ActorCritic
from lib.agent.checkpoints import load_policy
from lib.agent.config import TrainConfig
from lib.agent.evaluate import Evaluation, evaluate
from lib.agent.network import PolicyNet
from lib.agent.rollout import Rollout
from lib.checkpoints import load_checkpoint
from lib.cli import UserError
from lib.files import NotRecorded
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from lib.reporting import Charts
from lib.training.evaluation import _layout
from lib.training.train import train
from tests.reward.models import save_unfitted
from tests.scripts import ROOT
from tests.training.evaluations import one_game

train_quickly = partial(train, evaluate=one_game)


def test_a_disk_that_fills_up_while_recording_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def after(self: SegmentRecorder, step: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise NotRecorded(errno.ENOSPC, "No space left on device", "db/00/00000001.dat")

    monkeypatch.setattr(SegmentRecorder, "after", after)
    config = dot(tmp_path, steps=10_000, save=tmp_path / "save", db_path=tmp_path / "db")
    with pytest.raises(UserError, match=r"stopped after 30 steps, saved .*could not record.*No space left"):
        train_quickly(config)
    assert torch.load(tmp_path / "save" / "latest.dat", weights_only=True)["steps"] == 30


@pytest.mark.parametrize("what", ["state.dat", ".dat"])
def test_a_full_disk_is_reported_by_the_clip_it_cost_though_nothing_can_be_written_either(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if str(target).endswith(what):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    def after(self: SegmentRecorder, step: object) -> None:
        monkeypatch.setattr(os, "replace", full)
        raise NotRecorded(errno.ENOSPC, "No space left on device", "db/00/00000001.dat")

    monkeypatch.setattr(SegmentRecorder, "after", after)
    with pytest.raises(UserError, match=r"stopped after 10 steps, .*could not record to the DB"):
        train_quickly(dot(tmp_path, steps=100, db_path=tmp_path / "db", save=tmp_path / "save"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the moving dot to start from."""
    root = tmp_path_factory.mktemp("start")
    train_quickly(dot(root, steps=10, save=root))
    return root / "latest.dat"


def dot(root: Path, **flags: Any) -> TrainConfig:
    small: dict[str, Any] = {
        **{"env": "MovingDot-v0", "network": "small", "num_envs": 2, "eval_games": 1, "runs": root / "runs"}
    }
    return TrainConfig(name="x", **(small | flags))


@pytest.mark.slow
def test_threads_of_the_networks_are_those_asked_for(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        train_quickly(dot(tmp_path, steps=10, threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def moved(start: Path, tmp_path: Path, updates: int, **flags: Any) -> dict[str, bool]:
    """Whether each part of the policy changed within some updates of 4 steps of 2 environments."""
    path = train_quickly(
        dot(tmp_path, model=start, rollout=4, steps=8 * updates, save=tmp_path / str(updates), **flags)
    ).checkpoint
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


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_the_critic_warms_up_before_anything_moves_the_policy(start: Path, tmp_path: Path, algo: str) -> None:
    flags = {"algo": algo, "critic_warmup": 3}
    assert moved(start, tmp_path, 3, **flags) == {"conv": False, "policy": False, "value": True}
    assert moved(start, tmp_path, 4, **flags) == {"conv": True, "policy": True, "value": True}


def test_frozen_convolutions_stay_frozen_behind_the_warm_up(start: Path, tmp_path: Path) -> None:
    changed = moved(start, tmp_path, 3, critic_warmup=1, freeze_convs=True)
    assert changed == {"conv": False, "policy": True, "value": True}


@pytest.mark.slow
def test_the_reference_may_be_another_policy_than_the_start(start: Path, tmp_path: Path) -> None:
    other = train_quickly(
        dot(tmp_path, steps=20, save=tmp_path / "other", seed=5, network="shared")
    ).checkpoint
    flags = {
        "network": None,  # the start keeps its own, "small"
        "model": start,
        "kl": 0.1,
        "kl_reference": other,
        "save": tmp_path / "save",
        "freeze_convs": True,
    }
    run = train_quickly(dot(tmp_path, steps=20, **flags))
    reference = torch.load(run.run_dir / "state.dat", weights_only=True)["reference"]
    assert other is not None
    wanted = load_policy(other)[0].state_dict()
    assert all(torch.equal(reference[name], weights) for name, weights in wanted.items())
    assert run.checkpoint is not None
    parents = load_policy(run.checkpoint)[1]["parents"]
    assert (parents["policy"]["file"], parents["reference"]["file"]) == (str(start), str(other))
    assert parents["reference"]["config"]["seed"] == 5

    other.unlink()
    resumed = train(dataclasses.replace(dot(tmp_path, **flags, steps=40), resume=run.run_dir)).run_dir
    assert torch.equal(
        torch.load(resumed / "state.dat", weights_only=True)["reference"]["conv.0.weight"],
        wanted["conv.0.weight"],
    )


def test_a_reference_of_other_actions_is_refused(start: Path, tmp_path: Path) -> None:
    torch.save(PolicyNet(18).state_dict(), tmp_path / "policy.dat")
    with pytest.raises(UserError, match=r"policy\.dat: a policy for 18 actions.*has 5"):
        train_quickly(dot(tmp_path, model=start, kl=0.1, kl_reference=tmp_path / "policy.dat"))


@pytest.fixture
def charted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What the charts say."""
    points: list[dict[str, float]] = []

    def scalars(self: Charts, values: Mapping[str, float], step: int) -> None:
        points.append(dict(values))

    monkeypatch.setattr(Charts, "scalars", scalars)
    return points


ALWAYS = {
    *("loss_policy", "loss_value", "loss_entropy", "loss_total", "advantage", "values", "batch_rewards"),
    *("entropy", "grad_l2", "grad_max", "grad_var", "lr", "speed"),
    *("approx_kl", "clip_fraction", "explained_variance", "epochs_done"),
}


def test_charts_of_a2c(tmp_path: Path, charted: list[dict[str, float]]) -> None:
    train_quickly(dot(tmp_path, steps=20), seconds=0.0)
    assert set(charted[0]) == ALWAYS


def test_a_finetune_charts_the_kl_to_where_it_began(
    start: Path, tmp_path: Path, charted: list[dict[str, float]]
) -> None:
    train_quickly(dot(tmp_path, steps=40, model=start, finetune=True, lr=0.01), seconds=0.0)
    first, second = [point for point in charted if "lr" in point][:2]
    assert set(first) == ALWAYS | {"kl_ref", "kl_coef"}
    assert first["kl_ref"] == pytest.approx(0, abs=1e-6)  # before the first update they are one
    assert second["kl_ref"] > 1e-6
    assert second["kl_coef"] == 0


@pytest.mark.slow
def test_so_does_one_on_a_learned_reward_alone(
    start: Path, reward: Path, tmp_path: Path, charted: list[dict[str, float]]
) -> None:
    train_quickly(dot(tmp_path, steps=20, model=start, reward=reward, lr=0.01), seconds=0.0)
    first, second = [point for point in charted if "lr" in point]
    assert set(first) == ALWAYS | {"kl_ref", "kl_coef", "reward_mu", "reward_std"}
    assert first["kl_ref"] == pytest.approx(0, abs=1e-6)
    assert second["kl_ref"] > 1e-6
    assert second["kl_coef"] == 0


def test_the_penalty_rises_above_its_target_and_waits_for_the_warm_up(
    start: Path, tmp_path: Path, charted: list[dict[str, float]]
) -> None:
    """8 steps an update and a horizon of 16: by a tenth each time. Where nothing has moved the KL is below target."""
    flags = {"rollout": 4, "critic_warmup": 1, "lr": 0.02, "kl": 0.5, "kl_target": 1e-7, "kl_horizon": 16}
    train_quickly(dot(tmp_path, steps=32, model=start, eval_every=10**9, **flags), seconds=0.0)
    coefs = [point["kl_coef"] for point in charted if "kl_coef" in point]
    kls = [point["kl_ref"] for point in charted if "kl_ref" in point]
    assert coefs[:2] == [0.5, 0.5]
    assert max(kls[:2]) < 1e-7 < min(kls[2:])
    assert coefs[2:] == pytest.approx([0.5 * 0.9, 0.5 * 0.9 * 1.1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_the_same_seed_gives_the_same_run(algo: str, tmp_path: Path) -> None:
    """With its clips and its evaluation. PPO also draws its minibatches at random."""

    def run(name: str, seed: int) -> tuple[torch.Tensor, dict[str, Any], SegmentDB]:
        flags = {"algo": algo, "rollout": 20, "steps": 120, "record_prob": 0.3, "seed": seed}
        db = tmp_path / f"{name}-db"
        path = train(dot(tmp_path, db_path=db, save=tmp_path / name, **flags)).checkpoint
        assert path is not None
        network, content = load_policy(path)
        weights = torch.cat([parameter.flatten() for parameter in network.parameters()])
        return weights, content["evaluation"], SegmentDB(db)

    (weights, evaluation, clips), (again, evaluation_again, clips_again) = run("one", 1), run("same", 1)
    assert torch.equal(weights, again)
    assert evaluation == evaluation_again
    assert evaluation["steps"] == [100]  # a whole game
    assert len(clips.names) > 1
    assert clips.names == clips_again.names
    for name in clips.names:
        assert np.array_equal(clips.load(name).frames, clips_again.load(name).frames)
        assert np.array_equal(clips.load(name).actions, clips_again.load(name).actions)
    assert not torch.equal(weights, run("other", 2)[0])


@pytest.fixture(scope="module")
def reward(start: Path) -> Path:
    """An ensemble of two that was never fitted."""
    return save_unfitted(start.parent / "reward.dat", members=2)


def finetune(start: Path, reward: Path, root: Path, **flags: Any) -> TrainConfig:
    """Evaluates before the first update and after each of 10 steps."""
    small: dict[str, Any] = {"steps": 50, "eval_every": 10, "save": root / "save", "runs": root / "runs"}
    return dot(root, model=start, reward=reward, finetune=True, **(small | flags))


def scripted(*found: tuple[float, float, float]) -> Callable[..., Evaluation]:
    """Successive evaluations find these scores, learned returns (disagreements a tenth of them) and agreements."""
    evaluations = iter(found)

    def evaluate(*_: object) -> Evaluation:
        score, learned, agreed = next(evaluations)
        measures = {"learned": np.full(2, learned), "disagreement": np.full(2, learned / 10)}
        return Evaluation(np.full(2, score), np.full(2, 100), measures, {"agreement": agreed})

    return evaluate


PARTING = [(40.0, 1.0, 0.6), (50.0, 2.0, 0.7), (45.0, 3.0, 0.6), (40.0, 5.0, 0.55), (30.0, 8.0, 0.5)]
"""The best is at 10 steps, and two evaluations later they have parted."""


def test_a_drift_is_said_and_stops_the_run_where_asked(
    start: Path,
    reward: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = finetune(start, reward, tmp_path, drift_patience=2, stop_on_drift=True)
    last = train(config, evaluate=scripted(*PARTING)).checkpoint
    save = tmp_path / "save"
    assert last == save / "model_000030-rw=40-steps=100.dat"
    best = save / "model_000010-rw=50-steps=100.dat"
    said = capsys.readouterr().out.splitlines()
    assert (
        "drift: since 10 steps the learned return rose from 2.00 to 5.00 while the score fell from 50.0 to 40.0 and "
        f"agreement with the teacher from 0.70 to 0.55; the best checkpoint before the drift is kept: {best}"
    ) in said
    assert f"stopped by --stop-on-drift, saved {last}; the best is {save / 'best.dat'}" in said
    assert (save / "best.dat").resolve() == best
    assert (save / "best-learned.dat").resolve() == last


def test_a_drift_alone_stops_nothing_and_what_was_best_before_it_stays(
    start: Path,
    reward: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluate = scripted(*PARTING, (90.0, 9.0, 0.9))
    last = train(finetune(start, reward, tmp_path, drift_patience=2), evaluate=evaluate).checkpoint
    assert last is not None
    names = {path.name for path in (tmp_path / "save").glob("*.dat") if not path.is_symlink()}
    assert names == {"model_000010-rw=50-steps=100.dat", "model_000050-rw=90-steps=100.dat"}
    said = capsys.readouterr().out
    assert said.count("drift: ") == 2
    assert f"saved {last}; the best is {tmp_path / 'save' / 'best.dat'}\n" in said


def test_a_finetune_that_only_lost_says_so(
    start: Path,
    reward: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = finetune(start, reward, tmp_path, drift_patience=3, stop_on_drift=True)
    train(config, evaluate=scripted((60.0, 1.0, 0.8), *PARTING))
    said = capsys.readouterr().out
    assert f"to 0.55; the best before the drift is the policy it started from, {start}\n" in said
    assert f"steps=100.dat; no checkpoint beat the policy it started from, {start} (score 60.0)\n" in said


@pytest.mark.slow
def test_every_evaluation_of_a_finetune_is_on_one_chart(
    start: Path,
    reward: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    charted: list[dict[str, float]],
) -> None:
    layouts: list[Mapping[str, list[str]]] = []
    monkeypatch.setattr(Charts, "layout", lambda self, charts: layouts.append(charts))
    train(finetune(start, reward, tmp_path, steps=20, teacher="score", lr=0.02, eval_games=3), seconds=0.0)
    changes = [point for point in charted if "finetune/score" in point]
    measured = [point for point in charted if "test_reward" in point]
    assert len(changes) == len(measured) == 3
    (layout,) = layouts
    together, raw = (tags for title, tags in layout.items() if title.startswith("finetune"))
    names = ("learned", "score", "steps", "kl", "disagreement", "agreement", "preferred")
    of_seaquest = ("refuels", "rescues", "surface")
    assert list(changes[0]) == [f"finetune/{name}" for name in names]
    assert together == [f"finetune/{name}" for name in (*names, *of_seaquest)]
    assert set(changes[0].values()) == {0}
    tags = {
        *("test_reward", "test_steps", "test_learned", "test_kl", "test_disagreement"),
        *("test_agreement", "test_preferred"),
    }
    assert tags <= set(measured[0])
    assert set(raw) == tags | {f"test_{name}" for name in of_seaquest}
    assert measured[0]["test_preferred"] == 0.5
    assert measured[0]["test_kl"] == 0 < measured[2]["test_kl"] == changes[2]["finetune/kl"]
    assert measured[0]["test_disagreement"] > 0
    assert changes[2]["finetune/score"] == pytest.approx(
        (measured[2]["test_reward"] - measured[0]["test_reward"]) / measured[0]["test_reward"]
    )


def test_what_another_reward_model_measures_is_charted_from_its_first_evaluation_on(
    start: Path,
    reward: Path,
    tmp_path: Path,
    charted: list[dict[str, float]],
) -> None:
    """The file is replaced within the first update, so the model is taken after the second evaluation."""
    paid = tmp_path / "reward.dat"
    shutil.copy(reward, paid)

    class Replacing(ActorCritic):
        def learn(self, rollout: Rollout) -> dict[str, torch.Tensor | float]:
            if self.updates == 0:
                torch.save(torch.load(reward, weights_only=True) | {"version": 2}, tmp_path / "next.dat")
                (tmp_path / "next.dat").replace(paid)
            return super().learn(rollout)

    evaluate = scripted((40.0, 1.0, 0.6), (50.0, 2.0, 0.9), (60.0, 8.0, 0.5), (80.0, 12.0, 0.25))
    config = finetune(start, paid, tmp_path, steps=30, save=None, watch_reward=True)
    train(config, make_learner=Replacing, evaluate=evaluate, seconds=0.0)
    changes = [point for point in charted if "finetune/score" in point]

    def curve(name: str) -> list[float]:
        return [point[f"finetune/{name}"] for point in changes]

    assert curve("score") == [0, 0.25, 0.5, 1]
    assert curve("learned") == [0, 1, 0, 0.5]
    assert curve("disagreement") == pytest.approx([0, 1, 0, 0.5])
    assert curve("agreement") == pytest.approx([0, 0.5, 0, -0.5])


def test_plain_training_is_not_evaluated_before_it_begins(
    tmp_path: Path, charted: list[dict[str, float]]
) -> None:
    train(dot(tmp_path, steps=20), seconds=0.0)
    assert sum("test_reward" in point for point in charted) == 1
    assert not any("test_learned" in point or "finetune/score" in point for point in charted)


@pytest.mark.parametrize("when", [0, 1])
def test_an_interrupted_evaluation_is_none(
    when: int,
    start: Path,
    reward: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = 0

    def interrupted(*arguments: Any) -> Evaluation:
        nonlocal calls
        calls += 1
        if calls == when + 1:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(*arguments)

    saved, _, stopped = train(finetune(start, reward, tmp_path), evaluate=interrupted)
    assert stopped
    assert calls == when + 1
    said = capsys.readouterr().out
    assert said.count("steps: score") == when
    if when == 0:
        assert saved is None
        assert "stopped by request, no policy saved: no step made\n" in said
    else:
        assert f"stopped by request, saved {saved}\n" in said
        content = torch.load(tmp_path / "save" / "latest.dat", weights_only=True)
        assert (content["steps"], content["evaluation"]) == (10, {})
        assert not (tmp_path / "save" / "best.dat").exists()


def test_the_important_charts_come_first() -> None:
    assert next(iter(_layout(finetunes=False))) == "score"
    assert list(_layout(finetunes=True))[:3] == ["score", "learned return", "KL to the reference policy"]


def test_recording_alone_fills_a_db_and_learns_nothing(start: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"db_path": tmp_path / "db", "record_prob": 0.1, "steps": 400, "rollout": 5}
    made = train_quickly(dot(tmp_path, record_only=True, model=start, hold_prob=0.1, **flags))
    assert (made.checkpoint, made.stopped) == (None, False)
    db = SegmentDB(tmp_path / "db")
    assert len(db.names) >= 4
    sidecar = db.load(db.names[0]).sidecar
    assert sidecar is not None
    assert sidecar.origin["run"] == str(made.run_dir)
    assert sidecar.origin["model"] == str(start)
    assert {path.name for path in made.run_dir.iterdir()} == {"config.json"}
    assert max(int(name[3:11]) for name in db.names) < 400


def test_a_policy_of_another_environment_needs_its_name(tmp_path: Path) -> None:
    """Or Seaquest, the default, would be played by it wherever its actions fit."""
    content = load_checkpoint(ROOT / "examples/seaquest/a2c.dat")
    content["config"]["env"] = "BoxingNoFrameskip-v4"
    torch.save(content, model := tmp_path / "boxing.dat")
    config = TrainConfig(
        name="x", model=model, record_only=True, db_path=tmp_path / "db", runs=tmp_path / "runs"
    )
    with pytest.raises(
        UserError, match=r"boxing.dat plays BoxingNoFrameskip-v4, .* add -e BoxingNoFrameskip-v4"
    ):
        train(config)


def test_a_db_is_for_one_environment(start: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"db_path": tmp_path / "db", "record_prob": 0.1, "steps": 400, "rollout": 5}
    train_quickly(dot(tmp_path, record_only=True, model=start, **flags))
    with pytest.raises(
        UserError, match=r"holds clips of MovingDot-v0, not of PongNoFrameskip-v4; take another folder"
    ):
        train_quickly(dot(tmp_path, record_only=True, env="PongNoFrameskip-v4", **flags))


def test_the_same_command_again_records_other_clips(start: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"db_path": tmp_path / "db", "record_prob": 0.1, "steps": 400, "rollout": 5}
    for _ in range(2):
        train_quickly(dot(tmp_path, record_only=True, model=start, **flags))
    db = SegmentDB(tmp_path / "db")
    clips = {db.load(name).frames.tobytes() for name in db.names}
    assert len(clips) == len(db.names) >= 8


def test_recording_alone_needs_no_policy_and_ends_with_a_full_db(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags: dict[str, Any] = {"db_path": tmp_path / "db", "record_prob": 1.0, "db_max_mb": 1e-3}
    train_quickly(dot(tmp_path, record_only=True, **flags))  # of 12 M steps
    assert len(SegmentDB(tmp_path / "db").names) == 1
    assert "recorded 1 clips in" in capsys.readouterr().out


def test_recording_alone_says_why_it_ends_early(tmp_path: Path) -> None:
    db = tmp_path / "db"
    db.mkdir()
    (db / "00").write_text("")
    with pytest.raises(
        UserError, match=r"stopped after \d+ steps: could not record to the DB: .*File exists"
    ):
        train_quickly(dot(tmp_path, record_only=True, db_path=db, record_prob=1.0))


def test_events_of_the_watched_environments_are_recorded(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"db_path": tmp_path / "db", "record_prob": 0.0, "steps": 1600, "num_envs": 8}
    train_quickly(
        dot(tmp_path, event_prob=1.0, event_kinds="large-score", event_envs=4, record_only=True, **flags)
    )
    db = SegmentDB(tmp_path / "db")
    assert db.names
    for name in db.names:
        sidecar = db.load(name).sidecar
        assert sidecar is not None
        assert sidecar.reason == "large-score"
        assert int(name[:2]) < 4
    with pytest.raises(
        UserError, match=r"--event-kinds lost-life,refuel: expected some of lost-life,large-score in "
    ):
        train_quickly(dot(tmp_path, event_prob=1.0, event_kinds="lost-life,refuel", **flags))


@pytest.mark.slow
def test_recording_does_not_change_what_is_learned(tmp_path: Path) -> None:
    def weights(name: str, **flags: Any) -> dict[str, torch.Tensor]:
        trained = train_quickly(dot(tmp_path / name, steps=120, save=tmp_path / name, **flags))
        assert trained.checkpoint is not None
        return load_policy(trained.checkpoint)[0].state_dict()

    plain = weights("plain")
    recorded = weights("recorded", db_path=tmp_path / "db", record_prob=0.1, event_prob=1.0)
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)
    assert SegmentDB(tmp_path / "db").names
