"""Learning from preferences alone: fails when any stage stops teaching."""

from pathlib import Path

import pytest

from lib.checkpoints import load_checkpoint
from lib.reporting import mean_interval
from tests.scripts import call

ROOT = Path(__file__).parents[1]


def run(command: str, folder: Path) -> str:
    """Runs a stage as a user would, from the checkout, writing below `folder`."""
    script, *arguments = command.replace("@", f"{folder}/").split()
    return call(folder, script, *arguments, seconds=1800).stdout


@pytest.mark.slow
def test_preferences_alone_teach_the_dot_to_keep_to_the_middle(tmp_path: Path) -> None:
    """The score reaches the teacher, never the agent.

    A policy of chance scores about 50 a game; the best possible is 97.4 on average over starts (`best_score`).
    """
    dot = "--env MovingDot-v0 --eval-every 1000000 --eval-games 16"
    run(
        f"01_a2c.py -n chance {dot} --lr 0 --steps 11000 --num-envs 16 --save @v0 --db-path @db --record-prob 1",
        tmp_path,
    )
    run("02_label_ui.py -d @db --teacher score --count 400", tmp_path)
    run("03_reward_train.py -n dot -o @rewards @db --frame-stride 5", tmp_path)
    # Far-sighted A2C at a constant rate finds, on some seeds, the places that the reward model overrates.
    gentle = "--algo ppo --gamma 0.9 --steps 24000 --lr-decay-steps 26000 --num-envs 32"
    run(f"01_a2c.py -n dot {dot} -r @rewards/reward-dot.dat {gentle} --save @v1", tmp_path)

    chance, taught = (
        mean_interval(load_checkpoint(tmp_path / name / "latest.dat", "policy")["evaluation"]["scores"])
        for name in ("v0", "v1")
    )
    assert 40 < chance[0] < 60
    assert taught[0] - taught[1] > 75, f"chance {chance}, taught {taught}"
