"""Full games, one an environment, with a world that plays back a script."""

import numpy as np
import pytest
import torch

from lib.agent.evaluate import Evaluation, Observer, ProbeMeans, evaluate
from lib.agent.network import ActorPolicy, PolicyNet
from lib.envs.gym_world import GymWorld
from lib.envs.make import probes
from lib.envs.play import Turn
from lib.envs.world import Step
from tests.agent.worlds import GreyReader, Row, ScriptedWorld

CPU = torch.device("cpu")

SHORT = [
    Row(10),
    Row(20, score=60, terminal=True),
    Row(30, reset=True),
    Row(40, score=1e6),
    Row(50, score=1e6),
]
CUT = [Row(11), Row(21), Row(31, score=-3, truncated=True), Row(41, reset=True), Row(51, score=1e6)]
LONG = [
    Row(12),
    Row(22, score=200, terminal=True),  # a lost life ends no game
    Row(0, score=20),
    Row(42, score=1, terminal=True),
    Row(52, reset=True),
]


def grey(step: Step) -> np.ndarray:
    """NaN where the picture is black."""
    reading = step.frames[:, 0, 0, 0].astype(np.float32)
    return np.where(reading == 0, np.nan, reading)


def test_one_full_game_in_every_environment() -> None:
    world = ScriptedWorld([SHORT, CUT, LONG])
    result = evaluate(
        ActorPolicy(GreyReader()), world, seed=9, device=CPU, observers=[ProbeMeans(3, {"grey": grey})]
    )
    assert world.seeds == [9]
    assert result.scores.tolist() == [60, -3, 221]
    assert result.steps.tolist() == [1, 2, 3]
    # Every frame of the game, its last included; black ones are ignored.
    assert result.measures["grey"].tolist() == pytest.approx([15, 21, (12 + 22 + 42) / 3])
    # Actions follow the newest observation, and nothing is played beyond the longest game.
    assert [sent.tolist() for sent in world.sent] == [[0, 1, 2], [0, 1, 2], [0, 1, 0], [0, 1, 2]]


class Greys:
    """Adds up the shades of grey of every frame it is shown."""

    def __init__(self, games: int) -> None:
        self.total = np.zeros(games)

    def push(self, frames: np.ndarray) -> None:
        self.total += frames[:, 0, 0, 0]

    def counts(self) -> dict[str, np.ndarray]:
        return {"greys": self.total}


def test_counts_end_with_their_game() -> None:
    world = ScriptedWorld([SHORT, CUT, LONG])
    means = ProbeMeans(3, {"grey": grey}, Greys(3))
    result = evaluate(ActorPolicy(GreyReader()), world, seed=9, device=CPU, observers=[means])
    assert set(result.measures) == {"grey", "greys"}
    assert result.measures["greys"].tolist() == [10 + 20, 11 + 21 + 31, 12 + 22 + 0 + 42]


def test_says_mean_interval_and_best() -> None:
    # Student's t for 3 degrees of freedom is 3.18245; the standard error of 0, 0, 10, 10 is √(100/3)/2.
    text = str(Evaluation(np.array([0.0, 0, 10, 10]), np.array([5, 6, 7, 8]), {"depth": np.full(4, 0.25)}))
    assert text == "score 5.0 ± 9.2 (95 %, 4 games)  best 10  steps 6  depth 0.25"
    small = Evaluation(np.array([0.3654, 0.1]), np.array([5, 7]), {})
    assert "  best 0.365  " in str(small)


def test_seeds_decide_games_and_actions() -> None:
    torch.manual_seed(0)
    policy, world = ActorPolicy(PolicyNet(5)), GymWorld("MovingDot-v0", 4, limit=20)

    def play(seed: int) -> Evaluation:
        return evaluate(policy, world, seed, CPU, [ProbeMeans(4, probes("MovingDot-v0"))])

    one, same, other = play(0), play(0), play(1)
    assert one.scores.tolist() == same.scores.tolist()
    assert one.measures["distance"].tolist() == same.measures["distance"].tolist()
    assert one.scores.tolist() != other.scores.tolist()
    assert one.steps.tolist() == [20] * 4
    # The score is 1 − distance/72 px of each step; the probe also reads the frame before the first of them.
    assert ((one.measures["distance"] * 21 - (20 - one.scores) * 72) > -0.01).all()
    assert ((one.measures["distance"] * 21 - (20 - one.scores) * 72) < 72.01).all()


def test_in_bf16_it_plays_by_the_weights_of_the_moment() -> None:
    """Weights are cast once an evaluation, not once and for all."""
    network, world = PolicyNet(5, kind="small"), GymWorld("MovingDot-v0", 4, limit=20)
    policy, sent = ActorPolicy(network, bf16=True), []
    for action in (1, 3):
        with torch.no_grad():
            network.get_parameter("policy.2.bias").copy_(
                torch.nn.functional.one_hot(torch.tensor(action), 5) * 100
            )
        seen = Sent()
        evaluate(policy, world, 0, CPU, [seen])
        sent.append(set(seen.actions))
    assert sent == [{1}, {3}]


class Sent(Observer):
    """Writes down every action."""

    def __init__(self) -> None:
        self.actions: list[int] = []

    def before(self, turn: Turn) -> None:
        self.actions += turn.actions.tolist()
