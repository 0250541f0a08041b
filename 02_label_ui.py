#!/usr/bin/env python3
"""Stage 2: compare pairs of clips in the browser, or have a simulated teacher compare them."""

from collections.abc import Sequence

from lib import cli
from lib.cli import UserError
from lib.interrupt import Interrupt
from lib.label_ui.config import LabelConfig
from lib.reporting import Progress


def main(argv: Sequence[str] | None = None) -> int | None:
    config = cli.parse(LabelConfig, argv, description=__doc__)
    if config.watch:
        try:
            config.db_path.mkdir(parents=True, exist_ok=True)  # the training may begin later
        except OSError as error:
            raise UserError(f"--db-path {config.db_path}: expected a folder: {error.strerror}") from error
    if config.teacher is None:
        from lib.label_ui.serve import serve  # after the flags: --help need not wait for NiceGUI

        return serve(config)
    from lib.label_ui.opinion import load_judge
    from lib.preferences.teachers import SimulatedLabeller, attend

    labeller = SimulatedLabeller(
        config.db_path,
        config.teacher,
        error_rate=config.error_rate,
        seed=config.seed or 0,
        strategy=config.strategy,
        beta=config.beta,
        myopia=config.myopia,
        threshold=config.threshold,
        judge=load_judge(config.reward, config.db_path, config.dev) if config.reward else None,
        random_share=config.random_share,
    )
    if config.watch:
        with Interrupt() as interrupt, Progress() as progress:
            progress.line(f"{config.teacher} labels {config.db_path} as labels fall due; Ctrl-C stops")
            given = attend(labeller, config.db_path, progress, lambda: interrupt.asked)
            progress.line(f"stopped by request, {given} labels given")
        return None
    summary = labeller.give(config.count or 100)
    for problem in summary.problems:
        print(f"left out: {problem}")
    print(
        f"{config.db_path / 'labels.json'}: {summary.written} labels by {config.teacher}, "
        f"{summary.ties} of them alike, {summary.wrong} wrong on purpose"
        + (f"; {summary.skipped} more pairs it could not tell" if summary.skipped else "")
    )
    if summary.exhausted:
        print("No pair is left that nobody has answered.")
    elif summary.written < (config.count or 100):
        print("Gave up: it cannot tell nearly all pairs.")
    return None


if __name__ == "__main__":
    cli.run(main)
