"""Audits: what is counted in a scripted world, what is refused, and the page of a whole one."""

import dataclasses
import itertools
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.agent.network import ActorPolicy, PolicyNet
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.envs.make import make_world
from lib.reward.checkpoints import save_reward_model
from lib.reward.config import FitConfig
from lib.reward.model import RewardModel
from lib.tools import audit as audit_module
from lib.tools.audit import Rated, check_audit, compare, play_and_rate, rate_dbs
from tests.agent.worlds import GreyReader, Row, ScriptedWorld
from tests.reward.clips import clip, grey_db, save
from tests.reward.fits import unfitted

CPU = torch.device("cpu")


class TwoMinds(RewardModel):
    """Two members, who pay the grey of the picture and the grey plus twice the action."""

    def __init__(self) -> None:
        self.members = [None, None]  # type: ignore[list-item]
        self.input = "frame"

    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        grey = inputs[:, 0, 0, 0].float()
        return torch.stack([grey, grey + 2 * actions])


def test_play_is_judged_as_it_is_seen_and_ignored_steps_are_left_out() -> None:
    # GreyReader chooses grey mod 5, so that members differ by 2 · (grey mod 5): a standard deviation of grey mod 5.
    calm = [Row(10 + 5 * (t % 20), score=t) for t in range(101)]
    wild = [Row(10 + t % 5) for t in range(101)]
    wild[60] = Row(10, reset=True)  # the action chosen on picture 59 was ignored
    world = ScriptedWorld([calm, wild])
    play = play_and_rate(ActorPolicy(GreyReader()), world, TwoMinds(), 3, CPU, windows=2)
    assert world.seeds == [3]
    assert len(play.game_step) == 2 * 100 - 1
    assert sorted(set(play.rated.disagreement.tolist())) == [0, 1, 2, 3, 4]
    # Of the four windows the one with the reset in it is none.
    assert [(window.env, window.start) for window in play.windows] == [(1, 0), (0, 0), (0, 50)]
    strange = play.windows[0]
    assert strange.rated.disagreement.tolist() == [t % 5 for t in range(50)]
    assert strange.frames[:, 0, 0, 0].tolist() == [10 + t % 5 for t in range(50)]
    assert strange.rated.paid.tolist() == [10 + 2 * (t % 5) for t in range(50)]
    # A score is that of the step chosen on the picture beside it.
    assert play.windows[1].scores.tolist() == list(range(1, 51))
    # A game begins anew with the picture after the ignored step.
    assert play.game_step.max() == 99
    assert sorted(play.game_step.tolist()).count(0) == 3


def test_disagreement_is_the_deviation_of_standardised_rewards() -> None:
    judged = Rated.of(np.array([[1.0, 0.0], [3.0, 0.0]], np.float32))
    assert judged.paid.tolist() == [2, 0]
    assert judged.disagreement.tolist() == [1, 0]


def test_more_than_five_in_a_hundred_beyond_the_99th_percentile_is_out_of_data() -> None:
    db = Rated(np.zeros(1001), np.arange(1001.0))
    for far, outside in ((5, False), (6, True)):
        fresh = Rated(np.zeros(100), np.array([990.0] * (100 - far) + [991.0] * far))
        finding = compare(db, fresh)
        assert finding.limit == 990
        assert finding.beyond == pytest.approx(far / 100)
        assert finding.outside is outside
        assert finding.quantiles[0.5] == (500, 990)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_db(tmp_path_factory.mktemp("grey") / "db", segments=12, labels=30)


def test_dbs_are_judged_with_segments_that_were_never_labelled(db: Path, tmp_path: Path) -> None:
    model = unfitted(db, tmp_path).model
    (db / "labels.json").rename(tmp_path / "labels.json")
    judged, env_id = rate_dbs(model, [db])
    (tmp_path / "labels.json").rename(db / "labels.json")
    assert (len(judged.paid), env_id) == (12 * 5, "Grey-v0")
    assert (judged.disagreement > 0).all()


def test_a_db_without_fitting_segments_is_refused(db: Path, tmp_path: Path) -> None:
    model = unfitted(db, tmp_path).model
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="48×48"):
        rate_dbs(model, [tmp_path / "empty"])


def policy(path: Path, num_actions: int = 5, env: str = "MovingDot-v0") -> Path:
    torch.manual_seed(0)
    state = PolicyNet(num_actions).state_dict()
    save_checkpoint(path, "policy", {"state_dict": state, "steps": 0}, {"env": env}, {})
    return path


def config(db: Path, tmp_path: Path, **flags: object) -> FitConfig:
    return FitConfig(dbs=[db], name="grey", out=tmp_path, runs=tmp_path / "runs", **flags)  # type: ignore[arg-type]


def test_what_cannot_be_audited_is_refused_before_the_fit(db: Path, tmp_path: Path) -> None:
    player = policy(tmp_path / "policy.dat")
    check_audit(config(db, tmp_path))
    check_audit(config(db, tmp_path, audit=player, ensemble=2))
    with pytest.raises(UserError, match="--ensemble 3"):
        check_audit(config(db, tmp_path, audit=player))
    with pytest.raises(UserError, match="no such file"):
        check_audit(config(db, tmp_path, audit=tmp_path / "gone.dat", ensemble=3))
    single = unfitted(db, tmp_path, members=1)
    save_reward_model(single.path, single.model, single.config, {}, {})
    with pytest.raises(UserError, match="--ensemble 3"):
        check_audit(config(db, tmp_path, audit=player, audit_reward=single.path, ensemble=3))


def test_an_environment_that_the_user_must_name_is_asked_for_before_the_fit(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    save(tmp_path / "db", 0, clip(20, env_id="elsewhere:Dot-v0"))
    flags = {"audit": policy(tmp_path / "policy.dat"), "ensemble": 2}
    with pytest.raises(UserError, match=r"db: names the environment elsewhere:Dot-v0, .* add --audit-env"):
        check_audit(config(tmp_path / "db", tmp_path, **flags))
    check_audit(config(tmp_path / "db", tmp_path, **flags, audit_env="MovingDot-v0"))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["MovingDot-v0", "elsewhere:Dot-v0"])
def test_the_script_audits_a_model_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, env_id: str
) -> None:
    monkeypatch.setattr(audit_module, "WINDOWS", 4)
    world = make_world("MovingDot-v0", 1)
    assert world.spec.frame_shape is not None
    side, num_actions = world.spec.frame_shape[0], world.spec.num_actions
    world.close()
    segments = tmp_path / "db"
    segments.mkdir()
    names = []
    for number in range(11):
        segment = clip(20 * number, size=side, num_actions=num_actions, env_id=env_id)
        names.append(save(segments, number, segment))
    (segments / "labels.json").write_text(
        "".join(f'{{"sample1": "{a}", "sample2": "{b}", "label": 2}}\n' for a, b in itertools.pairwise(names))
    )
    fit = unfitted(segments, tmp_path / "out")
    save_reward_model(fit.path, fit.model, dataclasses.asdict(fit.config), {}, {})
    player = policy(tmp_path / "policy.dat", num_actions)
    script = runpy.run_path(str(Path(__file__).parents[2] / "03_reward_train.py"))
    # By its old name, which old command lines have.
    arguments = ["--judge", fit.path, "--audit", player, "--audit-games", "2", "-n", "dot", "-o", tmp_path]
    line = [*map(str, arguments), "--runs", str(tmp_path / "runs"), str(segments)]
    if env_id != "MovingDot-v0":
        with pytest.raises(UserError, match=r"db: names the environment elsewhere:Dot-v0, .*add --audit-env"):
            script["main"](line)
        line += ["--audit-env", "MovingDot-v0"]
    script["main"](line)
    said = capsys.readouterr().out
    # Games take 100 steps, and one more in which the action is ignored.
    assert "on 398 steps" in said
    assert str(tmp_path / "reward-dot.audit.html") in said
    page = (tmp_path / "reward-dot.audit.html").read_text()
    assert 1 <= page.count("<figure") <= 4
    assert not (tmp_path / "report.html").exists()
