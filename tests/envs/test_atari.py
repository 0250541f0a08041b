"""Seaquest as a world: what its steps say, and what other Atari games need."""

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest

from lib import cli
from lib.agent.config import TrainConfig
from lib.cli import UserError
from lib.envs.atari import AtariWorld, atari_settings
from lib.envs.ids import MAX_SEED
from lib.envs.make import choice, make_world, probes, situation
from lib.envs.spec import Spec
from lib.envs.world import TIME_LIMIT, Step

SEAQUEST = "SeaquestNoFrameskip-v4"
STEPS, ENVS = 800, 4


class Games(NamedTuple):
    """Some steps of a world; row t is what followed the t-th actions."""

    score: np.ndarray  # float32 [T, B]
    terminal: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray
    frames: np.ndarray  # int64 [T, B]: a hash of each picture


def hashes(step: Step) -> list[int]:
    return [hash(frame.tobytes()) for frame in step.frames]


def play(world: AtariWorld, steps: int, seed: int, act: Callable[[int], np.ndarray]) -> Games:
    """Plays from a reset; row 0 is the reset itself."""
    step = world.reset(seed)
    rows = [[step.score.copy(), step.terminal.copy(), step.truncated.copy(), step.reset.copy(), hashes(step)]]
    for t in range(steps):
        world.send(act(t))
        step = world.recv()
        assert step.frames.dtype == np.uint8
        assert len(step.frames) == world.num_envs
        assert step.frames.shape[1:] == world.spec.frame_shape
        assert step.score.dtype == np.float32
        assert {flags.dtype for flags in step[2:5]} == {np.dtype(bool)}
        assert {field.shape for field in step[1:5]} == {(world.num_envs,)}
        rows.append(
            [step.score.copy(), step.terminal.copy(), step.truncated.copy(), step.reset.copy(), hashes(step)]
        )
    return Games(*(np.array(column) for column in zip(*rows, strict=True)))


def random_actions(envs: int) -> Callable[[int], np.ndarray]:
    actions = np.random.default_rng(0).integers(0, 18, (STEPS, envs))
    return lambda t: actions[t]


@pytest.fixture(scope="module")
def world() -> AtariWorld:
    return AtariWorld(SEAQUEST, ENVS, num_threads=1)


@pytest.fixture(scope="module")
def games(world: AtariWorld) -> Games:
    """Random play through several games of every environment."""
    return play(world, STEPS, 0, random_actions(ENVS))


def test_says_what_it_is(world: AtariWorld) -> None:
    assert (world.env_id, world.num_envs) == (SEAQUEST, ENVS)
    assert world.spec == Spec(18, False, (4, 84, 84), (210, 160, 3))
    assert world.action_names[:6] == ["NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN"]
    step = world.reset(1)
    assert step.reset.all()
    assert not step.score.any()
    assert not step.terminal.any()
    assert not step.truncated.any()
    assert step.frames.std() > 10


@pytest.mark.slow
def test_the_score_is_not_clipped(games: Games) -> None:
    assert games.score.max() >= 20
    assert set(np.unique(games.score % 10)) == {0}


@pytest.mark.slow
def test_a_lost_life_is_a_terminal_that_resets_nothing(games: Games) -> None:
    assert not games.truncated.any()
    for env in range(ENVS):
        ends = np.flatnonzero(games.reset[:, env])
        assert ends[0] == 0
        assert len(ends) > 1  # a game was played to its end
        for begin, end in itertools.pairwise(ends):
            terminal = np.flatnonzero(games.terminal[begin + 1 : end, env]) + begin + 1
            assert len(terminal) == 4  # Seaquest's lives; the last one ends the game
            assert terminal[-1] == end - 1
            assert end - begin > 100
    assert not (games.terminal & games.reset).any()
    assert not games.score[games.reset].any()


def test_the_same_seed_gives_the_same_games_and_another_gives_others(world: AtariWorld) -> None:
    one, again, other = (play(world, 60, seed, random_actions(ENVS)) for seed in (0, 0, 1))
    assert all(map(np.array_equal, one, again))
    threads = AtariWorld(SEAQUEST, ENVS, num_threads=2)
    assert all(map(np.array_equal, one, play(threads, 60, 0, random_actions(ENVS))))
    threads.close()
    assert (other.frames != one.frames).any()


def test_results_come_in_the_order_of_the_environments(world: AtariWorld) -> None:
    """Each environment holds one direction: the submarine is where its own action took it."""
    names = ["UP", "DOWN", "LEFT", "RIGHT"]
    actions = np.array([world.action_names.index(name) for name in names])
    step = world.reset(0)
    for _ in range(70):
        world.send(actions)
        step = world.recv()
    rows, columns = [], []
    for frame in step.frames:
        water = (frame[46:165] == (187, 187, 53)).all(-1)
        rows.append(np.flatnonzero(water.any(1))[0])
        columns.append(np.flatnonzero(water.any(0))[0])
    assert rows[0] == 0
    assert rows[1] > 60
    assert columns[2] < columns[0] - 20
    assert columns[3] > columns[0] + 20


def test_frames_stay_until_the_next_step_comes(world: AtariWorld) -> None:
    step = world.reset(0)
    for _ in range(30):
        held = [field.copy() for field in step[:5]]
        world.send(np.full(ENVS, 2))
        time.sleep(0.005)  # the emulator is at work meanwhile
        assert all(np.array_equal(field, copy) for field, copy in zip(step[:5], held, strict=True))
        step = world.recv()
    assert len({frame.tobytes() for frame in step.frames}) > 1, "environments of one seed begin differently"


@pytest.mark.slow
def test_the_time_limit_truncates_after_exactly_so_many_steps() -> None:
    limit = 33
    world = AtariWorld(SEAQUEST, 2, time_limit=limit, num_threads=1)
    games = play(world, 3 * (limit + 1), 0, lambda t: np.zeros(2, int))
    world.close()
    at = np.arange(3 * (limit + 1) + 1) % (limit + 1)
    assert np.array_equal(games.truncated, np.stack([at == limit] * 2, 1))
    assert np.array_equal(games.reset, np.stack([at == 0] * 2, 1))
    assert not games.terminal.any()
    assert TIME_LIMIT == 5000


@pytest.mark.slow
def test_sticky_actions_reach_the_emulator() -> None:
    envs = 4

    def frames(env_id: str, seed: int) -> np.ndarray:
        world = AtariWorld(env_id, envs, num_threads=1)
        assert world.env_id == env_id
        assert world.spec.num_actions == 18
        # Left and right by turns: a repeated action shows.
        played = play(world, 60, seed, lambda t: np.full(envs, 3 + t % 2))
        world.close()
        return played.frames

    sticky, again, plain = frames("ALE/Seaquest-v5", 0), frames("ALE/Seaquest-v5", 0), frames(SEAQUEST, 0)
    assert np.array_equal(sticky, again)
    assert np.array_equal(sticky[:1], plain[:1])  # the same no-ops before
    assert (sticky[-20:] != plain[-20:]).any(0).all()  # and other games from there, in every environment


def test_reads_the_settings_off_the_registry() -> None:
    spec, sticky = atari_settings(SEAQUEST), atari_settings("ALE/Seaquest-v5")
    assert spec is not None
    assert sticky is not None
    assert (spec["game"], spec["repeat_action_probability"]) == ("seaquest", 0.0)
    assert (sticky["game"], sticky["repeat_action_probability"]) == ("seaquest", 0.25)
    assert atari_settings("ale_py:ALE/Seaquest-v5") == atari_settings("ALE/Seaquest") == sticky
    assert atari_settings("SeaquestNoFrameskip") == spec
    for no_game in ("nowhere.to.be.found:ALE/Seaquest-v5", ":ALE/Seaquest-v5", "ALE/Nowhere", ""):
        assert atari_settings(no_game) is None
    assert atari_settings("MovingDot-v0") is None
    assert atari_settings("CartPole-v1") is None


def test_one_game_without_a_version_makes_no_others_of_its_module() -> None:
    gymnasium.register("MyPong", entry_point="ale_py.env:AtariEnv")
    try:
        assert atari_settings("anything:Beam-v0") is None
    finally:
        del gymnasium.registry["MyPong"]


def test_an_atari_game_is_one_however_it_is_named() -> None:
    world = make_world("ale_py:ALE/Pong-v5", 2)
    assert isinstance(world, AtariWorld)
    assert world.action_names[0] == "NOOP"
    assert world.reset(0).frames.shape == (2, 210, 160, 3)
    world.close()


@pytest.mark.parametrize("env_id", ["Seaquest-v4", "Seaquest-v0", "Seaquest", "ale_py:Seaquest-v4"])
def test_refuses_ids_that_skip_frames_by_themselves(env_id: str) -> None:
    with pytest.raises(UserError, match=rf"--env {env_id}: expected .* such as SeaquestNoFrameskip-v4"):
        make_world(env_id, 1)


@pytest.mark.parametrize("env_id", ["NoSuchGame-v4", "CartPole-v1"])
def test_an_id_of_no_atari_game_is_said(env_id: str) -> None:
    with pytest.raises(UserError, match=f"--env {env_id}: no such Atari game"):
        AtariWorld(env_id, 1)


def test_games_of_another_height_keep_it() -> None:
    world = AtariWorld("AdventureNoFrameskip-v4", 2, num_threads=1)
    assert world.spec.frame_shape == (250, 160, 3)
    assert world.reset(0).frames.shape == (2, 250, 160, 3)
    world.close()


def test_probes_belong_to_their_game() -> None:
    names = {"depth", "midwater", "surface", "oxygen"}
    assert set(probes(SEAQUEST)) == set(probes("ALE/Seaquest-v5")) == names
    assert set(probes("MovingDot-v0")) == {"distance"}
    assert probes("PongNoFrameskip-v4") == {}


@pytest.mark.parametrize("size", [(84, 84), (210, 320), (420, 320)])
def test_probes_read_nothing_off_what_their_game_does_not_draw(size: tuple[int, int]) -> None:
    frames, none = np.full((2, *size, 3), 142, np.uint8), np.zeros(2, bool)
    step = Step(frames, np.zeros(2, np.float32), none, none, none)
    assert all(
        np.isnan(read(step)).all() for read in (*probes(SEAQUEST).values(), *situation(SEAQUEST).values())
    )
    asks = choice(SEAQUEST)
    assert asks is not None
    assert not asks.applies(step).any()
    vectors = step._replace(observations=np.zeros((2, 3), np.float32))
    assert np.isnan(probes("HopperFlip-v0")["spin"](vectors)).all()


def test_a_situation_is_what_probes_read_but_seaquests_is_air_and_divers() -> None:
    assert set(situation(SEAQUEST)) == {"air", "diver"}
    assert set(situation("MovingDot-v0")) == {"distance"}
    assert situation("PongNoFrameskip-v4") == {}


@pytest.mark.slow
def test_enduro_is_cut_off_before_the_snow() -> None:
    fair = make_world("EnduroFairWeatherNoFrameskip-v4", 2, 1)
    long = AtariWorld("EnduroNoFrameskip-v4", 2, 780, num_threads=1)
    grass, snow = (0, 68, 0), (236, 236, 236)
    for world, whole in ((fair, 750), (long, 780)):
        step, seen = world.reset(3), set()
        for _ in range(whole):
            assert not step.truncated.any()
            seen |= {tuple(map(int, frame[100, 12])) for frame in step.frames}
            world.send(np.array([1, 0]))
            step = world.recv()
        assert step.truncated.all()
        assert (grass in seen, snow in seen) == (True, whole == 780)
        world.close()


def test_seeds_go_as_far_as_the_emulator_counts() -> None:
    world = AtariWorld("PongNoFrameskip-v4", 2, num_threads=1)
    world.reset(MAX_SEED + 100_000)  # as evaluations and further environments may
    world.close()
    assert cli.parse(TrainConfig, ["-n", "x", "--seed", str(MAX_SEED)]).seed == MAX_SEED
    with pytest.raises(SystemExit):
        cli.parse(TrainConfig, ["-n", "x", "--seed", str(MAX_SEED + 1)])
