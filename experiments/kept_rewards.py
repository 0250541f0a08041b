"""01_a2c.py --algo sac with a replay buffer that keeps the rewards first paid, as a baseline for relabelling.

.venv/bin/python -m experiments.kept_rewards -n NAME --algo sac … (the flags of 01_a2c.py)
"""

from collections.abc import Sequence

from lib import cli
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.agent.sac import SAC
from lib.reward.model import RewardModel
from lib.runs import parse_resumable
from lib.training.train import train


class KeepsRewards(SAC):
    """SAC to whose replay a new reward model pays for new steps alone; one before the first step pays for the opening too."""

    def use_reward(self, model: RewardModel, another: bool = True) -> None:
        if self.steps == 0:
            super().use_reward(model, another)
        self.player.reward = model


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(TrainConfig, MAY_DIFFER, argv, description=(__doc__ or "").splitlines()[0])
    train(config, make_learner=KeepsRewards)


if __name__ == "__main__":
    cli.run(main)
