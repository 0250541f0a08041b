"""Trainings and fits without output, for benchmarks that make many."""

import contextlib
import io
from pathlib import Path

import numpy as np
import torch

from lib.agent.config import TrainConfig
from lib.devices import has_fast_bf16
from lib.interrupt import Interrupt, Stopped
from lib.reporting import Charts, Progress
from lib.reward.config import FitConfig
from lib.reward.data import PreferenceData
from lib.reward.fit import Fitted, fit_model
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
    config: FitConfig, data: PreferenceData, train: np.ndarray, test: np.ndarray, device: torch.device
) -> Fitted:
    """`lib.reward.fit.fit_model` without curves, lines or files.

    Raises:
      UserError: the labels cannot be fitted.
      KeyboardInterrupt: it was stopped.
    """
    with Interrupt() as interrupt, contextlib.suppress(Stopped):
        fitted = fit_model(
            config,
            data,
            train,
            test,
            device,
            has_fast_bf16(device),
            Charts(None),
            Progress(io.StringIO()),
            should_stop=lambda: interrupt.asked,
        )
    if interrupt.asked:
        raise KeyboardInterrupt
    return fitted
