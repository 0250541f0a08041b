#!/usr/bin/env python3
"""Stage 3: fit a reward model to the labels of one or more DBs, and report whether it is any good; with --policy, fit a
policy to them instead."""

from collections.abc import Sequence
from typing import Any

from lib import cli
from lib.reward.config import MAY_DIFFER, FitConfig
from lib.runs import parse_resumable


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(FitConfig, MAY_DIFFER, argv, description=__doc__)
    from lib.preferences.answers import hold_answers  # after the flags: --help need not wait for PyTorch
    from lib.reporting import Charts
    from lib.reward.clips import Clips
    from lib.reward.fit import check_alone, fit
    from lib.reward.report import report_path, write_report
    from lib.tools.audit import audit, check_audit
    from lib.training.ranks import joined

    kind: Any = Clips
    write: Any = write_report
    # Before there are answers, -m says that there will be some.
    if hold_answers(config.dbs) or (config.watch and config.model is not None):
        from lib.text.fit import Answers as kind
        from lib.text.report import write_text_report as write
    check_audit(config)
    with joined(config.dev) as ranks:
        check_alone(config, ranks)
        if config.watch:
            from lib.reward.refit import keep_refitting

            keep_refitting(config, kind)
            return
        if config.judge is not None:
            audit(config)
            return
        if config.policy is not None:
            from lib.agent.dpo import Policies

            fit(config, ranks, Policies, file="{}.dat")
            return
        fitted = fit(config, ranks, kind)
    if ranks.rank:
        return
    with Charts(fitted.run_dir) as charts:
        verdict = write(fitted, charts)
    if config.audit is not None:
        audit(config, fitted)
    print(verdict)
    print(f"report in {report_path(fitted.path)}")


if __name__ == "__main__":
    cli.run(main)
