"""The flags of 02_label_ui.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, as_flag, flag
from lib.preferences.labels import STRATEGIES, TEACHERS, TEXT_TEACHERS, is_own


@dataclass(frozen=True)
class LabelConfig:
    """One labelling page, or one simulated teacher."""

    db_path: Path = flag(
        "-d", group="most used", metavar="DB", help="folder of recorded clips; labels go to its labels.json"
    )
    name: str | None = flag(default=None, metavar="NAME", help="labeller (default: the page asks)")
    goal: int | None = flag(default=None, min=1, help="labels to reach in the DB; the page shows progress")
    strategy: str = flag(
        default="random",
        choices=tuple(STRATEGIES),
        help="how pairs are chosen; alike: among clips that begin in the same situation; fork: among clips "
        "that continue from one moment",
    )
    reward: Path | None = flag(
        default=None,
        metavar="FILE",
        help="reward model, for strategies that need one and the page's model view",
    )
    port: int = flag(default=8080, min=0, max=65535, help="port of the page; 0: any free one")
    host: str = flag(
        default="127.0.0.1", metavar="ADDRESS", help="address of the page; 0.0.0.0 lets others in"
    )
    teacher: str | None = flag(
        default=None,
        metavar="NAME",
        help=f"a simulated teacher labels instead; no page is served: {', '.join((*TEACHERS, *TEXT_TEACHERS))}, or your "
        "own, package.module:function",
    )
    count: int | None = flag(
        default=None, min=1, help="labels the teacher gives (default with --teacher: 100)"
    )
    watch: bool = flag(
        default=False,
        help="start before the DB exists; with --teacher, answer as labels fall due in the training run",
    )

    random_share: float = flag(
        group="pairs",
        default=0.2,
        min=0.0,
        max=1.0,
        help="share of random pairs beside those of --strategy; only random pairs and those of fork judge "
        "a reward model",
    )
    repeat_rate: float = flag(
        default=0.05, min=0.0, max=0.5, help="share of pairs asked again with sides swapped; 0: never"
    )
    seed: int | None = flag(
        default=None, min=0, help="seed of the choice of pairs (a simulated teacher's default: 0)"
    )

    error_rate: float | None = flag(
        group="simulated teacher",
        default=None,
        min=0.0,
        max=1.0,
        help="chance of preferring the wrong clip (default: 0; mistake: 0.1)",
    )
    beta: float | None = flag(
        default=None, min=0.0, help="noisy and teachers of text: rationality per point (noisy: 1)"
    )
    myopia: float | None = flag(
        default=None, min=0.0, max=1.0, help="myopic: discount towards a clip's end (default: 0.9)"
    )
    threshold: float | None = flag(
        default=None,
        min=0.0,
        help="skip, equal, teachers of text: threshold as a share of the DB's mean (skip, equal: 0.1)",
    )
    keyword: str | None = flag(default=None, metavar="WORD", help="keyword: the word to prefer")

    open: bool = flag(
        group="page", default=False, help="open the page in this machine's browser, if there is one"
    )
    start_paused: bool = flag(default=False, help="show clips paused at their first step")
    speed: float = flag(default=2.0, choices=(0.5, 1.0, 2.0, 4.0), help="playback speed; 1: the game's pace")
    fit_to: Path | None = flag(
        default=None,
        metavar="FOLDER",
        help="offer to fit a reward model of clips on the page, save it in this folder and show it",
    )
    ssl_cert: Path | None = flag(
        default=None, metavar="FILE", help="TLS certificate (PEM), to serve other machines"
    )
    ssl_key: Path | None = flag(default=None, metavar="FILE", help="key of --ssl-cert (PEM)")
    url: str | None = flag(
        default=None,
        metavar="URL",
        help="address in the labellers' browsers, if a proxy or tunnel leads to this page: https://label.example.org",
    )
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of --reward: cpu, cuda, cuda:1")

    def __post_init__(self) -> None:
        if not self.watch and not self.db_path.is_dir():
            raise UserError(
                f"--db-path {self.db_path}: no such folder; record clips with 01_a2c.py --db-path first"
            )
        names = (*TEACHERS, *TEXT_TEACHERS)
        if self.teacher is not None and self.teacher not in names and not is_own(self.teacher):
            raise UserError(
                f"--teacher: expected one of {', '.join(names)} or package.module:function; got {self.teacher!r}"
            )
        if "rater" in STRATEGIES[self.strategy] and self.reward is None:
            raise UserError(
                f"--strategy {self.strategy} needs a reward model; give --reward REWARD, made by 03_reward_train.py"
            )
        if self.watch and self.count is not None:
            raise UserError(
                "--count: with --watch the teacher gives the labels that fall due; leave out one of the two"
            )
        for name in ("name", "goal", "fit_to", "url", "open"):
            if self.teacher is not None and getattr(self, name):
                mend = "say --count" if name == "goal" else "leave it out"
                raise UserError(f"{as_flag(name)} is the page's, and a teacher needs none: {mend}")
        for name in ("count", "error_rate", "beta", "myopia", "threshold", "keyword"):
            if self.teacher is None and getattr(self, name) is not None:
                raise UserError(f"{as_flag(name)} needs --teacher")
        if (self.ssl_cert is None) != (self.ssl_key is None):
            raise UserError("--ssl-cert and --ssl-key go together; give both or neither")
        for name, path in (("--ssl-cert", self.ssl_cert), ("--ssl-key", self.ssl_key)):
            if path is not None and not path.is_file():
                raise UserError(f"{name} {path}: no such file")
        if self.url is not None and not _is_origin(self.url):
            raise UserError(
                f"--url: expected a scheme and a name, as in https://label.example.org, without a path; got {self.url!r}"
            )
        if self.name is not None and not 1 <= len(self.name.strip()) <= 60:
            raise UserError(f"--name: expected 1 to 60 characters, got {len(self.name.strip())}")


def _is_origin(url: str) -> bool:
    """Whether it is an origin as browsers send it, but for case, a slash at its end and the usual port."""
    return re.fullmatch(r"https?://[\w.-]+(:\d{1,5})?/?", url, re.ASCII | re.IGNORECASE) is not None
