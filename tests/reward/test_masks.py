"""Masks: read, refused on one line, and on real frames exactly over what they are to hide."""

import re

import ale_py
import numpy as np
import pytest
from ale_py import roms

from lib.cli import UserError
from lib.reward.masks import PRESETS, masks_for, read_mask

SEAQUEST = (210, 160, 3)


def test_a_rectangle_is_read() -> None:
    assert read_mask("1,2,3,4") == (1, 2, 3, 4)
    assert read_mask("0, 0, 160, 210") == (0, 0, 160, 210)
    assert read_mask("seaquest-score") == PRESETS["seaquest-score"]
    assert masks_for(["seaquest-lives", "0,200,160,10"], SEAQUEST, "SeaquestNoFrameskip-v4") == (
        PRESETS["seaquest-lives"],
        (0, 200, 160, 10),
    )
    assert masks_for([], SEAQUEST, "") == ()


@pytest.mark.parametrize(
    "text", ["", "1,2,3", "1,2,3,4,5", "a,b,c,d", "1.5,2,3,4", "seaquest-scores", "1 2 3 4"]
)
def test_what_is_no_rectangle_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=rf"^--mask {re.escape(text)}: expected X,Y,W,H .*seaquest-score"):
        read_mask(text)


@pytest.mark.parametrize("text", ["-1,0,5,5", "0,-1,5,5", "0,0,0,5", "0,0,5,-5"])
def test_a_rectangle_without_extent_or_outside_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--mask {text}: expected a left column"):
        read_mask(text)


@pytest.mark.parametrize("text", ["0,0,161,1", "0,0,1,211", "160,0,1,1", "150,205,10,6"])
def test_a_rectangle_beyond_the_frame_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--mask {text}: expected .* 210 rows and 160 columns, got"):
        masks_for([text], SEAQUEST, "")


def test_a_preset_is_for_its_game() -> None:
    for env_id in ("ALE/Seaquest-v5", "SeaquestNoFrameskip-v4", ""):
        masks_for(["seaquest-score"], SEAQUEST, env_id)
    with pytest.raises(
        UserError, match=r"--mask seaquest-score: a preset of seaquest, .* are of ALE/Pong-v5"
    ):
        masks_for(["seaquest-score"], SEAQUEST, "ALE/Pong-v5")


# Where each game keeps what it shows there, and values that it can have.
MEMORY = {
    "seaquest-score": ("seaquest", (56, 57, 58), (0x00, 0x12, 0x88, 0x99)),
    "seaquest-lives": ("seaquest", (59,), (0, 1, 2, 4, 5, 6)),
    "pong-score": ("pong", (13, 14), (0, 8, 13, 20)),
    "breakout-score": ("breakout", (77,), (0x00, 0x12, 0x88, 0x99)),
    "breakout-lives": ("breakout", (57,), (1, 2, 4, 5)),
    "qbert-score": ("qbert", (89, 90, 91), (0x00, 0x12, 0x88, 0x99)),
    "beamrider-score": ("beam_rider", (9, 10, 11), (0x00, 0x12, 0x88, 0x99)),
    "beamrider-lives": ("beam_rider", (5,), (0, 1, 3, 5)),
    "enduro-speed": ("enduro", (40, 41, 42), (0x00, 0x12, 0x88, 0x99)),
    "enduro-score": ("enduro", (41, 42, 43, 44), (0x00, 0x12, 0x88, 0x99)),
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_hides_all_that_changes_with_what_it_hides(preset: str) -> None:
    game, addresses, values = MEMORY[preset]
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    rom = roms.get_rom_path(game)
    assert rom is not None
    ale.loadROM(rom)
    ale.reset_game()
    actions = ale.getMinimalActionSet()
    for step in range(300):
        ale.act(actions[1 if step < 6 else step % len(actions)])
    state = ale.cloneState()

    def frame(address: int | None = None, value: int = 0) -> np.ndarray:
        ale.restoreState(state)
        if address is not None:
            ale.setRAM(address, value)
        for _ in range(2):
            ale.act(0)
        return ale.getScreenRGB()

    before = frame()
    assert before.shape == SEAQUEST
    x, y, width, height = read_mask(preset)
    for address in addresses:
        changed = [(frame(address, value) != before).any(-1) for value in values]
        assert any(change.any() for change in changed), address  # it is shown
        for change in changed:
            change[y : y + height, x : x + width] = False
            assert not change.any(), address
