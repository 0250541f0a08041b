#!/usr/bin/env python3
"""Stage 3: fit a reward model to the labels of one or more DBs, and report whether it is any good."""

import os
from collections.abc import Sequence

from lib import cli
from lib.reward.config import MAY_DIFFER, FitConfig
from lib.runs import parse_resumable


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(FitConfig, MAY_DIFFER, argv, description=__doc__)
    from lib.preferences.answers import hold_answers  # after the flags: --help need not wait for PyTorch

    if hold_answers(config.dbs):
        from lib.text.fit import fit_text
        from lib.text.report import write_text_report

        if "WORLD_SIZE" in os.environ:
            raise cli.UserError("answers are fitted in one process: leave out torchrun")
        print(write_text_report(fit_text(config)))
        return
    from lib.reporting import Charts
    from lib.reward.fit import check_alone, fit
    from lib.reward.report import report_path, write_report
    from lib.tools.audit import audit, check_audit
    from lib.training.ranks import joined

    check_audit(config)
    with joined(config.dev) as ranks:
        check_alone(config, ranks)
        if config.watch:
            from lib.reward.refit import keep_refitting

            keep_refitting(config)
            return
        if config.judge is not None:
            audit(config)
            return
        fitted = fit(config, ranks)
    if ranks.rank:
        return
    with Charts(fitted.run_dir) as charts:
        verdict = write_report(fitted, charts)
    if config.audit is not None:
        audit(config, fitted)
    print(verdict)
    print(f"report in {report_path(fitted.path)}")


if __name__ == "__main__":
    cli.run(main)
