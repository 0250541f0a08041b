#!/usr/bin/env python3
"""Play full games with a policy, record them, and show what a reward model thinks of every step.

With --prompts: sample answers of a language model, and show which of them a reward model likes best.
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
    if config.export_jsonl:
        from lib.text.jsonl import export_preferences

        db, file = config.export_jsonl
        print(export_preferences(db, file, chat=config.chat is not False))
        return
    if config.import_jsonl:
        from lib.text.jsonl import import_preferences

        print(import_preferences(*config.import_jsonl))
        return
    if config.export_reward:
        from lib.text.export import export_reward

        print(export_reward(*config.export_reward))
        return
    if config.prompts is not None:
        from lib.text.best import best_of

        best_of(config)
        return
    from lib.tools.play_games import play_games  # after the flags: --help need not wait for PyTorch

    play_games(config)


if __name__ == "__main__":
    cli.run(main)
