#!/usr/bin/env python3
"""Stage 1 for language models: sample answers to prompts, to be compared in stage 2; with --algo, finetune the model on
the reward model of stage 3.

Sampling, started again, continues where it stopped; a finetune continues with --resume RUN.
"""

from collections.abc import Sequence

from lib import cli
from lib.runs import parse_resumable
from lib.text.config import MAY_DIFFER, TextConfig


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(TextConfig, MAY_DIFFER, argv, description=__doc__)
    # After the flags: --help need not wait for PyTorch.
    if config.merge is not None:
        from lib.text.language import merge

        merge(config.model, config.merge)
    elif config.algo == "dpo":
        from lib.text.dpo import train_dpo

        train_dpo(config)
    elif config.algo is not None:
        from lib.text.train import finetune

        finetune(config)
    else:
        from lib.text.record import record

        record(config)


if __name__ == "__main__":
    cli.run(main)
