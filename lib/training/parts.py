"""Parts of a run, which `lib.training.train` puts together."""

import contextlib
import copy
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.agent.checkpoints import PolicyNetwork
from lib.agent.config import TrainConfig
from lib.agent.exploration import HeldActions
from lib.agent.kl import KLPenalty
from lib.agent.network import PolicyNet
from lib.cli import UserError
from lib.devices import own_threads, resolve_bf16, resolve_device, set_random_state
from lib.envs.world import World
from lib.learner import Alone, Learner
from lib.memory import keep_freed_memory
from lib.provenance import git_commit, versions
from lib.reporting import Charts
from lib.runs import load_state, locked, make_run_dir, write_config
from lib.training.charts import ChartsHook
from lib.training.checkpoints import Checkpoints
from lib.training.evaluation import MEASURES
from lib.training.loop import Hook, RunConfig
from lib.training.ranks import joined

STAGE = "01_a2c.py"


class Trained(NamedTuple):
    """The result of a run."""

    checkpoint: Path | None
    """The policy saved last; None without `--save`."""
    run_dir: Path
    """Its curves, configuration and state."""
    stopped: bool
    """Whether the user stopped it before its steps were done."""


def begin(config: TrainConfig, stack: contextlib.ExitStack) -> tuple[Alone, torch.device, bool, range]:
    """Sets up this process: the other processes, its device, whether that computes in bf16, its environments."""
    ranks = stack.enter_context(joined(config.dev))
    if ranks.size > config.num_envs:
        raise UserError(
            f"--num-envs {config.num_envs}: expected at least one for each of the {ranks.size} processes of "
            "torchrun"
        )
    device = set_up(config.dev, config.threads, config.seed)
    return ranks, device, resolve_bf16(config.bf16, device), ranks.share(config.num_envs)


def set_up(dev: str, threads: int, seed: int) -> torch.device:
    """Sets this process's memory, threads (0: one per core) and seed; returns the device."""
    device = resolve_device(dev)
    keep_freed_memory()
    threads = own_threads(threads)
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    return device


def run_folder(config: RunConfig, stage: str, ranks: Alone, stack: contextlib.ExitStack) -> Path:
    """The run's folder. The first process makes that of a new run, and writes config.json.

    That of a resumed run was locked when its state was read.
    """
    run_dir = config.resume
    if ranks.rank == 0:
        if run_dir is None:
            assert config.name is not None
            run_dir = make_run_dir(config.runs, stage, config.name)
            stack.enter_context(locked(run_dir))
        resumed = config.resume is not None
        write_config(run_dir, dataclasses.asdict(config) | {"resume": None}, resumed=resumed)
    return Path(ranks.gather(str(run_dir))[0])


def open_charts(
    config: RunConfig, run_dir: Path, state: dict[str, Any] | None, first: bool, stack: contextlib.ExitStack
) -> Charts:
    """The curves of a run, which the first process writes; those of a resumed run without what came after its state."""
    steps = 0 if state is None else state["steps"] + 1
    charts = stack.enter_context(Charts(run_dir if first else None, None if config.resume is None else steps))
    if config.resume is None:
        charts.settings(config, *MEASURES)
    return charts


def connect(
    hooks: list[Hook],
    learner: Learner,
    monitor: ChartsHook,
    checkpoints: Checkpoints,
    state: dict[str, Any] | None,
    device: torch.device,
) -> None:
    """Shows the hooks to those that chart and save what all have, and restores the run's last state if there is one."""
    monitor.others = checkpoints.hooks = hooks
    if state is not None:
        learner.load_state(state)
        for hook in hooks:
            hook.load_state(state)
        set_random_state(state["random"], device)


def state_to_resume(
    config: RunConfig, stage: str, stack: contextlib.ExitStack, first: bool, unit: str = "steps"
) -> dict[str, Any] | None:
    """The last state of the run to resume; None where there is no such run, or it ended before its first state.

    Args:
      config: of the run.
      stage: the script of the run.
      stack: gets what unlocks the run.
      first: whether this is the first process, which locks it.
      unit: what the flag for the length of a run counts; the flag and the state name it.

    Raises:
      UserError: another process has the run, it is of another script, or nothing of it is left to do.
    """
    if config.resume is None:
        return None
    if first:
        stack.enter_context(locked(config.resume))
    state = load_state(config.resume, stage)
    if state is not None and config.steps <= min(state["steps"], state["examined"]):
        raise UserError(
            f"--resume {config.resume}: its {state[unit]} {unit} are done; expected a larger number: add --{unit} N"
        )
    return state


def check_same_reward(config: TrainConfig, now: dict[str, Any], began: dict[str, Any]) -> None:
    """Refuses a reward model other than the one the run began with, whatever its name."""
    made = [parents.get("reward", {}).get("created") for parents in (began, now)]
    if made[0] != made[1]:
        raise UserError(
            f"--resume {config.resume}: expected the reward model that the run began with, made {made[0]}, "
            f"but {config.reward} was made {made[1]}; restore the old one, or begin a new run with -m"
        )


def origin_of(config: TrainConfig, run_dir: Path) -> dict[str, str]:
    """A segment's facts about the run that recorded it."""
    made_by = {"run": run_dir, "seed": config.seed, "model": config.model, "reward": config.reward}
    made_by |= {"git_commit": git_commit(), "torch": versions()["torch"]}
    return {name: str(value) for name, value in made_by.items() if value not in (None, "")}


def kl_penalty(
    config: TrainConfig, network: PolicyNetwork, reference: PolicyNetwork | None
) -> KLPenalty | None:
    """The KL penalty to a reference policy, which is charted even if it costs nothing.

    Args:
      config: of the run.
      network: the policy to train, on the device.
      reference: the policy of --kl-reference, or of the state to resume; None for that which the finetune starts from.
    """
    if config.model is None or not config.finetunes or not isinstance(network, PolicyNet):
        return None
    if reference is None:
        policy = copy.deepcopy(network)
    else:
        assert isinstance(reference, PolicyNet)
        device = next(network.parameters()).device
        policy = reference.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    settings = config.kl, config.kl_target, config.kl_horizon
    return KLPenalty(policy, *settings, same_body=config.kl_reference is None)


def held_actions(config: TrainConfig, world: World, seed: int) -> HeldActions | None:
    """With --hold-prob: exploration by held actions."""
    if not (config.hold_prob or config.fork):
        return None
    if world.spec.continuous:
        raise UserError(
            f"--hold-prob expects discrete actions, but {config.env} has continuous ones: leave it out"
        )
    lengths = config.hold_shortest, config.hold_longest
    return HeldActions(world.num_envs, world.spec.num_actions, config.hold_prob, *lengths, seed)


def game_seed(seed: int, steps: int, rank: int) -> int:
    """The seed of a process after so many steps: its games differ from those at the start and in other processes."""
    if not steps and not rank:
        return seed
    drawn = np.random.SeedSequence([seed, steps, rank])
    return int(drawn.generate_state(1)[0] >> 2)
