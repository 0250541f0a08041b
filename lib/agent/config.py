"""The flags of 01_a2c.py. Imports nothing heavy, so that --help is instant."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.cli import UserError, as_flag, flag, shown
from lib.envs.ids import MAX_SEED, is_atari_id
from lib.preferences.labels import TEACHERS
from lib.preferences.schedule import SCHEDULES

FINETUNE_DIVISOR = 10
MAX_QUANTILES = 1024

ALGORITHMS: dict[str, dict[str, Any]] = {
    # The original experiment's. In a single pass the ratio is 1 throughout: there is nothing to clip. With 32 or 64
    # environments, which are quicker, A2C stays on a plateau of Seaquest's score that it leaves with 16.
    "a2c": {
        "lr": 7e-4,
        "rollout": 5,
        "gae_lambda": 1.0,
        "epochs": 1,
        "minibatches": 1,
        "clip_range": 0.0,
        "value_clip_range": 0.0,
        "normalise_advantages": False,
        "target_kl": 0.0,
        "value_coef": 1.0,
        "grad_clip": 0.1,
        "entropy": 0.01,
        "network": "separate",
        "num_envs": 16,
    },
    # Stable-Baselines3's zoo for Atari, with rollouts for 64 environments instead of 8 and the paper's clip range.
    # A learned reward may bring large values, so these are not clipped (Andrychowicz et al. 2021, arXiv 2006.05990).
    "ppo": {
        "lr": 2.5e-4,
        "rollout": 32,
        "gae_lambda": 0.95,
        "epochs": 4,
        "minibatches": 4,
        "clip_range": 0.2,
        "value_clip_range": 0.0,
        "normalise_advantages": True,
        "target_kl": 0.0,
        "value_coef": 0.5,
        "grad_clip": 0.5,
        "entropy": 0.01,
        "network": "separate",
        "num_envs": 64,
    },
    # Haarnoja et al. 2018, arXiv 1812.05905, table 1, with several environments, and half as many updates as steps.
    "sac": {
        "lr": 3e-4,
        "num_envs": 8,
        "batch_size": 256,
        "replay_steps": 1_000_000,
        "replay_mb": 4000.0,
        "save_replay": True,
        "replay_ratio": 0.5,
        "learning_starts": 1000,
        "n_step": 1,
        "priority": 0.0,
        "target_step": 0.005,
        "target_every": 1,
        "state_entropy": False,
    },
    # Stable-Baselines3's zoo for Atari, with double Q-learning and several environments.
    "dqn": {
        "lr": 1e-4,
        "num_envs": 16,
        "grad_clip": 10.0,
        "batch_size": 32,
        "replay_steps": 100_000,
        "replay_mb": 4000.0,
        "save_replay": True,
        "replay_ratio": 0.25,
        "learning_starts": 10_000,
        "n_step": 1,
        "priority": 0.0,
        "target_step": 1.0,
        "target_every": 250,
        "epsilon": 0.01,
        "exploration": 0.1,
        "double": True,
        "dueling": False,
        "quantiles": 1,
        "network": "shared",
    },
}
"""Defaults that depend on --algo. Flags missing here have no effect with that algorithm."""

MAY_DIFFER = (
    "steps",
    "lr_decay_steps",
    "checkpoint_minutes",
    "dev",
    "env_threads",
    "threads",
    "labels",
    "wait_for_labels",
)
"""Flags that may be given beside --resume."""

_PASSES = ("epochs", "minibatches", "clip_range", "value_clip_range", "target_kl")
"""Flags that have no effect if an update is a single pass."""

_ON_POLICY = ("kl", "learn_held", "critic_warmup", "freeze_convs")
"""Flags that have no effect with a replay, besides those for which only other algorithms have a default."""

_NEEDS = {
    "finetune": ("model", "a policy to start from: add -m FILE"),
    "kl": ("model", "a policy to stay near: add -m FILE"),
    "learn_held": ("hold_prob", "held actions: add, for example, --hold-prob 0.01"),
    "kl_target": ("kl", "a KL penalty to adapt: add, for example, --kl 0.02"),
    "pessimism": ("reward", "a reward model of several members: add -r FILE"),
    "kl_reference": ("kl", "a KL penalty: add, for example, --kl 0.02"),
    "reward_offset": ("reward", "a learned reward to add it to: add -r FILE"),
    "score_weight": ("reward", "a learned reward to add the score to: add -r FILE"),
    "state_entropy": (
        "watch_reward",
        "reward models that arrive during training: add --watch-reward -r FILE",
    ),
    "watch_reward": ("reward", "the file in which reward models arrive: add -r FILE"),
    "stop_on_drift": ("reward", "a learned reward that may be exploited: add -r FILE"),
    "fork": ("record_only", "a run that only records: add --record-only"),
    "record_only": ("db_path", "a DB to fill: add --db-path DB"),
    "db_max_mb": ("db_path", "a DB to limit: add --db-path DB"),
    "event_prob": ("db_path", "a DB to record to: add --db-path DB"),
    "event_kinds": ("event_prob", "a chance that an event is recorded: add, for example, --event-prob 1"),
    "db_drop_oldest": ("db_max_mb", "a limit: add --db-max-mb N"),
}
"""Flags that need another flag: its name, and the message if it is missing."""


def _by_algorithm(name: str, **options: Any) -> Any:
    """A flag whose default depends on --algo."""
    values = {algo: defaults[name] for algo, defaults in ALGORITHMS.items() if name in defaults}
    first = next(iter(values.values()))
    others = [f"{algo}: {shown_value(value)}" for algo, value in values.items() if value != first]
    options["help"] += f" (default: {'; '.join([shown_value(first), *others])})"
    if type(first) in (int, float):
        options = {"min": 1 if isinstance(first, int) else 0} | options
    return flag(default=None, **options)


def shown_value(value: float | bool | str) -> str:
    """A setting as --help and messages show it."""
    return ("on" if value else "off") if isinstance(value, bool) else shown(value)


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Making the object fills in None defaults from --algo, --finetune and --env."""

    name: str = flag(
        "-n", group="most used", metavar="NAME", help="name of the run, in its folder under --runs"
    )
    env: str = flag("-e", default="SeaquestNoFrameskip-v4", metavar="ID", help="any Atari or Gymnasium id")
    algo: str = flag(default="a2c", choices=tuple(ALGORITHMS), help="algorithm; other defaults depend on it")
    steps: int = flag(default=12_000_000, min=1, help="steps to train for, summed over environments")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of the networks: cpu, cuda, cuda:1")
    save: Path | None = flag(
        default=None, metavar="DIR", help="write checkpoints here: the best and the latest"
    )
    db_path: Path | None = flag(default=None, metavar="DB", help="record 50-step clips here")
    reward: Path | None = flag(
        "-r", default=None, metavar="FILE", help="reward model to train on, not the score"
    )
    model: Path | None = flag("-m", default=None, metavar="FILE", help="policy checkpoint to start from")
    finetune: bool = flag(
        default=False,
        help="finetune --model: a tenth of the learning rate and, with a2c and ppo, --freeze-convs",
    )

    seed: int = flag(
        group="task and data", default=0, min=0, max=MAX_SEED, help="seed of games, weights and actions"
    )
    clip_score: bool = flag(default=None, help="train on the sign of the score (default: for Atari games)")
    record_prob: float = flag(default=0.0002, min=0, max=1, help="chance per step that a recording begins")
    db_max_mb: float | None = flag(
        default=None, min=0, metavar="MB", help="stop recording at this size of --db-path"
    )
    db_drop_oldest: bool = flag(
        default=False, help="at --db-max-mb, delete the oldest clips without a label instead"
    )

    record_only: bool = flag(
        default=False,
        help="play and fill --db-path without learning, by the policy of -m or at random, until --steps or --db-max-mb",
    )
    event_prob: float = flag(
        default=0.0,
        min=0,
        max=1,
        metavar="P",
        help="also record clips that end shortly after an event: chance that an event is recorded",
    )
    event_kinds: str | None = flag(
        default=None,
        metavar="KIND,KIND",
        help="events for --event-prob: refuel, rescue, pickup, alarm (Seaquest: low on air with a diver), shortage "
        "(low on air without one), sighting (a diver swims by and none is on board), lost-life, large-score, novelty "
        "(for vectors) (default: all but alarm, shortage and sighting, whose clips leave no room for what follows; "
        "novelty only if nothing else is known of an environment)",
    )
    event_envs: int = flag(
        default=8,
        min=1,
        help="environments in which --event-prob looks for events; each keeps its last 50 frames",
    )

    fork: int = flag(
        default=0,
        min=0,
        metavar="K",
        help="with --record-only, Atari only: K clips from each moment that --record-prob or --event-prob "
        "chooses, each holding its own random action for --hold-shortest to --hold-longest steps",
    )

    lr: float = _by_algorithm("lr", group="algorithm", help="learning rate; a tenth with --finetune")
    num_envs: int = _by_algorithm("num_envs", help="environments played at once")
    rollout: int = _by_algorithm("rollout", help="steps of each environment per update")
    entropy: float = _by_algorithm("entropy", help="weight of the entropy bonus")
    network: str = _by_algorithm(
        "network",
        choices=("separate", "shared", "small"),
        help="for policies that see pictures: 512 units for each head, like the original; 512 that both share, "
        "like SB3's CnnPolicy; or A3C's smaller network, with a third of the work",
    )
    gamma: float = flag(default=0.99, min=0, max=1, help="discount")
    gae_lambda: float = _by_algorithm(
        "gae_lambda", max=1, help="λ of GAE; 1: n-step advantages, n the rollout"
    )
    epochs: int = _by_algorithm("epochs", help="passes over each rollout")
    minibatches: int = _by_algorithm("minibatches", help="minibatches per pass")
    clip_range: float = _by_algorithm(
        "clip_range", max=1, formerly="clip", help="PPO's ε for the ratio; 0: off"
    )
    value_clip_range: float = _by_algorithm(
        "value_clip_range", formerly="value_clip", help="the same for values; 0: off"
    )
    target_kl: float = _by_algorithm(
        "target_kl", help="end an update once the KL to the old policy exceeds this; 0: never"
    )
    normalise_advantages: bool = _by_algorithm(
        "normalise_advantages", help="scale advantages to mean 0, variance 1 in each rollout"
    )
    value_coef: float = _by_algorithm("value_coef", help="weight of the value loss")
    grad_clip: float = _by_algorithm("grad_clip", help="clip the gradient to this norm; 0: off")
    lr_decay_steps: int = flag(
        default=80_000_000, min=1, help="steps over which the learning rate falls linearly to 0"
    )
    hold_prob: float = flag(
        default=0.0,
        min=0,
        max=1,
        metavar="P",
        help="explore: chance per step that an environment repeats a random action for a while; these steps are "
        "recorded, and a2c and ppo do not learn from them (arXiv 2006.01782)",
    )
    learn_held: bool = flag(
        default=False, help="a2c and ppo learn from the actions of --hold-prob as if they had chosen them"
    )
    hold_shortest: int = flag(default=8, min=1, help="fewest steps that --hold-prob repeats an action")
    hold_longest: int = flag(default=30, min=1, help="most steps that --hold-prob repeats an action")

    batch_size: int = _by_algorithm(
        "batch_size", group="algorithms with a replay buffer", help="steps per update"
    )
    replay_ratio: float = _by_algorithm("replay_ratio", help="updates per step of an environment")
    learning_starts: int = _by_algorithm(
        "learning_starts", help="steps before the first update, at random unless -m is given"
    )
    replay_steps: int = _by_algorithm("replay_steps", help="steps that the replay buffer keeps")
    replay_mb: float = _by_algorithm(
        "replay_mb",
        metavar="MB",
        help="memory limit for the replay buffer; it keeps fewer steps if they take more",
    )
    save_replay: bool = _by_algorithm("save_replay", help="save the replay buffer in the state for --resume")
    n_step: int = _by_algorithm("n_step", help="steps of reward in a return")
    priority: float = _by_algorithm(
        "priority",
        max=1,
        help="draw steps in proportion to their error to this power; 0: uniformly (arXiv 1511.05952)",
    )
    target_step: float = _by_algorithm(
        "target_step", max=1, help="how far the target network moves towards the learning one; 1: all the way"
    )
    target_every: int = _by_algorithm("target_every", help="updates between moves of the target network")
    state_entropy: bool = _by_algorithm(
        "state_entropy",
        help="sac: until the first model of --watch-reward, learn to visit different states, so that the "
        "first clips differ",
    )
    epsilon: float = _by_algorithm("epsilon", max=1, help="dqn: final share of random actions")
    exploration: float = _by_algorithm(
        "exploration",
        max=1,
        help="dqn: part of --steps over which that share falls from 1; with -m it is --epsilon from the "
        "start",
    )
    double: bool = _by_algorithm(
        "double", help="dqn: the learning network chooses the action that the target values"
    )
    dueling: bool = _by_algorithm(
        "dueling", help="dqn: separate streams for a state's value and its actions'"
    )
    quantiles: int = _by_algorithm(
        "quantiles", max=MAX_QUANTILES, help="dqn: quantiles of the return to learn, as QR-DQN; 1: its mean"
    )

    kl: float = flag(
        group="finetuning",
        default=0.0,
        min=0,
        metavar="B",
        help="KL penalty β: subtract β (log π − log π_ref) from each reward; π_ref is the policy of --model",
    )
    kl_reference: Path | None = flag(
        default=None, metavar="FILE", help="reference policy of --kl, instead of --model"
    )
    kl_target: float = flag(
        default=0.0, min=0, help="adapt --kl to hold the KL near this; 0: keep --kl fixed"
    )
    kl_horizon: int = flag(
        default=50_000, min=1, help="steps in which --kl-target changes --kl by at most a fifth"
    )
    critic_warmup: int = flag(
        default=0,
        min=0,
        help="updates of the value head alone at the start, and after each model of --watch-reward",
    )
    freeze_convs: bool = flag(
        default=None,
        help="a2c, ppo: freeze the convolutions, or a vector's normalisation; on with --finetune",
    )
    pessimism: float = flag(
        default=0.0, min=0, metavar="K", help="subtract K standard deviations over the reward model's members"
    )
    reward_offset: float = flag(
        default=0.0,
        metavar="C",
        help="add C to the learned reward of each step, as pay for being alive",
    )
    reward_scale: float = flag(
        default=1.0,
        min=0,
        metavar="S",
        help="pay S (learned reward + C − KL penalty); --score-weight is added after that",
    )
    score_weight: float = flag(
        default=0.0, min=0, metavar="W", help="add W times the score to the learned reward"
    )

    watch_reward: bool = flag(
        group="labels while it trains",
        default=False,
        help="reload --reward whenever 03_reward_train.py --watch replaces it; wait for the first",
    )
    labels: int = flag(default=5500, min=0, help="labels due by the end of --steps, with --watch-reward")
    opening_labels: int = flag(default=500, min=0, help="number of --labels due before the first step")
    label_schedule: str = flag(
        default="constant",
        choices=SCHEDULES,
        help="spread the other labels evenly, or at the paper's rate h ÷ (steps + h)",
    )
    label_halving: int = flag(
        default=5_000_000, min=1, help="h: steps after which the paper's rate has halved"
    )
    wait_for_labels: int | None = flag(
        default=None,
        min=0,
        metavar="SLACK",
        help="pause while more than SLACK labels are overdue (default: never)",
    )

    eval_every: int = flag(group="evaluation", default=250_000, min=1, help="steps between evaluations")
    eval_games: int = flag(default=10, min=1, help="full games per evaluation")
    teacher: str | None = flag(
        default=None,
        choices=tuple(TEACHERS),
        help="simulated teacher that compares a finetune's clips with each other and with clips from its "
        "start",
    )
    drift_patience: int = flag(
        default=3,
        min=1,
        help="warn after N evaluations with a higher learned reward but lower score and agreement",
    )
    stop_on_drift: bool = flag(default=False, help="end the run at the warning of --drift-patience")

    resume: Path | None = flag(
        group="machine",
        default=None,
        metavar="RUN",
        help=f"continue the run of this folder; only {', '.join(map(as_flag, MAY_DIFFER))} may change",
    )
    checkpoint_minutes: float = flag(default=5.0, min=0, help="minutes between saved states for --resume")
    threads: int = flag(default=0, min=0, help="threads of the networks on a CPU; 0: one per core")
    env_threads: int = flag(default=0, min=0, help="threads of the emulators; 0: one per core")
    bf16: bool | None = flag(default=None, help="compute in bf16 (default: if the device is fast at it)")
    runs: Path = flag(
        default=Path("runs"), metavar="DIR", help="folder of run folders, each with TensorBoard curves"
    )

    def __post_init__(self) -> None:
        defaults = ALGORITHMS[self.algo]
        others = {name for algorithm in ALGORITHMS.values() for name in algorithm} - defaults.keys()
        meaningless = [name for name in others if getattr(self, name) is not None]
        if self.off_policy:
            meaningless += [name for name in _ON_POLICY if getattr(self, name)]
        if meaningless:
            raise UserError(
                f"{as_flag(min(meaningless))} has no effect with --algo {self.algo}: leave it out"
            )
        lr = defaults["lr"] / (FINETUNE_DIVISOR if self.finetune else 1)
        atari = is_atari_id(self.env)
        freeze_convs = self.finetune and not self.off_policy
        filled = defaults | {"lr": lr, "freeze_convs": freeze_convs, "clip_score": atari}
        for name, value in filled.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # frozen from here on

        for name, (other, expected) in _NEEDS.items():
            if getattr(self, name) and not getattr(self, other):
                raise UserError(f"{as_flag(name)} expects {expected}")
        for name in ("reward", "save", "resume", "finetune", "teacher", *_ON_POLICY):
            if self.record_only and getattr(self, name):
                raise UserError(f"--record-only learns nothing: leave out {as_flag(name)}")
        if self.wait_for_labels is not None and not (self.watch_reward and self.db_path):
            raise UserError("--wait-for-labels expects --watch-reward and a DB to label: add --db-path DB")
        if self.teacher is not None and not self.finetunes:
            raise UserError(
                "--teacher expects a finetune, whose clips it compares: add -r FILE, or -m FILE with --finetune"
            )
        if self.reward_scale != 1 and self.reward is None:
            raise UserError("--reward-scale expects a learned reward to multiply: add -r FILE")
        if self.hold_longest < self.hold_shortest:
            raise UserError(
                f"--hold-longest {self.hold_longest}: expected at least --hold-shortest, {self.hold_shortest}"
            )
        if self.off_policy and self.network == "separate":
            raise UserError(f"--network separate: {self.algo} has one head; expected shared or small")
        if self.state_entropy and self.n_step != 1:
            raise UserError(f"--state-entropy pays for single states: expected --n-step 1, got {self.n_step}")
        if self.off_policy:
            return
        batch = self.rollout * self.num_envs
        update = f"the {batch} steps of an update (--rollout {self.rollout} × --num-envs {self.num_envs})"
        if self.kl_target and self.kl_horizon < batch:
            raise UserError(f"--kl-horizon {self.kl_horizon}: expected at least {update}")
        if self.minibatches > batch:
            raise UserError(f"--minibatches {self.minibatches}: expected at most {update}")
        if self.algo == "a2c":
            for name in _PASSES:
                if getattr(self, name) != defaults[name]:
                    raise UserError(
                        f"{as_flag(name)} expects an algorithm with several passes, but a2c makes one: add "
                        "--algo ppo"
                    )

    @property
    def off_policy(self) -> bool:
        """Whether it learns from a replay."""
        return "replay_steps" in ALGORITHMS[self.algo]

    @property
    def one_pass(self) -> bool:
        """Whether an update is a single pass over its rollout, as in A2C."""
        return self.epochs == 1 and self.minibatches == 1

    @property
    def finetunes(self) -> bool:
        """Whether the policy is compared with an earlier one: on a learned reward, or with a KL penalty."""
        return self.reward is not None or self.finetune or self.kl > 0
