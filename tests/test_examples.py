"""What lies in examples/ is what its README says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.examples import halve
from lib.agent.checkpoints import load_policy
from lib.checkpoints import load_checkpoint
from lib.preferences.segment_db import SegmentDB

EXAMPLES = Path(__file__).parents[1] / "examples"
SEAQUEST = EXAMPLES / "seaquest"


def test_policies_are_small_and_play() -> None:
    policies = sorted(SEAQUEST.glob("*.dat"))
    assert [path.stem for path in policies] == ["a2c-12m", "a2c", "lanes2", "v0", "v1", "v3"]
    for path in policies:
        assert path.stat().st_size <= 7e6
        network, said = load_policy(path)
        assert said["config"]["env"] == "SeaquestNoFrameskip-v4"
        logits, _ = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
        assert logits.shape == (2, 18)
        assert logits.isfinite().all()


def test_a_copy_says_who_made_the_policy(tmp_path: Path) -> None:
    content = load_checkpoint(SEAQUEST / "v0.dat") | {"git_commit": "f" * 40, "created": "2026-01-01"}
    torch.save(content, tmp_path / "v0.dat")
    halve(tmp_path / "v0.dat", tmp_path / "copy.dat")
    copy = load_checkpoint(tmp_path / "copy.dat", "policy")
    assert [copy[key] for key in ("git_commit", "created", "versions")] == [
        "f" * 40,
        "2026-01-01",
        content["versions"],
    ]


@pytest.mark.parametrize(("game", "actions"), [("Pong", 6), ("Enduro", 9)])
def test_a_game_was_taught_by_a_reward_model_that_is_there(game: str, actions: int) -> None:
    folder = EXAMPLES / game.lower()
    network, said = load_policy(folder / "taught.dat")
    assert said["config"]["env"] == f"{game}NoFrameskip-v4"
    assert load_checkpoint(folder / "reward.dat", "reward")["num_actions"] == actions
    assert said["config"]["score_weight"] == 0
    logits, _ = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert logits.isfinite().all()


def test_clips_are_few_and_show_events() -> None:
    db = SegmentDB(SEAQUEST / "db")
    assert len(db.names) == 100
    assert sum(path.stat().st_size for path in (SEAQUEST / "db").glob("*/*.dat")) <= 4e6
    found = [db.load(name).sidecar for name in db.names]
    reasons = [sidecar.reason for sidecar in found if sidecar is not None]
    names, counts = np.unique(reasons, return_counts=True)
    assert set(names) == {"alarm", "refuel", "pickup", "random"}
    assert counts.min() >= 20
