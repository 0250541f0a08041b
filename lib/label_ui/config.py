"""What the command line of the labelling page says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, flag
from lib.preferences.labels import TEACHER_NAMES
from lib.preferences.strategies import NEEDS_JUDGE, STRATEGIES


@dataclass(frozen=True)
class LabelConfig:
    db_path: Path = flag("-d", help="database of segments; answers go to its labels.json")
    host: str = flag(default="127.0.0.1", help="address to listen on; 0.0.0.0 lets other machines in")
    port: int = flag(default=8080, min=0, max=65535, help="port to listen on; 0 takes a free one")
    name: str | None = flag(default=None, help="who is labelling; the page asks when it is not given")
    goal: int | None = flag(
        default=None, min=1, help="labels to reach in the database; the page shows the way"
    )
    strategy: str = flag(default="random", choices=STRATEGIES, help="how pairs are chosen")
    reward: Path | None = flag(
        default=None,
        help="reward model of 03_reward_train.py, for strategies that ask one and for the page that shows what it thinks",
    )
    random_share: float = flag(
        default=0.2,
        min=0.0,
        max=1.0,
        help="share of random pairs among those of another --strategy; only these judge a reward model",
    )
    dev: str = flag(default="cpu", help="device of --reward: cpu, cuda, cuda:1")
    repeat_rate: float = flag(
        default=0.05, min=0.0, max=0.5, help="share of earlier pairs asked once more, sides swapped; 0: off"
    )
    start_paused: bool = flag(default=False, help="show clips paused at their first step")
    speed: float = flag(
        default=2.0, choices=(0.5, 1.0, 2.0, 4.0), help="playback speed; 1 is the game's pace"
    )
    ssl_cert: Path | None = flag(
        default=None, help="certificate (PEM), for listening beyond this machine with TLS"
    )
    ssl_key: Path | None = flag(default=None, help="key of --ssl-cert (PEM)")
    seed: int | None = flag(
        default=None, min=0, help="of the choice of pairs; a simulated teacher takes 0 without"
    )
    teacher: str | None = flag(
        default=None, choices=TEACHER_NAMES, help="let a simulated teacher label instead; no page is served"
    )
    count: int | None = flag(
        default=None, min=1, help="labels the teacher gives (default with --teacher: 100)"
    )
    watch: bool = flag(
        default=False,
        help="begin before there is a database; with --teacher answer on and on, as labels fall due by its progress.json",
    )
    error_rate: float | None = flag(
        default=None,
        min=0.0,
        max=1.0,
        help="probability that the teacher prefers the wrong one (default: 0; mistake: 0.1)",
    )
    beta: float | None = flag(
        default=None, min=0.0, help="teacher noisy: how rational it is, per point of score (default: 1)"
    )
    myopia: float | None = flag(
        default=None, min=0.0, max=1.0, help="teacher myopic: discount towards a clip's end (default: 0.9)"
    )
    threshold: float | None = flag(
        default=None,
        min=0.0,
        help="teachers skip and equal: threshold as a share of the database's average score (default: 0.1)",
    )

    def __post_init__(self) -> None:
        if not self.watch and not self.db_path.is_dir():
            raise UserError(
                f"--db-path {self.db_path}: no such folder; record segments with 01_a2c.py --db-path first"
            )
        if self.strategy in NEEDS_JUDGE and self.reward is None:
            raise UserError(
                f"--strategy {self.strategy} asks a reward model, which did not come; give --reward REWARD, "
                "made by 03_reward_train.py"
            )
        if self.watch and self.count is not None:
            raise UserError(
                "--count: with --watch the teacher gives the labels that are due; leave one of them out"
            )
        for name in ("count", "error_rate", "beta", "myopia", "threshold"):
            if self.teacher is None and getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} belongs to --teacher, which did not come")
        if (self.ssl_cert is None) != (self.ssl_key is None):
            raise UserError("--ssl-cert and --ssl-key go together; give both or none")
        for name, path in (("--ssl-cert", self.ssl_cert), ("--ssl-key", self.ssl_key)):
            if path is not None and not path.is_file():
                raise UserError(f"{name} {path}: no such file")
        if self.name is not None and not 1 <= len(self.name.strip()) <= 60:
            raise UserError(f"--name: expected 1 to 60 characters, got {len(self.name.strip())}")
