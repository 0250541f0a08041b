"""The moving picture of two policies: who stands where, what is written below, how long it lasts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from experiments.side_by_side import beside, main
from lib.agent.network import PolicyNet
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.envs.moving_dot import dot_position

ACTIONS = {"left": 4, "right": 2}  # of the moving dot


@pytest.fixture
def policies(tmp_path: Path) -> list[str]:
    """One that always moves the dot to the left, and one to the right."""
    for name, action in ACTIONS.items():
        network = PolicyNet(5)
        with torch.no_grad():
            *_, last = network.policy.parameters()
            last.copy_(torch.where(torch.arange(5) == action, 100.0, 0.0))
        payload = {"state_dict": network.state_dict(), "steps": 0, "num_actions": 5}
        save_checkpoint(tmp_path / name, "policy", payload, {"env": "MovingDot-v0"}, {})
    return [str(tmp_path / name) for name in ACTIONS]


@pytest.mark.slow
def test_either_plays_on_its_side(policies: list[str], tmp_path: Path) -> None:
    out = tmp_path / "both.webp"
    main([*policies, "--captions", "to the left", "to the right", "--out", str(out), "--seconds", "2"])
    with Image.open(out) as picture:
        assert picture.info["loop"] == 0
        frames = [np.array(frame.convert("RGB")) for frame in ImageSequence.Iterator(picture)]
        lasts = picture.info["timestamp"] + picture.info["duration"]
    assert lasts == 30 * 66  # ms; equal frames are stored as one
    side = 84 * 3
    left, right = frames[-1][:side, :side], frames[-1][:side, -side:]
    assert dot_position(left)[0] < 25
    assert dot_position(right)[0] > side - 25
    first = frames[0]
    assert (first[:side, :side] == first[:side, -side:]).all()  # the same game
    assert (first[side:] == frames[-1][side:]).all()


def test_a_long_caption_is_wrapped_and_stays_below_its_picture() -> None:
    black = np.zeros((100, 160, 3), np.uint8)
    short = np.asarray(beside(black, black, ["", "v1"]))
    assert short[:200].max(where=np.arange(652)[:, None] < 320, initial=0) == 0
    ink = (short[200:].max(-1) > 150).any(0)
    assert not ink[:332].any()
    assert ink[332:].any()
    long = np.asarray(beside(black, black, ["", " ".join(["v1, finetuned"] * 9)]))
    assert long.shape[0] > short.shape[0] + 40
    ink = (long[200:].max(-1) > 150).any(0)
    assert not ink[:332].any()
    assert np.flatnonzero(ink).max() < 651


def test_what_cannot_be_written_is_said(policies: list[str], tmp_path: Path) -> None:
    flags = [*policies, "--captions", "a", "b", "--seconds", "0.2", "--out"]
    with pytest.raises(UserError, match="could not write the picture"):
        main([*flags, str(tmp_path / "none" / "both.webp")])
