#!/usr/bin/env python3
"""Stage 3: fit a reward model to the labels of one or more DBs, and report whether it is any good; with --policy, fit a
policy to them instead."""

from collections.abc import Sequence

from lib import cli
from lib.reward.config import MAY_DIFFER, FitConfig
from lib.runs import parse_resumable


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_resumable(FitConfig, MAY_DIFFER, argv, description=__doc__)
    from lib.reward.fit import check_alone  # after the flags: --help need not wait for PyTorch
    from lib.tools.audit import audit, check_audit
    from lib.tools.fit_labels import fit_labels, kind_of
    from lib.training.ranks import joined

    check_audit(config)
    with joined(config.dev) as ranks:
        check_alone(config, ranks)
        if config.watch:
            from lib.reward.refit import keep_refitting

            keep_refitting(config, kind_of(config)[0])
        elif config.audit_reward is not None:
            audit(config)
        else:
            fit_labels(config, ranks)


if __name__ == "__main__":
    cli.run(main)
