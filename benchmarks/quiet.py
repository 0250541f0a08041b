"""Training runs and fits without output, for benchmarks that need many."""

import contextlib
import io
from pathlib import Path

import numpy as np

from lib.agent.config import TrainConfig
from lib.interrupt import Interrupt, Stopped
from lib.reporting import Charts, Progress
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.data import PreferenceData
from lib.reward.fit import Fitted, fit_model
from lib.reward.model import RewardModel
from lib.training.train import train


def train_quietly(config: TrainConfig) -> Path:
    """Trains a policy and returns its checkpoint.

    Args:
      config: with `save`.

    Raises:
      UserError: it cannot be trained.
      KeyboardInterrupt: it was stopped.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        trained = train(config)
    if trained.stopped or trained.checkpoint is None:
        raise KeyboardInterrupt
    return trained.checkpoint


def fit_quietly(
    config: FitConfig, data: PreferenceData, train: np.ndarray, test: np.ndarray
) -> Fitted[RewardModel]:
    """`lib.reward.fit.fit_model` without curves, lines or files.

    Raises:
      UserError: the labels cannot be fitted.
      KeyboardInterrupt: it was stopped.
    """
    with Interrupt() as interrupt, contextlib.suppress(Stopped):
        fitted = fit_model(
            Clips(config, data=data),
            train,
            test,
            Charts(None),
            Progress(io.StringIO()),
            should_stop=lambda: interrupt.asked,
        )
    if interrupt.asked:
        raise KeyboardInterrupt
    return fitted
