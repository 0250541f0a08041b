"""The probes on real frames of Seaquest."""

import numpy as np
import pytest

from lib.envs.atari import AtariWorld
from lib.envs.seaquest import submarine_depth, submarine_midwater


@pytest.fixture(scope="module")
def dive() -> tuple[np.ndarray, np.ndarray]:
    """Depth and terminals, [T + 1, B], of games in which DOWN is held for 150 steps, until a life is lost and after."""
    world = AtariWorld("SeaquestNoFrameskip-v4", 4, num_threads=1)
    step = world.reset(0)
    depth, terminal = [submarine_depth(step.frames)], [step.terminal.copy()]
    for _ in range(150):
        world.send(np.full(4, world.action_names.index("DOWN")))
        step = world.recv()
        depth.append(submarine_depth(step.frames))
        terminal.append(step.terminal.copy())
    world.close()
    return np.array(depth), np.array(terminal)


def test_a_game_begins_at_the_surface(dive: tuple[np.ndarray, np.ndarray]) -> None:
    depth, _ = dive
    assert depth.dtype == np.float32
    assert (depth[:20] == 0).all()


def test_holding_down_leads_to_the_sea_bed(dive: tuple[np.ndarray, np.ndarray]) -> None:
    depth, _ = dive
    down = depth[20:70]
    assert (np.diff(down, axis=0) >= 0).all()
    assert ((down > 0.2) & (down < 0.8)).any(0).all()  # through the middle, not at one bound
    assert (depth[75:100] > 0.97).all()
    assert (depth[75:100] <= 1).all()


def test_there_is_no_depth_while_the_submarine_is_exploded(dive: tuple[np.ndarray, np.ndarray]) -> None:
    depth, terminal = dive
    assert terminal.any(0).all()
    for env in range(4):
        lost = int(np.flatnonzero(terminal[:, env])[0])
        assert np.isnan(depth[lost - 3 : lost, env]).any()
        assert not np.isnan(depth[: lost - 25, env]).any()


def test_midwater_is_one_half_way_down() -> None:
    frames = np.zeros((2, 5, 210, 160, 3), np.uint8)
    for at, top in enumerate((46, 70, 94, 117, 141)):
        frames[1, at, top : top + 11, 76:92] = (187, 187, 53)
    depth = submarine_depth(frames)
    assert depth.shape == (2, 5)
    assert np.isnan(depth[0]).all()
    assert depth[1].tolist() == pytest.approx([0, 24 / 95, 48 / 95, 71 / 95, 1])
    assert submarine_midwater(frames)[1].tolist() == pytest.approx(
        [0, 48 / 95, 94 / 95, 48 / 95, 0], abs=1e-6
    )
    assert np.isnan(submarine_midwater(frames)[0]).all()


def test_debris_other_colours_and_the_spare_submarines_are_no_submarine() -> None:
    frames = np.zeros((3, 210, 160, 3), np.uint8)
    frames[0, 100, 50:61] = (187, 187, 53)  # a shot: 11 pixels
    frames[1, 100:111, 50:66] = (187, 187, 54)
    frames[2, 22:33, 58:74] = (187, 187, 53)  # spare submarines, above the water
    assert np.isnan(submarine_depth(frames)).all()
