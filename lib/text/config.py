"""The flags of 01_text.py. Imports nothing heavy, so that --help is instant."""

from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from lib.cli import UserError, as_flag, flag

MAY_DIFFER = ("updates", "checkpoint_minutes", "dev")
"""Flags that may be given beside --resume."""

_GROUPS = {"ppo": 1, "reinforce": 1, "rloo": 4, "grpo": 4}
"""The default of --answers for each algorithm that learns from a reward model."""

ALGORITHMS = (*_GROUPS, "dpo")
"""Of --algo."""

_EITHER = {"model", "algo", "db_path", "chat", "seed", "dev", "bf16"}
_USED = {
    None: _EITHER | {"prompts", "answers", "tokens", "temperature", "batch_size"},
    "dpo": _EITHER | {"name", "save", "runs", "resume", "unfrozen", "lr", "epochs", "kl"},
}
"""The flags that have an effect without --algo, and with dpo."""

_OF_CRITICS = {"value_clip_range", "value_coef", "gae_lambda", "critic_warmup"}
"""Flags of the critic, which ppo alone has."""


@dataclass(frozen=True)
class TextConfig:
    """Answers of a language model to prompts: into a DB or, with --algo, to finetune it on a learned reward."""

    model: Path = flag(
        "-m",
        group="most used",
        metavar="FOLDER",
        help="language model, such as models/smollm2 of make model, or a checkpoint of --save",
    )
    prompts: Path = flag(
        default=None,
        metavar="FILE",
        help='one prompt a line, or .jsonl with a "prompt" in each line: a text, or a list of messages',
    )
    db_path: Path | None = flag(
        default=None,
        metavar="DB",
        help="folder for the answers, created if missing; --algo dpo learns from it",
    )
    answers: int = flag(
        default=None,
        min=1,
        help="answers to each prompt, including those of this model and seed already in the DB (default: "
        f"2; with --algo {', '.join(f'{algo} {answers}' for algo, answers in _GROUPS.items())})",
    )
    tokens: int = flag(default=64, min=1, max=8192, help="longest answer, in tokens")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of the model: cpu, cuda, cuda:1")

    temperature: float = flag(
        group="sampling", default=1.0, min=0.01, max=100, help="divides the logits; below 1 answers vary less"
    )
    chat: bool | None = flag(
        default=None, help="put prompts into the model's chat template (default: if it has one)"
    )
    batch_size: int = flag(default=32, min=1, help="answers sampled at once")
    seed: int = flag(default=0, min=0, help="seed of the answers")
    bf16: bool | None = flag(default=None, help="compute in bf16 (default: if the device is fast at it)")

    algo: str | None = flag(
        group="finetuning",
        default=None,
        choices=ALGORITHMS,
        help="finetune the model with this algorithm instead of filling a DB; needs -n and -r (dpo learns "
        "from the labels of --db-path and needs -n and --save)",
    )
    name: str | None = flag(
        "-n", default=None, metavar="NAME", help="name of the run, in its folder under --runs"
    )
    reward: Path | None = flag(
        "-r", default=None, metavar="FILE", help="reward model to train on, from 03_reward_train.py"
    )
    watch_reward: bool = flag(
        default=False,
        help="reload --reward whenever 03_reward_train.py --watch replaces it; wait for the first",
    )
    save: Path | None = flag(
        default=None, metavar="DIR", help="write checkpoints (small folders) here: the best and the latest"
    )
    updates: int = flag(default=50, min=1, help="updates to train for")
    rollout: int = flag(default=64, min=1, help="answers per update")
    unfrozen: str = flag(
        default=None,
        metavar="N",
        help='upper layers to train, with the last norm; "all" for all of them; embedding and head stay (default: 4)',
    )
    lora: int = flag(
        default=0,
        min=0,
        metavar="R",
        help="train adapters of rank R on the linear layers in place of --unfrozen layers (LoRA); try --lr 1e-3",
    )
    lr: float = flag(default=1e-4, min=0, help="learning rate; it falls linearly to 0 over --updates")
    epochs: int = flag(default=2, min=1, help="passes over the answers of each update")
    minibatches: int = flag(default=2, min=1, help="minibatches per pass")
    micro_batch: int = flag(
        default=16,
        min=1,
        help="answers learned from at once; fewer need less memory but give the same result",
    )
    clip_range: float = flag(default=0.2, min=0, max=1, help="PPO's ε for the ratio; 0: off")
    value_clip_range: float = flag(default=0.2, min=0, help="the same for values; 0: off")
    value_coef: float = flag(default=0.5, min=0, help="weight of the value loss")
    grad_clip: float = flag(default=1.0, min=0, help="clip the gradient to this norm; 0: off")
    gae_lambda: float = flag(default=0.95, min=0, max=1, help="ppo: λ of GAE")
    kl: float = flag(
        default=0.05,
        min=0,
        metavar="B",
        help="KL penalty β: subtract β (log π − log π_ref) from the reward of each token; π_ref is the model of -m",
    )
    kl_estimator: str = flag(
        default="k1",
        choices=("k1", "k2", "k3"),
        help="estimator of the KL at each token; only k1 is unbiased here",
    )
    kl_target: float = flag(
        default=0.0,
        min=0,
        help="adapt --kl to hold the KL of an answer near this many nats; 0: keep --kl fixed",
    )
    kl_horizon: int = flag(
        default=1000, min=1, help="answers in which --kl-target changes --kl by at most a fifth"
    )
    score_clip: float = flag(
        default=5.0, min=0, help="clip learned rewards to ± this many standard deviations; 0: off"
    )
    unfinished_score: float | None = flag(
        default=None,
        help="fixed reward, within ± --score-clip, of answers that --tokens cuts off (default: the reward model's)",
    )
    critic_warmup: int = flag(default=0, min=0, help="ppo: updates of the critic alone at the start")

    eval_prompts: Path | None = flag(
        group="evaluation",
        default=None,
        metavar="FILE",
        help="held-out prompts to evaluate on (default: the last tenth of --prompts, then left out of "
        "training)",
    )
    eval_updates: int = flag(
        default=10, min=1, help="updates between evaluations; the first evaluation comes before training"
    )
    eval_answers: int = flag(default=1, min=1, help="answers to each held-out prompt")
    eval_best_of: int = flag(
        default=4,
        min=1,
        metavar="N",
        help="compare with the best of N answers of the model of -m, as the reward model chooses; 1: do not",
    )
    judge: list[str] = flag(
        default=[],
        metavar="NAME",
        help="value the answers of evaluations independently of the reward model: teachers and judges of "
        "docs/text.md, or module:function of an answer; the first one decides which checkpoint is best",
    )
    drift_patience: int = flag(
        default=3, min=1, help="warn after N evaluations with a higher learned reward and a lower --judge"
    )
    stop_on_drift: bool = flag(default=False, help="end the run at the warning of --drift-patience")

    resume: Path | None = flag(
        group="machine",
        default=None,
        metavar="RUN",
        help=f"continue the run of this folder; only {', '.join(map(as_flag, MAY_DIFFER))} may change",
    )
    checkpoint_minutes: float = flag(default=5.0, min=0, help="minutes between saved states for --resume")
    runs: Path = flag(
        default=Path("runs"), metavar="DIR", help="folder of run folders, each with TensorBoard curves"
    )
    merge: Path | None = flag(
        default=None,
        metavar="FOLDER",
        help="write the checkpoint of -m as a whole model, and do nothing else",
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            default = [] if field.default is MISSING else field.default
            if not self._uses(field.name) and getattr(self, field.name) != default:
                mode = "without --algo" if self.algo is None else f"with --algo {self.algo}"
                if self.merge is not None:
                    mode = "with --merge"
                raise UserError(f"{as_flag(field.name)} has no effect {mode}: leave it out")
        if self.merge is not None:
            return
        if getattr(self, "answers", None) is None and self._uses("answers"):
            object.__setattr__(self, "answers", _GROUPS.get(self.algo or "", 2))  # frozen from here on
        needed = {
            None: {"prompts": "FILE", "db_path": "DB"},
            "dpo": {"name": "NAME", "db_path": "DB", "save": "DIR"},
        }
        for name, value in needed.get(
            self.algo, {"name": "NAME", "reward": "FILE", "prompts": "FILE"}
        ).items():
            if getattr(self, name, None) is None:
                raise UserError(
                    f"expected {as_flag(name)} {value}, or --algo to finetune, got neither; see --help"
                    if self.algo is None
                    else f"--algo {self.algo} expects {as_flag(name)}, got none; see --help"
                )
        if self.algo is None:
            return
        if self.lora and getattr(self, "unfrozen", None) is not None:
            raise UserError("--lora trains adapters in place of layers: leave out --unfrozen")
        if not self.lora:
            if getattr(self, "unfrozen", None) is None:
                object.__setattr__(self, "unfrozen", "4")
            if self.unfrozen != "all" and not (self.unfrozen.isdecimal() and int(self.unfrozen) > 0):
                raise UserError(f'--unfrozen {self.unfrozen}: expected a number of layers, or "all"')
        if self.algo == "dpo":
            if self.resume is not None:
                raise UserError("--resume: a fit of --algo dpo cannot be resumed; begin a new one")
            if not self.kl:
                raise UserError("--kl 0: --algo dpo expects β above 0, or nothing is learned; try --kl 0.1")
            return
        if self.stop_on_drift and not self.judge and self.resume is None:
            raise UserError(
                "--stop-on-drift expects a judge who falls while the learned reward rises: add --judge NAME"
            )
        if self.answers == 1 and _GROUPS[self.algo] > 1:
            raise UserError(
                f"--algo {self.algo} compares answers to one prompt: expected --answers 2 or more"
            )
        if self.rollout % self.answers:
            raise UserError(f"--rollout {self.rollout}: expected a multiple of --answers, {self.answers}")
        if self.minibatches > self.rollout:
            raise UserError(f"--minibatches {self.minibatches}: expected at most --rollout, {self.rollout}")
        if self.critic_warmup >= self.updates:
            raise UserError(
                f"--critic-warmup {self.critic_warmup}: expected fewer than --updates, {self.updates}, or the policy never learns"
            )
        if self.kl_target and not self.kl:
            raise UserError("--kl-target expects a KL penalty to adapt: add, for example, --kl 0.05")
        if self.kl_target and self.kl_horizon < self.rollout:
            raise UserError(f"--kl-horizon {self.kl_horizon}: expected at least --rollout, {self.rollout}")

    def _uses(self, name: str) -> bool:
        """Whether a flag has an effect with --algo or --merge."""
        if self.merge is not None:
            return name in ("model", "merge")
        if self.algo in _USED:
            return name in _USED[self.algo]
        return name != "db_path" and (self.algo == "ppo" or name not in _OF_CRITICS)

    # --- What the hooks of a run ask for (`lib.training`); a step is an answer -------------------------------------

    @property
    def steps(self) -> int:
        """Answers to train for."""
        return self.updates * self.rollout

    @property
    def finetunes(self) -> bool:
        """As every run of --algo does."""
        return True

    @property
    def eval_every(self) -> int:
        """Answers between evaluations."""
        return self.eval_updates * self.rollout
