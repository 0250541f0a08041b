"""Evaluations without games, for tests of everything else."""

import numpy as np

from lib.agent.evaluate import Evaluation


def one_game(*_: object) -> Evaluation:
    """One game of one step, in which everything measured is 1."""
    one = np.ones(1)
    return Evaluation(one, one, {"learned": one, "disagreement": one, "kl": one}, {"agreement": 1.0})
