#!/usr/bin/env python3
"""Stage 3: fit a reward model to the labels of one or more segment DBs."""

from collections.abc import Sequence

from lib import cli
from lib.reward.config import FitConfig


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(FitConfig, argv, description=__doc__)
    from lib.reward.fit import fit  # after the flags: --help need not wait for PyTorch

    fit(config)


if __name__ == "__main__":
    cli.run(main)
