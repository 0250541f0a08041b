"""What a reward model makes of whole segments, and that each is judged once."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.cli import UserError
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import Segment, SegmentError, save_segment
from lib.preferences.strategies import make_strategy
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.rater import ModelRater
from tests.reward.clips import clip, save

CPU = torch.device("cpu")


def reward_model(members: int = 2, input: str = "frame") -> RewardModel:
    """Members with weights of their own and outputs far from standardised."""
    made = []
    for number in range(members):
        torch.manual_seed(number)
        network = RewardNet((48, 48, 3), 4, input=input)
        torch.nn.init.normal_(network.out[-1].weight)  # type: ignore[arg-type]
        made.append(Member(network.eval(), mean=0.5 - number, std=2.0 + number))
    return RewardModel(made, CPU)


def database(root: Path, steps: tuple[int, ...] = (5, 7, 3)) -> SegmentDB:
    root.mkdir()
    for number, length in enumerate(steps):
        save(root, number, clip(20 * number + 30, steps=length))
    return SegmentDB(root)


def test_returns_are_the_members_raw_rewards_summed(tmp_path: Path) -> None:
    db, model = database(tmp_path / "db"), reward_model()
    returns = ModelRater(model, db).returns(db.names)
    assert returns.dtype == np.float64
    assert returns.shape == (2, 3)
    for column, name in enumerate(db.names):
        segment = db.load(name)
        for row, member in enumerate(model.members):
            with torch.no_grad():
                raw = member.network(torch.tensor(segment.frames), torch.tensor(segment.actions))
            assert returns[row, column] == pytest.approx(float(raw.sum()), rel=1e-4, abs=1e-4)


def test_a_curve_is_what_is_paid(tmp_path: Path) -> None:
    db, model = database(tmp_path / "db"), reward_model()
    judge = ModelRater(model, db)
    for name in db.names:
        segment = db.load(name)
        curve = judge.curve(name)
        assert curve.dtype == np.float32
        np.testing.assert_allclose(curve, model.rewards(segment.frames, segment.actions), atol=1e-5)


def test_no_names_tell_the_number_of_members(tmp_path: Path) -> None:
    db = database(tmp_path / "db")
    judge = ModelRater(reward_model(3), db)
    assert judge.returns(()).shape == (3, 0)
    with pytest.raises(UserError, match=r"needs an ensemble.*got a single reward model"):
        make_strategy("disagreement", db, ModelRater(reward_model(1), db))


@pytest.mark.parametrize("input", ["frame", "observation"])
def test_a_long_segment_is_judged_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, input: str
) -> None:
    db, model = database(tmp_path / "db", (11,)), reward_model(input=input)
    whole = ModelRater(model, db).returns(db.names)
    monkeypatch.setattr("lib.reward.rater._STEPS_AT_ONCE", 4)
    np.testing.assert_allclose(ModelRater(model, db).returns(db.names), whole, rtol=1e-4, atol=1e-4)


def test_a_segment_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = database(tmp_path / "db")
    judge, read, load = ModelRater(reward_model(), db), [], db.load

    def watched(name: str) -> Segment:
        read.append(name)
        return load(name)

    monkeypatch.setattr(db, "load", watched)
    first = judge.returns(db.names)
    judge.curve(db.names[0])
    np.testing.assert_array_equal(judge.returns(db.names[::-1]), first[:, ::-1])
    assert read == db.names


def test_curves_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.reward.rater._CURVES", 2)
    db = database(tmp_path / "db")
    judge = ModelRater(reward_model(), db)
    judge.returns(db.names)
    assert list(judge._curves) == db.names[1:]
    assert len(judge.curve(db.names[0])) == 5


def test_what_cannot_be_judged_is_not_a_number(tmp_path: Path) -> None:
    db = database(tmp_path / "db")
    torn, small, other, original = "00/00000010.dat", "00/00000011.dat", "00/00000012.dat", "00/00000013.dat"
    (db.root / torn).write_bytes(b"torn")
    save_segment(db.root / small, clip(9, size=43))
    save_segment(db.root / other, clip(9, num_actions=5))
    plain = clip(9)
    save_segment(db.root / original, Segment(plain.frames, np.full(5, 4), None))
    judge = ModelRater(reward_model(), db)
    returns = judge.returns([torn, db.names[0], small, other, original])
    assert np.isnan(returns[:, [0, 2, 3, 4]]).all()
    assert np.isfinite(returns[:, 1]).all()
    with pytest.raises(SegmentError, match=torn):
        judge.curve(torn)
    with pytest.raises(SegmentError, match=f"{small}: not from the reward model's environment"):
        judge.curve(small)


def test_the_original_format_is_judged_too(tmp_path: Path) -> None:
    db = database(tmp_path / "db")
    with_sidecar = db.load(db.names[0])
    save_segment(db.root / "00/00000009.dat", Segment(with_sidecar.frames, with_sidecar.actions, None))
    returns = ModelRater(reward_model(), db).returns([db.names[0], "00/00000009.dat"])
    assert (returns[:, 0] == returns[:, 1]).all()


def test_a_model_of_another_environment_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "db"
    root.mkdir()
    (root / "00").mkdir()
    (root / "00" / "00000000.dat").write_bytes(b"torn")  # tells nothing
    save(root, 1, clip(9, num_actions=6))
    with pytest.raises(UserError, match=r"--reward: a reward model for 4 actions, but Grey-v0 has 6 actions"):
        ModelRater(reward_model(), SegmentDB(root))


def test_threads_agree(tmp_path: Path) -> None:
    db = database(tmp_path / "db", (5,) * 12)
    alone = ModelRater(reward_model(), db).returns(db.names)
    judge, found = ModelRater(reward_model(), db), [np.empty(0)] * 3

    def ask(number: int) -> None:
        found[number] = judge.returns(db.names)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    curves = [judge.curve(name) for name in db.names]
    for thread in threads:
        thread.join()
    assert all((one == alone).all() for one in found)
    assert len(curves) == 12
