"""Playing a policy, with a world that plays back a script: which steps are handed out, and when each is answered."""

import numpy as np
import pytest
import torch

from lib.agent.network import ActorPolicy
from lib.envs.gym_world import GymWorld
from lib.envs.play import Decision, Turn, play
from lib.envs.spec import Spec
from lib.envs.world import Step
from lib.interrupt import Stopped
from tests.agent.worlds import GreyReader, Row, ScriptedWorld

CPU = torch.device("cpu")

SHORT = [Row(10), Row(20, score=60, terminal=True), Row(30, reset=True), *[Row(40, score=1e6)] * 3]
CUT = [Row(11), Row(21), Row(31, truncated=True), Row(41, reset=True), Row(51, score=1e6), Row(61)]
LONG = [Row(12), Row(22, terminal=True), Row(32), Row(42, terminal=True), Row(52, reset=True), Row(62)]
"""Games of 1, 2 and 3 steps; the longest loses a life on the way."""


class Dice:
    """Chooses at random."""

    spec = Spec(5)

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        return Decision(torch.randint(5, (len(observations),), generator=generator))


class Answering(ScriptedWorld):
    """Counts its answers."""

    answered = 0

    def recv(self) -> Step:
        self.answered += 1
        return super().recv()


def greys(step: Step) -> list[int]:
    return [int(frame[0, 0, 0]) for frame in step.frames]


def test_one_full_game_in_every_environment() -> None:
    world = ScriptedWorld([SHORT, CUT, LONG])
    shown, running, counts, scores = [], [], [], []
    for turn in play(world, ActorPolicy(GreyReader()), seed=9, device=CPU):
        shown.append(greys(turn.step))
        assert turn.observations[:, -1, 40, 40].tolist() == shown[-1]
        assert turn.frames()[:, 0, 0, 0].tolist() == shown[-1]
        assert turn.actions.tolist() == turn.decision.actions.tolist() == [grey % 5 for grey in shown[-1]]
        running.append(turn.running.tolist())
        counts.append(turn.counts.tolist())
        scores.append(turn.outcome().score.tolist())
    assert world.seeds == [9]
    # Each game's last frame is shown once more, with an outcome that does not count.
    assert shown == [[10, 11, 12], [20, 21, 22], [30, 31, 32], [40, 41, 42]]
    assert running == [[True, True, True], [True, True, True], [False, True, True], [False, False, True]]
    assert counts == [[True, True, True], [False, True, True], [False, False, True], [False, False, False]]
    assert scores[:2] == [[60, 0, 0], [0, 0, 0]]
    # Nothing is played beyond the longest game.
    assert [sent.tolist() for sent in world.sent] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("steps", [2, 5])
def test_a_fixed_number_of_steps_over_as_many_games_as_that_takes(steps: int) -> None:
    world = ScriptedWorld([SHORT, LONG])
    turns = [
        turn.counts.tolist()
        for turn in play(world, ActorPolicy(GreyReader()), seed=0, device=CPU, steps=steps)
    ]
    assert len(turns) == len(world.sent) == steps
    assert turns == [[True, True], [False, True], [False, True], [False, False], [False, False]][:steps]


def test_giving_up_is_no_end() -> None:
    world, asked = ScriptedWorld([LONG]), iter([False, False, True])
    with pytest.raises(Stopped):
        list(play(world, ActorPolicy(GreyReader()), seed=0, device=CPU, stop=lambda: next(asked)))
    assert len(world.sent) == 2


def test_a_step_is_handed_out_while_the_emulator_works() -> None:
    world = Answering([SHORT, LONG])
    for made, turn in enumerate(play(world, ActorPolicy(GreyReader()), seed=0, device=CPU)):
        assert len(world.sent) == made + 1
        assert world.answered == made
        before = greys(turn.step)
        assert turn.outcome() is turn.outcome()
        assert world.answered == made + 1
        assert greys(turn.outcome()) != before


def outcomes(asks: bool) -> tuple[list[list[int]], int]:
    """What is shown to one who asks for every outcome, or for none, and how many answers the world gave."""
    world = Answering([SHORT, CUT, LONG])
    shown = []
    for turn in play(world, ActorPolicy(GreyReader()), seed=0, device=CPU):
        shown.append(greys(turn.step))
        if asks:
            turn.outcome()
    return shown, world.answered


def test_nobody_need_ask_for_the_outcome() -> None:
    assert outcomes(asks=False) == outcomes(asks=True)
    assert outcomes(asks=False)[1] == 4


def test_whoever_has_seen_enough_may_leave() -> None:
    world = Answering([LONG])
    for turn in play(world, ActorPolicy(GreyReader()), seed=0, device=CPU):
        if turn.outcome().terminal[0]:
            break
    assert (len(world.sent), world.answered) == (1, 1)


def test_seeds_decide_games_and_actions() -> None:
    world = GymWorld("MovingDot-v0", 3, limit=10)

    def played(seed: int) -> tuple[np.ndarray, np.ndarray]:
        def both(turn: Turn) -> tuple[np.ndarray, np.ndarray]:
            return turn.actions, turn.observations.numpy().copy()

        actions, seen = zip(*map(both, play(world, Dice(), seed, CPU)), strict=True)
        return np.stack(actions), np.stack(seen)

    one, same, other = played(0), played(0), played(1)
    assert one[0].shape == (11, 3)
    assert all(map(np.array_equal, one, same))
    assert not any(map(np.array_equal, one, other))
