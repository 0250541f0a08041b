"""Files that version 0.1.0 wrote (commit fa09dbc) are read as they are: see data/fa09dbc for the commands."""

import shutil
from pathlib import Path

import pytest

from lib import runs
from lib.agent.checkpoints import load_policy
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.cli import UserError
from lib.preferences.labels import LabelLog, current
from lib.preferences.segment_db import SegmentDB
from lib.reward.checkpoints import load_reward_model
from lib.reward.config import MAY_DIFFER as FIT_MAY_DIFFER
from lib.reward.config import FitConfig
from lib.reward.fit import fit
from lib.training.train import train

OLD = Path(__file__).parent / "data" / "fa09dbc"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, and the working directory: paths in these files are relative."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def test_policies_reward_models_segments_and_labels_load(old: Path) -> None:
    network, origin = load_policy(old / "saves" / "v1" / "latest.dat")
    assert (network.spec.num_actions, network.spec.observation_size) == (2, 4)
    assert origin["parents"]["policy"]["file"] == "saves/v0/best.dat"
    model = load_reward_model(old / "rewards" / "reward-r0.dat")
    assert len(model.members) == 2
    db = SegmentDB(old / "db")
    assert len(db.names) == 12
    segment = db.load(db.names[0])
    assert segment.sidecar is not None
    assert (segment.sidecar.env_id, segment.sidecar.action_names) == ("CartPole-v1", ())
    assert model.rewards_along(segment.frames, segment.actions, segment.observations).shape == (50,)
    assert len(current(LabelLog(old / "db" / "labels.json").read())) == 12


@pytest.mark.slow
def test_a_finetune_resumes_where_it_was(old: Path) -> None:
    """With PPO, a KL penalty and a critic that warmed up."""
    (run,) = (old / "runs").glob("*-ppo-v1")
    config = runs.parse_resumable(TrainConfig, MAY_DIFFER, ["--resume", str(run), "--steps", "4096"])
    assert (config.clip_range, config.kl, config.critic_warmup) == (0.2, 1.0, 2)
    trained = train(config)
    assert trained.checkpoint is not None
    _, origin = load_policy(trained.checkpoint)
    assert origin["steps"] == 4096
    assert origin["parents"]["reward"]["file"] == "rewards/reward-r0.dat"


def test_the_state_of_a_fit_is_refused_in_one_line(old: Path) -> None:
    """It was in the middle of an epoch, which no state is any more."""
    (run,) = (old / "runs").glob("*-reward-r0")
    config = runs.parse_resumable(FitConfig, FIT_MAY_DIFFER, ["--resume", str(run)])
    with pytest.raises(UserError, match=r"its state is from an older version.*begin a new fit$"):
        fit(config)
