#!/usr/bin/env python3
"""Labels while it trains: agent, labelling and reward model at once, each its own command, on one DB.

Without flags: the moving dot, taught by a simulated teacher, with a check of the result. The same command continues
where the last one was stopped, and may ask for more --steps and --labels; delete the folder to start over. Ctrl-C ends all
three.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from lib import cli
from lib.agent.config import TrainConfig
from lib.cli import UserError, as_flag, flag
from lib.devices import half_of_the_cores
from lib.label_ui.config import LabelConfig
from lib.preferences.labels import STRATEGIES
from lib.preferences.schedule import SCHEDULES
from lib.reward.config import FitConfig
from lib.runs import STATE, settle

STOPPED = 130
"""Exit status after Ctrl-C."""
TRAINER = ("01_a2c.py",)
"""The script that trains; `-m` and a module may take its place."""

_GRACE = 60.0
"""Seconds that a process has to save what it has."""
TIES = (
    *("name", "env", "seed", "steps", "dbs", "db_path", "reward", "watch_reward", "watch"),
    *("out", "save", "runs", "resume"),
)
"""Flags of the scripts by which stages find each other, or that are given for all of them."""
_printing = threading.Lock()
_DOT = "MovingDot-v0"
_GOOD = 0.9  # of the way from chance to the best possible score
_CHANCE = 50.0


@dataclass(frozen=True)
class OnlineConfig:
    """How much of everything."""

    out: Path = flag(group="most used", default=Path("online-out"), help="folder for everything it makes")
    env: str = flag("-e", default=_DOT, help="environment")
    people: bool = flag(
        default=False,
        help="serve the labelling page, and print its link, instead of using the simulated teacher",
    )
    teacher: str = flag(default="score", help="who labels without --people; see 02_label_ui.py --teacher")
    steps: int = flag(default=100_000, min=1, help="steps of training")
    labels: int = flag(default=400, min=20, help="total number of labels")
    dev: str = flag(default="cpu", help="device of the networks")
    seed: int = flag(default=0, min=0, help="seed of everything")

    opening_labels: int = flag(
        group="labels while it trains",
        default=100,
        min=10,
        help="number of --labels due before the first step",
    )
    label_schedule: str = flag(
        default="constant", choices=SCHEDULES, help="how the other labels are spread over --steps"
    )
    strategy: str = flag(
        default="recent",
        choices=tuple(STRATEGIES),
        help="how pairs are chosen (a fifth always at random); see 02_label_ui.py --strategy",
    )
    error_rate: float = flag(default=0.0, min=0, max=1, help="how often the teacher prefers the wrong clip")
    refit_every: int = flag(default=50, min=1, help="new labels for each refit")
    segments: int = flag(default=1000, min=4, help="approximate number of clips recorded during training")

    eval_every: int = flag(group="evaluation", default=25_000, min=1, help="steps between evaluations")
    eval_games: int = flag(default=32, min=2, help="full games per evaluation")
    check: bool = flag(default=True, help="compare the final score on the moving dot with the best possible")

    train: dict[str, Any] = flag(
        group="flags of the scripts",
        default={},
        of=TrainConfig,
        formerly="train_flags",
        help="more flags of 01_a2c.py (default: algo=ppo wait_for_labels=20 critic_warmup=5, and some for the moving dot); "
        "those given replace all of the default",
    )
    label: dict[str, Any] = flag(
        default={}, of=LabelConfig, formerly="label_flags", help="more flags of 02_label_ui.py"
    )
    fit: dict[str, Any] = flag(
        default={"frame_stride": 5},
        of=FitConfig,
        formerly="fit_flags",
        help="more flags of 03_reward_train.py; those given replace the default",
    )


def train_flags(config: OnlineConfig) -> dict[str, Any]:
    """The flags of 01_a2c.py beside those of `commands`: what was asked for, or the default."""
    if config.train:
        return config.train
    flags = {"algo": "ppo", "wait_for_labels": 20, "critic_warmup": 5}
    if config.env == _DOT:
        # At PPO's own 0.01 the policy does one thing alone by 40k steps, which a better reward model then cannot change.
        flags |= {"gamma": 0.9, "num_envs": 32, "entropy": 0.06, "lr_decay_steps": config.steps * 11 // 10}
    return flags


def record_prob(segments: int, steps: int) -> float:
    """--record-prob that records about so many segments in so many steps, to three digits."""
    return float(f"{min(1.0, segments / steps):.3g}")


def commands(config: OnlineConfig, trainer: Sequence[str] = TRAINER) -> dict[str, list[str]]:
    """The command lines to run at once, by the name that stands before each line they print.

    Args:
      config: of the run.
      trainer: what takes the flags of 01_a2c.py.
    """
    db, reward, runs = config.out / "db", config.out / "rewards" / "reward-online.dat", config.out / "runs"
    train: dict[str, Any] = {
        "name": "online",
        "env": config.env,
        "reward": reward,
        "watch_reward": True,
        "db_path": db,
        "steps": config.steps,
        "record_prob": record_prob(config.segments, config.steps),
        "labels": config.labels,
        "opening_labels": config.opening_labels,
        "label_schedule": config.label_schedule,
        "save": config.out / "policy",
        "eval_every": config.eval_every,
        "eval_games": config.eval_games,
        "dev": config.dev,
        "seed": config.seed,
        "runs": runs / "agent",
    }
    training = _with("train", train, train_flags(config))
    agent = cli.words(TrainConfig(**training))
    begun = last_run(runs / "agent")
    if begun is not None:
        agent = ["--resume", str(begun)]
        for name in ("steps", "labels", "dev", "lr_decay_steps"):
            agent += [as_flag(name), str(training[name])] if name in training else []
    label: dict[str, Any] = {"db_path": db, "watch": True, "strategy": config.strategy}
    if config.people:
        label |= {"goal": config.labels}
    else:
        label |= {"teacher": config.teacher, "error_rate": config.error_rate, "seed": config.seed}
    fit: dict[str, Any] = {
        "dbs": [db],
        "name": "online",
        "out": reward.parent,
        "watch": True,
        "refit_every": config.refit_every,
        "dev": config.dev,
        "seed": config.seed,
        "runs": runs / "reward",
    }
    return {
        "agent": [*trainer, *agent],
        "labels": ["02_label_ui.py", *cli.words(LabelConfig(**_with("label", label, config.label)))],
        "reward": ["03_reward_train.py", *cli.words(FitConfig(**_with("fit", fit, config.fit)))],
    }


def refuse_tied(stage: str, given: dict[str, Any]) -> None:
    """Refuses `TIES` among the flags that a field hands on to a script.

    Raises:
      UserError: one of them is given.
    """
    for name in TIES:
        if name in given:
            raise UserError(f"{as_flag(stage)} {name}: it is set for all runs alike; leave it out")


def _with(stage: str, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A stage's own flags and those given for it.

    Raises:
      UserError: one of `TIES` is given.
    """
    for name in TIES:
        if name in own and name in given:
            raise UserError(f"--{stage} {name}: online.py sets it, to {own[name]}; leave it out")
    return own | given


def main(argv: Sequence[str] | None = None) -> int:
    config = cli.parse(OnlineConfig, argv, description=__doc__)
    cli.expect_package("torch")  # or each of the three says that it is missing
    commands(config)  # what it refuses is not settled
    begun = (config.out / "db" / "labels.json").exists() or last_run(
        config.out / "runs" / "agent"
    ) is not None
    fixed = replace(config, train={**config.train, "lr_decay_steps": None})  # which may follow --steps
    settle(
        fixed, "people", "steps", "labels", "strategy", "refit_every", "check", "label", "fit", begun=begun
    )
    from lib.reporting import format_duration

    latest, start = config.out / "policy" / "latest.dat", time.monotonic()
    status = learn(config)
    if status is not None:
        return status
    if config.env == _DOT and config.check:
        # Of a run that was continued the time of this part alone would mislead.
        took = "" if begun else f" {format_duration(time.monotonic() - start)}."
        return _check_dot(config, latest, took)
    module = f"-e {config.env} " if ":" in config.env else ""  # which no file may name
    print(
        f"\n./04_play.py {module}-m {latest} -n 3 -r {config.out}/videos --reward {config.out}/rewards/reward-online.dat"
    )
    return 0


def learn(config: OnlineConfig, trainer: Sequence[str] = TRAINER) -> int | None:
    """Runs agent, labelling and reward model at once until the training is over.

    Args:
      config: of the run.
      trainer: see `commands`.

    Returns:
      See `together`.
    """
    return None if over(config) else together(commands(config, trainer))


def over(config: OnlineConfig) -> bool:
    """Whether the training finished before."""
    from lib.preferences.schedule import ProgressReader

    progress = ProgressReader(config.out / "db").read()
    if progress is not None and progress.phase == "over" and progress.steps >= config.steps:
        return True
    run = last_run(config.out / "runs" / "agent")  # stopped after its last evaluation it never said "over"
    return run is not None and trained(run, config.steps)


def last_run(runs: Path) -> Path | None:
    """The last run in a folder that has a state; None where there is none."""
    return max((state.parent for state in runs.glob(f"*/{STATE}")), default=None)


def trained(run: Path, steps: int) -> bool:
    """Whether a training has made and evaluated so many steps: there is nothing to resume. False for a fit."""
    from lib.checkpoints import load_checkpoint

    state = load_checkpoint(run / STATE, "trainer")
    return "examined" in state and bool(state["examined"] >= steps)


def together(stages: dict[str, list[str]]) -> int | None:
    """Runs commands at once until the first of them, the agent, ends; then stops the others.

    Args:
      stages: command lines by name: scripts of this folder, or `-m` and a module, and their arguments.

    Returns:
      None when the agent finished; otherwise an exit status: STOPPED after Ctrl-C, else that of a command that failed.
    """
    from lib.interrupt import Interrupt, ending_with_parent  # after the flags: --help need not wait for it

    environment = {**half_of_the_cores(), **os.environ, "PYTHONUNBUFFERED": "1"}
    processes: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    dies_too = ending_with_parent()
    with Interrupt() as interrupt:
        try:
            for name, words in stages.items():
                module = words[0] == "-m"
                print(f"{name:>7} $ {'python ' if module else './'}{shlex.join(words)}", flush=True)
                script = words if module else [str(Path(__file__).parent / words[0]), *words[1:]]
                # In groups of their own, so that each gets Ctrl-C once, from here: a second one would cost its work.
                processes[name] = process = subprocess.Popen(
                    [sys.executable, *script],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    process_group=0,
                    preexec_fn=dies_too,
                )
                assert process.stdout is not None
                readers.append(threading.Thread(target=_relay, args=(name, process.stdout), daemon=True))
                readers[-1].start()
            first = next(iter(processes))
            while not interrupt.asked and all(process.poll() is None for process in processes.values()):
                time.sleep(0.1)
            asked, ended = interrupt.asked, {name: p.poll() for name, p in processes.items()}
        finally:
            _stop(processes, readers)
    failed = {name: status for name, status in ended.items() if status}
    for name, status in failed.items():
        print(f"{name} ended with status {status}", file=sys.stderr)
    if failed:
        return next(iter(failed.values())) if min(failed.values()) > 0 else 1
    if asked or ended[first] is None:
        print("stopped; the same command continues from here")
        return STOPPED
    return None


def _relay(name: str, lines: IO[str]) -> None:
    from lib.interrupt import ask_to_stop

    for line in lines:
        with _printing:
            try:
                print(f"{name:>7} | {line}", end="", flush=True)
            except OSError as error:
                # Read on, or the stages could not say their last lines.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                if isinstance(error, BrokenPipeError):  # our reader has left
                    ask_to_stop()


def _stop(processes: dict[str, "subprocess.Popen[str]"], readers: Sequence[threading.Thread]) -> None:
    """Stops those that still run as Ctrl-C does, and kills those that take too long."""
    for process in processes.values():
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _GRACE
    for process in processes.values():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # Ctrl-C again: wait for nothing
            deadline = 0.0
            process.kill()
            process.wait()
    for reader in readers:
        reader.join()


def _check_dot(config: OnlineConfig, latest: Path, took: str) -> int:
    """Compares the score with the best that is possible on the moving dot; the exit status."""
    from lib.checkpoints import load_checkpoint
    from lib.envs.moving_dot import mean_best_score
    from lib.preferences.schedule import LabelCount
    from lib.reporting import format_mean, mean_interval

    scores = load_checkpoint(latest, "policy")["evaluation"].get("scores")
    if not scores:
        raise UserError(f"{latest}: expected an evaluation at the end of the training, found none")
    best, mean = mean_best_score(), mean_interval(scores)[0]
    share = (mean - _CHANCE) / (best - _CHANCE)
    print(
        f"\nscore {format_mean(scores)} a game (95 %, {len(scores)} games), which the agent never saw, after "
        f"{LabelCount(config.out / 'db').read()} labels: {share:.0%} of the way from chance ({_CHANCE:.0f}) to the best "
        f"there is ({best:.1f}).{took}"
    )
    if share < _GOOD:
        print(f"expected at least {_GOOD:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    cli.run(main)
