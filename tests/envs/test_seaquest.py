"""The probes on real frames of Seaquest, against the emulator's memory."""

import numpy as np
import pytest

from lib.envs.atari import AtariWorld
from lib.envs.make import counter
from lib.envs.seaquest import (
    SurfaceCounter,
    air_below,
    at_surface,
    diver_aboard,
    diver_in_sight,
    divers,
    oxygen,
    submarine_depth,
    submarine_midwater,
)
from tests.envs.seaquest_game import Game, Memory, begun


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


@pytest.mark.slow
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


def counted(game: Game, first: int = 0) -> tuple[int, int, int]:
    """Refuels, rescues and pickups from a step on."""
    count = SurfaceCounter(1)
    for frame in game.frames[first:]:
        count.push(frame[None])
    return int(count.refuels[0]), int(count.rescues[0]), int(count.pickups[0])


def test_the_probes_agree_with_the_memory() -> None:
    game = begun()
    game.give(divers=2)
    game.play("UP", 12)
    game.play("DOWN", 30)
    game.play("NOOP", 120)  # until something hits it
    game.play("DOWN", 15)
    game.give(oxygen=6)
    game.play("NOOP", 60)  # until it suffocates or something hits it
    frames, memory = np.stack(game.frames), game.memory
    assert len({m.spare for m in memory}) == 3
    assert np.rint(oxygen(frames) * 62).tolist() == [min(m.oxygen, 62) for m in memory]
    assert divers(frames).tolist() == [m.divers for m in memory]
    surface = at_surface(frames)
    # A picture shows the later two of four frames, so only where the submarine lies still it has one height.
    still = [t for t in range(1, len(memory)) if memory[t].height == memory[t - 1].height]
    still = [t for t in still if not np.isnan(surface[t])]
    assert surface[still].tolist() == [memory[t].height == 13 for t in still]
    assert {0.0, 1.0} == set(surface[still].tolist())


def test_one_stroke_below_the_surface_is_not_at_it() -> None:
    game = begun()
    game.give(oxygen=40, divers=1)
    game.play("UP", 7)
    game.play("NOOP", 10)
    assert {(m.height, m.oxygen > 40) for m in game.memory[-8:]} == {(17, False)}
    assert at_surface(np.stack(game.frames[-8:])).tolist() == [0.0] * 8
    assert counted(game, first=42)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("left", [64, 62, 40, 17, 16, 9, 1, 0])
def test_the_oxygen_bar_is_read_while_it_flashes_too(left: int) -> None:
    game = begun()
    game.give(oxygen=left)
    first = len(game.frames)
    game.play("NOOP", 5)
    frames = np.stack(game.frames[first:])
    black = (frames[:, 172, 49] == 0).all(-1)
    assert black.any() == (0 < left <= 16)
    assert not black.all()
    assert [round(62 * float(value)) for value in oxygen(frames)] == [
        min(m.oxygen, 62) for m in game.memory[first:]
    ]


@pytest.mark.parametrize("count", range(7))
def test_divers_are_counted(count: int) -> None:
    game = begun()
    game.give(divers=count)
    game.play("NOOP", 2)
    first = len(game.frames)
    game.play("NOOP", 8)
    frames = np.stack(game.frames[first:])
    assert set(divers(frames).tolist()) == ({0, 6} if count == 6 else {count})  # six blink


def test_the_situation_is_air_below_the_surface_and_a_diver() -> None:
    game = begun()
    game.give(oxygen=31, divers=1)
    game.play("UP", 12)
    frames = np.stack(game.frames)
    below = at_surface(frames) == 0
    assert {0, 1} == set(below.tolist())
    assert air_below(frames)[below].tolist() == oxygen(frames)[below].tolist()
    assert np.isnan(air_below(frames)[~below]).all()
    assert diver_aboard(frames[[0, -2]]).tolist() == [0, 1]


def test_without_the_panel_there_is_nothing_to_read() -> None:
    frames = np.zeros((2, 3, 210, 160, 3), np.uint8)
    for probe in (oxygen, divers, diver_aboard):
        assert probe(frames).shape == (2, 3)
        assert probe(frames).dtype == np.float32
        assert np.isnan(probe(frames)).all()


def test_filling_up_at_the_start_of_a_life_is_no_refuel() -> None:
    game = begun()
    game.play("DOWN", 30)
    game.play("NOOP", 90)
    assert len({m.spare for m in game.memory}) == 2  # a life was lost, and the next one began
    assert max(m.oxygen for m in game.memory[-30:]) > 20
    assert counted(game) == (0, 0, 0)


@pytest.mark.parametrize(("aboard", "refuels"), [(0, 0), (1, 1), (3, 1), (5, 1)])
def test_a_refuel_needs_a_diver(aboard: int, refuels: int) -> None:
    game = begun()
    game.give(oxygen=40, divers=aboard)
    game.play("UP", 10)
    game.play("NOOP", 60)
    assert game.memory[-1].spare == (3 if aboard else 2)
    assert game.memory[-1].divers == max(aboard - 1, 0)
    assert counted(game, first=42) == (refuels, 0, 0)


def test_every_visit_counts_once_however_long() -> None:
    game = begun()
    game.give(oxygen=20, divers=3)
    for _ in range(2):
        game.play("UP", 10)
        game.play("NOOP", 25)
        game.play("DOWN", 4)
        game.give(oxygen=50)
        game.play("NOOP", 1)
    assert {m.spare for m in game.memory} == {3}
    assert counted(game, first=44) == (2, 0, 0)


def test_six_divers_are_a_rescue_and_blinking_is_no_pickup() -> None:
    game = begun()
    game.give(divers=5)
    game.play("NOOP", 2)
    game.give(divers=6)
    game.play("NOOP", 12)
    game.play("UP", 14)
    game.play("NOOP", 100)
    assert game.memory[-1] == Memory(64, 0, 3, 13)
    assert sum(game.scores) >= 6 * 50
    assert counted(game, first=40) == (
        1,
        1,
        1,
    )  # the sixth; that five came at once was no doing of the game's


def test_alarms_and_shortages_tell_whether_a_climb_is_due() -> None:
    game = begun()
    game.give(oxygen=33, divers=1)
    game.play("NOOP", 90)
    count = SurfaceCounter(1)
    for memory, frame in zip(game.memory[42:], game.frames[42:], strict=True):
        before = int(count.alarms[0])
        count.push(frame[None])
        if count.alarms[0] > before:
            assert memory.oxygen <= 31  # half of what the bar shows
            assert memory.divers >= 1
    assert count.alarms[0] == 3  # the bar shows a half from the 14th step on
    assert count.shortages[0] == 0
    without = begun()
    without.give(oxygen=33)
    without.play("NOOP", 90)
    count = SurfaceCounter(1)
    for frame in without.frames:
        count.push(frame[None])
    assert count.alarms[0] == 0
    assert count.shortages[0] == 2  # a diver swims into it 68 steps later


def test_a_diver_that_swims_by_is_sighted_while_none_is_on_board() -> None:
    game, swims = begun(), []
    first = len(game.frames)
    for _ in range(100):
        game.play("NOOP", 1)
        columns = game.ale.getRAM()[71:75]  # of the four divers; 0: none
        swims.append(bool(((columns > 12) & (columns < 148)).any()))
    frames = game.frames[first:]
    assert 25 < sum(swims) < 100
    # Half a diver at an edge of the picture is in sight too.
    assert diver_in_sight(np.array(frames))[swims].all()
    assert not diver_in_sight(np.array(game.frames[:20])).any()

    count, in_a_row, sightings = SurfaceCounter(1), 0, 0
    for frame in frames:
        count.push(frame[None])
        to_fetch = diver_in_sight(frame) and not divers(frame) and not np.isnan(submarine_depth(frame))
        in_a_row = in_a_row + 1 if to_fetch else 0
        sightings += in_a_row > 0 and in_a_row % 25 == 0
    assert count.sightings[0] == sightings > 0
    aboard = begun()
    aboard.give(divers=1)
    aboard.play("NOOP", 101)
    count = SurfaceCounter(1)
    for frame in aboard.frames[first + 1 :]:
        count.push(frame[None])
    assert count.sightings[0] == 0


def test_divers_are_counted_as_they_come_aboard() -> None:
    game = begun()
    for aboard in (1, 2, 3):
        game.give(divers=aboard)
        game.play("NOOP", 3)
    assert counted(game) == (0, 0, 3)


def test_games_are_counted_apart() -> None:
    with_diver, without = begun(), begun()
    with_diver.give(oxygen=30, divers=1)
    for game in (with_diver, without):
        game.play("UP", 10)
        game.play("NOOP", 40)
    count = counter("SeaquestNoFrameskip-v4", 2)
    assert count is not None
    for frames in zip(with_diver.frames, without.frames, strict=True):
        count.push(np.stack(frames))
    assert {name: values.tolist() for name, values in count.counts().items()} == {
        "refuels": [1, 0],
        "rescues": [0, 0],
        "pickups": [1, 0],
        "alarms": [0, 0],
        "shortages": [0, 0],
        "sightings": [0, 0],
    }
    assert counter("PongNoFrameskip-v4", 2) is None


def test_nothing_is_counted_in_pictures_that_the_game_does_not_draw() -> None:
    """Such as those that a wrapper scaled, of an environment whose name has Seaquest in it."""
    count = counter("SeaquestSmall-v0", 2)
    assert count is not None
    count.push(np.zeros((2, 96, 96, 3), np.uint8))
    assert all((counts == 0).all() for counts in count.counts().values())
