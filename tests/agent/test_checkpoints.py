"""The checkpoint folder: what is kept, what it is called, what the links point to; loading policies."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lib.agent.checkpoints import CheckpointFolder, check_policy, load_policy
from lib.agent.evaluate import Evaluation
from lib.agent.network import ActorPolicy, PolicyNet
from lib.cli import UserError
from lib.envs.spec import Spec
from lib.reward.checkpoints import save_reward_model
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.agent.worlds import ScriptedWorld


@pytest.fixture(scope="module")
def network() -> PolicyNet:
    torch.manual_seed(0)
    return PolicyNet(4, kind="small")


def games(*scores: float, steps: int = 580) -> Evaluation:
    return Evaluation(np.array(scores), np.full(len(scores), steps), {"depth": np.full(len(scores), 0.5)})


def kept(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.is_symlink())


def links(root: Path) -> tuple[str, str]:
    return (root / "best.dat").resolve().name, (root / "latest.dat").resolve().name


def test_keeps_the_best_and_the_latest(tmp_path: Path, network: PolicyNet) -> None:
    folder = CheckpointFolder(tmp_path / "new" / "models")
    root = tmp_path / "new" / "models"
    seen = []
    for steps, score in [
        (100, 20.0),
        (200, 60.0),
        (300, 40.0),
        (400, 50.0),
        (500, 60.0),
        (600, 80.0),
        (700, 0.0),
    ]:
        path = folder.save(ActorPolicy(network), steps, games(score), {}, {})
        assert path.is_file()
        assert len(kept(root)) <= 2
        assert set(kept(root)) == set(links(root))  # nothing else lies there, temporary files included
        seen.append(tuple(int(name.split("_")[1].split("-")[0]) for name in links(root)))
    assert seen == [(100, 100), (200, 200), (200, 300), (200, 400), (200, 500), (600, 600), (600, 700)]
    assert not (root / "best.dat").readlink().is_absolute()  # the folder can be moved


def judged(score: float, learned: float, preferred: float | None = None) -> Evaluation:
    overall = {} if preferred is None else {"preferred": preferred}
    return Evaluation(np.array([score]), np.array([580]), {"learned": np.array([learned])}, overall)


def pointed(root: Path) -> dict[str, int]:
    """Steps of the checkpoint that each link points to."""
    return {
        link.name.removesuffix(".dat"): int(link.resolve().name.split("_")[1].split("-")[0])
        for link in root.iterdir()
        if link.is_symlink()
    }


def test_keeps_the_best_by_each_criterion(tmp_path: Path, network: PolicyNet) -> None:
    folder = CheckpointFolder(tmp_path)
    seen = []
    for steps, measured in [
        (1, judged(50, 1, 0.6)),
        (2, judged(60, 0, 0.5)),
        (3, judged(40, 3, 0.7)),
        (4, judged(40, 3, None)),
        (5, judged(30, 4, 0.7)),
        (6, judged(70, 0, 0.8)),
    ]:
        folder.save(ActorPolicy(network), steps, measured, {}, {})
        seen.append([pointed(tmp_path)[f"best{by}"] for by in ("", "-learned", "-teacher")])
        assert set(kept(tmp_path)) == {path.resolve().name for path in tmp_path.iterdir()}
    assert seen == [[1, 1, 1], [2, 1, 1], [2, 3, 3], [2, 3, 3], [2, 5, 3], [6, 5, 6]]
    content = torch.load(tmp_path / "best-teacher.dat", weights_only=True)
    assert content["evaluation"] == {"scores": [70], "steps": [580], "learned": [0], "preferred": 0.8}
    folder.save(ActorPolicy(network), 7, judged(90, 9, 0.9), {}, {}, evaluated=False)
    assert pointed(tmp_path) == {"best": 6, "best-learned": 5, "best-teacher": 6, "latest": 7}


def test_there_is_no_best_by_what_is_not_measured(tmp_path: Path, network: PolicyNet) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(ActorPolicy(network), 1, judged(50, -3), {}, {})
    assert set(pointed(tmp_path)) == {"best", "best-learned", "latest"}


def test_what_is_kept_for_good_outlives_a_better_one(tmp_path: Path, network: PolicyNet) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.save(ActorPolicy(network), 1, games(50), {}, {})
    folder.save(ActorPolicy(network), 2, games(40), {}, {})
    assert folder.keep_best() == first
    for steps in (3, 4):
        last = folder.save(ActorPolicy(network), steps, games(50 + steps), {}, {})
    assert kept(tmp_path) == [first.name, last.name]
    assert pointed(tmp_path) == {"best": 4, "latest": 4}


def test_games_that_are_no_evaluation_make_no_best(tmp_path: Path, network: PolicyNet) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(ActorPolicy(network), 50, games(500), {}, {}, evaluated=False)
    assert kept(tmp_path) == ["model_000050-rw=500-steps=580.dat"]
    assert not (tmp_path / "best.dat").exists()
    evaluated = folder.save(ActorPolicy(network), 100, games(20), {}, {})
    assert kept(tmp_path) == [evaluated.name]
    stopped = folder.save(ActorPolicy(network), 200, games(90), {}, {}, evaluated=False)
    assert links(tmp_path) == (evaluated.name, stopped.name)
    assert torch.load(stopped, weights_only=True)["evaluation"] == {}
    better = folder.save(ActorPolicy(network), 300, games(40), {}, {})
    assert links(tmp_path) == (better.name, better.name)
    assert kept(tmp_path) == [better.name]


def test_a_second_run_drops_nothing_of_the_first(tmp_path: Path, network: PolicyNet) -> None:
    first = CheckpointFolder(tmp_path)
    best, latest = (
        first.save(ActorPolicy(network), 100, games(80), {}, {}),
        first.save(ActorPolicy(network), 200, games(60), {}, {}),
    )
    second = CheckpointFolder(tmp_path)
    for steps in (110, 120, 130):
        path = second.save(ActorPolicy(network), steps, games(20), {}, {})
    assert {best.name, latest.name} < set(kept(tmp_path))
    assert len(kept(tmp_path)) == 4
    assert links(tmp_path) == ("model_000110-rw=20-steps=580.dat", path.name)


def test_is_named_after_steps_score_and_length(tmp_path: Path, network: PolicyNet) -> None:
    path = CheckpointFolder(tmp_path).save(
        ActorPolicy(network), 123, games(450, 470, steps=581), {"env": "E"}, {"policy": "P"}
    )
    assert path.name == "model_000123-rw=460-steps=581.dat"
    path = CheckpointFolder(tmp_path).save(ActorPolicy(network), 12_000_000, games(-0.2), {}, {})
    assert path.name == "model_12000000-rw=-0-steps=580.dat"


def test_a_checkpoint_says_what_it_is(tmp_path: Path, network: PolicyNet) -> None:
    path = CheckpointFolder(tmp_path).save(
        ActorPolicy(network), 123, games(20, 40), {"env": "E"}, {"policy": "P"}
    )
    content = torch.load(path, weights_only=True)
    assert content["evaluation"] == {"scores": [20, 40], "steps": [580, 580], "depth": [0.5, 0.5]}
    assert (content["steps"], content["num_actions"]) == (123, 4)

    loaded, origin = load_policy(tmp_path / "best.dat")
    assert (origin["config"], origin["parents"], origin["steps"]) == ({"env": "E"}, {"policy": "P"}, 123)
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(loaded.state_dict().values(), network.state_dict().values(), strict=True)
    )


def test_a_bare_state_dict_loads(tmp_path: Path, network: PolicyNet) -> None:
    torch.save(network.state_dict(), tmp_path / "model_000009-rw=460-steps=580.dat")
    loaded, origin = load_policy(tmp_path / "model_000009-rw=460-steps=580.dat")
    assert loaded.spec.num_actions == 4
    assert torch.equal(loaded.state_dict()["conv.0.weight"], network.state_dict()["conv.0.weight"])
    assert origin == {}


def test_refuses_what_is_no_policy(tmp_path: Path) -> None:
    reward = RewardNet((84, 84, 3), 4)
    torch.save(reward.state_dict(), tmp_path / "bare.dat")
    model = RewardModel([Member(reward, 0.0, 1.0)], torch.device("cpu"))
    save_reward_model(tmp_path / "reward-x.dat", model, {}, {}, {})
    for name, says in [
        ("bare.dat", "is it a reward model"),
        ("reward-x.dat", "got a reward checkpoint"),
        ("none.dat", "no such file"),
    ]:
        with pytest.raises(UserError, match=rf"{name}: expected .*{says}"):
            load_policy(tmp_path / name)


def test_refuses_a_policy_of_other_actions(network: PolicyNet) -> None:
    check_policy(network, ScriptedWorld([[]], num_actions=4), Path("m.dat"))
    with pytest.raises(UserError, match=r"m\.dat: a policy for 4 actions, but Scripted-v0 has 18"):
        check_policy(network, ScriptedWorld([[]], num_actions=18), Path("m.dat"))


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (
            PolicyNet(2),
            "a policy for observations that are pictures, but CartPole-v1 has observations of 4 numbers",
        ),
        (
            PolicyNet(2, observation_size=3),
            "a policy for observations of 3 numbers, but CartPole-v1 has observations of 4 numbers",
        ),
        (
            PolicyNet(1, continuous=True, observation_size=4),
            "a policy for actions of 1 numbers, but CartPole-v1 has 2 actions",
        ),
    ],
)
def test_refuses_a_policy_of_another_kind(network: PolicyNet, says: str) -> None:
    world = ScriptedWorld([[]], num_actions=2)
    world.env_id = "CartPole-v1"
    world.spec = Spec(2, observation_shape=(4,))
    check_policy(PolicyNet(2, observation_size=4), world, Path("m.dat"))
    with pytest.raises(UserError, match=rf"m\.dat: {says}; take"):
        check_policy(network, world, Path("m.dat"))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--save .*file: expected a folder"):
        CheckpointFolder(tmp_path / "file")
