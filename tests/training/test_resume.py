"""Training that ended in any way resumes with all it had, and what breaks is named."""

import errno
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import checkpoints, provenance, runs
from lib.agent.actor_critic import ActorCritic
from lib.agent.checkpoints import CheckpointFolder
from lib.agent.config import TrainConfig
from lib.agent.evaluate import Evaluation, evaluate
from lib.agent.network import ActorPolicy, PolicyNet
from lib.agent.rollout import Rollout
from lib.cli import UserError
from lib.envs.moving_dot import MovingDotEnv
from lib.preferences.segment_db import SegmentDB
from lib.tools.lineage import lineage_text
from lib.training.train import train
from tests.reward.models import save_unfitted
from tests.training.evaluations import one_game

train_quickly = partial(train, evaluate=one_game)


def dot(root: Path, **flags: Any) -> TrainConfig:
    small: dict[str, Any] = {
        **{"env": "MovingDot-v0", "network": "small", "num_envs": 2, "eval_games": 1, "eval_every": 20},
        **{"save": root / "save", "db_path": root / "db", "record_prob": 0.5, "runs": root / "runs"},
        "steps": 40,
    }
    return TrainConfig(name="x", **(small | flags))


def run_in(root: Path) -> Path:
    (run,) = (root / "runs").iterdir()
    return run


def state_of(root: Path) -> dict[str, Any]:
    return torch.load(run_in(root) / "state.dat", weights_only=True)


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two nested values differ."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        return [each for key in one for each in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        return [
            each
            for at, item in enumerate(zip(one, other, strict=True))
            for each in differences(*item, f"{where}/{at}")
        ]
    return [] if one == other else [where]


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finetune of 40 steps with all that a run can have: reward, KL penalty, teacher, recorder, checkpoints."""
    root = tmp_path_factory.mktemp("finetuned")
    torch.manual_seed(0)
    CheckpointFolder(root).save(
        ActorPolicy(PolicyNet(5, kind="small")),
        1,
        Evaluation(np.ones(1), np.ones(1), {}),
        {"seed": 7},
        {"policy": {"file": "v0.dat", "config": {"seed": 5}}},
        evaluated=False,
    )
    reward = save_unfitted(root / "reward.dat", members=2, seed=9)
    flags = {"model": root / "latest.dat", "reward": reward, "finetune": True, "teacher": "score"}
    train(dot(root, kl=0.1, kl_target=0.01, kl_horizon=10, critic_warmup=1, lr=0.02, **flags))
    return root


@pytest.mark.slow
def test_a_finetune_says_all_that_it_came_from_though_that_is_gone(root: Path) -> None:
    for gone in ("latest.dat", "reward.dat"):
        (root / gone).unlink()
    saved = checkpoints.load_checkpoint(root / "save" / "latest.dat", "policy")
    policy, reward = saved["parents"]["policy"], saved["parents"]["reward"]
    assert policy["config"] == {"seed": 7}
    assert policy["parents"] == {"policy": {"file": "v0.dat", "config": {"seed": 5}}}
    assert reward["config"] == {"seed": 9}
    for parent in (policy, reward):
        assert parent["versions"] == provenance.versions()
        assert parent["git_commit"] == provenance.git_commit()
    tree = lineage_text(root / "save" / "latest.dat")
    assert "seed 7" in tree
    assert "seed 5" in tree


@pytest.fixture
def root(finetuned: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(finetuned, copy, symlinks=True)
    config = run_in(copy) / "config.json"
    config.write_text(config.read_text().replace(str(finetuned), str(copy)))
    return copy


def again(root: Path, **flags: Any) -> TrainConfig:
    """What `--resume` makes of the run in a folder."""
    argv = ["--resume", str(run_in(root)), *(f"--{name}={value}" for name, value in flags.items())]
    return runs.parse_resumable(TrainConfig, ("steps",), argv)


def stopped_at_once(*arguments: Any, **parts: Any) -> ActorCritic:
    """A learner of a run that is asked to end before anything can be done."""
    signal.raise_signal(signal.SIGTERM)
    return ActorCritic(*arguments, **parts)


@pytest.mark.slow
def test_nothing_is_lost_on_the_way(root: Path) -> None:
    """Resumed and ended at once, the state is what it was."""
    before = state_of(root)
    ended = train(again(root, steps=80), make_learner=stopped_at_once)
    assert ended.checkpoint is None
    assert ended.stopped
    after = state_of(root)
    changed = {"/created", "/recorder/rng/state/state"}  # it drew who begins to record
    assert after["config"]["steps"] == 80
    assert set(differences(before | {"config": 0}, after | {"config": 0})) <= changed
    assert (after["steps"], after["updates"], after["examined"]) == (40, 4, 40)
    assert [reading[0] for reading in after["examiner"]["readings"]] == [0, 20, 40]
    assert after["optimizer"]["state"][0]["step"] == 3  # one of the four warmed the critic up alone


@pytest.mark.slow
def test_a_run_resumes_with_other_games_the_same_reference_and_no_segment_overwritten(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []

    def seen(
        network: Any, world: Any, config: Any, device: Any, bf16: bool, seed: int, **parts: Any
    ) -> ActorCritic:
        seeds.append(seed)
        return ActorCritic(network, world, config, device, bf16, seed, **parts)

    before = state_of(root)
    (root / "latest.dat").unlink()  # the policy it began from is not needed any more
    segments = {path: path.read_bytes() for path in (root / "db").glob("*/*.dat")}
    saved = train_quickly(again(root, steps=160), make_learner=seen).checkpoint
    assert saved is not None
    assert saved.name.startswith("model_000160-")
    after = state_of(root)
    assert seeds[0] != 0
    assert not differences(before["reference"], after["reference"])
    assert [reading[0] for reading in after["examiner"]["readings"]] == [0, *range(20, 161, 20)]
    assert after["examiner"]["readings"][:3] == before["examiner"]["readings"]
    assert after["kl_coef"] != before["kl_coef"]
    db = SegmentDB(root / "db")
    assert len(db.names) > len(segments)
    sidecar = db.load(db.names[0]).sidecar
    assert sidecar is not None
    assert sidecar.origin["run"].endswith(run_in(root).name)
    assert sidecar.origin["seed"] == "0"
    assert sidecar.origin["model"].endswith("latest.dat")
    assert sidecar.origin.get("git_commit", "") == provenance.git_commit()
    assert all(path.read_bytes() == content for path, content in segments.items())
    assert "resuming after 40 steps; the games start over" in capsys.readouterr().out


@pytest.mark.slow
def test_a_state_without_a_price_of_the_kl_loads(finetuned: Path, tmp_path: Path) -> None:
    """Older runs on a learned reward alone kept their reference policy, and no price."""
    files = {"model": finetuned / "latest.dat", "reward": finetuned / "reward.dat"}
    train_quickly(dot(tmp_path, steps=20, db_path=None, **files))
    before = state_of(tmp_path)
    assert before["kl_coef"] == 0
    torch.save(before | {"kl_coef": None}, run_in(tmp_path) / "state.dat")
    train_quickly(again(tmp_path, steps=30))
    after = state_of(tmp_path)
    assert (after["steps"], after["kl_coef"]) == (30, 0)
    assert not differences(before["reference"], after["reference"])


@pytest.mark.slow
def test_points_are_drawn_once(root: Path) -> None:
    """A process killed at 80 steps had its last state at 40: what it drew beyond that counts no more."""
    early = (run_in(root) / "state.dat").read_bytes()
    train_quickly(again(root, steps=80), seconds=0.0)
    (run_in(root) / "state.dat").write_bytes(early)
    train_quickly(again(root, steps=80), seconds=0.0)
    events = EventAccumulator(str(run_in(root))).Reload()
    for tag in ("test_reward", "finetune/kl", "test_learned"):
        assert [event.step for event in events.Scalars(tag)] == [0, 20, 40, 60, 80]
    assert [event.step for event in events.Scalars("loss_total")][-4:] == [50, 60, 70, 80]
    assert events.Tags()["tensors"] == ["custom_scalars__config__"]


def test_an_evaluation_that_was_cut_short_is_made_up_for(tmp_path: Path) -> None:
    def interrupted(*arguments: Any) -> Evaluation:
        signal.raise_signal(signal.SIGTERM)
        return evaluate(*arguments)

    train(dot(tmp_path, eval_every=1000), evaluate=interrupted)
    assert (state_of(tmp_path)["steps"], state_of(tmp_path)["examined"]) == (40, 0)
    assert not (tmp_path / "save" / "best.dat").exists()
    train(again(tmp_path))
    assert state_of(tmp_path)["examined"] == 40
    assert (tmp_path / "save" / "best.dat").exists()
    with pytest.raises(UserError, match="its 40 steps are done; expected a larger number: add --steps N"):
        train(again(tmp_path))


def test_a_run_whose_environment_fails_is_saved_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, steps = MovingDotEnv.step, iter(range(30))
    said = (
        r"after 20 steps: environment 'MovingDot-v0' failed: FileNotFoundError .*level-2.* --resume \S*-a2c-x"
    )

    def step(env: MovingDotEnv, action: Any) -> Any:
        if next(steps, None) is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "level-2.txt")
        return usual(env, action)

    with monkeypatch.context() as patch:
        patch.setattr(MovingDotEnv, "step", step)
        with pytest.raises(UserError, match=said):
            train_quickly(dot(tmp_path, eval_every=1000))
    assert state_of(tmp_path)["steps"] == 20
    train_quickly(again(tmp_path))
    assert state_of(tmp_path)["steps"] == 40


@pytest.mark.slow
def test_a_run_killed_before_its_first_state_begins_anew(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_in(root) / "state.dat").unlink()
    train_quickly(again(root))
    assert state_of(root)["steps"] == 40
    assert "it ended before its first state: training starts over" in capsys.readouterr().out


@pytest.mark.slow
def test_another_reward_model_under_the_same_name_is_refused(root: Path) -> None:
    content = torch.load(root / "reward.dat", weights_only=True)
    torch.save(content | {"created": "2000-01-01T00:00:00+00:00"}, root / "reward.dat")
    with pytest.raises(
        UserError, match=r"expected the reward model that the run began with, made 2.*was made 2000"
    ):
        train(again(root, steps=80))


@pytest.mark.slow
def test_a_run_belongs_to_one_process(root: Path) -> None:
    with (
        runs.locked(run_in(root)),
        pytest.raises(UserError, match="another process is still running it"),
    ):
        train(again(root, steps=80))


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["loss_value", "weight", "loss_total"])
def test_what_breaks_is_named_and_the_last_good_state_stays(broken: str, tmp_path: Path) -> None:
    class Breaking(ActorCritic):
        def learn(self, rollout: Rollout) -> dict[str, torch.Tensor | float]:
            parts = super().learn(rollout)
            if self.updates == 5 and broken == "weight":  # seen by nothing but the weights themselves
                with torch.no_grad():
                    self.network.state_dict()["value.2.bias"].fill_(float("inf"))
                return {name: torch.ones(()) for name in parts}
            if self.updates == 4 and broken != "weight":
                parts[broken] = torch.tensor(1e9 if broken == "loss_total" else float("nan"))
            return parts

    seconds = 0.0 if broken == "loss_total" else 1e9
    says = {
        "loss_value": "loss_value is no longer finite",
        "weight": r"the weight value\.2\.bias is no longer finite",
        "loss_total": r"loss_total exploded to 1e\+09 from about \S+",
    }[broken]
    good = r"model_000040-.*dat; try a smaller --lr"
    with pytest.raises(
        UserError, match=rf"failed after (50|60) steps: {says}; the last good checkpoint is .*{good}"
    ):
        train_quickly(dot(tmp_path, steps=100), make_learner=Breaking, seconds=seconds)
    state = state_of(tmp_path)
    assert state["steps"] == 40
    assert all(bool(weight.isfinite().all()) for weight in state["network"].values())
    assert (tmp_path / "save" / "latest.dat").resolve().name.startswith("model_000040-")


@pytest.mark.slow
def test_states_are_written_by_the_clock(tmp_path: Path) -> None:
    steps: list[int] = []

    class Noted(ActorCritic):
        def state(self) -> dict[str, Any]:
            steps.append(self.steps)
            return super().state()

    train_quickly(dot(tmp_path, save=None, checkpoint_minutes=0.0, eval_every=1000), make_learner=Noted)
    assert steps == [0, 10, 20, 30, 40]
    steps.clear()
    train_quickly(dot(tmp_path, save=None, checkpoint_minutes=60.0, eval_every=1000), make_learner=Noted)
    assert steps == [40]


def test_a_folder_takes_in_what_was_written_after_the_state(tmp_path: Path) -> None:
    def games(score: float) -> Evaluation:
        return Evaluation(np.array([score]), np.array([9]), {"learned": np.array([-score])})

    network, first = PolicyNet(4), CheckpointFolder(tmp_path)
    first.run = "x"
    first.save(ActorPolicy(network), 10, games(5), {"name": "x"}, {})
    state = first.state()
    first.save(ActorPolicy(network), 20, games(8), {"name": "x"}, {})
    names = {path.name for path in tmp_path.iterdir() if not path.is_symlink()}
    assert names == {
        "model_000010-rw=5-steps=9.dat",
        "model_000020-rw=8-steps=9.dat",
    }  # each the best at something
    second = CheckpointFolder(tmp_path)
    second.run = "x"
    second.restore(state, 10)
    second.save(ActorPolicy(network), 21, games(7), {"name": "x"}, {})
    assert (tmp_path / "best.dat").resolve().name == "model_000020-rw=8-steps=9.dat"
    assert (tmp_path / "best-learned.dat").resolve().name == "model_000010-rw=5-steps=9.dat"
    second.save(ActorPolicy(network), 30, games(9), {"name": "x"}, {})
    names = {path.name for path in tmp_path.iterdir() if not path.is_symlink()}
    assert names == {
        "model_000010-rw=5-steps=9.dat",
        "model_000030-rw=9-steps=9.dat",
    }  # nothing is left behind
    # What another run left there stays, even one of the same name, and this one has bests of its own.
    other = CheckpointFolder(tmp_path)
    other.run = "y"
    other.restore({"best": {}, "written": [], "kept": []}, 10)
    other.save(ActorPolicy(network), 40, games(6), {"name": "x"}, {})
    assert (tmp_path / "best.dat").resolve().name == "model_000040-rw=6-steps=9.dat"
    second.save(ActorPolicy(network), 50, games(7), {"name": "x"}, {})
    assert (tmp_path / "best.dat").resolve().name == "model_000040-rw=6-steps=9.dat"
    assert (tmp_path / "model_000030-rw=9-steps=9.dat").exists()  # its own best, which no link shows any more
    again = CheckpointFolder(tmp_path)
    again.run = "x"
    again.restore(second.state(), 50)
    again.save(ActorPolicy(network), 60, games(8), {"name": "x"}, {})
    assert (tmp_path / "model_000030-rw=9-steps=9.dat").exists()
    assert (tmp_path / "model_000040-rw=6-steps=9.dat").exists()
