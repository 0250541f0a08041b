"""The flags of 04_play.py. Nothing heavy is imported here, so that --help answers at once."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import flag


@dataclass(frozen=True)
class PlayConfig:
    """Some games of one policy."""

    model: Path = flag("-m", help="policy checkpoint")
    env: str | None = flag(
        "-e", default=None, help="environment; by default the one the policy was trained in"
    )
    record: Path | None = flag("-r", default=None, metavar="DIR", help="folder for an mp4 of each game")
    games: int = flag("-n", default=5, min=1, help="full games to play")
    reward: Path | None = flag(default=None, help="reward model to show: what it thinks of every step")
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")
    seed: int = flag(default=0, min=0, help="seed of the games and the actions")
