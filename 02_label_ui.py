#!/usr/bin/env python3
"""Stage 2: compare pairs of clips in the browser, or have a simulated teacher compare them."""

from collections.abc import Sequence

from lib import cli
from lib.cli import UserError
from lib.label_ui.config import LabelConfig


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(LabelConfig, argv, description=__doc__)
    if config.watch:
        try:
            config.db_path.mkdir(parents=True, exist_ok=True)  # the training may begin later
        except OSError as error:
            raise UserError(f"--db-path {config.db_path}: expected a folder: {error.strerror}") from error
    if config.teacher is None:
        from lib.label_ui.serve import serve  # after the flags: --help need not wait for NiceGUI

        serve(config)
    else:
        from lib.label_ui.simulated import give_labels

        give_labels(config)


if __name__ == "__main__":
    cli.run(main)
