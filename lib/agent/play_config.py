"""The flags of 04_play.py. Imports nothing heavy, so that --help is instant."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, flag


@dataclass(frozen=True)
class PlayConfig:
    """Some games of one policy, or the lineage of an artefact."""

    model: Path | None = flag(
        "-m", default=None, metavar="FILE", help="policy checkpoint (required without --info)"
    )
    games: int = flag("-n", default=5, min=1, help="full games to play")
    record: Path | None = flag("-r", default=None, metavar="DIR", help="record an mp4 of each game here")
    reward: Path | None = flag(
        default=None, metavar="FILE", help="reward model whose reward of each step to show"
    )
    env: str | None = flag("-e", default=None, metavar="ID", help="environment (default: the policy's own)")
    info: Path | None = flag(
        default=None,
        metavar="FILE",
        help="play nothing; print where a checkpoint, segment, labels.json, DB or run came from",
    )
    reference: bool = flag(
        default=False,
        help="play an Atari game through ptan's wrappers, one frame at a time: slow, to compare with",
    )
    seed: int = flag(default=0, min=0, help="seed of the games and the actions")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of the networks: cpu, cuda, cuda:1")

    def __post_init__(self) -> None:
        if self.info is None and self.model is None:
            raise UserError("expected -m/--model, which did not come; see --help")
        if self.info is not None and self.model is not None:
            raise UserError("--info plays nothing; leave out -m, or name its file after --info")
