"""The flags of 04_play.py. Nothing heavy is imported here, so that --help answers at once."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, flag


@dataclass(frozen=True)
class PlayConfig:
    """Some games of one policy, or the family tree of an artefact."""

    model: Path | None = flag("-m", default=None, help="policy checkpoint (required, except with --info)")
    info: Path | None = flag(
        default=None,
        metavar="FILE",
        help="print where a checkpoint, segment, labels.json, DB or run came from, and play nothing",
    )
    env: str | None = flag(
        "-e", default=None, help="environment; by default the one the policy was trained in"
    )
    record: Path | None = flag("-r", default=None, metavar="DIR", help="folder for an mp4 of each game")
    games: int = flag("-n", default=5, min=1, help="full games to play")
    reward: Path | None = flag(default=None, help="reward model to show: what it thinks of every step")
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")
    seed: int = flag(default=0, min=0, help="seed of the games and the actions")

    def __post_init__(self) -> None:
        if self.info is None and self.model is None:
            raise UserError("expected -m/--model, which did not come; see --help")
        if self.info is not None and self.model is not None:
            raise UserError("--info plays nothing; leave out -m, or name its file after --info")
