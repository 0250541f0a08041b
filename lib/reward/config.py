"""The flags of 03_reward_train.py. Imports nothing heavy, so that --help is instant."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, as_flag, check, flag
from lib.reward.masks import PRESETS, read_mask

MAY_DIFFER = ("checkpoint_minutes", "dev", "memory_mb")
"""Flags that may be given beside --resume."""


@dataclass(frozen=True)
class FitConfig:
    """One fit of a reward model."""

    dbs: list[Path] = flag(
        group="most used",
        positional=True,
        metavar="DB",
        help="folders of recorded clips, each with a labels.json",
    )
    name: str = flag("-n", metavar="NAME", help="name of the model, written to OUT/reward-NAME.dat")
    out: Path = flag("-o", metavar="OUT", help="folder for the model and its report")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of the network: cpu, cuda, cuda:1")
    ensemble: int = flag(
        default=1, min=1, help="members to fit, each from its own weights; the reward is their mean"
    )
    error_rate: float = flag(
        default=0.1,
        min=0,
        max=0.99,
        help="share of answers assumed random, half of them wrong: twice a simulated teacher's --error-rate",
    )
    frame_stride: int = flag(default=10, min=1, help="fit on every N-th step of a clip, starting at random")
    watch: bool = flag(
        default=False, help="run until stopped: refit whenever there are --refit-every new labels"
    )
    audit: Path | None = flag(
        default=None,
        metavar="POLICY",
        help="play this policy and report where the members of --ensemble disagree about it",
    )
    resume: Path | None = flag(
        default=None,
        metavar="RUN",
        help=f"continue the fit of this folder on its labels; only {', '.join(map(as_flag, MAY_DIFFER))} may change",
    )

    input: str | None = flag(
        group="task and data",
        default=None,
        choices=("frame", "observation"),
        help="what the model sees: the colour frame and the action, or what the policy sees: four grey "
        "84×84 frames alone, or a vector and the action (default: frame; observation if the DBs hold "
        "vectors)",
    )
    features: Path | None = flag(
        default=None,
        metavar="POLICY",
        help="show the model the frozen hidden units of this policy, which sees pictures, and the action; takes "
        "fewer labels and seconds",
    )
    policy: Path | None = flag(
        default=None,
        metavar="FILE",
        help="fit this policy directly (DPO), and write it to OUT/NAME.dat, and the reward that it implies to "
        "OUT/reward-NAME.dat; see --beta, --steps",
    )
    all_layers: bool = flag(
        default=False,
        help="fit the convolutions of --policy, too, which may learn to see what the score did not need; an epoch takes eight times as long",
    )
    keep: Path | None = flag(
        default=None,
        metavar="DB",
        help="clips of ordinary play, recorded at random, in which --policy should go on as before; see --keep-weight",
    )
    keep_where: str | None = flag(
        default=None,
        metavar="PROBE=MIN:MAX",
        help="only the steps of --keep in which this probe of the environment is between these values; leave out those that the "
        "comparisons are about, such as low air: oxygen=0.5:1",
    )
    steps: int | None = flag(
        default=None, min=1, metavar="N", help="fit on the first N steps of each clip (default: all)"
    )
    mask: list[str] = flag(
        default=[],
        nargs=1,
        metavar="X,Y,W,H",
        help=f"hide this rectangle of every frame from the model, or one of {', '.join(PRESETS)}; repeatable",
    )
    half_frames: bool | None = flag(
        default=None,
        help="halve the height and width of frames, for a quarter of the work (default: where 80 pixels are left of both)",
    )
    only: list[str] = flag(
        default=[], nargs=1, metavar="LABELLER", help="use only this person's or teacher's labels; repeatable"
    )
    survived: bool = flag(
        default=False,
        help="use only labels on pairs in which no life is lost; the finetune's --reward-offset then says what one costs",
    )
    weight: list[str] = flag(
        default=[],
        nargs=1,
        metavar="LABELLER=W",
        help="count this labeller's labels W times, 0: never; repeatable",
    )
    held_out: float = flag(
        default=0.1, min=0.01, max=0.9, help="share of the labels held out to judge the fit"
    )
    num_actions: int | None = flag(
        default=None, min=1, help="number of actions, for clips of the original format"
    )
    seed: int = flag(default=0, min=0, help="seed of the split, the weights and the batches")

    lr: float = flag(
        group="algorithm", default=1e-3, min=0, help="Adam's learning rate; the original: 0.0001"
    )
    batch_size: int = flag(default=16, min=1, help="pairs per update; the original: 64")
    epochs: int = flag(default=100, min=1, help="largest number of epochs; with --policy the exact number")
    patience: int = flag(
        default=4,
        min=1,
        help="stop after N epochs without a lower held-out loss; those of a new network for clips count after 60 updates",
    )
    l2: float = flag(
        default=1e-4, min=0, help="initial ℓ2 penalty; adapts to keep held-out ÷ training loss in 1.1 … 1.5"
    )
    dropout: float = flag(
        default=0.0, min=0, max=0.95, help="dropout in the hidden layers; the original: 0.5"
    )
    shift: int = flag(
        default=0, min=0, metavar="PIXELS", help="augment: shift frames at random by up to PIXELS"
    )
    noise: float = flag(
        default=0.0, min=0, metavar="SD", help="augment: noise on pixels in 0 … 1, or on standardised vectors"
    )
    beta: float = flag(
        default=0.01,
        min=1e-6,
        help="β of DPO: price of each nat that --policy moves away from where it began; a smaller one moves it further",
    )
    nll_weight: float = flag(
        default=0.0,
        min=0,
        help="with --policy: weight of −β Σ log π of the better clip beside DPO's loss, which only compares it with the worse one",
    )
    keep_weight: float = flag(
        default=0.3,
        min=0,
        help="price of acting otherwise than before in a step of --keep, beside the loss of a pair",
    )
    loss: str = flag(
        default="bradley-terry",
        choices=("bradley-terry", "original"),
        help="loss; original: two separate cross-entropies, as in the original experiment",
    )

    model: Path | None = flag(
        "-m",
        group="answers of a language model",
        default=None,
        metavar="FOLDER",
        help="language model whose upper layers are fitted (default: the one that gave the answers)",
    )
    cut: int | None = flag(
        default=None,
        metavar="N",
        help="freeze the first N layers, or all but the last N of −N (default: two thirds)",
    )
    upper: int = flag(default=0, min=0, metavar="N", help="fit up to N layers above --cut; 0: the head alone")
    pooling: str = flag(
        default="mean", choices=("last", "mean"), help="tokens of an answer that the head sees"
    )
    length_control: bool = flag(
        default=False, help="subtract the part of the reward that an answer's length explains"
    )

    refit_every: int = flag(
        group="labels while it trains", default=50, min=1, help="new labels per refit of --watch"
    )
    refit_epochs: int = flag(
        default=10, min=1, help="largest number of epochs of a refit; the first fit has --epochs"
    )
    fresh_weights: bool = flag(
        default=False,
        help="begin each refit of --watch from new weights, with --epochs, instead of the last model's "
        "weights",
    )

    audit_env: str | None = flag(
        group="evaluation",
        default=None,
        metavar="ID",
        help="environment of --audit (default: that of the clips)",
    )
    audit_games: int = flag(default=4, min=1, help="environments that --audit plays")
    audit_reward: Path | None = flag(
        default=None, metavar="REWARD", help="audit this reward model, without fitting one", formerly="judge"
    )

    checkpoint_minutes: float = flag(
        group="machine",
        default=5.0,
        min=0,
        help="minutes between saved states for --resume, at least; a state is saved only after an epoch",
    )
    memory_mb: int = flag(
        default=4096, min=0, metavar="MB", help="keep this much of the clips decoded in memory"
    )
    bf16: bool | None = flag(default=None, help="compute in bf16 (default: if the device is fast at it)")
    runs: Path = flag(
        default=Path("runs"), metavar="DIR", help="folder of run folders, each with TensorBoard curves"
    )

    def __post_init__(self) -> None:
        # A script of the user's own may give text, as the wrappers take it, and values that no flag takes.
        object.__setattr__(self, "dbs", [Path(db) for db in self.dbs])
        object.__setattr__(self, "out", Path(self.out))
        check(self)
        if not self.dbs:
            raise UserError("expected at least one DB, a folder of clips with a labels.json")
        if len({db.resolve() for db in self.dbs}) < len(self.dbs):
            raise UserError(f"expected each DB once, got {' '.join(map(str, self.dbs))}")
        for text in self.mask:
            read_mask(text)
        self.weights()
        if self.watch and (self.audit or self.resume):
            raise UserError(
                "--watch continues from the existing model by itself: leave out --resume and --audit"
            )
        for name, needed, expected in (
            ("fresh_weights", self.watch, "refits: add --watch"),
            ("all_layers", self.policy, "--policy POLICY, whose layers it fits"),
            ("keep", self.policy, "--policy POLICY, which goes on there as before"),
            ("nll_weight", self.policy, "--policy POLICY, which is to do what the better clips show"),
            ("keep_where", self.keep, "--keep DB, of whose steps it chooses some"),
            ("audit_reward", self.audit, "--audit POLICY, the policy whose play is audited"),
            ("audit_env", self.audit, "--audit POLICY, the policy that plays there"),
        ):
            if getattr(self, name) and not needed:
                raise UserError(f"{as_flag(name)} expects {expected}")
        looks = ("features", "half_frames", "mask", "shift", "noise", "dropout")
        for name in (*looks, "watch", "audit", "model"):
            if self.policy is not None and getattr(self, name):
                raise UserError(f"--policy fits no other reward model: leave out {as_flag(name)}")
        if self.features is not None and self.input == "frame":
            raise UserError("--features shows the model hidden units, not frames: leave out --input frame")
        if self.policy is not None and self.ensemble > 1:
            raise UserError(f"--policy fits one policy: leave out --ensemble {self.ensemble}")
        self.kept_range()

    @property
    def reward_path(self) -> Path:
        """The file of the reward model that is fitted to clips, or that the policy of `--policy` implies."""
        return self.out / f"reward-{self.name}.dat"

    def kept_range(self) -> tuple[str, float, float] | None:
        """`--keep-where`: a probe's name, and the smallest and largest value of it.

        Raises:
          UserError: it is not PROBE=MIN:MAX with MIN at most MAX.
        """
        if self.keep_where is None:
            return None
        probe, _, ends = self.keep_where.partition("=")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError:
            low, high = 1.0, 0.0
        if not probe or not low <= high:
            raise UserError(f"--keep-where {self.keep_where}: expected PROBE=MIN:MAX, such as oxygen=0.5:1")
        return probe, low, high

    def weights(self) -> dict[str, float]:
        """`--weight` as numbers by labeller.

        Raises:
          UserError: One is not LABELLER=W with W at least 0.
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
