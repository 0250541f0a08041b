"""Stage 3 in one call: what is fitted to the labels, and its report."""

from __future__ import annotations

import dataclasses
from typing import Any

from lib.cli import UserError
from lib.learner import ALONE, Alone
from lib.preferences.answers import hold_answers
from lib.reporting import Charts
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.fit import AnyFit, fit
from lib.reward.report import report_path, write_report


def fit_labels(config: FitConfig, ranks: Alone = ALONE) -> AnyFit[Any, Any]:
    """Fits to the labels of clips or answers, writes the report and prints the verdict.

    With `--policy` it fits that policy; the report, and the fit that is returned, are of the reward that the policy implies.

    Args:
      config: the flags.
      ranks: the processes that fit together; the first one writes and prints.

    Raises:
      UserError: as `lib.reward.fit.fit`.
    """
    if config.policy is not None:
        if hold_answers(config.dbs):
            raise UserError(
                f"--policy applies to clips, but {config.dbs[0]} holds answers; fit a language model with 01_text.py --algo dpo"
            )
        from lib.agent.dpo import Policies

        fitted: AnyFit[Any, Any] = fit(config, ranks, Policies, file="{}.dat")
        fitted = dataclasses.replace(fitted, path=config.reward_path, model=fitted.model.reward)
        write: Any = write_report
    else:
        kind, write = kind_of(config)
        fitted = fit(config, ranks, kind)
    if ranks.rank == 0:
        with Charts(fitted.run_dir) as charts:
            verdict = write(fitted, charts)
        print(verdict)
        print(f"report in {report_path(fitted.path)}")
        if config.audit is not None:
            from lib.tools.audit import audit

            audit(config, fitted)
    return fitted


def kind_of(config: FitConfig) -> tuple[Any, Any]:
    """The material of the DBs, clips or answers, and the function that writes its report."""
    # Before there are answers, -m says that there will be some.
    if hold_answers(config.dbs) or (config.watch and config.model is not None):
        from lib.text.fit import Answers
        from lib.text.report import write_text_report

        return Answers, write_text_report
    return Clips, write_report
