"""Single lives on a world that plays back a script, and the figures of a real policy as a file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import lives, measures
from experiments.measures import Backflip, Disturbed, first_lives, main
from lib.agent.checkpoints import CheckpointFolder, save_policy
from lib.agent.dqn import QNet
from lib.agent.evaluate import evaluate
from lib.agent.exploration import HeldActions
from lib.agent.network import ActorPolicy, PolicyNet
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.envs.gym_world import GymWorld
from lib.envs.play import play
from tests.agent.worlds import GreyReader, Row, ScriptedWorld

CPU = torch.device("cpu")

LIFE = [
    Row(10),
    Row(20, score=60),
    Row(30, score=20, terminal=True),  # what the life ends with is its own
    Row(40, score=1e6, terminal=True),
    Row(50, reset=True),
]
CUT = [Row(11), Row(21, score=-3, truncated=True), Row(31, reset=True), Row(41, score=1e6), Row(51)]
LONG = [Row(12), Row(22, score=1), Row(32), Row(42, score=2), Row(52, score=4, terminal=True)]


def test_a_game_counts_up_to_its_first_lost_life() -> None:
    world = ScriptedWorld([LIFE, CUT, LONG])
    lives = first_lives(ActorPolicy(GreyReader()), world, seed=9, device=CPU)
    assert world.seeds == [9]
    assert lives.scores.tolist() == [80, -3, 7]
    assert lives.steps.tolist() == [2, 1, 4]
    # Actions follow the newest observation, and nothing is played beyond the longest life.
    assert [sent.tolist() for sent in world.sent] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_held_actions_take_the_policys_place() -> None:
    always = HeldActions(3, num_actions=18, prob=1, shortest=2, longest=2, seed=1)
    policy = Disturbed(ActorPolicy(GreyReader()), always)
    world = ScriptedWorld([LIFE, CUT, LONG])
    first_lives(policy, world, seed=9, device=CPU)
    sent = [actions.tolist() for actions in world.sent]
    assert sent[0] == sent[1] != sent[2] == sent[3]
    assert sent[0] != [0, 1, 2]


def test_seeds_decide_lives() -> None:
    torch.manual_seed(0)
    policy, world = ActorPolicy(PolicyNet(5)), GymWorld("MovingDot-v0", 3, limit=20)
    one, same, other = (first_lives(policy, world, seed, CPU) for seed in (0, 0, 1))
    assert one.scores.tolist() == same.scores.tolist() != other.scores.tolist()
    # A game without lives is one life, cut at its time limit.
    assert one.steps.tolist() == [20, 20, 20]


def test_every_step_of_a_game_is_measured_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "backflip", lambda seen, actions: 1 + seen[:, 0])
    world = GymWorld("Pendulum-v1", 2, max_episode_steps=4)
    spun = Backflip(2)
    cosines = np.zeros(2)
    for turn in play(world, ActorPolicy(PolicyNet(1, continuous=True, observation_size=3)), 0, CPU):
        assert turn.step.observations is not None
        spun.before(turn)
        now = turn.step.observations[:, 0].copy()
        spun.after(turn)
        cosines += now * turn.counts
    np.testing.assert_allclose(spun.measures(np.array([4, 4]))["backflip"], 1 + cosines / 4)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy that has learned nothing, as 01_a2c.py leaves one."""
    torch.manual_seed(0)
    network, world = PolicyNet(5), GymWorld("MovingDot-v0", 1, limit=5)
    played = evaluate(ActorPolicy(network), world, 0, CPU)
    folder = CheckpointFolder(tmp_path / "v0")
    return folder.save(ActorPolicy(network), 700, played, {"env": "MovingDot-v0"}, {})


def test_games_may_be_disturbed(policy: Path, tmp_path: Path) -> None:
    scores = []
    for hold_prob in ("0", "1"):
        out = tmp_path / f"{hold_prob}.json"
        main(["-m", str(policy), "-o", str(out), "--games", "2", "--lives", "1", "--hold-prob", hold_prob])
        found = json.loads(out.read_text())
        assert found["hold_prob"] == float(hold_prob)
        scores.append((found["lives"]["scores"], found["games"]["score"]))
    assert scores[0][0] == scores[1][0]  # lives are not
    assert scores[0][1] != scores[1][1]


def test_the_figures_of_a_policy(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "v0.json"
    main(["-m", str(policy), "-o", str(out), "--games", "2", "--lives", "3", "--reference", str(policy)])
    found = json.loads(out.read_text())
    assert (found["trained_steps"], found["seed"]) == (700, 0)
    assert found["lives"]["steps"] == [100, 100, 100]
    assert len(found["games"]["score"]) == 2
    # Bounds of the world: 1 at best, 1 − 72/72 at worst about, a step.
    assert all(-100 < score < 100 for score in found["games"]["score"] + found["lives"]["scores"])
    assert found["games"]["kl"] == [0, 0]
    assert "distance" in found["games"]
    best = max(found["lives"]["scores"])
    assert f"first lives: best {best:g} of 3" in capsys.readouterr().out


def test_only_policies_that_draw_from_a_distribution_have_a_kl(policy: Path, tmp_path: Path) -> None:
    save_policy(tmp_path / "q.dat", QNet(5), 0, {}, {"env": "MovingDot-v0"}, {})
    with pytest.raises(
        UserError, match=r"q\.dat: expected two policies of A2C or PPO, got a PolicyNet and a QNet"
    ):
        main(["-m", str(policy), "-o", str(tmp_path / "v0.json"), "--reference", str(tmp_path / "q.dat")])


def test_no_module_is_imported_because_a_policy_names_it(tmp_path: Path) -> None:
    policy = {"state_dict": PolicyNet(5).state_dict(), "steps": 0}
    save_checkpoint(tmp_path / "v0.dat", "policy", policy, {"env": "made_up:Seaquest-v0"}, {})
    flags = ["-m", str(tmp_path / "v0.dat")]
    with pytest.raises(UserError, match="if you trust it, add --env made_up:Seaquest-v0"):
        main([*flags, "-o", str(tmp_path / "v0.json")])
    with pytest.raises(UserError, match="expected a policy of Seaquest, got one of made_up:Seaquest-v0"):
        lives.main(flags)


def test_a_policy_that_does_not_know_its_environment_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare.dat"
    torch.save(PolicyNet(5).state_dict(), bare)
    with pytest.raises(UserError, match="which knows its environment"):
        main(["-m", str(bare), "-o", str(tmp_path / "v0.json")])
    out = tmp_path / "v0.json"
    main(["-m", str(bare), "-o", str(out), "-e", "MovingDot-v0", "--games", "2", "--lives", "1"])
    assert json.loads(out.read_text())["trained_steps"] is None


def test_a_seed_that_no_game_takes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["-m", "v0.dat", "-o", "v0.json", "--seed", "4000000000"])
    assert "--seed: expected a whole number from 0 to 2000000000" in capsys.readouterr().err
