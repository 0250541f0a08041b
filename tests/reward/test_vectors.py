"""Reward models of vectors and of continuous actions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.cli import UserError
from lib.envs.spec import Spec
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, Sidecar
from lib.reward.checkpoints import load_reward_model, save_reward_model
from lib.reward.config import FitConfig
from lib.reward.data import load_preferences
from lib.reward.fit import fit
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.rater import ModelRater
from lib.reward.store import SegmentStore
from tests.reward.clips import add_labels, save

CPU = torch.device("cpu")
SMALL = (48, 48, 3)


def clip(value: float, seed: int, size: int | None = 3, numbers: int | None = 2, steps: int = 5) -> Segment:
    """Observations of which the middle number is the value, in the hundreds, and the last never changes."""
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal((steps, size or 1)).astype(np.float32)
    seen[:, seen.shape[1] // 2] += 100 * value
    seen[:, -1] = 7
    actions = (
        rng.integers(0, 4, steps)
        if numbers is None
        else rng.uniform(-1, 1, (steps, numbers)).astype(np.float32)
    )
    off = np.zeros(steps, bool)
    sidecar = Sidecar(np.zeros(steps, np.float32), off, off, "Vector-v0", numbers or 4, "", 0)
    return Segment(np.zeros((steps, *SMALL), np.uint8), actions, sidecar, None if size is None else seen)


def db_of(root: Path, count: int = 30, labels: int = 60, **kind: Any) -> Path:
    """A database in which the higher of two values is preferred."""
    root.mkdir()
    values = np.random.default_rng(0).permutation(count) / count
    names = [save(root, i, clip(float(value), i, **kind)) for i, value in enumerate(values)]
    pairs = [np.random.default_rng(i).choice(count, 2, replace=False) for i in range(labels)]
    add_labels(root, ((names[a], names[b], 1 if values[a] > values[b] else 2) for a, b in pairs))
    return root


def flags(root: Path, db: Path, **more: object) -> FitConfig:
    given = {"dbs": [db], "name": "x", "out": root, "runs": root / "runs", "bf16": False, "frame_stride": 1}
    return FitConfig(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_few_labels_determine_a_linear_reward(tmp_path: Path) -> None:
    """Also in clips whose other numbers differ more than the one that counts, as of a robot at rest."""
    made = fit(flags(tmp_path, db_of(tmp_path / "db", count=100, labels=80), ensemble=3))
    model, rng = load_reward_model(made.path), np.random.default_rng(1)
    values, others = rng.uniform(0, 1, 300), rng.standard_normal((300, 3))
    others[:, 1], others[:, 2] = 100 * values, 7
    paid = model.rewards(None, rng.uniform(-1, 1, (300, 2)).astype(np.float32), others.astype(np.float32))
    assert np.corrcoef(values, paid)[0, 1] > 0.98


def test_models_of_vectors_from_before_the_linear_part_load(tmp_path: Path) -> None:
    network = RewardNet(
        SMALL, 2, input="observation", continuous=True, observation_size=3, linear=False
    ).eval()
    torch.nn.init.normal_(network.state_dict()["out.6.weight"])
    model = RewardModel([Member(network, 0.5, 2.0)], CPU)
    save_reward_model(tmp_path / "reward-old.dat", model, {}, {}, {})
    seen, actions = np.ones((4, 3), np.float32), np.full((4, 2), 0.5, np.float32)
    found = load_reward_model(tmp_path / "reward-old.dat")
    assert found.members[0].network.linear is None
    assert found.rewards(None, actions, seen) == pytest.approx(model.rewards(None, actions, seen))


@pytest.mark.slow
def test_vectors_are_fitted_and_come_back(tmp_path: Path) -> None:
    db = db_of(tmp_path / "db")
    made = fit(flags(tmp_path, db, ensemble=2, epochs=40))
    assert made.data.segments.input == "observation"
    assert made.best.accuracy > 0.8  # of six pairs one is close
    model = load_reward_model(made.path)
    assert (model.input, model.spec.continuous, model.spec.observation_size) == ("observation", True, 3)
    low, high = clip(0.1, 77), clip(0.9, 78)
    paid = [model.rewards_along(one.frames, one.actions, one.observations).mean() for one in (low, high)]
    assert paid[1] > paid[0] + 1
    # What a fit saw is standardised by the network itself; a number that never changed is left as it is.
    network = model.members[0].network
    assert isinstance(network, RewardNet)
    assert network.mean[1].item() == pytest.approx(48, abs=5)
    assert network.std[2].item() == 1
    judge = ModelRater(model, SegmentDB(db))
    names = SegmentDB(db).names
    returns = judge.returns(names[:2])
    segment = SegmentDB(db).load(names[0])
    theirs = model.each_along(segment.frames, segment.actions, segment.observations)
    member = model.members[0]
    assert returns[0, 0] == pytest.approx(float((theirs[0] * member.std + member.mean).sum()), rel=1e-4)


@pytest.mark.parametrize("numbers", [None, 2])
def test_a_fit_to_frames_joins_the_action(tmp_path: Path, numbers: int | None) -> None:
    db = db_of(tmp_path / "db", 12, 20, size=3, numbers=numbers)
    made = fit(flags(tmp_path, db, epochs=1, input="frame"))
    model = load_reward_model(made.path)
    spec = model.spec
    assert (model.input, spec.observation_size, spec.continuous) == ("frame", None, numbers is not None)
    one = clip(0.5, 1, numbers=numbers)
    paid = model.rewards(one.frames, one.actions)
    assert paid.shape == (5,)
    assert len(set(paid.tolist())) > 1  # frames are alike, so the actions make the difference


def test_what_the_model_sees_follows_from_the_segments(tmp_path: Path) -> None:
    for name, size, input in (("with", 3, "observation"), ("without", None, "frame")):
        store = load_preferences([db_of(tmp_path / name, 6, 4, size=size)], 100).segments
        assert (store.input, store.spec.observation_size) == (input, size)
        seen, actions = store.inputs(0, stride=2, offset=1)
        assert seen.shape == ((2, 3) if size else (2, *SMALL))
        assert actions.shape == (2, 2)
    pictures = load_preferences([tmp_path / "without"], 100, input="observation").segments
    assert pictures.inputs(0)[0].shape == (5, 4, 84, 84)


@pytest.mark.parametrize("memory_mb", [0.0, 100.0])
def test_vectors_are_read_again_past_the_budget(tmp_path: Path, memory_mb: float) -> None:
    store = load_preferences([db_of(tmp_path / "db", 6, 4)], memory_mb).segments
    first = SegmentDB(tmp_path / "db").load(store.source(0)[1])
    assert first.observations is not None
    assert np.array_equal(store.inputs(0)[0], first.observations)
    frames, actions, observations = store.get(0)
    assert np.array_equal(frames, first.frames)
    assert np.array_equal(actions, first.actions)
    assert observations is not None
    assert np.array_equal(observations, first.observations)


def test_others_among_them_are_refused(tmp_path: Path) -> None:
    for other, expected, got in (
        (clip(0, 1, size=4), "observations of 3 numbers", "observations of 4 numbers"),
        (clip(0, 1, size=None), "observations of 3 numbers", "observations that are pictures"),
        (clip(0, 1, numbers=None), "actions of 2 numbers", "4 actions"),
    ):
        store = SegmentStore(100)
        store.add(SegmentDB(tmp_path), "00/00000001.dat", clip(0, 0))
        with pytest.raises(
            UserError, match=rf"00/00000002\.dat: expected {expected} like the clips .* got {got}"
        ):
            store.add(SegmentDB(tmp_path), "00/00000002.dat", other)


@pytest.mark.parametrize("flag", [{"mask": ["0,0,2,2"]}, {"shift": 2}])
def test_pixels_cannot_be_hidden_from_who_sees_none(tmp_path: Path, flag: dict[str, object]) -> None:
    db = db_of(tmp_path / "db", 12, 20)
    with pytest.raises(
        UserError, match=f"--{next(iter(flag))} applies to pixels, but the model sees vectors of 3"
    ):
        fit(flags(tmp_path, db, **flag))


def test_says_what_it_was_fitted_for(tmp_path: Path) -> None:
    network = RewardNet(SMALL, 2, input="observation", continuous=True, observation_size=3)
    model = RewardModel([Member(network, 0.0, 1.0)], CPU)
    model.check(Spec(2, True, (3,), (99, 99, 3)), tmp_path, "Vector-v0")  # it never looks at frames
    for spec, says in (
        (Spec(2, True, (4,), SMALL), "observations of 3 numbers, but X-v0 has observations of 4 numbers"),
        (Spec(2, True, frame_shape=SMALL), "observations of 3 numbers, but X-v0 has .* that are pictures"),
        (Spec(5, False, (3,), SMALL), "actions of 2 numbers, but X-v0 has 5 actions"),
    ):
        with pytest.raises(UserError, match=says):
            model.check(spec, tmp_path, "X-v0")


def test_a_checkpoint_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.dat"
    model = RewardModel([Member(RewardNet(SMALL, 2, input="observation", observation_size=3), 0.0, 1.0)], CPU)
    save_reward_model(path, model, {}, {}, {})
    payload = torch.load(path, weights_only=True)
    for key, value in (("observation_size", 10**9), ("observation_size", "3"), ("continuous", 1)):
        torch.save({**payload, key: value}, path)
        with pytest.raises(UserError, match=f"its {key} is invalid"):
            load_reward_model(path)
    torch.save({key: value for key, value in payload.items() if key != "observation_size"}, path)
    with pytest.raises(UserError, match=r"r\.dat: expected the reward network for 48×48×3 frames"):
        load_reward_model(path)
