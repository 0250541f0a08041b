"""Fits that nobody had to wait for: networks as they begin, on labels that are there."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.reward.config import FitConfig
from lib.reward.data import load_preferences
from lib.reward.epoch import evaluate_ensemble, output_statistics, pair_loss
from lib.reward.fit import Epoch, Fit
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet

CPU = torch.device("cpu")


def unfitted(db: Path, out: Path, members: int = 2, name: str = "grey", **flags: Any) -> Fit:
    """What a fit returns, of networks with random weights; every fifth pair is held out."""
    config = FitConfig(dbs=[db], name=name, out=out, runs=out / "runs", bf16=False, ensemble=members, **flags)
    data = load_preferences(config.dbs, 100)
    fitted = []
    for seed in range(members):
        torch.manual_seed(seed)
        network = RewardNet(data.segments.frame_shape, data.segments.spec.num_actions, dropout=0.0)
        last = network.out[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.1)
        fitted.append(Member(network, *output_statistics(network, data.segments, False)))
    model = RewardModel(fitted, CPU)
    positions = np.arange(len(data.pairs))
    train, test = positions[positions % 5 > 0], positions[positions % 5 == 0]
    best = evaluate_ensemble(model, data.segments, data.pairs.subset(test), pair_loss(config), CPU)
    history = [Epoch(m, e, 0.7 - 0.1 * e, 0.69 - 0.01 * e, 0.6) for m in range(members) for e in (1, 2, 3)]
    out.mkdir(parents=True, exist_ok=True)
    return Fit(config, out / f"reward-{name}.dat", out / "runs", model, data, train, test, history, best)
