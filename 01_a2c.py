#!/usr/bin/env python3
"""Stage 1: train an agent on the game's score, or finetune one on a learned reward, and record its play."""

from collections.abc import Sequence

from lib import cli
from lib.agent.config import TrainConfig


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(TrainConfig, argv, description=__doc__)
    from lib.agent.trainer import train  # after the flags: --help need not wait for PyTorch

    train(config)


if __name__ == "__main__":
    cli.run(main)
