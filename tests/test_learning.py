"""Learning from preferences alone: fails when any stage stops teaching."""

import re
from pathlib import Path

import pytest

from tests.scripts import call


def run(command: str, folder: Path) -> str:
    """Runs a stage as a user would, writing below `folder`."""
    script, *arguments = command.split()
    return call(folder, script, *arguments, seconds=1800).stdout


@pytest.mark.slow(35)
def test_preferences_alone_teach_the_dot_to_keep_to_the_middle(tmp_path: Path) -> None:
    """The score reaches the teacher, never the agent.

    A policy of chance scores about 50 a game; the best possible is 97.4 on average over starts (`best_score`).
    """
    play = "01_a2c.py -n play --record-only --steps 8000 --num-envs 16 --db-path db --record-prob 1"
    run(f"{play} --env MovingDot-v0", tmp_path)
    run("02_label_ui.py -d db --teacher score --count 400", tmp_path)
    run("03_reward_train.py -n dot -o . db --epochs 5", tmp_path)
    # Near-sighted, as each step's reward says whether it was right: far fewer steps teach it.
    quick = "--algo ppo --gamma 0.5 --lr 0.001 --steps 3000 --num-envs 16 --rollout 16 --minibatches 4"
    evaluate = "--eval-every 1000000 --eval-games 16"
    said = run(
        f"01_a2c.py -n dot --env MovingDot-v0 -r reward-dot.dat {quick} --network shared {evaluate}", tmp_path
    )

    (chance, _), (taught, error) = (
        map(float, found) for found in re.findall(r" steps: score ([\d.]+) ± ([\d.]+) ", said)
    )
    assert 40 < chance < 60
    assert taught - error > 75, said
