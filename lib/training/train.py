"""Puts a training run together, and runs it."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lib.agent.actor_critic import ActorCritic
from lib.agent.checkpoints import (
    CheckpointFolder,
    PolicyNetwork,
    check_policy,
    env_of,
    load_policy,
    network_of,
)
from lib.agent.config import ALGORITHMS, TrainConfig, shown_value
from lib.agent.dqn import DQN
from lib.agent.evaluate import evaluate
from lib.agent.network import ActorPolicy
from lib.agent.off_policy import OffPolicy
from lib.agent.rollout import Player
from lib.agent.sac import SAC
from lib.cli import UserError, as_flag
from lib.devices import own_threads
from lib.envs.atari import time_limit
from lib.envs.forking import ForkingAtari
from lib.envs.ids import same_environment
from lib.envs.make import make_world
from lib.envs.world import World, WorldFailed
from lib.interrupt import Interrupt
from lib.learner import Alone, Learner
from lib.preferences.teachers import make_teacher
from lib.provenance import lineage
from lib.reporting import Progress, format_count
from lib.reward.checkpoints import load_reward_model
from lib.reward.live import LiveReward
from lib.reward.model import RewardModel
from lib.training import loop
from lib.training.charts import LOG_SECONDS, ChartsHook
from lib.training.checkpoints import Checkpoints
from lib.training.drift import DRIFTED, Drift, best_of_run
from lib.training.evaluation import Evaluate, EvaluationHook, GamesMeasure
from lib.training.loop import Hook, Stop
from lib.training.newest_reward import NewestReward
from lib.training.parts import (
    STAGE,
    Trained,
    begin,
    check_same_reward,
    connect,
    game_seed,
    held_actions,
    kl_penalty,
    open_charts,
    origin_of,
    run_folder,
    state_to_resume,
)
from lib.training.recording import Recording, Tap, make_forks, make_recorder

_LEARNERS: dict[str, Any] = {"a2c": ActorCritic, "ppo": ActorCritic, "sac": SAC, "dqn": DQN}
"""Learners by --algo. Each can make a network, `new_network`, says which it continues, `network_kind`, and, if it sees
pictures, how that plays where nothing is learned, `explorer`."""


class Run(NamedTuple):
    """A training run put together."""

    learner: Learner
    hooks: list[Hook]
    stop: Stop
    run_dir: Path
    world: World
    """That the learner plays in."""
    checkpoints: Checkpoints
    evaluation: EvaluationHook
    recording: Recording
    progress: Progress
    ranks: Alone


def train(config: TrainConfig, **parts: Any) -> Trained:
    """Trains a policy as the configuration says, or resumes a run; with `--record-only`, only plays and records.

    A resumed run keeps its weights, optimiser, schedule, counters, evaluations, bests and random generators.
    But the emulators begin new games, and `--hold-prob` new draws, from another seed than the run began with; unfinished
    games and segments are lost, and so are the steps since the last state.

    Several processes that torchrun has started learn together (`lib.training.ranks`): each plays its share of the
    environments, records them into the one DB and makes the same updates. The first one does all the rest.

    Args:
      config: the flags.
      parts: what `build` takes.

    Raises:
      UserError: the flags, a file, the disk or the environment are wrong; says what to do.
    """
    if config.record_only:
        return _record(config)
    with contextlib.ExitStack() as stack:
        run = build(config, stack, **parts)
        try:
            loop.run(run.learner, run.hooks, config.steps, run.stop, run.ranks.together)
        except WorldFailed as error:  # in no update, so what was learned is whole
            if run.ranks.rank == 0:
                run.checkpoints.save_state(run.learner)
            raise UserError(
                f"stopped after {run.learner.steps} steps: {error}; continue with --resume {run.run_dir}"
            ) from error
        # Nobody leaves before all is saved: torchrun ends the others when one fails.
        stopped = run.ranks.together(run.stop.asked)
        broken = run.ranks.together(run.recording.error is not None)
        _say_the_end(config, run, stopped, broken)
        return Trained(run.checkpoints.saved, run.run_dir, stopped)


def build(
    config: TrainConfig,
    stack: contextlib.ExitStack,
    *,
    reward: RewardModel | None = None,
    make_learner: Callable[..., Learner] | None = None,
    evaluate: Evaluate = evaluate,
    seconds: float = LOG_SECONDS,
) -> Run:
    """Loads and starts all parts of a run, and restores its last state if there is one.

    Args:
      config: the flags.
      stack: gets what ends the emulators, the recorder and the rest.
      reward: pays in place of the model in the file of `--reward`, which then only names it.
      make_learner: makes the learner in place of that of `--algo`, and takes its arguments.
      evaluate: plays the evaluations.
      seconds: of learning between two points of the charts.

    Raises:
      UserError: as for `train`.
    """
    ranks, device, bf16, share = begin(config, stack)
    first = ranks.rank == 0

    # What may be refused comes first: starting the emulators takes longest.
    state = state_to_resume(config, STAGE, stack, first)
    teacher = None if config.teacher is None else make_teacher(config.teacher)
    if state is None:
        start, reference = (
            None if path is None else load_policy(path) for path in (config.model, config.kl_reference)
        )
    else:  # its files may be gone
        start, reference = (
            None if weights is None else (network_of(weights, str(config.resume)), {})
            for weights in (state.get("network"), state.get("reference"))
        )
    if reward is None and config.reward is not None and not config.watch_reward:
        reward = load_reward_model(config.reward, device, bf16, config.pessimism)
    world = make_world(config.env, len(share), own_threads(config.env_threads))
    stack.callback(world.close)
    network, parents = _policy_to_train(config, world, start)
    if reference is not None and config.kl_reference is not None:
        _check_kind(config, reference[0], config.kl_reference)
        check_policy(reference[0], world, config.kl_reference)
        parents["reference"] = {"file": str(config.kl_reference), **lineage(reference[1])}
    live: LiveReward | None = None
    if config.reward is not None:
        path = config.reward
        if reward is not None:
            reward.check(world.spec, path, world.env_id)
            parents["reward"] = {"file": str(path), **reward.origin}
        else:

            def check(model: RewardModel) -> None:
                model.check(world.spec, path, world.env_id)
                # A later one that does not fit is skipped; the first one ends the run, when it is to pay.
                if live is not None and live.model is not None:
                    _check_input(config, model)

            live = LiveReward(path, device, bf16=bf16, pessimism=config.pessimism, check=check)
    if state is not None:
        if live is None:
            check_same_reward(config, parents, state["parents"])
        parents = state["parents"]

    folder = None if config.save is None or not first else CheckpointFolder(config.save)
    recorder = make_recorder(config, world, share)
    if recorder is not None:
        stack.callback(recorder.close)
    run_dir = run_folder(config, config.algo, ranks, stack)
    if recorder is not None:
        recorder.origin = origin_of(config, run_dir)
    steps = 0 if state is None else state["steps"]
    charts = open_charts(config, run_dir, state, first, stack)
    progress = stack.enter_context(Progress(quiet=not first))
    among = f" in {ranks.size} processes" if ranks.size > 1 else ""
    progress.line(f"{config.env}: {config.num_envs} environments on {device}{among}, curves in {run_dir}")
    if state is not None:
        progress.line(f"resuming after {format_count(steps)} steps; the games start over")
    elif config.resume is not None:
        progress.line("it ended before its first state: training starts over")

    stop = Stop(stack.enter_context(Interrupt()))
    recording = Recording(recorder, stop)
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    penalty = kl_penalty(config, network, None if reference is None else reference[0])
    seed = game_seed(config.seed, steps, ranks.rank)
    learner = (make_learner or _LEARNERS[config.algo])(
        network,
        world,
        config,
        device,
        bf16,
        seed,
        **({} if config.off_policy else {"penalty": penalty}),
        ranks=ranks,
        reward=reward,
        recorder=None if recorder is None else Tap(recorder, recording),
        held=held_actions(config, world, seed),
    )

    if isinstance(learner, OffPolicy):
        kept, size = learner.replay.capacity, learner.replay.megabytes
        saves = config.save_replay and ranks.size == 1
        saved = "saved with the state" if saves else "not saved: a resumed run refills it"
        progress.line(f"replay: up to {kept} steps, {size:.0f} MB on {device}, {saved}")

    arena = world
    if first:
        arena = make_world(config.env, config.eval_games, own_threads(config.env_threads))
        stack.callback(arena.close)
    monitor = ChartsHook(config, charts, progress, seconds)
    checkpoints = Checkpoints(config, run_dir, folder, parents, device, monitor, recording, STAGE)
    evaluation = EvaluationHook(
        config,
        GamesMeasure(
            config,
            arena,
            device,
            reference=None if penalty is None else ActorPolicy(penalty.reference, bf16),
            reward=reward,
            teacher=teacher,
            stop=stop,
            evaluate=evaluate,
        ),
        charts=charts,
        progress=progress,
        monitor=monitor,
        checkpoints=checkpoints,
        stop=stop,
    )
    drift = Drift(config, evaluation, checkpoints, progress, stop)
    hooks: list[Hook] = [checkpoints, drift, evaluation, recording, monitor] if first else [recording]

    if live is not None:

        def pay_by(model: RewardModel) -> None:
            _check_input(config, model)
            another = checkpoints.use_reward(model)
            learner.use_reward(model, another)
            evaluation.use_reward(model, another)
            recording.use_reward(model)

        hooks.insert(0, NewestReward(config, live, recording, progress, stop, pay_by, ranks, config))
    connect(hooks, learner, monitor, checkpoints, state, device)
    return Run(learner, hooks, stop, run_dir, world, checkpoints, evaluation, recording, progress, ranks)


def _record(config: TrainConfig) -> Trained:
    """Fills a DB without learning."""
    with contextlib.ExitStack() as stack:
        ranks, device, bf16, share = begin(config, stack)
        start = None if config.model is None else load_policy(config.model)
        world: World
        if config.fork:
            world = ForkingAtari(config.env, len(share), time_limit(config.env))
        else:
            world = make_world(config.env, len(share), own_threads(config.env_threads))
        stack.callback(world.close)
        network, _ = _policy_to_train(config, world, start)
        recorder = make_recorder(config, world, share)
        assert recorder is not None
        stack.callback(recorder.close)
        run_dir = run_folder(config, "record", ranks, stack)
        recorder.origin = origin_of(config, run_dir)
        progress = stack.enter_context(Progress(quiet=ranks.rank > 0))
        progress.line(
            f"{config.env}: {config.num_envs} environments on {device}, recording to {config.db_path}"
        )
        # The same command again, for more clips, must not record the same ones.
        seed = game_seed(config.seed, recorder.first_number, ranks.rank)
        stop = Stop(stack.enter_context(Interrupt()))
        recording = Recording(recorder, stop)
        tap, held = Tap(recorder, recording), held_actions(config, world, seed)
        network = network.to(device)
        if config.fork:
            player = Player(world, device, seed, recorder=tap, held=held)
            assert held is not None
            forks = make_forks(config, world, recorder, held, player, seed)
            policy = _LEARNERS[config.algo].explorer(network, config, bf16)
            play: Callable[[], None] = partial(forks.play, policy)
        else:
            parts = network, world, config, device, bf16, seed
            play = _LEARNERS[config.algo](*parts, recorder=tap, held=held).play
        while recorder.steps < config.steps and not (recorder.full or stop()):
            play()
            made = f"{format_count(recorder.steps)}/{format_count(config.steps)} steps"
            progress.update(made + recording.words())
        if recording.error is not None:
            raise UserError(
                f"stopped after {recorder.steps} steps: could not record to the DB: {recording.error}"
            )
        stored = sum(ranks.everyone(recorder.stored))
        progress.line(f"recorded {stored} clips in {config.db_path}, {recorder.steps} steps")
        return Trained(None, run_dir, stop.asked)


def _policy_to_train(
    config: TrainConfig, world: World, start: tuple[PolicyNetwork, dict[str, Any]] | None
) -> tuple[PolicyNetwork, dict[str, Any]]:
    """The policy to begin with or to resume, or a new one; and the origin of that of `--model` for the run's files."""
    if start is None:
        if (
            config.network != ALGORITHMS[config.algo].get("network")
            and world.spec.observation_size is not None
        ):
            raise UserError(
                f"--network {config.network} needs a policy that sees pictures, but {config.env} shows vectors"
            )
        return _LEARNERS[config.algo].new_network(config, world), {}
    network, origin = start
    if config.model is None:
        return network, {}
    _check_kind(config, network, config.model)
    played = env_of(origin)[:200]
    if config.env == TrainConfig.env and not same_environment(played, config.env):
        raise UserError(
            f"{config.model} plays {played}, and --env is {config.env} by default: add -e {played}"
        )
    for name, attribute in (("network", "kind"), ("dueling", "dueling"), ("quantiles", "quantiles")):
        given, flag = getattr(config, name), as_flag(name)
        if given != ALGORITHMS[config.algo].get(name) and given != (kept := getattr(network, attribute)):
            raise UserError(
                f"{flag} {shown_value(given)}: the policy of {config.model} has {flag} {shown_value(kept)} and keeps it; "
                "leave this flag out"
            )
    check_policy(network, world, config.model)
    return network, {"policy": {"file": str(config.model), **lineage(origin)}}


def _check_input(config: TrainConfig, model: RewardModel) -> None:
    if config.off_policy and model.input == "frame":
        raise UserError(
            f"{config.reward}: a reward model of frames cannot rate a replay's steps again, because a replay keeps no "
            "frames: fit one with 03_reward_train.py --input observation"
        )


def _check_kind(config: TrainConfig, network: PolicyNetwork, path: Path) -> None:
    """Refuses the policy of an algorithm that --algo cannot continue."""
    if not isinstance(network, _LEARNERS[config.algo].network_kind):
        made_by = [algo for algo, each in _LEARNERS.items() if isinstance(network, each.network_kind)]
        raise UserError(
            f"{path}: expected a policy that --algo {config.algo} can continue, got one of "
            f"{' or '.join(made_by)}; take that --algo, or another policy"
        )


def _say_the_end(config: TrainConfig, run: Run, stopped: bool, broken: bool) -> None:
    """Raises UserError if the run ended because nothing could be recorded any more."""
    saved, line, error = run.checkpoints.saved, run.progress.line, run.recording.error
    why = "" if broken else f": no {'step made' if config.save else '--save'}"
    where = f"saved {saved}" if saved else f"no policy saved{why}"
    if run.ranks.rank:  # which is not the one that saves
        where = f"rank {run.ranks.rank}"
    if broken:
        failed = "another rank could not record" if error is None else f"could not record to the DB: {error}"
        raise UserError(f"stopped after {run.learner.steps} steps, {where}: {failed}")
    if stopped:
        line(f"stopped by request, {where}")
        line(f"resume with --resume {run.run_dir}")
        return
    drifted = run.stop.reason == DRIFTED
    if drifted:
        where = f"stopped by {DRIFTED}, {where}"
    if saved is not None:
        where += f"; {best_of_run(run.evaluation, config, saved.parent / 'best.dat')}"
    if drifted or saved is not None:
        line(where)
