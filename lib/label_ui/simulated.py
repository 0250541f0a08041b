"""A simulated teacher in place of the labelling page."""

from lib.interrupt import Interrupt
from lib.label_ui.config import LabelConfig
from lib.label_ui.ratings import load_rater
from lib.preferences.teachers import SimulatedLabeller, attend
from lib.reporting import Progress


def give_labels(config: LabelConfig) -> None:
    """Lets the teacher of `--teacher` label a DB: `--count` pairs, or with `--watch` as labels fall due.

    Raises:
      UserError: the teacher, the strategy or the DB cannot be used; the line says what mends it.
    """
    assert config.teacher is not None
    labeller = SimulatedLabeller(
        config.db_path,
        config.teacher,
        error_rate=config.error_rate,
        seed=config.seed or 0,
        strategy=config.strategy,
        beta=config.beta,
        myopia=config.myopia,
        threshold=config.threshold,
        rater=load_rater(config.reward, config.db_path, config.dev) if config.reward else None,
        random_share=config.random_share,
        keyword=config.keyword,
    )
    if config.watch:
        with Interrupt() as interrupt, Progress() as progress:
            progress.line(f"{config.teacher} labels {config.db_path} as labels fall due; Ctrl-C stops")
            given = attend(labeller, config.db_path, progress, lambda: interrupt.asked)
            progress.line(f"stopped by request after {given} labels")
        return
    wanted = config.count or 100
    summary = labeller.give(wanted)
    for problem in summary.problems:
        print(f"left out: {problem}")
    print(
        f"{config.db_path / 'labels.json'}: {summary.written} labels by {config.teacher}, "
        f"{summary.ties} of them alike, {summary.wrong} wrong on purpose"
        + (f"; it could not tell for {summary.skipped} more pairs" if summary.skipped else "")
    )
    if config.strategy != "random" and summary.at_random:
        print(
            f"{summary.at_random} labels are on random pairs, by --random-share or for want of {config.strategy} ones."
        )
    if summary.exhausted:
        print("Every pair has been answered.")
    elif summary.written < wanted:
        print("Gave up: it can tell hardly any pairs apart.")
