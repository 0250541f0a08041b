"""Reward models on a policy's hidden units."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.original_reward import load_original_reward
from lib.agent.network import PolicyNet
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.envs.observation import grey_resize_cpu, stacked_clip
from lib.envs.spec import Spec
from lib.reward.checkpoints import load_reward_model, save_reward_model
from lib.reward.config import FitConfig
from lib.reward.features import policy_features
from lib.reward.fit import fit
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.reward.clips import clip, grey_db

torch.manual_seed(0)


def saved(path: Path, network: PolicyNet) -> Path:
    save_checkpoint(path, "policy", {"state_dict": network.state_dict(), "num_actions": 5}, {}, {})
    return path


@pytest.mark.parametrize("kind", ["separate", "shared", "small"])
def test_features_are_the_policys_own_hidden_units(tmp_path: Path, kind: str) -> None:
    network = PolicyNet(5, kind=kind)
    features = policy_features(saved(tmp_path / "p.dat", network))
    seen = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    body = network.features(seen)
    own = body if kind == "shared" else torch.cat([network.policy[:2](body), network.value[:2](body)], 1)
    assert features(seen).shape == (3, features.size)
    assert torch.allclose(features(seen), own, atol=1e-5)


def test_only_policies_of_pictures_have_them(tmp_path: Path) -> None:
    path = saved(tmp_path / "p.dat", PolicyNet(5, observation_size=3))
    with pytest.raises(UserError, match="expected a policy that sees pictures, from a2c or ppo"):
        policy_features(path)


def test_a_fit_on_features_learns_pays_and_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)  # of the policy whose features they are
    db = grey_db(tmp_path / "db", segments=40, labels=80)
    given: dict[str, Any] = {
        "out": tmp_path,
        "runs": tmp_path / "runs",
        "frame_stride": 1,
        "epochs": 10,
        "bf16": False,
    }
    config = FitConfig(
        dbs=[db], name="f", features=saved(tmp_path / "p.dat", PolicyNet(5)), ensemble=2, **given
    )
    fitted = fit(config)
    assert fitted.best.accuracy > 0.9  # brighter is better
    loaded = load_reward_model(fitted.path)
    assert loaded.spec.frame_shape == fitted.data.segments.frame_shape
    seen = [clip(grey, steps=4, seed=1000 + grey) for grey in (40, 200)]
    dark, bright = (loaded.rewards_along(one.frames, one.actions) for one in seen)
    assert bright.mean() > dark.mean()
    # Paid step by step as along the clip, and as the model that was saved.
    observations = stacked_clip(grey_resize_cpu(seen[1].frames))
    assert np.allclose(loaded.rewards(None, seen[1].actions, observations), bright, atol=1e-4)
    assert np.allclose(fitted.model.rewards_along(seen[1].frames, seen[1].actions), bright, atol=1e-4)
    # The original's way of paying sees them as well: the first step of each environment is its own mean.
    steps = [torch.from_numpy(array) for array in (seen[1].frames, seen[1].actions, observations)]
    assert load_original_reward(fitted.path).pay(*steps).tolist() == [0] * len(steps[0])


def test_features_are_joined_by_actions_of_numbers_too(tmp_path: Path) -> None:
    features = policy_features(saved(tmp_path / "p.dat", PolicyNet(2, continuous=True)))
    network = RewardNet((48, 48, 3), 2, input="observation", continuous=True, observation_size=features.size)
    model = RewardModel([Member(network, 0.0, 1.0)], torch.device("cpu"), features=features)
    save_reward_model(tmp_path / "r.dat", model, {}, {}, {})
    loaded = load_reward_model(tmp_path / "r.dat")
    assert model.spec == loaded.spec == Spec(2, True, frame_shape=(48, 48, 3))
    halves = np.array([[0.5, -0.5], [-0.5, 0.5]], np.float32)
    seen = np.zeros((2, 4, 84, 84), np.uint8)
    paid = loaded.rewards(None, halves, seen)
    assert paid[0] != paid[1], "not rounded to whole numbers"
    assert np.array_equal(paid, model.rewards(None, halves, seen))


def test_pixels_cannot_be_hidden_from_features(tmp_path: Path) -> None:
    db = grey_db(tmp_path / "db", segments=10, labels=10)
    policy = saved(tmp_path / "p.dat", PolicyNet(5))
    with pytest.raises(UserError, match=r"--mask applies to pixels.*leave out --features"):
        fit(FitConfig(dbs=[db], name="f", out=tmp_path, features=policy, mask=["0,0,2,2"]))
    with pytest.raises(UserError, match="leave out --input frame"):
        FitConfig(dbs=[db], name="f", out=tmp_path, features=policy, input="frame")
