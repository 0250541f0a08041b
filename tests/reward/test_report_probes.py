"""What is paid for what, by a model that pays for oxygen and for actions that go up."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lib.envs.seaquest import oxygen
from lib.envs.spec import Spec
from lib.preferences.segments import Segment, Sidecar, save_segment
from lib.reward.model import RewardModel
from lib.reward.report import plots
from lib.reward.report.probes import Paid, PaidFor, paid_for, some_segments
from tests.envs.seaquest_game import Game, begun

UP, DOWN = 2, 5


class PaysForOxygen(RewardModel):
    """oxygen − ½, and 1 more for UP."""

    def __init__(self) -> None:
        self.members, self.input, self._device = [], "frame", torch.device("cpu")
        self.spec, self._pessimism = Spec(18, frame_shape=(210, 160, 3)), 0.0

    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(oxygen(inputs.numpy()) - 0.5).unsqueeze(0) + (actions == UP)


class PaysForNothing(PaysForOxygen):
    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1, len(actions))


def filmed(game: Game, steps: int, action: int = DOWN, env_id: str = "SeaquestNoFrameskip-v4") -> Segment:
    """The last steps of a game, said to be of one action."""
    no = np.zeros(steps, bool)
    names = tuple(game.names)
    sidecar = Sidecar(np.zeros(steps, np.float32), no, no, env_id, len(names), "", 0, action_names=names)
    return Segment(np.stack(game.frames[-steps:]), np.full(steps, action), sidecar)


@pytest.fixture(scope="module")
def clips() -> list[Segment]:
    """Low with a diver, and full without, both in mid-water; the latter going up."""
    low, full = begun(), begun()
    low.give(oxygen=20, divers=1)
    low.play("NOOP", 5)
    full.give(oxygen=64, divers=0)
    full.play("NOOP", 5)
    return [filmed(low, 4), filmed(full, 4, UP)]


def found_in(clips: list[Segment]) -> PaidFor:
    found = paid_for(PaysForOxygen(), "SeaquestNoFrameskip-v4", clips)
    assert found is not None
    return found


def test_steps_are_sorted_by_what_the_probes_see(clips: list[Segment]) -> None:
    found = found_in(clips)
    cells = {
        (row, column, part): found.cells[r][c][p]
        for r, row in enumerate(found.rows.intervals)
        for c, column in enumerate(found.columns.intervals)
        for p, part in enumerate(found.parts.intervals)
    }
    low, full = cells["¼ to ½", "mid-water", "a diver"], cells["full", "mid-water", "no diver"]
    assert (low.steps, full.steps) == (4, 4)
    assert low.mean == pytest.approx(20 / 62 - 0.5, abs=0.02)
    assert full.mean == pytest.approx(1.5, abs=0.02)
    assert (low.shade, full.shade) == ("", "more4")
    assert sum(cell.steps for cell in cells.values()) == 8 == found.steps
    assert (found.segments, found.unseen) == (2, 0)
    assert len(cells) == 4 * 3 * 2


def test_the_act_is_told_from_the_situation(clips: list[Segment]) -> None:
    """Nobody went up when low; in these very frames it would have been paid."""
    chosen = found_in(clips).chosen
    assert chosen is not None
    up, other = chosen.played
    assert (up.steps, other.steps) == (0, 4)
    assert other.mean == pytest.approx(20 / 62 - 0.5, abs=0.02)
    assert chosen.tried is not None
    tried_up, tried_other = chosen.tried
    # Six of the 18 actions go up; the model likes the plain one.
    assert (tried_up.steps, tried_other.steps) == (4 * 6, 4 * 12)
    assert tried_up.mean - tried_other.mean == pytest.approx(1 / 6, abs=1e-3)


def test_what_cannot_be_read_is_in_no_cell(clips: list[Segment]) -> None:
    blank = Segment(np.zeros_like(clips[0].frames), clips[0].actions, clips[0].sidecar)
    found = found_in([blank, clips[0]])
    assert (found.unseen, found.steps) == (4, 8)


def test_other_environments_have_quartiles_of_two_probes_or_nothing(clips: list[Segment]) -> None:
    def read(env_id: str) -> PaidFor | None:
        return paid_for(PaysForOxygen(), env_id, clips)

    assert read("Breakout-v4") is None
    assert read("") is None
    assert paid_for(PaysForOxygen(), "SeaquestNoFrameskip-v4", []) is None
    for side in (48, 420):
        other = Segment(np.zeros((4, side, side, 3), np.uint8), np.arange(4), None)
        assert paid_for(PaysForNothing(), "SeaquestNoFrameskip-v4", [other]) is None, "of another game"


def test_quartiles_of_a_position() -> None:
    class PaysForThePosition(RewardModel):
        def __init__(self) -> None:
            self.members, self.input, self._device, self._pessimism = (
                [],
                "observation",
                torch.device("cpu"),
                0.0,
            )
            self.spec = Spec(2, observation_shape=(4,))

        def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            return inputs[None, :, 0]

    vectors = np.zeros((8, 4), np.float32)
    vectors[:, 0] = np.linspace(-1, 1, 8)
    clip = Segment(np.zeros((8, 48, 48, 3), np.uint8), np.zeros(8, np.int64), None, vectors)
    found = paid_for(PaysForThePosition(), "CartPole-v1", [clip])
    assert found is not None
    assert found.rows.name == "position"
    assert found.rows.intervals == ["below −0.5", "−0.5 to 0", "0 to 0.5", "from 0.5"]
    assert [row[0][0].steps for row in found.cells] == [2, 2, 2, 2]
    means = [row[0][0].mean for row in found.cells]
    assert means == sorted(means)
    assert found.chosen is None
    assert "<svg" in plots.paid_for(found)


def test_clips_are_read_labelled_or_not_and_a_bounded_number(clips: list[Segment], tmp_path: Path) -> None:
    (tmp_path / "00").mkdir()
    for number in range(5):
        save_segment(tmp_path / "00" / f"{number:08d}.dat", clips[number % 2])
    (tmp_path / "00" / "00000002.dat").write_bytes(b"broken")
    assert len(list(some_segments(PaysForOxygen(), [tmp_path]))) == 4


@pytest.mark.parametrize(
    ("mean", "shade"), [(0.1, ""), (0.2, "more1"), (-0.75, "less2"), (1.4, "more4"), (-9, "less4")]
)
def test_shades(mean: float, shade: str) -> None:
    assert Paid(mean, 3).shade == shade
    assert Paid(np.nan, 0).shade == ""
