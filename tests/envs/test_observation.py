"""The fast observation path against wrap_dqn on the same emulator states, and against sums by hand."""

import cv2
import gymnasium
import numpy as np
import ptan
import pytest
import torch

from lib.envs.observation import SIZE, Observer, area_weights, grey_resize_cpu, grey_resize_torch
from lib.envs.reference import LastFrames

CPU = torch.device("cpu")


def resize(frames: np.ndarray) -> np.ndarray:
    rows, columns = area_weights(frames.shape[1]), area_weights(frames.shape[2])
    return grey_resize_torch(torch.from_numpy(frames), rows, columns).numpy()


def furthest(one: np.ndarray, other: np.ndarray) -> int:
    assert one.shape == other.shape
    assert one.dtype == other.dtype == np.uint8
    return int(np.abs(one.astype(int) - other.astype(int)).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "height"),
    [("SeaquestNoFrameskip-v4", 210), ("CarnivalNoFrameskip-v4", 214), ("AdventureNoFrameskip-v4", 250)],
)
def test_equals_wrap_dqn_on_the_same_emulator_states(env_id: str, height: int) -> None:
    tap = LastFrames(gymnasium.make(env_id))
    env = ptan.common.wrappers.wrap_dqn(tap, episodic_life=False, clip_reward=False, noop_max=0)
    tap.reset(seed=0)
    observation, _ = env.reset()
    shape = (height, 160, 3)
    assert tap.picture.shape == shape
    observer, rng = Observer(1, shape, CPU), np.random.default_rng(0)
    reset, seen = True, set()
    for t in range(60):
        ours = observer.push(torch.from_numpy(tap.picture[None]), torch.tensor([reset]))[0].numpy()
        if reset:
            assert not ours[:3].any()
        assert furthest(ours, observation) <= 1
        assert furthest(resize(tap.picture[None])[0], observation[-1]) <= 1
        seen.add(observation.tobytes())
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        reset = terminated or truncated or t == 30
        if reset:
            observation, _ = env.reset()
    assert len(seen) > 20
    env.close()


@pytest.mark.parametrize(
    "size",
    [(210, 160), (250, 160), (84, 84), (168, 168), (400, 600), (48, 48), (40, 50), (83, 200), (200, 10)],
)
def test_both_paths_agree_on_noise(size: tuple[int, int]) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, *size, 3), np.uint8)
    assert furthest(grey_resize_cpu(frames), resize(frames)) <= 1


def test_environments_do_not_mix_in_a_large_batch() -> None:
    frames = np.random.default_rng(0).integers(
        0, 256, (154, 210, 160, 3), np.uint8
    )  # more than fits in one part
    together = grey_resize_cpu(frames)
    for env in (0, 1, 151, 152, 153):
        grey = cv2.cvtColor(frames[env], cv2.COLOR_RGB2GRAY)
        assert np.array_equal(together[env], cv2.resize(grey, (SIZE, SIZE), interpolation=cv2.INTER_AREA))


@pytest.mark.parametrize("size", [(210, 160), (20, 30)])
def test_neighbours_do_not_bleed(size: tuple[int, int]) -> None:
    frames = np.zeros((3, *size, 3), np.uint8)
    frames[1] = 255
    for path in (grey_resize_cpu, resize):
        small = path(frames)
        assert not small[[0, 2]].any()
        assert (small[1] == 255).all()


@pytest.mark.parametrize(
    ("colour", "grey"), [((255, 0, 0), 76), ((0, 255, 0), 150), ((0, 0, 255), 29), ((187, 187, 53), 172)]
)
def test_grey_is_luma(colour: tuple[int, int, int], grey: int) -> None:
    frames = np.full((1, 210, 160, 3), colour, np.uint8)
    for path in (grey_resize_cpu, resize):
        assert (path(frames) == grey).all()


def test_area_weights_by_hand() -> None:
    torch.testing.assert_close(area_weights(3, 2), torch.tensor([[2.0, 1, 0], [0, 1, 2]]) / 3)
    torch.testing.assert_close(area_weights(2, 3), torch.tensor([[1, 0], [0.5, 0.5], [0, 1]]))
    torch.testing.assert_close(area_weights(4, 2), torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]))
    assert torch.equal(area_weights(5, 5), torch.eye(5))
    for source in (10, 84, 160, 210, 250):
        weights = area_weights(source)
        assert weights.shape == (SIZE, source)
        torch.testing.assert_close(weights.sum(1), torch.ones(SIZE))
        torch.testing.assert_close(
            weights.sum(0), torch.full((source,), SIZE / source)
        )  # every cell counts alike


def test_greys_are_no_coarser_under_autocast() -> None:
    frames = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 210, 160, 3), np.uint8))
    rows, columns = area_weights(210), area_weights(160)
    plain = grey_resize_torch(frames, rows, columns)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(grey_resize_torch(frames, rows, columns), plain)


def test_observations_lie_where_they_are_wanted() -> None:
    rng, places = np.random.default_rng(0), torch.zeros(3, 2, 4, SIZE, SIZE, dtype=torch.uint8)
    one, other = Observer(2, (90, 90, 3), CPU), Observer(2, (90, 90, 3), CPU)
    for t in (0, 1, 2, 2, 0, 1):
        frames = torch.from_numpy(rng.integers(0, 256, (2, 90, 90, 3), np.uint8))
        reset = torch.tensor([t == 1, False])
        assert one.push(frames, reset, places[t]).data_ptr() == places[t].data_ptr()
        assert torch.equal(places[t], other.push(frames, reset))


def test_the_stack_is_per_environment() -> None:
    observer = Observer(3, (90, 90, 3), CPU)

    def push(*greys: int, reset: tuple[bool, bool, bool] = (False, False, False)) -> list[list[int]]:
        frames = np.array(greys, np.uint8)[:, None, None, None] * np.ones((90, 90, 3), np.uint8)
        stack = observer.push(torch.from_numpy(frames), torch.tensor(reset))
        assert stack.shape == (3, 4, SIZE, SIZE)
        assert stack.dtype == torch.uint8
        assert (stack == stack[:, :, :1, :1]).all()
        return stack[:, :, 0, 0].tolist()

    assert push(1, 101, 201, reset=(True, True, True)) == [[0, 0, 0, 1], [0, 0, 0, 101], [0, 0, 0, 201]]
    push(2, 102, 202)
    push(3, 103, 203)
    assert push(4, 104, 204) == [[1, 2, 3, 4], [101, 102, 103, 104], [201, 202, 203, 204]]
    assert push(5, 105, 205, reset=(False, True, False)) == [
        [2, 3, 4, 5],
        [0, 0, 0, 105],
        [202, 203, 204, 205],
    ]
    assert push(6, 106, 206) == [[3, 4, 5, 6], [0, 0, 105, 106], [203, 204, 205, 206]]
