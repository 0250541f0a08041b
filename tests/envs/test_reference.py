"""The fast path against ptan's wrappers: the same actions make the same game."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from stable_baselines3.common.atari_wrappers import NoopResetEnv

from lib.cli import UserError
from lib.envs.atari import AtariWorld
from lib.envs.observation import Viewer
from lib.envs.reference import ReferenceWorld
from lib.envs.spec import Spec
from lib.envs.world import World

SEAQUEST = "SeaquestNoFrameskip-v4"
FIRE, UP = 1, 2


class Game(NamedTuple):
    """A game and the first step of the next; row 0 is the reset."""

    frames: np.ndarray  # uint8 [T, H, W, 3]
    scores: np.ndarray  # float32 [T]
    flags: np.ndarray  # bool [T, 3]: terminal, truncated, reset
    observations: np.ndarray  # uint8 [T, 4, 84, 84]


def play(world: World, actions: Iterable[int], seed: int = 0) -> Game:
    viewer, step, rows = Viewer(world, torch.device("cpu")), world.reset(seed), []
    for action in actions:
        seen = viewer.look(step)[0].numpy().copy()
        flags = (step.terminal[0], step.truncated[0], step.reset[0])
        rows.append((step.frames[0].copy(), step.score[0], flags, seen))
        if rows[1:] and step.reset[0]:
            break
        world.send(np.array([action]))
        step = world.recv()
    return Game(*(np.array(column) for column in zip(*rows, strict=True)))


def begin_like_the_fast_path(patch: pytest.MonkeyPatch, noops: int) -> None:
    """Makes the reference's games begin with so many no-ops and one emulator frame of FIRE."""

    def reset(self: NoopResetEnv, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.reset(**kwargs)
        for action in [0] * noops + [FIRE]:
            frame = self.env.step(action)[0]
        return frame, {}

    patch.setattr(NoopResetEnv, "reset", reset)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [SEAQUEST, "QbertNoFrameskip-v4"])
def test_the_fast_path_plays_the_same_game(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, reference = AtariWorld(env_id, 1, num_threads=1), ReferenceWorld(env_id)
    assert fast.spec == reference.spec
    assert fast.action_names == reference.action_names
    actions = np.random.default_rng(0).integers(0, fast.spec.num_actions, 1500).tolist()
    ours = Game(*(field[2:] for field in play(fast, [FIRE, UP, *actions])))  # which ptan presses for us
    fast.reset(seed=0)
    begin_like_the_fast_path(monkeypatch, noops=int(fast._game_frame[0]) - 1)
    theirs = play(reference, actions)
    fast.close()
    reference.close()

    assert len(ours.scores) == len(theirs.scores) < len(actions)
    assert np.array_equal(
        ours.frames[:-2], theirs.frames[:-2]
    )  # ptan's last frame of a game is not the newest
    assert np.array_equal(ours.scores, theirs.scores)
    assert np.array_equal(ours.flags[1:], theirs.flags[1:])
    assert ours.scores.any()
    assert ours.flags[:, 0].sum() > 2  # lives were lost
    # ptan's stacks begin after FIRE and UP.
    assert np.abs(ours.observations[3:-2].astype(int) - theirs.observations[3:-2]).max() <= 1


def test_the_reference_says_what_it_is() -> None:
    world = ReferenceWorld(SEAQUEST)
    assert (world.env_id, world.num_envs) == (SEAQUEST, 1)
    assert world.spec == Spec(18, False, (4, 84, 84), (210, 160, 3))
    step = world.reset(3)
    assert step.frames.shape == (1, 210, 160, 3)
    assert step.observations is not None
    assert step.observations.shape == (1, 4, 84, 84)
    assert step.observations.dtype == np.uint8
    assert step.score.dtype == np.float32
    assert {flags.dtype for flags in step[2:5]} == {np.dtype(bool)}
    assert (step.terminal[0], step.truncated[0], step.reset[0]) == (False, False, True)
    world.close()
    world.close()


def test_equal_seeds_give_equal_games() -> None:
    world = ReferenceWorld(SEAQUEST)
    one, again, other = (play(world, [5] * 20, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.frames, again.frames)
    assert not np.array_equal(one.frames, other.frames)
    world.close()


def test_the_time_limit_truncates_after_exactly_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib.envs.reference.time_limit", lambda env_id: 12)
    world = ReferenceWorld("EnduroFairWeatherNoFrameskip-v4")
    game = play(world, [0] * 20)
    assert game.flags.tolist() == [
        [False, False, True],
        *[[False, False, False]] * 11,
        [False, True, False],
        [False, False, True],
    ]
    assert not game.scores[-1]
    world.close()


@pytest.mark.parametrize("env_id", ["ALE/Seaquest-v5", "MovingDot-v0"])
def test_refuses_what_ptan_does_not_wrap(env_id: str) -> None:
    with pytest.raises(UserError, match=rf"--env {env_id}: .*NoFrameskip.*; leave out --reference"):
        ReferenceWorld(env_id)
