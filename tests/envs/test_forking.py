"""Games that can be copied while they run: they are those of `AtariWorld`, and a copy goes on as the original would."""

import itertools
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from ale_py.env import AtariEnv

from lib.cli import UserError
from lib.envs.forking import ForkingAtari
from tests.envs.test_atari import SEAQUEST, STEPS, play, random_actions


def by_hand(actions: list[int]) -> Iterator[np.ndarray]:
    """One emulator by hand, for 0 to 30 no-ops at the start: every action four times, the maximum over the last two
    frames."""
    env = gymnasium.make(SEAQUEST)
    env.reset(seed=0)
    emulator = env.unwrapped
    assert isinstance(emulator, AtariEnv)
    for _ in range(31):
        after_noops = emulator.clone_state()
        env.step(1)  # FIRE, as the vector emulator presses where the game knows it
        pictures = []
        for action in actions:
            last = [env.step(action)[0] for _ in range(4)][-2:]
            pictures.append(np.maximum(*last))
        yield np.stack(pictures)
        emulator.restore_state(after_noops)
        env.step(0)
    env.close()


@pytest.mark.slow
def test_a_picture_is_the_maximum_over_the_last_two_of_four_emulator_frames() -> None:
    actions = [5] * 25 + [int(a) for a in np.random.default_rng(0).integers(0, 18, 30)]
    world = ForkingAtari(SEAQUEST, 1)
    world.reset(3)
    ours = []
    for action in actions:
        world.send(np.array([action]))
        ours.append(world.recv().frames[0].copy())
    assert any(np.array_equal(np.stack(ours), theirs) for theirs in by_hand(actions))


@pytest.mark.slow
def test_lives_and_games_end_as_those_of_the_vector_do() -> None:
    games = play(ForkingAtari(SEAQUEST, 2), STEPS, 0, random_actions(2))  # type: ignore[arg-type]
    assert games.score.max() >= 20
    for env in range(2):
        begins = np.flatnonzero(games.reset[:, env])
        assert len(begins) > 1
        for begin, end in itertools.pairwise(begins):
            terminal = np.flatnonzero(games.terminal[begin + 1 : end, env]) + begin + 1
            assert len(terminal) == 4
            assert terminal[-1] == end - 1
    assert not (games.terminal & games.reset).any()
    assert not games.score[games.reset].any()
    limited = play(ForkingAtari(SEAQUEST, 1, time_limit=20), 42, 0, lambda t: np.zeros(1, int))  # type: ignore[arg-type]
    assert np.flatnonzero(limited.truncated).tolist() == [20, 41]
    assert np.flatnonzero(limited.reset).tolist() == [0, 21, 42]
    assert not limited.terminal.any()


def test_a_game_taken_up_goes_on_as_the_other_would() -> None:
    world = ForkingAtari(SEAQUEST, 3)
    world.reset(0)
    for _ in range(30):
        world.send(np.array([2, 5, 3]))
        step = world.recv()
    seen = np.array(step.frames)
    assert (seen[0] != seen[1]).any()
    step = world.take(np.array([1, 1, 2]))
    assert np.array_equal(step.frames, seen[[1, 1, 2]])
    assert not step.reset.any()
    for action in np.random.default_rng(0).integers(0, 18, 100):
        world.send(np.full(3, action))
        step = world.recv()
        assert np.array_equal(step.frames[0], step.frames[1])
        assert all(field[0] == field[1] for field in step[1:5])
    assert (step.frames[0] != step.frames[2]).any()


def test_other_environments_are_refused() -> None:
    with pytest.raises(UserError, match="--fork works for Atari games only, and MovingDot-v0 is not one"):
        ForkingAtari("MovingDot-v0", 2)
