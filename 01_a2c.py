#!/usr/bin/env python3
"""Stage 1: train an agent on the game's score, or finetune one on a learned reward, and record its play."""

from collections.abc import Sequence

from lib import cli
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.runs import parse_resumable


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(TrainConfig, MAY_DIFFER, argv, description=__doc__)
    from lib.training.train import train  # after the flags: --help need not wait for PyTorch

    train(config)


if __name__ == "__main__":
    cli.run(main)
