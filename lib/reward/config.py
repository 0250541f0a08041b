"""The flags of 03_reward_train.py. Nothing heavy is imported here, so that --help answers at once."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, flag
from lib.reward.masks import PRESETS, read_mask

MAY_DIFFER = ("checkpoint_minutes", "dev", "memory_mb")
"""What may be given beside --resume."""


@dataclass(frozen=True)
class FitConfig:
    """One fit of a reward model."""

    dbs: list[Path] = flag(positional=True, metavar="DB", help="segment DBs with a labels.json each")
    name: str = flag("-n", help="name of the model: OUT/reward-NAME.dat")
    out: Path = flag("-o", help="folder for the reward model")
    dev: str = flag(default="cpu", help="device of the network: cpu, cuda, cuda:1")
    loss: str = flag(
        default="bradley-terry",
        choices=("bradley-terry", "original"),
        help="what is minimised; original: two separate cross-entropies, as in the original experiment",
    )
    input: str | None = flag(
        default=None,
        choices=("frame", "observation"),
        help="what the model sees: the colour frame and the action, or what the policy saw: four grey 84×84 frames alone, "
        "or a vector and the action; by default frame, and observation where the DBs hold vectors",
    )
    error_rate: float = flag(
        default=0.1,
        min=0,
        max=0.99,
        help="ε of the Bradley-Terry loss: share of the answers taken to be random, half of which are wrong; so twice the "
        "--error-rate of a simulated teacher",
    )
    ensemble: int = flag(
        default=1,
        min=1,
        help="members to fit, each from its own weights and its own draw of the labels; their rewards are averaged",
    )
    lr: float = flag(default=1e-3, min=0, help="Adam's learning rate; the original had 1e-4")
    batch_size: int = flag(default=16, min=1, help="pairs per update; the original had 64")
    dropout: float = flag(
        default=0.0, min=0, max=0.95, help="dropout in the hidden layers; the original had 0.5"
    )
    l2: float = flag(
        default=1e-4,
        min=0,
        help="first weight of ℓ2 regularisation; adapted after each epoch to hold held-out ÷ training loss in 1.1 … 1.5",
    )
    shift: int = flag(
        default=0, min=0, metavar="PIXELS", help="move frames at random by up to so many pixels when fitting"
    )
    noise: float = flag(
        default=0.0,
        min=0,
        help="standard deviation of noise when fitting, on pixels in 0 … 1 or on standardised vectors",
    )
    epochs: int = flag(default=100, min=1, help="epochs at the most")
    patience: int = flag(default=4, min=1, help="stop after this many epochs without a better held-out loss")
    held_out: float = flag(
        default=0.2, min=0.01, max=0.9, help="share of the labels kept for judging the fit"
    )
    frame_stride: int = flag(
        default=10,
        min=1,
        help="fit on every n-th step of a clip, each time from another first one; 1 takes ten times as long",
    )
    mask: list[str] = flag(
        default=[],
        nargs=1,
        metavar="X,Y,W,H",
        help=f"hide this rectangle of every frame from the reward model, or one of {', '.join(PRESETS)}; repeatable",
    )
    num_actions: int | None = flag(
        default=None,
        min=1,
        help="size of the action set, for segments of the original format that do not say it",
    )
    only: list[str] = flag(
        default=[],
        nargs=1,
        metavar="LABELLER",
        help="take this person's or teacher's labels only; repeatable",
    )
    weight: list[str] = flag(
        default=[],
        nargs=1,
        metavar="LABELLER=W",
        help="let this labeller's labels count W times, or not at all (0); repeatable",
    )
    watch: bool = flag(
        default=False,
        help="go on for ever: refit, from the weights of the model before, whenever there are labels enough",
    )
    refit_every: int = flag(default=50, min=1, help="new labels that --watch refits at")
    refit_epochs: int = flag(
        default=10, min=1, help="epochs of a refit at the most; of the first fit: --epochs"
    )
    audit: Path | None = flag(
        default=None,
        metavar="POLICY",
        help="play this policy and show where the reward model is out of its data (needs --ensemble)",
    )
    audit_env: str | None = flag(
        default=None, help="environment that --audit plays; by default that of the segments"
    )
    audit_games: int = flag(default=4, min=1, help="environments that --audit plays")
    judge: Path | None = flag(
        default=None, metavar="REWARD", help="audit this reward model instead of fitting one"
    )
    memory_mb: int = flag(default=4096, min=0, help="memory for decoded segments; the rest is read as needed")
    seed: int = flag(default=0, min=0, help="seed of the split, the weights and the batches")
    resume: Path | None = flag(
        default=None,
        metavar="RUN",
        help="go on with the fit of this folder under runs/, on the labels that it began with; beside it only "
        "--checkpoint-minutes, --dev and --memory-mb may be given",
    )
    checkpoint_minutes: float = flag(
        default=5.0,
        min=0,
        help="minutes between states that --resume goes on from",
    )
    runs: Path = flag(default=Path("runs"), help="folder of the TensorBoard curves")
    bf16: bool | None = flag(default=None, help="bf16 arithmetic; by default where the machine has it")

    def __post_init__(self) -> None:
        if not self.dbs:
            raise UserError("expected at least one DB, a folder of segments with a labels.json")
        if len({db.resolve() for db in self.dbs}) < len(self.dbs):
            raise UserError(f"expected each DB once, got {' '.join(map(str, self.dbs))}")
        for text in self.mask:
            read_mask(text)
        self.weights()
        if self.watch and (self.audit or self.resume):
            raise UserError(
                "--watch goes on with the model that is there by itself: leave --resume and --audit out"
            )
        if self.judge is not None and self.audit is None:
            raise UserError(
                "--judge expected --audit POLICY beside it, the policy whose play is to be judged"
            )

    def weights(self) -> dict[str, float]:
        """`--weight` as numbers by labeller.

        Raises:
          UserError: one is not LABELLER=W with W at least 0.
        """
        weights = {}
        for text in self.weight:
            name, _, number = text.rpartition("=")
            try:
                weights[name] = float(number)
            except ValueError:
                weights[name] = -1.0
            if not name or not 0 <= weights[name] < float("inf"):
                raise UserError(f"--weight {text}: expected LABELLER=W with W a number of at least 0")
        return weights
