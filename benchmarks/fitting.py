"""Fits of reward models that leave nothing behind, for the benchmarks that make many."""

import contextlib
import io

import numpy as np
import torch

from lib.devices import has_fast_bf16
from lib.interrupt import Interrupt, Stopped
from lib.reporting import Charts, Progress
from lib.reward.config import FitConfig
from lib.reward.data import PreferenceData
from lib.reward.fit import Fitted, fit_model


def fit_quietly(
    config: FitConfig, data: PreferenceData, train: np.ndarray, test: np.ndarray, device: torch.device
) -> Fitted:
    """`lib.reward.fit.fit_model` without curves, lines or files.

    Raises:
      UserError: nothing can be made of the labels.
      KeyboardInterrupt: the end was asked for.
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
