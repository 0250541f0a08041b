"""Worlds whose policies see vectors: dicts flattened, bounds, frames drawn when looked at, pictures of every kind."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib.cli import UserError
from lib.envs import control, lines
from lib.envs.adapter import ActionAdapter, vector_size
from lib.envs.gym_world import GymWorld
from lib.envs.make import make_world
from lib.envs.observation import Viewer
from lib.envs.pictures import larger, smaller, to_picture
from lib.envs.spec import Spec
from lib.envs.world import MAX_ACTIONS
from lib.reward.network import conv_features
from tests.envs.reach import HIGH, LOW, Reach

CPU = torch.device("cpu")


class Missions(spaces.Space[str]):
    """A space of somebody's own that tells little of itself, as MiniGrid's does."""


REACH = "tests.envs.reach:Reach-v0"


def copies(world: GymWorld) -> list[Reach]:
    return [env.unwrapped for env in world._envs.envs]  # type: ignore[misc]


@pytest.fixture
def world() -> Iterator[GymWorld]:
    world = GymWorld(REACH, 3)
    yield world
    world.close()


def test_says_what_it_is(world: GymWorld) -> None:
    assert world.spec == Spec(2, True, (5,), (48, 48, 3))
    assert world.action_names == ["0", "1"]
    dot = make_world("MovingDot-v0", 1)
    assert dot.spec == Spec(5, False, (4, 84, 84), (84, 84, 3))
    assert dot.reset(0).observations is None


def test_dicts_are_laid_end_to_end(world: GymWorld) -> None:
    step = world.reset(seed=4)
    for _ in range(62):
        assert step.observations is not None
        assert step.observations.dtype == np.float32
        for row, env in zip(step.observations, copies(world), strict=True):
            seen = env._seen()
            np.testing.assert_allclose(row[:2], seen["at"], rtol=1e-6)
            assert row[2:].tolist() == np.eye(3)[seen["goal"]].tolist()
        held = step.observations
        copy = held.copy()
        world.send(np.ones((3, 2), np.float32))
        step = world.recv()
        assert np.array_equal(held, copy)  # a policy's graph may still hold it


@pytest.mark.parametrize(("sent", "share"), [(-1, 0), (-7, 0), (0, 0.5), (0.5, 0.75), (1, 1), (9, 1)])
def test_actions_are_scaled_to_the_bounds_and_clipped(world: GymWorld, sent: float, share: float) -> None:
    world.reset(seed=0)
    world.send(np.full((3, 2), sent, np.float32))
    world.recv()
    for env in copies(world):
        assert env.taken.shape == LOW.shape
        np.testing.assert_allclose(env.taken, LOW + share * (HIGH - LOW), rtol=1e-6)


def test_frames_are_drawn_once_and_only_when_looked_at(world: GymWorld) -> None:
    viewer = Viewer(world, CPU)
    step = world.reset(seed=0)
    for _ in range(3):
        observations = viewer.look(step)
        assert observations.shape == (3, 5)
        world.send(np.zeros((3, 2), np.float32))
        step = world.recv()
    assert [env.drawn for env in copies(world)] == [0, 0, 0]
    assert np.array_equal(step.frames[1], copies(world)[1].render())
    assert [env.drawn for env in copies(world)] == [0, 2, 0]
    viewer.look(step)
    assert viewer.frames().shape == (3, 48, 48, 3)
    assert np.array_equal(np.asarray(step.frames), viewer.frames().numpy())
    assert [env.drawn for env in copies(world)] == [1, 2, 1]
    world.send(np.zeros((3, 2), np.float32))
    world.recv()
    assert step.frames[0].shape == (48, 48, 3)  # was looked at in time


def test_a_frame_that_nobody_looked_at_in_time_is_an_error(world: GymWorld) -> None:
    step = world.reset(seed=0)
    world.send(np.zeros((3, 2), np.float32))
    world.recv()
    with pytest.raises(RuntimeError, match="after the step"):
        step.frames[0]


@pytest.mark.parametrize(
    ("shape", "at"),
    [
        ((40, 30, 3), (2, 3, 1)),
        ((40, 30, 1), (2, 3, 0)),
        ((40, 30), (2, 3)),
        ((3, 40, 30), (1, 2, 3)),
        ((1, 40, 30), (0, 2, 3)),
    ],
)
def test_every_picture_becomes_rgb(shape: tuple[int, ...], at: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    picture = np.zeros(shape, np.uint8)
    picture[at] = 200
    convert = to_picture(space)
    assert convert is not None
    assert vector_size(space) is None
    shown, batch = convert(picture), convert(np.stack([picture] * 2))
    assert shown.shape == (40, 30, 3)
    assert batch.shape == (2, 40, 30, 3)
    assert batch.flags.c_contiguous
    assert shown[2, 3].tolist() == ([0, 200, 0] if 3 in shape else [200] * 3)
    assert (batch == shown).all()
    assert np.count_nonzero(shown.any(-1)) == 1


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-1, 1, (2, 3)), 6),
        (spaces.Discrete(7, start=3), 7),
        (spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)]), 5),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), 147),  # symbols, not a picture
        (spaces.Box(0, 255, (128,), np.uint8), 128),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), None),  # a stack of pictures
        (spaces.Box(0, 1, (64, 64, 3), np.float32), None),
        (spaces.Sequence(spaces.Discrete(2)), None),
        (spaces.Dict(at=spaces.Discrete(3), mission=Missions()), None),
    ],
)
def test_what_a_vector_is(space: spaces.Space[Any], size: int | None) -> None:
    assert vector_size(space) == size


def test_large_drawings_are_made_smaller() -> None:
    picture = np.zeros((500, 801, 3), np.uint8)
    picture[:, :400] = 90
    assert smaller(picture).shape == (166, 267, 3)
    assert (smaller(picture)[:, :130] == 90).all()
    assert smaller(picture[:400, :400]) is not None
    assert smaller(picture[:400, :400]).shape == (400, 400, 3)
    assert smaller(np.zeros((3, 1500, 3), np.uint8)).shape == (1, 375, 3)


@pytest.mark.parametrize(
    ("sides", "times"),
    [((16, 16), 3), ((42, 30), 2), ((43, 43), 1), ((8, 6), 8), ((16, 400), 3), ((1, 375), 1)],
)
def test_small_pictures_are_made_larger(sides: tuple[int, int], times: int) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, *sides, 3)).astype(np.uint8)
    grown = larger(pictures)
    assert grown.shape == (2, sides[0] * times, sides[1] * times, 3)
    assert np.array_equal(grown[:, ::times, ::times], pictures)
    assert np.array_equal(grown[:, times - 1 :: times, times - 1 :: times], pictures)
    if min(sides) > 1:
        conv_features(grown.shape[1:])  # refuses what a reward model cannot be fitted on


@pytest.mark.parametrize("shape", [(20, 30, 3), (3, 20, 30)])
def test_frames_of_small_pictures_are_fit_for_a_reward_model(shape: tuple[int, ...]) -> None:
    world = GymWorld("TestPicture-v0", 2, shape=shape)
    step = world.reset(0)
    assert world.spec.observation_size is None
    assert step.frames.shape == (2, 60, 90, 3)
    assert world.spec.frame_shape == (60, 90, 3)
    assert (step.frames == 7).all()
    world.close()


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Discrete(MAX_ACTIONS + 1), "expected 1 to 1024 actions, got 1025"),
        (spaces.Box(-1, 1, (MAX_ACTIONS + 1,)), "expected 1 to 1024 numbers an action, got 1025"),
        (spaces.Box(-1, 1, (0,)), "expected 1 to 1024 numbers an action, got 0"),
        (
            spaces.Box(-1e308, 1e308, (2,), np.float64),
            r"a finite distance apart, got .* from -1e\+308 to 1e\+308",
        ),
    ],
)
def test_actions_that_cannot_serve(space: spaces.Space[Any], says: str) -> None:
    with pytest.raises(UserError, match=f"X cannot be used: .*{says}; wrap it"):
        ActionAdapter(space, "X")


def test_as_many_actions_as_there_may_be_serve() -> None:
    assert ActionAdapter(spaces.Discrete(MAX_ACTIONS), "X").count == MAX_ACTIONS
    assert ActionAdapter(spaces.Box(-1, 1, (MAX_ACTIONS // 2, 2)), "X").count == MAX_ACTIONS


@pytest.mark.parametrize(
    ("bound", "dtype"), [(3e38, np.float32), (8e307, np.float64), (6e4, np.float16), (1, np.float32)]
)
def test_far_bounds_are_reached_and_returned_from(bound: float, dtype: Any) -> None:
    space = spaces.Box(-bound, bound, (3,), dtype)
    adapter, shares = ActionAdapter(space, "X"), np.array([[-1, 0, 1]], np.float32)
    taken = adapter.to_env(shares)
    assert space.contains(taken[0])
    assert taken[0].tolist() == [space.low[0], 0, space.high[0]]
    np.testing.assert_allclose(adapter.from_env(taken, 1), shares, atol=1e-6)


class Odd(Reach):
    """Reach with other spaces."""

    def __init__(self, render_mode: str | None = None, **given: Any) -> None:
        super().__init__(render_mode)
        self.action_space = given.get("actions", self.action_space)
        self._scores_nan = bool(given.get("scores_nan"))
        if given.get("fails"):
            raise KeyError("no such track")

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self._scores_nan:
            return self.observation_space.sample(), float("nan"), False, False, {}
        return {"at": np.array([np.nan, 0]), "goal": np.int64(0)}, 0.0, False, False, {}


class Picture(gymnasium.Env[np.ndarray, np.int64]):
    """Observes a small picture, all of it 7."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        return np.full(self._shape, 7, np.uint8), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.full(self._shape, 7, np.uint8), 0.0, False, False, {}


class Agents:
    """As PettingZoo's: no environment of Gymnasium."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents = ["one", "two"]


gymnasium.register(id="TestOdd-v0", entry_point=Odd)
gymnasium.register(id="TestPicture-v0", entry_point=lambda **kwargs: Picture(**kwargs))
gymnasium.register(id="TestAgents-v0", entry_point=lambda **kwargs: Agents(**kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "says"),
    [
        (
            "TestOdd-v0",
            {"actions": spaces.MultiDiscrete([2, 3])},
            r"one of n actions \(Discrete\) or .*got MultiDiscrete.*; wrap it in a gymnasium\.ActionWrapper",
        ),
        (
            "TestOdd-v0",
            {"actions": spaces.Box(0, 9, (2,), np.int64)},
            r"floating-point numbers within bounds \(Box\), got Box int64 \[2\]",
        ),
        *(
            (
                "TestOdd-v0",
                {"actions": several},
                r"one of n actions .*got (Tuple|Dict)\(.*ActionWrapper .*several agents",
            )
            for several in (
                spaces.Tuple([spaces.Discrete(2)] * 2),
                spaces.Dict({"one": spaces.Discrete(2)}),
            )
        ),
        (
            "TestOdd-v0",
            {"actions": spaces.Box(-1, np.inf, (2,))},
            r"lower and an upper bound, .* from -1 to inf",
        ),
        ("TestOdd-v0", {"fails": True}, r"'TestOdd-v0' cannot be made: .*no such track"),
        ("TestAgents-v0", {}, r"'TestAgents-v0' cannot be made: .*gymnasium.Env.*; .*several agents"),
    ],
)
def test_says_why_an_environment_cannot_serve(env_id: str, kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        GymWorld(env_id, 2, **kwargs)
    assert "\n" not in str(caught.value)


def test_an_observation_that_is_no_number_is_said() -> None:
    world = GymWorld("TestOdd-v0", 1)
    world.reset(0)
    world.send(np.zeros((1, 2), np.float32))
    with pytest.raises(UserError, match="TestOdd-v0 failed: expected observations of finite numbers"):
        world.recv()


def test_a_score_that_is_no_number_is_said() -> None:
    world = GymWorld("TestOdd-v0", 1, scores_nan=True)
    world.reset(0)
    world.send(np.zeros((1, 2), np.float32))
    with pytest.raises(UserError, match="TestOdd-v0 failed: expected scores of finite numbers"):
        world.recv()


@pytest.mark.parametrize(
    ("env_id", "size", "num_actions", "continuous"),
    [("CartPole-v1", 4, 2, False), ("Pendulum-v1", 3, 1, True)],
)
def test_worlds_that_many_know(env_id: str, size: int, num_actions: int, continuous: bool) -> None:
    pytest.importorskip("pygame")
    world = make_world(env_id, 2)
    assert world.spec == Spec(num_actions, continuous, (size,), world.spec.frame_shape)
    step = world.reset(0)
    assert step.observations is not None
    assert not np.array_equal(*step.observations)
    assert len(np.unique(step.frames[0].reshape(-1, 3), axis=0)) > 2
    world.close()


def test_a_hopper_may_fall_and_leans_forwards_by_a_positive_angle() -> None:
    mujoco = pytest.importorskip("mujoco")
    env = gymnasium.make("HopperFlip-v0")
    env.reset(seed=0)
    hopper: Any = env.unwrapped
    place = hopper.data.qpos.copy()
    place[2] = 0.5  # rad
    hopper.set_state(place, hopper.data.qvel * 0)
    mujoco.mj_forward(hopper.model, hopper.data)
    assert hopper.data.body("torso").xmat.reshape(3, 3)[0, 2] > 0.4  # its top is ahead of it
    before = hopper._get_obs()
    assert (before[1], before[-1]) == pytest.approx((np.sin(0.5), np.cos(0.5)))
    ended = [env.step(np.zeros(3, np.float32))[2] for _ in range(60)]
    assert not any(ended)
    after = hopper._get_obs()
    leaning = hopper.data.qpos[2]
    assert leaning > 0.6  # on its way down
    assert control.backward_turns(np.stack([before, after])) == pytest.approx((0.5 - leaning) / (2 * np.pi))
    shown = []
    for turns in (-3, 0, 1):
        turned = place + np.array([0, 0, turns * 2 * np.pi, 0, 0, 0])
        hopper.set_state(turned, hopper.data.qvel * 0)
        shown.append(hopper._get_obs())
    np.testing.assert_allclose(shown, [before] * 3, atol=1e-9)
    spinning = np.zeros(6)
    spinning[2] = -25.0  # rad/s
    hopper.set_state(place, spinning)
    assert control.backward_spin(hopper._get_obs()) == 25  # Gymnasium's own Hopper shows 10
    world = make_world("HopperFlip-v0", 1)  # draws itself without EGL
    assert world.spec == Spec(3, True, (12,), (240, 240, 3))
    step = world.reset(0)
    first = step.frames[0].copy()
    for _ in range(10):
        world.send(np.ones((1, 3), np.float32))
        step = world.recv()
    assert (step.frames[0] != first).any()
    world.close()


@pytest.mark.parametrize(("name", "size", "numbers"), [("HalfCheetah", 17, 6), ("Walker2d", 17, 6)])
def test_a_robot_in_lines_is_the_same_robot(name: str, size: int, numbers: int) -> None:
    pytest.importorskip("mujoco")
    drawn = gymnasium.make(f"{name}Lines-v5", render_mode="rgb_array")
    plain = gymnasium.make(f"{name}-v5")
    np.testing.assert_array_equal(drawn.reset(seed=3)[0], plain.reset(seed=3)[0])
    plain.action_space.seed(0)
    for _ in range(5):
        action = plain.action_space.sample()
        (observation, *outcome, _), (expected, *wanted, _) = drawn.step(action), plain.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert outcome == wanted
    world = make_world(f"{name}Lines-v5", 1)  # without EGL
    assert world.spec == Spec(numbers, True, (size,), (240, 240, 3))
    picture = world.reset(0).frames[0]
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 8  # limbs, stripes and background
    world.close()


def test_turns_are_counted_through_upside_down() -> None:
    shown = np.zeros((50, 11), np.float32)
    shown[:, 1] = (np.linspace(-2.5, -2.5 - 3 * np.pi, 50) + np.pi) % (2 * np.pi) - np.pi
    assert control.backward_turns(shown) == pytest.approx(1.5, abs=1e-5)


def test_limbs_are_drawn_where_they_are() -> None:
    upright = np.array(
        [[[5.0, 1.05], [5.0, 1.45]], [[5, 1.05], [5, 0.6]], [[5, 0.6], [5, 0.1]], [[4.9, 0.1], [5.2, 0.1]]]
    )
    radii = np.array([0.05, 0.05, 0.04, 0.06])
    picture = lines.draw_limbs(upright, radii)
    torso = (picture == (190, 60, 40)).all(-1)
    assert torso[:, 120].sum() > 35  # 0.4 m at 96 pixels a metre
    assert 8 <= torso.sum(1).max() <= 12  # upright, in the middle
    assert (
        np.flatnonzero(torso.any(1)).max() < np.flatnonzero((picture == (50, 70, 170)).all(-1).any(1)).min()
    )
    moved = lines.draw_limbs(upright + np.array([0.5, 0]), radii)
    np.testing.assert_array_equal(moved[:200], picture[:200])  # the camera follows, the floor does not
    assert (moved[220:] != picture[220:]).any()


def test_the_published_measure_of_a_backflip() -> None:
    observation = np.arange(11, dtype=np.float32) - 5  # z −5, ẋ 0, ω 2, q̇ 3 4 5
    observation[5] = 2.0
    action = np.array([1.0, 0.0, -1.0], np.float32)
    expected = -2 * (1 + 0.3 * -5 + 0.1 * (3 - 5) - 0.05 * 2)
    assert control.backflip(observation, action) == pytest.approx(expected)
    observation[7] = -30.0
    assert control.backflip(observation, action) == pytest.approx(-5 * expected)  # ω clipped to −10
