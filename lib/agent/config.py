"""The flags of 01_a2c.py. Nothing heavy is imported here, so that --help answers at once."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import UserError, flag

LEARNING_RATE = 7e-4
FINETUNE_DIVISOR = 10


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    name: str = flag("-n", help="name of the run: in the folder of its TensorBoard curves")
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")
    env: str = flag("-e", default="SeaquestNoFrameskip-v4", help="environment: any Atari id or Gymnasium id")
    save: Path | None = flag(
        default=None, help="folder for checkpoints: the best by mean score and the latest"
    )
    db_path: Path | None = flag(default=None, help="folder in which 50-step segments are recorded")
    reward: Path | None = flag("-r", default=None, help="reward model that replaces the game's score")
    pessimism: float = flag(
        default=0.0,
        min=0,
        metavar="K",
        help="pay K standard deviations less where the members of the reward model disagree",
    )
    model: Path | None = flag("-m", default=None, help="policy checkpoint to start from")
    finetune: bool = flag(
        default=False, help="start gently from --model: convolutions frozen, learning rate ÷ 10"
    )

    steps: int = flag(default=12_000_000, min=1, help="steps to train for, all environments together")
    num_envs: int = flag(default=64, min=1, help="environments played at once")
    rollout: int = flag(
        default=5, min=1, help="steps of each environment per update (the n of n-step returns)"
    )
    seed: int = flag(default=0, min=0, help="seed of the games, the weights and the actions")
    gamma: float = flag(default=0.99, min=0, max=1, help="discount")
    lr: float | None = flag(default=None, min=0, help="learning rate; 7e-4, or a tenth of it with --finetune")
    lr_decay_steps: int = flag(
        default=80_000_000, min=1, help="steps over which the rate falls linearly to 0"
    )
    entropy: float = flag(default=0.01, min=0, help="weight of the entropy bonus")
    value_coef: float = flag(default=1.0, min=0, help="weight of the value loss")
    grad_clip: float = flag(default=0.1, min=0, help="largest norm of a gradient")
    clip_score: bool = flag(default=True, help="train on the sign of the score, as is usual on Atari")
    freeze_convs: bool | None = flag(
        default=None, help="keep the convolutions as they are; on with --finetune"
    )

    record_prob: float = flag(default=0.0002, min=0, max=1, help="chance per step that a recording begins")
    db_max_mb: float | None = flag(
        default=None, min=0, help="stop recording when the segments take this many MB"
    )

    eval_every: int = flag(default=250_000, min=1, help="steps between evaluations")
    eval_games: int = flag(default=10, min=1, help="full games per evaluation")
    runs: Path = flag(default=Path("runs"), help="folder of the TensorBoard curves")
    env_threads: int = flag(default=0, min=0, help="emulator threads; 0: one per core")
    bf16: bool | None = flag(default=None, help="bf16 arithmetic; by default where the machine has it")

    def __post_init__(self) -> None:
        if self.finetune and self.model is None:
            raise UserError("--finetune expects a policy to start from: add -m FILE")
        if self.pessimism and self.reward is None:
            raise UserError("--pessimism expects a reward model of several members: add -r FILE")

    @property
    def learning_rate(self) -> float:
        if self.lr is not None:
            return self.lr
        return LEARNING_RATE / FINETUNE_DIVISOR if self.finetune else LEARNING_RATE

    @property
    def convs_frozen(self) -> bool:
        return self.finetune if self.freeze_convs is None else self.freeze_convs
