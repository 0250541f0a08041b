"""The reward written by hand, on real frames of Seaquest; and that it is what a run is paid."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import handwritten_reward
from experiments.handwritten_reward import SeveralLanes, refuelling
from lib.agent.checkpoints import load_policy
from lib.agent.config import TrainConfig
from lib.agent.network import PolicyNet
from lib.reward.model import RewardModel
from lib.training.parts import Trained
from lib.training.train import train
from tests.envs.seaquest_game import Game, begun
from tests.training.evaluations import one_game

NOOP, FIRE, UP, DOWN, UPFIRE = 0, 1, 2, 5, 10


def paid(game: Game, *actions: int) -> list[float]:
    """What these actions are paid in the last frame."""
    return refuelling(np.repeat(game.frames[-1][None], len(actions), 0), np.array(actions)).tolist()


def shown(oxygen: int, divers: int, up: int = 0) -> Game:
    """A picture of so much oxygen and so many divers, after so many steps up from a little below the surface."""
    game = begun()
    game.give(oxygen=oxygen, divers=divers)
    game.play("UP", up)
    if not up:
        game.play("NOOP", 1)
    return game


def test_climbing_is_paid_where_oxygen_is_low_and_a_diver_is_on_board() -> None:
    state = 0.5 * (20 / 62 - 0.5)
    assert paid(shown(20, 0), UP, NOOP) == pytest.approx([state, state], abs=1e-3)
    with_diver = [state + 0.15 + 0.5] * 2 + [state + 0.15 - 0.3] * 3
    assert paid(shown(20, 1), UP, UPFIRE, NOOP, FIRE, DOWN) == pytest.approx(with_diver, abs=1e-3)
    enough = 0.5 * (40 / 62 - 0.5) + 0.15
    assert paid(shown(40, 1), UP, NOOP) == pytest.approx([enough, enough], abs=1e-3)


def test_idling_at_the_top_is_not() -> None:
    full = Game()
    full.play("NOOP", 40)  # a game begins at the surface
    assert paid(full, UP, NOOP) == pytest.approx([0.25 - 0.5] * 2)
    hovering = shown(20, 0, up=7)
    assert hovering.memory[-1].height < 20
    state = 0.5 * (hovering.memory[-1].oxygen / 62 - 0.5)
    assert paid(hovering, UP, NOOP) == pytest.approx([state, state - 0.3], abs=0.01)


def test_nothing_in_sight_is_a_price_whatever_is_done() -> None:
    assert refuelling(np.zeros((2, 210, 160, 3), np.uint8), np.array([UP, NOOP])).tolist() == [-1, -1]


def random_play(seed: int, steps: int) -> Game:
    """A game that fires all the time, and moves in one direction for some steps, then in another."""
    game, rng = Game(), np.random.default_rng(seed)
    directions = ["UPFIRE", "DOWNFIRE", "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE"]
    while len(game.frames) < steps:
        game.play(str(rng.choice(directions)), int(rng.integers(3, 12)))
    return game


def test_hits_in_another_lane_are_paid_in_each_game_by_itself() -> None:
    several, one_lane = random_play(6, 110), random_play(1, 110)
    scored = [step for step, score in enumerate(several.scores) if score > 0]
    assert scored == [78, 85, 102]
    heights = [several.memory[step].height for step in scored]
    assert min(np.diff(heights)) > 20  # each in a lane below the last one's
    assert any(one_lane.scores)
    rule, noops = SeveralLanes(), np.zeros(2, int)
    both = zip(several.frames[:110], one_lane.frames[:110], strict=True)
    paid = np.stack([rule(np.stack(frames), noops) for frames in both])
    assert np.flatnonzero(paid[:, 0]).tolist() == scored[1:]
    assert paid[:, 1].sum() == 0


def test_a_new_life_has_hit_nothing_yet() -> None:
    game, rule = random_play(3, 190), SeveralLanes()
    paid = [rule(frame[None], np.zeros(1, int)).item() for frame in game.frames[:190]]
    first, _, last = (step for step, score in enumerate(game.scores[:190]) if score > 0)
    assert game.memory[last].spare < game.memory[first].spare
    assert abs(game.memory[last].height - game.memory[first].height) > 0.15 * 95  # in another lane
    assert sum(paid) == 0


@pytest.mark.slow
def test_a_run_is_paid_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paying: list[RewardModel] = []

    def brief_train(config: TrainConfig, reward: RewardModel) -> Trained:
        paying.append(reward)
        return train(config, reward=reward, evaluate=one_game)

    monkeypatch.setattr(handwritten_reward, "train", brief_train)
    torch.save(PolicyNet(18).state_dict(), tmp_path / "v0.dat")
    saved = tmp_path / "save"
    argv = ["-n", "x", "-m", str(tmp_path / "v0.dat"), "--save", str(saved), "--runs", str(tmp_path / "runs")]
    argv += ["--steps", "60", "--num-envs", "4", "--eval-games", "1", "--score-weight", "0.5"]
    handwritten_reward.main(argv)
    said = load_policy(saved / "latest.dat")[1]
    assert said["steps"] == 60
    assert said["parents"]["reward"] == {"file": "experiments/handwritten_reward.py"}

    (run,) = (tmp_path / "runs").iterdir()
    handwritten_reward.main(["--resume", str(run), "--steps", "80"])
    assert load_policy(saved / "latest.dat")[1]["steps"] == 80

    frame, action = shown(20, 1).frames[-1], np.array([UP])
    assert paying[0].rewards(frame[None], action) == pytest.approx(refuelling(frame[None], action))
