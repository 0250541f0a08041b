"""The flags of `experiments.measures`, without PyTorch: experiments have it as a stage, and their --help need not wait."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import flag
from lib.envs.ids import MAX_SEED


@dataclass(frozen=True)
class MeasureConfig:
    """Which policy, and how many games of it."""

    model: Path = flag("-m", help="policy checkpoint")
    out: Path = flag("-o", help="JSON file for the figures")
    env: str | None = flag("-e", default=None, metavar="ID", help="environment (default: the policy's)")
    games: int = flag(default=20, min=2, help="full games")
    lives: int = flag(default=10, min=1, help="games that end when the first life is lost")
    reward: Path | None = flag(
        "-r", default=None, help="reward model; its return and disagreement are measured"
    )
    reference: Path | None = flag(default=None, help="policy from which the KL is measured")
    hold_prob: float = flag(
        default=0.0,
        min=0,
        max=1,
        metavar="P",
        help="disturb the full games by held actions, as --hold-prob of 01_a2c.py does: a policy that knows a game by heart does "
        "not play well then",
    )
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")
    seed: int = flag(default=0, min=0, max=MAX_SEED, help="seed of the games and the actions")
