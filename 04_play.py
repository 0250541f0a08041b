#!/usr/bin/env python3
"""Stage 4: play full games with a policy, record them, and show what a reward model thinks of every step.

With --info: print the lineage of a checkpoint, segment, labels.json, DB or run.
"""

from collections.abc import Sequence

from lib import cli
from lib.agent.play_config import PlayConfig


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(PlayConfig, argv, description=__doc__)
    if config.info is not None:
        from lib.tools.lineage import lineage_text

        print(lineage_text(config.info))
        return
    from lib.tools.play_games import play_games  # after the flags: --help need not wait for PyTorch

    play_games(config)


if __name__ == "__main__":
    cli.run(main)
