"""The flags of 01_a2c.py. Nothing heavy is imported here, so that --help answers at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.cli import UserError, flag
from lib.envs.ids import is_atari_id
from lib.preferences.labels import TEACHER_NAMES
from lib.preferences.schedule import SCHEDULES

FINETUNE_DIVISOR = 10

ALGORITHMS: dict[str, dict[str, Any]] = {
    # The original's. One pass over all steps at once: the ratio is 1 throughout, there is nothing to clip.
    "a2c": {
        "lr": 7e-4,
        "rollout": 5,
        "gae_lambda": 1.0,
        "epochs": 1,
        "minibatches": 1,
        "clip": 0.0,
        "value_clip": 0.0,
        "normalise_advantages": False,
        "target_kl": 0.0,
        "value_coef": 1.0,
        "grad_clip": 0.1,
    },
    # Those of Stable-Baselines3's zoo for Atari with rollouts for 64 environments instead of 8, and the clip of the
    # paper. Values of a learned reward can be large, so they may move freely (Andrychowicz et al. 2021, 2006.05990).
    "ppo": {
        "lr": 2.5e-4,
        "rollout": 32,
        "gae_lambda": 0.95,
        "epochs": 4,
        "minibatches": 4,
        "clip": 0.2,
        "value_clip": 0.0,
        "normalise_advantages": True,
        "target_kl": 0.0,
        "value_coef": 0.5,
        "grad_clip": 0.5,
    },
}
"""What the flags that depend on --algo are where they are not given."""

MAY_DIFFER = ("steps", "checkpoint_minutes", "dev", "env_threads", "threads", "labels", "wait_for_labels")
"""What may be given beside --resume."""

_PASSES = ("epochs", "minibatches", "clip", "value_clip", "target_kl")  # mean nothing with a single pass


def _by_algorithm(help: str, name: str) -> str:
    """The help of a flag whose default depends on --algo."""
    a2c, ppo = (ALGORITHMS[algo][name] for algo in ("a2c", "ppo"))
    return f"{help} (default: {a2c})" if a2c == ppo else f"{help} (default: {a2c}, with ppo {ppo})"


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Flags that are None by default are filled in when it is made: by --algo and --finetune."""

    name: str = flag("-n", help="name of the run: in the folder of its TensorBoard curves")
    dev: str = flag(default="cpu", help="device of the networks: cpu, cuda, cuda:1")
    env: str = flag("-e", default="SeaquestNoFrameskip-v4", help="environment: any Atari id or Gymnasium id")
    save: Path | None = flag(
        default=None, help="folder for checkpoints: the best by each criterion and the latest"
    )
    db_path: Path | None = flag(default=None, help="folder in which 50-step segments are recorded")
    reward: Path | None = flag("-r", default=None, help="reward model that replaces the game's score")
    pessimism: float = flag(
        default=0.0,
        min=0,
        metavar="K",
        help="pay K standard deviations less where the members of the reward model disagree",
    )
    watch_reward: bool = flag(
        default=False,
        help="take each new model that 03_reward_train.py --watch puts in place of --reward, and wait for the first",
    )
    model: Path | None = flag("-m", default=None, help="policy checkpoint to start from")
    finetune: bool = flag(
        default=False,
        help="start gently from --model: convolutions (or normalisation) frozen, learning rate ÷ 10",
    )

    score_weight: float = flag(
        default=0.0,
        min=0,
        metavar="W",
        help="pay W times the game's score on top of the learned reward, to teach something beside the game",
    )
    kl: float = flag(
        default=0.0,
        min=0,
        metavar="B",
        help="KL penalty β, the leash: each step pays β (log π − log π_ref) less, π_ref being the policy of --model",
    )
    kl_target: float = flag(
        default=0.0,
        min=0,
        help="adapt --kl so that the KL to the policy of --model stays near this; 0: do not",
    )
    kl_horizon: int = flag(
        default=50_000, min=1, help="steps in which --kl-target changes --kl by a fifth at most"
    )
    critic_warmup: int = flag(
        default=0,
        min=0,
        help="updates of the value head alone before the policy moves; for a new reward, so also after each that "
        "--watch-reward takes",
    )
    freeze_convs: bool = flag(
        default=None,
        help="keep the convolutions, or a vector's normalisation, as they are; on with --finetune",
    )

    algo: str = flag(
        default="a2c", choices=tuple(ALGORITHMS), help="algorithm; sets the defaults named below"
    )
    steps: int = flag(default=12_000_000, min=1, help="steps to train for, all environments together")
    num_envs: int = flag(default=64, min=1, help="environments played at once")
    rollout: int = flag(
        default=None, min=1, help=_by_algorithm("steps of each environment per update", "rollout")
    )
    seed: int = flag(default=0, min=0, help="seed of the games, the weights and the actions")
    gamma: float = flag(default=0.99, min=0, max=1, help="discount")
    gae_lambda: float = flag(
        default=None,
        min=0,
        max=1,
        help=_by_algorithm("λ of the advantages; at 1 they are n-step, n the rollout", "gae_lambda"),
    )
    normalise_advantages: bool = flag(
        default=None, help="advantages of mean 0 and variance 1 in each rollout; on with ppo"
    )
    lr: float = flag(
        default=None, min=0, help=_by_algorithm("learning rate; with --finetune the default is a tenth", "lr")
    )
    lr_decay_steps: int = flag(
        default=80_000_000, min=1, help="steps over which the rate falls linearly to 0"
    )
    epochs: int = flag(default=None, min=1, help=_by_algorithm("passes over each rollout", "epochs"))
    minibatches: int = flag(default=None, min=1, help=_by_algorithm("minibatches of a pass", "minibatches"))
    clip: float = flag(
        default=None,
        min=0,
        max=1,
        help=_by_algorithm("clip range ε of the ratio of new to old policy; 0: none", "clip"),
    )
    value_clip: float = flag(
        default=None,
        min=0,
        help=_by_algorithm("clip range of the value; 0: none", "value_clip"),
    )
    target_kl: float = flag(
        default=None,
        min=0,
        help=_by_algorithm("end an update at this KL of old to new policy; 0: never", "target_kl"),
    )
    entropy: float = flag(default=0.01, min=0, help="weight of the entropy bonus")
    value_coef: float = flag(
        default=None, min=0, help=_by_algorithm("weight of the value loss", "value_coef")
    )
    grad_clip: float = flag(
        default=None, min=0, help=_by_algorithm("largest norm of the whole gradient", "grad_clip")
    )
    clip_score: bool = flag(
        default=None, help="train on the sign of the score, as is usual on Atari; on with Atari's games alone"
    )

    hold_prob: float = flag(
        default=0.0,
        min=0,
        max=1,
        metavar="P",
        help="exploration: chance per step that an environment holds one random action for some steps, which are "
        "recorded but not learned from (arXiv 2006.01782)",
    )
    hold_shortest: int = flag(default=8, min=1, metavar="N", help="steps that a held action lasts at least")
    hold_longest: int = flag(default=30, min=1, metavar="N", help="steps that a held action lasts at most")

    record_prob: float = flag(default=0.0002, min=0, max=1, help="chance per step that a recording begins")
    db_max_mb: float | None = flag(
        default=None, min=0, help="stop recording when the segments take this many MB"
    )
    db_drop_oldest: bool = flag(
        default=False,
        help="at --db-max-mb make room instead: drop the oldest segments, but none that a label names",
    )

    labels: int = flag(
        default=5500, min=0, help="with --watch-reward: labels to be given in all by the end of --steps"
    )
    opening_labels: int = flag(
        default=500,
        min=0,
        help="of these, how many are due before the first step, on clips of the first policy",
    )
    label_schedule: str = flag(
        default="constant",
        choices=SCHEDULES,
        help="how the others are spread over the steps: evenly, or at the paper's rate, h ÷ (steps + h)",
    )
    label_halving: int = flag(
        default=5_000_000, min=1, help="h: steps after which the paper's rate has halved"
    )
    wait_for_labels: int | None = flag(
        default=None,
        min=0,
        metavar="SLACK",
        help="wait between two updates while more than so many labels are due; without, training goes on",
    )

    eval_every: int = flag(default=250_000, min=1, help="steps between evaluations")
    eval_games: int = flag(default=10, min=1, help="full games per evaluation")
    teacher: str | None = flag(
        default=None,
        choices=TEACHER_NAMES,
        help="simulated teacher who compares fresh clips of a finetune with each other and with those of its start",
    )
    drift_patience: int = flag(
        default=3,
        min=1,
        metavar="N",
        help="say so when for N evaluations the learned return is up, score and agreement on fresh clips are down",
    )
    stop_on_drift: bool = flag(default=False, help="end the run when --drift-patience is over")
    resume: Path | None = flag(
        default=None,
        metavar="RUN",
        help="go on with the run of this folder under runs/; beside it only --steps, --checkpoint-minutes, --dev, "
        "--env-threads, --threads, --labels and --wait-for-labels may be given",
    )
    checkpoint_minutes: float = flag(
        default=5.0, min=0, help="minutes between states that --resume goes on from"
    )
    runs: Path = flag(default=Path("runs"), help="folder of the TensorBoard curves")
    env_threads: int = flag(default=0, min=0, help="emulator threads; 0: one per core")
    threads: int = flag(default=0, min=0, help="threads of the networks on a CPU; 0: one per core")
    bf16: bool | None = flag(default=None, help="bf16 arithmetic; by default where the machine has it")

    def __post_init__(self) -> None:
        defaults = ALGORITHMS[self.algo]
        given = [name for name in defaults if getattr(self, name) is not None]
        divisor = FINETUNE_DIVISOR if self.finetune else 1
        for name, value in (
            defaults
            | {
                "lr": defaults["lr"] / divisor,
                "freeze_convs": self.finetune,
                "clip_score": is_atari_id(self.env),
            }
        ).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # frozen from here on

        if self.finetune and self.model is None:
            raise UserError("--finetune expects a policy to start from: add -m FILE")
        if self.pessimism and self.reward is None:
            raise UserError("--pessimism expects a reward model of several members: add -r FILE")
        if self.score_weight and self.reward is None:
            raise UserError("--score-weight expects a learned reward to add the score to: add -r FILE")
        if self.watch_reward and self.reward is None:
            raise UserError("--watch-reward expects the file that reward models come in: add -r FILE")
        if self.wait_for_labels is not None and not (self.watch_reward and self.db_path):
            raise UserError(
                "--wait-for-labels expects --watch-reward and a DB that is labelled: add --db-path DB"
            )
        if self.db_drop_oldest and self.db_max_mb is None:
            raise UserError("--db-drop-oldest expects a limit: add --db-max-mb N")
        if self.kl and self.model is None:
            raise UserError("--kl expects a policy to stay near: add -m FILE")
        if self.kl_target and not self.kl:
            raise UserError("--kl-target expects a price to adapt: add --kl 0.02, say")
        if self.teacher is not None and not self.finetunes:
            raise UserError("--teacher expects a finetune to watch: add -r FILE, or -m FILE with --finetune")
        if self.stop_on_drift and self.reward is None:
            raise UserError("--stop-on-drift expects a learned reward that may be exploited: add -r FILE")
        if self.hold_longest < self.hold_shortest:
            raise UserError(
                f"--hold-longest {self.hold_longest}: expected at least --hold-shortest, {self.hold_shortest}"
            )
        batch = self.rollout * self.num_envs
        if self.kl_target and self.kl_horizon < batch:
            raise UserError(
                f"--kl-horizon {self.kl_horizon}: expected at least the {batch} steps of an update "
                f"(--rollout {self.rollout} × --num-envs {self.num_envs})"
            )
        useless = [name for name in _PASSES if name in given and getattr(self, name) != defaults[name]]
        if self.algo == "a2c" and useless:
            flag_name = useless[0].replace("_", "-")
            raise UserError(
                f"--{flag_name} expects an algorithm of several passes, a2c makes one: add --algo ppo"
            )
        if self.minibatches > batch:
            raise UserError(
                f"--minibatches {self.minibatches}: expected at most the {batch} steps of an update "
                f"(--rollout {self.rollout} × --num-envs {self.num_envs})"
            )

    @property
    def one_pass(self) -> bool:
        """Whether an update looks at its rollout once, as A2C does."""
        return self.epochs == 1 and self.minibatches == 1

    @property
    def finetunes(self) -> bool:
        """Whether what the policy becomes is compared with what it was: on a learned reward, or near a reference."""
        return self.reward is not None or self.finetune or self.kl > 0
