"""Minutes until a score: what is written down, and what of it stands in the table."""

import json
from pathlib import Path

import pytest

from benchmarks import time_to_score
from benchmarks.ours import UPDATES_A_PIECE
from benchmarks.rivals import RIVALS
from benchmarks.time_to_score import Stages, TimeConfig, contender, table
from lib.agent.checkpoints import load_policy
from lib.cli import UserError

CURVE = [[0.5, 100, 150.0], [1.0, 300, 250.0], [1.5, 600, 480.0]]


def test_the_first_evaluation_that_reaches_a_score_counts() -> None:
    fell = [*CURVE[:2], [1.5, 600, 100.0]]
    page = table(TimeConfig(algos=["ppo"]), {("ppo", 0): CURVE, ("ppo", 1): fell})
    # Seconds: 90 + 90, steps: 600 + 600.
    assert page.splitlines()[2].split(" | ")[2:] == ["7", "1.0, 1.0: 1.0 ± 0.0", "1.5, never |"]


def test_a_run_that_ended_at_a_lower_score_does_not_count_for_a_higher_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = iter([[[0.5, 100, 250.0]], [[1.0, 50, 480.0]], [[0.25, 50, 90.0], [5.0, 600, 240.0]]])
    monkeypatch.setattr(time_to_score, "learning_curve", lambda *_: next(curves))
    folder = ["CartPole-v1", "--out", str(tmp_path)]
    line = [*folder, "--algos", "a2c", "--seeds"]
    time_to_score.main([*line, "1", "--scores", "200"])
    with pytest.raises(UserError, match="a2c, seed 0, ended at 250 points, below 475; name another folder"):
        time_to_score.main([*line, "1"])
    time_to_score.main([*folder, "--algos", "ppo", "--seeds", "1"])  # which asks nothing of a2c
    time_to_score.main([*line, "2", "--scores", "100", "250"])  # seed 1 had all of its minutes
    assert "| 0.5, 5.0: 2.8 ± 28.6 | 0.5, never |" in (tmp_path / "CartPole-v1.md").read_text()


@pytest.mark.slow
def test_a_run_ends_at_its_highest_score_and_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = time_to_score.TASKS["CartPole-v1"]
    monkeypatch.setitem(time_to_score.TASKS, "CartPole-v1", task._replace(scores=(5, 9)))
    line = ["CartPole-v1", "--out", str(tmp_path), "--seeds", "1", "--games", "2", "--every", "0.001"]
    time_to_score.main([*line, "--algos", "a2c"])
    [run] = map(json.loads, (tmp_path / "CartPole-v1.jsonl").read_text().splitlines())
    assert (run["algo"], run["seed"], len(run["curve"])) == (
        "a2c",
        0,
        1,
    )  # a pole falls no sooner than after 9 steps
    [[minutes, steps, score]] = run["curve"]
    assert minutes >= 0.001
    assert steps % 80 == 0
    assert score >= 9
    time_to_score.main([*line, "--algos", "a2c", "dqn"])
    runs = [json.loads(line) for line in (tmp_path / "CartPole-v1.jsonl").read_text().splitlines()]
    assert [run["algo"] for run in runs] == ["a2c", "dqn"]
    said = capsys.readouterr().out
    assert said.count("a2c, seed 0") == 1
    for run in runs:
        assert said.count(f"{run['algo']}, seed 0: ") == len(run["curve"])
    assert "| dqn | num_envs=4" in (tmp_path / "CartPole-v1.md").read_text()
    with pytest.raises(UserError, match=r"CartPole-v1\.jsonl has runs with other flags; name another folder"):
        time_to_score.main([*line, "--minutes", "2"])
    assert "minutes of learning" in (tmp_path / "CartPole-v1.svg").read_text()


def test_a_stage_begins_with_the_policy_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = time_to_score.TASKS["CartPole-v1"]
    stages: Stages = [{"algo": "a2c", "num_envs": 2, "steps": 100}, {"algo": "ppo", "num_envs": 2, "lr": 0.0}]
    monkeypatch.setitem(time_to_score.TASKS, "CartPole-v1", task._replace(contenders={"both": stages}))
    ours = contender(TimeConfig(), "both", seed=0, folder=tmp_path)
    try:
        assert [ours(), ours()] == [50, 50]
        learned = {name: weight.clone() for name, weight in ours.network.named_parameters()}
        assert ours() == UPDATES_A_PIECE * 32 * 2
        for name, weight in ours.network.named_parameters():
            assert weight.equal(learned[name])
    finally:
        ours.close()
    [kept] = tmp_path.glob("*.dat")
    assert load_policy(kept)[1]["steps"] == 100


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", list(RIVALS))
def test_rivals_learn_for_a_while_and_play_full_games(name: str) -> None:
    if name == "cleanrl-ppo":
        pytest.importorskip("envpool")
    rival = RIVALS[name]("SeaquestNoFrameskip-v4", 1, "cpu")
    try:
        assert rival() > 0
        scores = rival.score(2, 3)
    finally:
        rival.close()
    assert scores.shape == (2,)
    assert all(scores % 20 == 0)  # points of the game, not their signs


def test_other_libraries_play_atari_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a2c, dqn, ppo on CartPole-v1, got sb3-ppo"):
        time_to_score.main(["CartPole-v1", "--out", str(tmp_path), "--algos", "sb3-ppo"])
