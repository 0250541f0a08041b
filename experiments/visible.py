"""What a policy can see: how well its convolutions alone tell what an environment's probes read.

A linear layer is fitted to the features of some clips (a linear probe: Alain & Bengio 2016, arXiv 1610.01644), and tells of clips of
other moments whether each probe is above its mean, such as whether a diver is on board. What it cannot tell, neither can a head that
is trained on frozen convolutions, by comparisons or by the score.

.venv/bin/python -m experiments.visible -m POLICY DB [DB ...]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from lib import cli
from lib.agent.checkpoints import load_policy
from lib.agent.network import PolicyNet
from lib.cli import UserError, flag
from lib.envs.make import situation
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.reward.features import PolicyBody
from lib.reward.store import SegmentStore

_STRIDE = 10  # steps of a clip that are looked at
_HELD_OUT = 0.25  # of the moments
_L2, _ITERATIONS = 0.01, 200


@dataclass(frozen=True)
class VisibleConfig:
    """Whose convolutions, and on which clips."""

    dbs: list[Path] = flag(positional=True, nargs="+", metavar="DB", help="clips to look at")
    model: Path = flag("-m", metavar="POLICY", help="policy that sees pictures")
    seed: int = flag(default=0, min=0, help="seed of which moments are held out")


class Told(NamedTuple):
    """How often the linear layer is right about steps of moments that it was not fitted to."""

    right: float
    base: float
    """Of whoever always gives the commoner answer."""
    steps: int


def told(features: torch.Tensor, above: np.ndarray, moments: Sequence[str], seed: int) -> Told:
    """Fits a linear layer to the steps of three quarters of the moments, and tests it on the others.

    Args:
      features: float32 `[N, F]`.
      above: bool `[N]`, what it has to tell.
      moments: N names; steps of one moment are on one side.
      seed: of the choice of moments.
    """
    names, of = np.unique(moments, return_inverse=True)
    held_out = np.random.default_rng(seed).permutation(len(names)) < _HELD_OUT * len(names)
    test = torch.from_numpy(held_out[of])
    right = torch.from_numpy(above).float()
    mean, std = features[~test].mean(0), features[~test].std(0).clamp(min=1e-3)
    inputs = (features - mean) / std
    layer = torch.nn.Linear(features.shape[1], 1)
    torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        error = F.binary_cross_entropy_with_logits(layer(inputs[~test])[:, 0], right[~test])
        total = error + _L2 * layer.weight.square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    with torch.no_grad():
        hits = (layer(inputs[test])[:, 0] > 0).float() == right[test]
    share = float(right[test].mean())
    return Told(float(hits.float().mean()), max(share, 1 - share), len(hits))


def visible(config: VisibleConfig) -> dict[str, Told]:
    """What the convolutions tell of each probe of `lib.envs.make.situation`, by its name.

    Raises:
      UserError: the policy does not see pictures, or other ones; or the clips cannot be read, are of one moment, or of an
        environment of which nothing is known.
    """
    policy, _ = load_policy(config.model)
    if not isinstance(policy, PolicyNet) or policy.spec.observation_size is not None:
        raise UserError(f"{config.model}: expected a policy that sees pictures, from a2c or ppo")
    body, store = PolicyBody(policy.state_dict(), config.model), SegmentStore(float("inf"), "observation")
    features: list[torch.Tensor] = []
    readings: dict[str, list[np.ndarray]] = {}
    moments: list[str] = []
    for root in config.dbs:
        db = SegmentDB(root)
        for name in db.names:
            try:
                segment = db.load(name)
            except SegmentError as error:
                raise UserError(str(error)) from error
            index = store.add(db, name, segment)
            if (differs := policy.spec.difference(store.spec)) is not None:
                raise UserError(f"{config.model}: expected {differs[1]} like the clips, got {differs[0]}")
            features.append(body(torch.from_numpy(store.inputs(index, _STRIDE)[0])))
            step = segment.as_step(slice(None, None, _STRIDE))
            for probe, read in situation(store.env_id).items():
                readings.setdefault(probe, []).append(read(step))
            sidecar = segment.sidecar
            moment = (sidecar and sidecar.moment) or name
            moments += [f"{root} {moment}"] * len(features[-1])
    if not readings:
        raise UserError(
            f"{', '.join(map(str, config.dbs))}: expected clips of an environment with probes, as Seaquest"
        )
    if len(set(moments)) < 2:
        raise UserError("expected clips of two moments at least, one to be tested on, got one; record more")
    inputs, of = torch.cat(features), np.array(moments)
    found = {}
    for probe, columns in readings.items():
        values = np.concatenate(columns)
        known = ~np.isnan(values)
        above = values[known] > values[known].mean()
        found[probe] = told(inputs[torch.from_numpy(known)], above, of[known].tolist(), config.seed)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(VisibleConfig, argv, description=__doc__)
    for probe, (right, base, steps) in visible(config).items():
        print(
            f"{probe}: right about {right:.1%} of {steps} steps of other moments; the commoner answer alone {base:.1%}"
        )


if __name__ == "__main__":
    cli.run(main)
