"""experiments.air: what its stages are, and its table."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from experiments import air
from lib.cli import UserError
from tests.experiments.paper import Measured, Paper


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Paper]:
    """What the stages' commands are, in place of running them."""
    read: list[Paper] = []

    class Read(Measured):
        def __init__(self, out: Path) -> None:
            super().__init__(out)
            read.append(self)

    monkeypatch.setattr(air, "Pipeline", Read)
    return read


def test_every_command_is_read_by_its_script(
    tmp_path: Path, read: list[Paper], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    air.main(["--out", str(out), "--seed", "3", "--rounds", "2", "--labels", "200"])
    (paper,) = read
    rounds = [[f"forks-{round}", f"labels-{round}", f"v{round}"] for round in "12"]
    played = ["games of v0", "games of v1", "games of v2"]
    assert list(paper.read) == ["play", *rounds[0], *rounds[1], *played]
    forks, labels, v2 = (paper.read[name] for name in ("forks-2", "labels-2", "v2"))
    assert (forks.fork, forks.num_envs % forks.fork, forks.seed) == (4, 0, 3)
    assert forks.model == out / "v1.dat"
    assert (labels.strategy, labels.random_share, labels.count) == ("fork", 0, 200)
    assert (labels.db_path, forks.db_path) == (out / "db2", out / "db2")
    assert v2.dbs == [out / "db1", out / "db2"]
    assert (v2.policy, v2.keep) == (paper.read["play"].model, paper.read["play"].db_path)
    assert (paper.read["v1"].epochs, v2.epochs) == (40, 20)
    assert paper.read["games of v2"].model == out / "v2.dat"
    assert "| v2 | 2 ± 13 | 2.00 ± 12.71 | 2.00 ± 12.71 | 2 ± 13 |" in capsys.readouterr().out


def test_what_forks_and_fits_are_told_goes_to_each_round(tmp_path: Path, read: list[Paper]) -> None:
    told = ["--hold-prob", "0.02", "--beta", "0.03", "--keep-where", ""]
    told += ["--epochs", "8", "--nll-weight", "0.4"]
    air.main(["--out", str(tmp_path / "told"), "--rounds", "2", *told])
    air.main(["--out", str(tmp_path / "out"), "--rounds", "2"])
    of_fits = [(0.03, None, 0.4), (0.01, "oxygen=0.5:1", 0)]
    for paper, hold_prob, epochs, fitted in zip(read, (0.02, 0.0), ([8, 8], [80, 40]), of_fits, strict=True):
        assert {paper.read[f"forks-{round}"].hold_prob for round in "12"} == {hold_prob}
        fits = [paper.read[f"v{round}"] for round in "12"]
        assert [fit.epochs for fit in fits] == epochs
        assert {(fit.beta, fit.keep_where, fit.nll_weight) for fit in fits} == {fitted}


def test_a_fit_learns_on_from_the_score_and_what_it_implies_beside_a_control(
    tmp_path: Path, read: list[Paper], capsys: pytest.CaptureFixture[str]
) -> None:
    air.main(["--out", str(tmp_path / "out"), "--rounds", "1", "--score-steps", "9k"])
    (paper,) = read
    out, v0 = tmp_path / "out", paper.read["play"].model
    policy, control = (
        [paper.read[f"{name}-{part}"] for part in "123"] for name in ("v1-9000", "control-9000")
    )
    for start, parts in ((out / "v1.dat", policy), (v0, control)):
        assert [part.model for part in parts] == [start, *(part.save / "latest.dat" for part in parts[:2])]
        first, second, third = parts
        # The second goes on where the first's rate ends.
        assert second.lr == first.lr * (1 - first.steps / first.lr_decay_steps)
        assert second.lr_decay_steps == second.steps
        assert first.entropy > second.entropy > 0
        assert {field for field, value in vars(second).items() if vars(third)[field] != value} == {
            "name",
            "model",
            "save",
            "runs",
        }
    assert {part.reward for part in policy} == {out / "reward-v1.dat"}
    assert policy[0].reward_scale > policy[1].reward_scale == policy[2].reward_scale > 0
    paid = {"reward": None, "score_weight": 0.0, "reward_scale": 1.0}
    for ours, of_control in zip(policy, control, strict=True):
        assert (ours.steps, ours.freeze_convs) == (3000, False)
        alike = {
            "name": of_control.name,
            "model": of_control.model,
            "save": of_control.save,
            "runs": of_control.runs,
        }
        assert dataclasses.replace(ours, **alike, **paid) == of_control
    assert paper.read["games of v1-9000"].model == out / "v1-9000-3/latest.dat"
    assert "| control-9000 |" in capsys.readouterr().out


def test_a_mistyped_policy_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nope\.dat: .* no such file"):
        air.main(["-m", "nope.dat", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_more_steps_or_rounds_in_the_same_folder_are_stages_of_their_own(
    tmp_path: Path, read: list[Paper]
) -> None:
    for more in ([], ["--score-steps", "10k"], ["--score-steps", "20k"], ["--rounds", "2"]):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)  # stages on paper are not noted as done
        air.main(["--out", str(tmp_path / "out"), "--rounds", "1", *more])
    without, shorter, longer, another_round = (set(paper.read) for paper in read)
    added = [stages - without for stages in (shorter, longer, another_round)]
    assert all(added)
    assert len(set.union(*added)) == sum(map(len, added))
