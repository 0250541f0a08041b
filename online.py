#!/usr/bin/env python3
"""Labels while it trains: the agent, the labels and the reward model at once, each a command of its own, on one DB.

Without flags: the moving dot, taught by a simulated teacher, with a check of what it has learnt. The same command goes on where the
last one was stopped (the agent with the flags it began with, but for --steps, --labels and --dev); delete the folder to start over. Ctrl-C ends all three.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lib import cli
from lib.cli import UserError, flag
from lib.preferences.schedule import SCHEDULES

_GRACE = 60.0  # seconds in which a stage may save what it has
_DOT = "MovingDot-v0"
_GOOD = 0.9  # of the way from chance to the best that can be done
_CHANCE = 50.0


@dataclass(frozen=True)
class OnlineConfig:
    """How much of everything."""

    out: Path = flag(default=Path("online-out"), help="folder for everything it makes")
    env: str = flag("-e", default=_DOT, help="environment")
    people: bool = flag(
        default=False, help="serve the labelling page in place of the simulated teacher; it prints its link"
    )
    teacher: str = flag(default="score", help="who labels without --people; see 02_label_ui.py --teacher")
    error_rate: float = flag(
        default=0.0, min=0, max=1, help="how often the teacher prefers the wrong segment"
    )
    strategy: str = flag(
        default="recent",
        help="how pairs are chosen, a fifth of them at random; see 02_label_ui.py --strategy",
    )
    steps: int = flag(default=60_000, min=1, help="steps of training")
    labels: int = flag(default=400, min=20, help="labels in all")
    opening_labels: int = flag(default=100, min=10, help="of these, before the first step")
    label_schedule: str = flag(
        default="constant", choices=SCHEDULES, help="how the others are spread; see 01_a2c.py"
    )
    refit_every: int = flag(default=50, min=1, help="new labels for each refit")
    segments: int = flag(default=1000, min=4, help="segments recorded in the course of the training, about")
    eval_every: int = flag(default=15_000, min=1, help="steps between evaluations")
    eval_games: int = flag(default=32, min=2, help="full games of each")
    check: bool = flag(default=True, help="hold the end on the moving dot against the best there is")
    dev: str = flag(default="cpu", help="device of the networks")
    seed: int = flag(default=0, min=0, help="seed of everything")
    train_flags: str = flag(
        default="--algo ppo --gamma 0.9 --num-envs 32 --wait-for-labels 20 --lr-decay-steps 66k --critic-warmup 5",
        metavar="FLAGS",
        help="further flags of 01_a2c.py",
    )
    label_flags: str = flag(default="", metavar="FLAGS", help="further flags of 02_label_ui.py")
    fit_flags: str = flag(
        default="--frame-stride 5", metavar="FLAGS", help="further flags of 03_reward_train.py"
    )


def commands(config: OnlineConfig) -> dict[str, list[str]]:
    """What is run at once, by the name that stands before each line it prints."""
    out, reward = config.out, config.out / "rewards" / "reward-online.dat"
    runs = out / "runs" / "agent"
    train: list[object] = [
        *("01_a2c.py", "-n", "online", "-e", config.env),
        *("-r", reward, "--watch-reward", "--db-path", out / "db"),
        *("--steps", config.steps, "--record-prob", f"{min(1.0, config.segments / config.steps):.3g}"),
        *("--labels", config.labels, "--opening-labels", config.opening_labels),
        *("--label-schedule", config.label_schedule, "--save", out / "policy"),
        *("--eval-every", config.eval_every, "--eval-games", config.eval_games),
        *("--dev", config.dev, "--seed", config.seed, "--runs", runs, *shlex.split(config.train_flags)),
    ]
    begun = max((state.parent for state in runs.glob("*/state.dat")), default=None)
    if begun is not None:
        train = ["01_a2c.py", "--resume", begun, "--steps", config.steps, "--labels", config.labels]
        train += ["--dev", config.dev]
    label: list[object] = ["02_label_ui.py", "-d", out / "db", "--watch", "--strategy", config.strategy]
    if config.people:
        label += ["--goal", config.labels]
    else:
        label += ["--teacher", config.teacher, "--error-rate", config.error_rate, "--seed", config.seed]
    fit: list[object] = [
        *("03_reward_train.py", out / "db", "-n", "online", "-o", reward.parent, "--watch"),
        *("--refit-every", config.refit_every, "--dev", config.dev, "--seed", config.seed),
        *("--runs", out / "runs" / "reward", *shlex.split(config.fit_flags)),
    ]
    label += shlex.split(config.label_flags)
    return {
        name: [str(word) for word in words]
        for name, words in (("agent", train), ("labels", label), ("reward", fit))
    }


def main(argv: Sequence[str] | None = None) -> int:
    config = cli.parse(OnlineConfig, argv, description=__doc__)
    began = time.monotonic()
    latest = config.out / "policy" / "latest.dat"
    if not _over(config):
        status = together(commands(config))
        if status is not None:
            return status
    if config.env == _DOT and config.check:
        return _check_dot(config, latest, time.monotonic() - began)
    print(
        f"\n./04_play.py -m {latest} -n 3 -r {config.out}/videos --reward {config.out}/rewards/reward-online.dat"
    )
    return 0


def _over(config: OnlineConfig) -> bool:
    """Whether the training has come to its end before."""
    from lib.preferences.schedule import ProgressReader

    progress = ProgressReader(config.out / "db").read()
    return progress is not None and progress.phase == "over" and progress.steps >= config.steps


def together(stages: dict[str, list[str]]) -> int | None:
    """Runs commands at once until the first of them, the agent, has ended; the others are asked to stop then.

    Args:
      stages: command lines by name, scripts of this folder and their arguments.

    Returns:
      None when the agent came to its end; otherwise an exit status: 130 after Ctrl-C, else that of whoever failed.
    """
    from lib.interrupt import Interrupt, ending_with_parent  # after the flags: --help need not wait for it

    # Each would take all cores for itself, and busy threads wait for each other.
    threads = str(max(1, (os.cpu_count() or 1) // 2))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONUNBUFFERED": "1"}
    processes: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    dies_too = ending_with_parent()
    with Interrupt() as interrupt:
        try:
            for name, words in stages.items():
                print(f"{name:>7} $ ./{shlex.join(words)}", flush=True)
                # In groups of their own, so that Ctrl-C comes to each once, from here: a second one would cost its work.
                processes[name] = process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).parent / words[0]), *words[1:]],
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
        print("stopped; the same command goes on from here")
        return 130
    return None


def _relay(name: str, lines: IO[str]) -> None:
    for line in lines:
        print(f"{name:>7} | {line}", end="", flush=True)


def _stop(processes: dict[str, "subprocess.Popen[str]"], readers: Sequence[threading.Thread]) -> None:
    """Asks whoever still runs to stop, as by Ctrl-C, and sees to it that they do."""
    for process in processes.values():
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + _GRACE
    for process in processes.values():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        except KeyboardInterrupt:  # asked once more: not to wait for anything
            deadline = 0.0
            process.kill()
            process.wait()
    for reader in readers:
        reader.join()


def _check_dot(config: OnlineConfig, latest: Path, seconds: float) -> int:
    """Holds what was learnt against the best that can be done on the moving dot; the exit status."""
    from lib.checkpoints import load_checkpoint
    from lib.envs.moving_dot import mean_best_score
    from lib.preferences.schedule import LabelCount
    from lib.reporting import format_duration, format_mean, mean_interval

    scores = load_checkpoint(latest, "policy")["evaluation"].get("scores")
    if not scores:
        raise UserError(f"{latest}: expected an evaluation at the end of the training, it has none")
    best, mean = mean_best_score(), mean_interval(scores)[0]
    share = (mean - _CHANCE) / (best - _CHANCE)
    print(
        f"\nscore {format_mean(scores)} a game (95 %, {len(scores)} games), which the agent never saw, after "
        f"{LabelCount(config.out / 'db').read()} labels: {share:.0%} of the way from chance ({_CHANCE:.0f}) to the best "
        f"there is ({best:.1f}). {format_duration(seconds)}."
    )
    if share < _GOOD:
        print(f"expected at least {_GOOD:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    cli.run(main)
