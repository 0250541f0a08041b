#!/usr/bin/env python3
"""Stage 1 for language models: sample answers to prompts, to be compared in stage 2.

Started again, the same command continues where it stopped.
"""

from collections.abc import Sequence

from lib import cli
from lib.text.config import SampleConfig


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(SampleConfig, argv, description=__doc__)
    from lib.text.record import record  # after the flags: --help need not wait for PyTorch

    record(config)


if __name__ == "__main__":
    cli.run(main)
