"""Lives told from the frames of real games, played by a script."""

from pathlib import Path

import pytest
import torch

from experiments.lives import Lives, main, tables
from lib.agent.evaluate import evaluate
from lib.agent.network import PolicyNet
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.envs.atari import AtariWorld
from lib.envs.play import Decision
from lib.envs.spec import PICTURE_SHAPE, Spec


class Diver:
    """Stays on the sea bed in the first game, and dives for 45 steps and comes up for 45 in the second."""

    spec = Spec(18, observation_shape=PICTURE_SHAPE)

    def __init__(self, up: int, down: int) -> None:
        self._up, self._down, self._steps = up, down, 0

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        self._steps += 1
        return Decision(torch.tensor([self._down, self._up if self._steps % 90 > 45 else self._down]))


@pytest.mark.slow
def test_lives_are_told_from_each_other_by_how_they_end() -> None:
    world = AtariWorld("SeaquestNoFrameskip-v4", 2, num_threads=1)
    names, seen = world.action_names, Lives(2)
    played = evaluate(Diver(names.index("UP"), names.index("DOWN")), world, 0, torch.device("cpu"), [seen])
    world.close()
    assert len(seen.lives) == 8
    assert sum(life.score for life in seen.lives) == played.scores.sum()
    assert sum(life.steps for life in seen.lives) == played.steps.sum()
    assert {life.refuels for life in seen.lives} == {0}
    ends = [life.end for life in seen.lives]
    # It comes up without a diver, unless it is hit on the way.
    assert ends.count("at the surface") >= 2
    # On the sea bed no diver swims by.
    below = {"hit on the sea bed", "out of air with nobody on board"}
    assert set(ends) - {"at the surface", "hit above it"} <= below
    assert sum(end in below for end in ends) >= 3
    assert seen.steps[-1] > seen.steps[1:-1].sum()
    said = tables(seen)
    assert "| 0 | 8 | " in said
    assert "lives end at the surface" in said


def test_another_game_is_refused(tmp_path: Path) -> None:
    config = {"env": "PongNoFrameskip-v4"}
    path = tmp_path / "v0.dat"
    save_checkpoint(
        path, "policy", {"state_dict": PolicyNet(6, kind="small").state_dict(), "steps": 0}, config, {}
    )
    with pytest.raises(UserError, match="expected a policy of Seaquest, got one of PongNoFrameskip-v4"):
        main(["-m", str(path)])
