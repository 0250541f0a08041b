"""Gymnasium environments as worlds: flags, seeds, frames by rendering, and what cannot be used."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pygame
import pytest
from gymnasium import spaces

from lib.cli import UserError
from lib.envs.gym_world import GymWorld
from lib.envs.make import make_world
from lib.envs.moving_dot import best_score, distance_from_middle, dot_position
from lib.envs.world import TIME_LIMIT, WorldFailed
from tests.envs.dot import expert_action


class Counter(gymnasium.Env[np.ndarray, np.int64]):
    """Observes a number, draws it, takes actions 5 and 6, and ends by itself after three steps."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)

    def __init__(self, render_mode: str | None = None, channels: int = 3, continuous: bool = False) -> None:
        self.render_mode = render_mode
        self._channels = channels
        discrete = gymnasium.spaces.Discrete(2, start=5)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,)) if continuous else discrete  # type: ignore[assignment]
        self._count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        done = self._count == 3
        # Also says "truncated" at its end, as some environments do.
        return np.full(1, self._count, np.float32), float(action), done, done, {}

    def render(self) -> np.ndarray:
        return np.full((8, 6, self._channels), self._count, np.uint8)


class Blind(Counter):
    metadata: dict[str, Any] = {"render_modes": ["human"]}  # noqa: RUF012


class Mute(Counter):
    metadata = None  # type: ignore[assignment]


class Unseeded(Counter):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Endless(Counter):
    """Never ends, and draws what it is told to draw after as many steps."""

    def __init__(
        self, render_mode: str | None = None, drawn: tuple[Any, ...] = (np.ones((50, 60, 3), np.uint8),)
    ) -> None:
        super().__init__(render_mode)
        self._drawn = drawn

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._count += 1
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        return self._drawn[min(self._count, len(self._drawn) - 1)]


class Careless(Counter):
    """Does not keep to Gymnasium's interface, in one way."""

    def __init__(self, render_mode: str | None = None, way: str = "") -> None:
        super().__init__(render_mode)
        self._way = way

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._way == "reset fails":
            raise KeyError("fuel")
        observation, info = super().reset(seed=seed)
        if self._way == "reset":
            return observation
        return (np.zeros(5, np.float32) if self._way == "shape" else observation), info

    def step(self, action: np.int64) -> Any:
        observation, score, terminated, truncated, info = super().step(action)
        if self._way == "step fails":
            raise RuntimeError("the pole broke")
        if self._way == "step":
            return observation, score, terminated, info
        return observation, np.full(2, score) if self._way == "score" else score, terminated, truncated, info


class Wearing(Counter):
    """Fails after its first step, in one way."""

    def __init__(self, render_mode: str | None = None, way: str = "") -> None:
        super().__init__(render_mode)
        self._way = way

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        if self._way == "reset" and self._count:
            raise RuntimeError("the track\nis gone")
        return super().reset(seed=seed)

    def step(self, action: np.int64) -> Any:
        observation, *others = super().step(action)
        if self._count > 1:
            if self._way == "step":
                raise FileNotFoundError("level-2.txt")
            if self._way == "exit":
                sys.exit(3)
            if self._way == "results":
                return observation, *others[:3]
            if self._way == "shape":
                return np.zeros(5, np.float32), *others
        return observation, *others

    def render(self) -> np.ndarray:
        if self._way == "render" and self._count > 1:
            raise OSError("no display")
        return super().render()


class Strange(Counter):
    """Shows observations of any space, and others from its third on; its own calls may fail, too."""

    def __init__(
        self,
        space: gymnasium.Space[Any],
        shown: tuple[Any, Any],
        render_mode: str | None = None,
        closes: bool = True,
        score: float = 0.0,
    ) -> None:
        super().__init__(render_mode)
        self.observation_space: gymnasium.Space[Any] = space  # type: ignore[assignment]
        self._shown, self._closes, self._score = shown, closes, score

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._shown[0], {}

    def step(self, action: np.int64) -> Any:
        _, _, *others = super().step(action)
        return self._shown[self._count > 1], self._score, *others

    def get_action_meanings(self) -> list[str]:
        raise NotImplementedError

    def close(self) -> None:
        if not self._closes:
            raise RuntimeError("lost the simulator")


class Informative(Counter):
    """Its info differs in kind and shape between environments."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        observation, _ = super().reset(seed=seed)
        return observation, self._info()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        *made, _ = super().step(action)
        return (*made, self._info())  # type: ignore[return-value]

    def _info(self) -> dict[str, Any]:
        seen = np.zeros((int(self.np_random.integers(100)), 2))
        return {"seen": seen, "winner": 1 if len(seen) % 2 else None}


class Spaceless(gymnasium.Env[Any, Any]):
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012


def leave(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    sys.exit(3)


gymnasium.register(id="TestCounter-v0", entry_point=lambda **kwargs: Counter(**kwargs))
gymnasium.register(id="TestBlind-v0", entry_point=lambda **kwargs: Blind(**kwargs))
gymnasium.register(id="TestMute-v0", entry_point=lambda **kwargs: Mute(**kwargs))
gymnasium.register(id="TestUnseeded-v0", entry_point=lambda **kwargs: Unseeded(**kwargs))
gymnasium.register(id="TestCareless-v0", entry_point=lambda **kwargs: Careless(**kwargs))
gymnasium.register(id="TestWearing-v0", entry_point=lambda **kwargs: Wearing(**kwargs))
gymnasium.register(id="TestStrange-v0", entry_point=lambda **kwargs: Strange(**kwargs))
gymnasium.register(id="TestEndless-v0", entry_point=lambda **kwargs: Endless(**kwargs))
gymnasium.register(id="TestInformative-v0", entry_point=lambda **kwargs: Informative(**kwargs))
gymnasium.register(
    id="TestLimited-v0", entry_point=lambda **kwargs: Endless(**kwargs), max_episode_steps=TIME_LIMIT + 1
)
gymnasium.register(id="TestSpaceless-v0", entry_point=lambda **kwargs: Spaceless())
gymnasium.register(id="TestLeaving-v0", entry_point=leave)
gymnasium.register(id="TestDemanding-v0", entry_point=lambda size, **kwargs: Counter(**kwargs))  # type: ignore[arg-type]
gymnasium.register(id="TestVector-v0", vector_entry_point=lambda **kwargs: None)  # type: ignore[arg-type]


def test_an_end_is_followed_by_a_step_whose_action_is_ignored() -> None:
    world = GymWorld("MovingDot-v0", 3, limit=10)
    step = world.reset(seed=0)
    assert step.reset.all()
    assert not step.score.any()
    for t in range(1, 34):
        before = step.frames.copy()
        world.send(np.array([1, 2, 3]))
        step = world.recv()
        assert not step.terminal.any()
        assert step.truncated.tolist() == [t % 11 == 10] * 3
        assert step.reset.tolist() == [t % 11 == 0] * 3
        if t % 11 == 0:
            assert step.score.tolist() == [0, 0, 0]
            assert not np.array_equal(before, step.frames)
    world.close()
    world.close()


def test_says_what_the_world_says() -> None:
    world = GymWorld("lib.envs.moving_dot:MovingDot-v0", 4, limit=60)
    assert (world.num_envs, world.spec.num_actions, world.spec.frame_shape) == (4, 5, (84, 84, 3))
    assert world.action_names == ["NOOP", "UP", "RIGHT", "DOWN", "LEFT"]
    step = world.reset(seed=7)
    assert step.frames.dtype == np.uint8
    assert step.frames.shape == (4, 84, 84, 3)
    best = [best_score(float(distance), 60) for distance in distance_from_middle(step.frames)]
    total = np.zeros(4)
    for _ in range(60):
        world.send(expert_action(dot_position(step.frames)))
        step = world.recv()
        assert step.score.dtype == np.float32
        total += step.score
    assert step.truncated.all()
    np.testing.assert_allclose(total, best, rtol=1e-5)


def test_seeds_make_games_that_repeat_and_do_not_overlap() -> None:
    def games(seed: int) -> list[bytes]:
        world = GymWorld("MovingDot-v0", 8, size=94, dot=2, speed=1)  # 93² places to start from
        return [frame.tobytes() for frame in world.reset(seed).frames]

    assert games(0) == games(0)
    assert len(set(games(0) + games(1))) == 16


def test_renders_where_observations_are_no_pictures() -> None:
    world = GymWorld("TestCounter-v0", 2)
    assert world.spec.frame_shape == (64, 48, 3)  # of drawings of 8×6
    assert world.spec.num_actions == 2
    assert world.action_names == ["0", "1"]
    seen = [world.reset(seed=0)]
    drawn = [seen[0].frames[0, 0, 0, 0]]
    for _ in range(5):
        world.send(np.array([0, 1]))
        seen.append(world.recv())
        drawn.append(seen[-1].frames[0, 0, 0, 0])
    assert drawn == [0, 1, 2, 3, 0, 1]
    assert [step.score.tolist() for step in seen] == [[0, 0]] + [[5, 6]] * 3 + [[0, 0], [5, 6]]
    assert [step.terminal[0] for step in seen] == [False, False, False, True, False, False]
    assert not any(step.truncated.any() for step in seen)
    assert [step.reset[0] for step in seen] == [True, False, False, False, True, False]


def test_pygame_draws_into_memory_but_by_no_dummy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    pygame.display.quit()
    GymWorld("CartPole-v1", 1).close()
    pygame.display.init()
    assert pygame.display.get_driver() == "offscreen"  # under "dummy" highway-env draws nothing


def test_what_environments_tell_beside_does_not_matter() -> None:
    world = GymWorld("TestInformative-v0", 4)
    step = world.reset(seed=0)
    for _ in range(4):
        world.send(np.zeros(4, int))
        step = world.recv()
    assert step.reset.all()


@pytest.mark.parametrize(
    ("env_id", "kwargs", "says"),
    [
        (
            "TestCounter-v0",
            {"continuous": True},
            r"TestCounter-v0 .*upper bound, .*got Box float32 \[3\] from -inf",
        ),
        ("TestCounter-v0", {"channels": 4}, r"render\(\) of TestCounter-v0: .*got uint8 \[8, 6, 4\]"),
        ("TestEndless-v0", {"drawn": (None,)}, r"render\(\) of TestEndless-v0: expected pictures.* got None"),
        ("TestEndless-v0", {"drawn": (np.zeros((0, 0, 3), np.uint8),)}, r"got uint8 \[0, 0, 3\]"),
        ("TestEndless-v0", {"drawn": ([[1], [2, 3]],)}, r"got a list of unequal parts"),
        ("TestSpaceless-v0", {}, r"expected its observation_space to be one of gymnasium\.spaces, got None"),
        ("TestLeaving-v0", {}, r"'TestLeaving-v0' cannot be made: SystemExit 3"),
        ("TestBlind-v0", {}, r"TestBlind-v0 .*Box float32 \[1\].*\['human'\] without 'rgb_array'; add it"),
        ("TestMute-v0", {}, r"TestMute-v0 .*render modes \[\] without 'rgb_array'; add it"),
        ("TestUnseeded-v0", {}, r"keyword argument 'seed'.*; expected two results.* of reset\(seed="),
        (
            "TestCareless-v0",
            {"way": "shape"},
            r"expected observations of its observation_space, Box float32 \[1\], got float32 \[5\] from reset",
        ),
        (
            "TestCareless-v0",
            {"way": "reset"},
            r"'TestCareless-v0' fails in reset\(\): .*; expected two results",
        ),
        ("TestCareless-v0", {"way": "step"}, r"fails in step\(\): .*got 4.*; expected five results"),
        (
            "TestCareless-v0",
            {"way": "reset fails"},
            r"reset\(\): KeyError 'fuel' \(test_gym_world.py, line \d+\)",
        ),
        (
            "TestCareless-v0",
            {"way": "score"},
            r"expected one number as reward from step\(\), got float64 \[2\]",
        ),
        ("TestCareless-v0", {"way": "step fails"}, r"step\(\): RuntimeError the pole broke \(test_gym_w"),
        (
            "TestDemanding-v0",
            {},
            r"'TestDemanding-v0' cannot be made: .*'size'.*; gymnasium\.register\(\.\.\., kwargs=",
        ),
        ("TestVector-v0", {}, r"'TestVector-v0' cannot be made: .*; wrap a vector in PreferenceVectorEnv"),
        ("MovingDot-v00", {}, r"'MovingDot-v00'"),
        (
            "movingdott-v0",
            {},
            r"'movingdott-v0' is registered; did you mean MovingDot-v0.* If not, write module:Name",
        ),
        ("Seaqest-v5", {}, r"'Seaqest-v5' is registered; did you mean .*Seaquest"),
        (
            "tests.envs.dot:Nothing-v7",
            {},
            r"'tests\.envs\.dot:Nothing-v7' is registered; tests\.envs\.dot registers no",
        ),
        ("nowhere.to.be.found:Dot-v0", {}, r"'nowhere.to.be.found:Dot-v0' cannot be made: No module"),
        ("not an id", {}, r"'not an id' cannot be made: Malformed"),
    ],
)
def test_says_why_an_environment_cannot_serve(env_id: str, kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        GymWorld(env_id, 2, **kwargs)
    assert "\n" not in str(caught.value)


def test_a_module_that_ends_the_program_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "that_leaves.py").write_text("raise SystemExit('bye')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="'that_leaves:Dot-v0' cannot be made: SystemExit bye"):
        make_world("that_leaves:Dot-v0", 1)


@pytest.mark.parametrize("installed", [False, True])
def test_environments_of_the_old_gym_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    (tmp_path / f"old_dots_{installed}.py").write_text("import gym")
    if installed:
        monkeypatch.setitem(sys.modules, "gym", ModuleType("gym"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"old_dots_.*the old Gym is wrapped by shimmy"):
        make_world(f"old_dots_{installed}:Dot-v0", 1)


def test_modules_are_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_dots.py").write_text(
        "import gymnasium\ngymnasium.register('MyDot-v0', 'lib.envs.moving_dot:MovingDotEnv')\n"
    )
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    GymWorld("my_dots:MyDot-v0", 1).close()


def lengths(env_id: str, steps: int, **kwargs: Any) -> list[int]:
    """The steps at whose end a game was cut off."""
    world = GymWorld(env_id, 1, **kwargs)
    world.reset(0)
    cut = []
    for t in range(1, steps + 1):
        world.send(np.zeros(1, int))
        step = world.recv()
        assert not step.terminal.any()
        if step.truncated[0]:
            cut.append(t)
    world.close()
    return cut


def test_games_without_end_are_cut_off_where_nobody_else_sets_a_limit() -> None:
    assert lengths("TestEndless-v0", 2 * TIME_LIMIT + 1) == [TIME_LIMIT, 2 * TIME_LIMIT + 1]
    assert lengths("TestLimited-v0", TIME_LIMIT + 5) == [TIME_LIMIT + 1]
    assert lengths("TestEndless-v0", 7, max_episode_steps=5) == [5]


@pytest.mark.parametrize(
    ("later", "says"),
    [
        (
            np.ones((51, 60, 3), np.uint8),
            "expected every picture to be of 50×60 pixels as the first was, got 51×60",
        ),
        (None, r"expected pictures, uint8 \[H, W, 3\], got None"),
    ],
)
def test_drawings_that_change_are_said(later: Any, says: str) -> None:
    world = GymWorld("TestEndless-v0", 2, drawn=(np.ones((50, 60, 3), np.uint8), later))
    assert np.asarray(world.reset(0).frames).shape == (2, 50, 60, 3)
    world.send(np.zeros(2, int))
    with pytest.raises(UserError, match=rf"render\(\) of TestEndless-v0: {says}"):
        np.asarray(world.recv().frames)
    world.close()


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("reset", r"'TestWearing-v0' failed: RuntimeError the track is gone \(test_gym_world.py, line \d+\)"),
        ("step", r"'TestWearing-v0' failed: FileNotFoundError level-2.txt \(test_gym_world.py, line \d+\)"),
        ("exit", r"'TestWearing-v0' failed: SystemExit 3"),
        ("results", r"'TestWearing-v0' failed: ValueError .*expected 5, got 4"),
        ("shape", r"expected observations of its observation_space, Box float32 \[1\], got float32 \[5\]"),
        ("render", r"'TestWearing-v0' failed: OSError no display \(test_gym_world.py, line \d+\)"),
    ],
)
def test_what_fails_while_it_is_played_is_said(way: str, says: str) -> None:
    world = GymWorld("TestWearing-v0", 2, way=way)
    with pytest.raises(WorldFailed, match=says) as caught:
        watch(world)
    assert "\n" not in str(caught.value)
    world.close()


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        (spaces.Discrete(20), (0, 20)),
        (spaces.MultiDiscrete([3, 4]), (np.array([0, 0]), np.array([2, 4]))),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), ((0, 0), (1,))),
        (spaces.Text(30), ("north", "to the north")),  # of Gymnasium's own letters, which are without a space
    ],
)
def test_an_observation_beyond_its_space_is_said(space: gymnasium.Space[Any], shown: tuple[Any, Any]) -> None:
    world = GymWorld("TestStrange-v0", 2, space=space, shown=shown)
    with pytest.raises(WorldFailed, match="TestStrange-v0") as caught:
        watch(world)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="TestStrange-v0"):
        GymWorld("TestStrange-v0", 2, space=space, shown=shown[::-1])


def test_what_an_environment_does_at_its_end_and_calls_its_actions_matters_little(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = GymWorld("TestStrange-v0", 2, space=spaces.Discrete(2), shown=(0, 1), closes=False)
    watch(world)
    world.close()
    assert "fails in close(): RuntimeError lost the simulator (test_gym_world.py" in capsys.readouterr().err
    assert world.action_names[:2] == ["0", "1"]


def test_a_score_that_float32_cannot_hold_is_said() -> None:
    world = GymWorld("TestStrange-v0", 2, space=spaces.Discrete(2), shown=(0, 1), score=1e39)
    with pytest.raises(WorldFailed, match="expected scores of finite numbers"):
        watch(world)
    world.close()


def watch(world: GymWorld) -> None:
    step = world.reset(0)
    for _ in range(5):
        np.asarray(step.frames)
        world.send(np.zeros(2, int))
        step = world.recv()


def test_an_environment_that_can_be_made_only_twice_is_said() -> None:
    made = iter(range(3))

    def licensed(**kwargs: Any) -> Counter:
        if next(made, None) is None:
            raise RuntimeError("no licence left")
        return Counter(**kwargs)

    gymnasium.register(id="TestLicensed-v0", entry_point=licensed)
    with pytest.raises(UserError, match="'TestLicensed-v0' cannot be made: no licence left"):
        GymWorld("TestLicensed-v0", 4)
