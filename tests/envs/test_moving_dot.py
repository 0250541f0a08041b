"""The moving dot: what it shows, how it moves, and that its best behaviour is what it claims."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from lib.envs.moving_dot import (
    ACTIONS,
    LIMIT,
    SPEED,
    MovingDotEnv,
    best_score,
    distance_from_middle,
    dot_position,
    mean_best_score,
)
from tests.envs.dot import expert_action


@pytest.mark.filterwarnings("error::UserWarning")
def test_keeps_gymnasiums_rules() -> None:
    env = gymnasium.make("lib.envs.moving_dot:MovingDot-v0", render_mode="rgb_array")
    check_env(env.unwrapped)


def test_a_seed_gives_the_same_games_and_another_seed_others() -> None:
    def starts(seed: int) -> list[list[float]]:
        env = MovingDotEnv()
        first, _ = env.reset(seed=seed)
        return [dot_position(frame).tolist() for frame in (first, *(env.reset()[0] for _ in range(5)))]

    assert starts(3) == starts(3)
    assert starts(3) != starts(4)


def test_starts_at_every_place() -> None:
    env = MovingDotEnv(size=21, dot=3, speed=3)
    env.reset(seed=0)
    places = {tuple(dot_position(env.reset()[0]).tolist()) for _ in range(1000)}
    assert places == {(x, y) for x in range(1, 21, 3) for y in range(1, 21, 3)}


def test_position_is_read_off_the_pixels() -> None:
    frames = np.zeros((2, 3, 40, 60, 3), np.uint8)
    frames[1, 2, 10:14, 50:54] = 255
    position = dot_position(frames)
    assert position.shape == (2, 3, 2)
    assert position.dtype == np.float32
    assert position[1, 2].tolist() == [51.5, 11.5]
    assert np.isnan(position[0]).all()
    assert distance_from_middle(frames)[1, 2] == (51.5 - 29.5) + (19.5 - 11.5)


def test_info_tells_the_position_that_the_picture_shows() -> None:
    env = MovingDotEnv()
    env.reset(seed=0)
    for action in (1, 2, 3, 4) * 5:
        frame, _, _, _, info = env.step(action)
        assert info["position"].tolist() == dot_position(frame).tolist()


@pytest.mark.parametrize(
    ("name", "move"), [("UP", (0, -1)), ("RIGHT", (1, 0)), ("DOWN", (0, 1)), ("LEFT", (-1, 0))]
)
def test_moves_a_step_and_stops_at_the_edge(name: str, move: tuple[int, int]) -> None:
    env = MovingDotEnv()
    frame, _ = env.reset(seed=1)
    for _ in range(30):
        before = dot_position(frame)
        frame, *_ = env.step(ACTIONS.index(name))
        moved = dot_position(frame) - before
        assert moved.tolist() in ([move[0] * SPEED, move[1] * SPEED], [0, 0])
    assert moved.tolist() == [0, 0]
    edge = {"UP": frame[0], "RIGHT": frame[:, -1], "DOWN": frame[-1], "LEFT": frame[:, 0]}[name]
    assert edge.any()
    still, *_ = env.step(ACTIONS.index("NOOP"))
    assert np.array_equal(still, frame)


def test_score_falls_from_one_in_the_middle_to_nought_in_a_corner() -> None:
    env = MovingDotEnv()
    frame, _ = env.reset(seed=2)
    for _ in range(20):
        frame, score, *_ = env.step(int(expert_action(dot_position(frame))))
    assert score == 1
    assert distance_from_middle(frame) == 0
    for action in ("UP", "LEFT"):
        for _ in range(20):
            _, score, *_ = env.step(ACTIONS.index(action))
    assert score == 0


def test_an_episode_ends_by_its_time_limit_only() -> None:
    env = MovingDotEnv(limit=50)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


def test_the_expert_reaches_the_best_score_from_everywhere() -> None:
    env = MovingDotEnv()
    frame, _ = env.reset(seed=5)
    for _ in range(30):
        expected = best_score(float(distance_from_middle(frame)))
        total, truncated = 0.0, False
        while not truncated:
            frame, score, _, truncated, _ = env.step(int(expert_action(dot_position(frame))))
            total += score
        assert total == pytest.approx(expected, abs=1e-9)
        frame, _ = env.reset()
    assert expected < LIMIT


@pytest.mark.parametrize("steps", [1, 3, 12])
def test_no_behaviour_beats_the_best_score(steps: int) -> None:
    """Dynamic programming over every place and action of a small world."""
    size, dot, speed = 13, 1, 2
    env = MovingDotEnv(size=size, dot=dot, speed=speed)
    places = [(x, y) for x in range(-3, 4) for y in range(-3, 4)]
    outcomes = {}
    for place in places:
        for action in range(5):
            env.reset(seed=0)
            env._x, env._y = place
            _, score, *_ = env.step(action)
            outcomes[place, action] = score, (env._x, env._y)
    value = dict.fromkeys(places, 0.0)
    for _ in range(steps):
        value = {
            place: max(score + value[to] for score, to in (outcomes[place, action] for action in range(5)))
            for place in places
        }
    for x, y in places:
        distance = speed * (abs(x) + abs(y))
        assert value[x, y] == pytest.approx(best_score(distance, steps, size, dot, speed), abs=1e-9)


@pytest.mark.parametrize("bad", [{"dot": 3}, {"dot": 84}, {"speed": 0}, {"speed": 37}, {"limit": 0}])
def test_refuses_a_world_that_does_not_work(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="|".join(bad)):
        MovingDotEnv(**bad)  # type: ignore[arg-type]


def test_the_best_on_average_is_that_of_all_places_an_episode_may_begin_at() -> None:
    """Two moves to the edge: of 25 places 1 is no move away, 4 are one, 8 two, 8 three, 4 four."""
    size, dot, speed = 20, 4, 4
    best = {away: best_score(away * speed, 10, size, dot, speed) for away in range(5)}
    expected = (best[0] + 4 * best[1] + 8 * best[2] + 8 * best[3] + 4 * best[4]) / 25
    assert mean_best_score(10, size, dot, speed) == pytest.approx(expected)
    assert mean_best_score() == pytest.approx(97.35, abs=0.005)
