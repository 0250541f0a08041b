"""Training and finetuning: rollouts, updates and evaluations in turn, and what is said and kept about them."""

import contextlib
import copy
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from lib.agent.checkpoints import CheckpointFolder, check_policy, load_policy
from lib.agent.config import TrainConfig
from lib.agent.evaluate import Evaluation, evaluate
from lib.agent.leash import Leash
from lib.agent.network import Normaliser, PolicyNet
from lib.agent.online import Online
from lib.agent.rollout import Collector, Game, GameLog, HeldActions, Rollout
from lib.agent.update import update
from lib.agent.watch import BY_REWARD, CHARTED, Reading, Watch, best_before, changes, drifting
from lib.cli import UserError
from lib.devices import random_state, resolve_bf16, resolve_device, set_random_state
from lib.envs.make import counter, make_world, probes
from lib.envs.world import World
from lib.files import NotRecorded
from lib.interrupt import Interrupt, Stopped
from lib.memory import keep_freed_memory
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.teachers import Teacher, make_teacher
from lib.provenance import git_commit, lineage, versions
from lib.reporting import Charts, Progress, format_count, format_duration, mean_interval
from lib.reward.checkpoints import load_reward_model
from lib.reward.live import LiveReward
from lib.reward.model import RewardModel
from lib.runs import STATE, Every, load_state, locked, make_run_dir, save_state, write_config

_STAGE = "01_a2c.py"
_LOG_SECONDS = 2.0
_RECENT_GAMES = 100
_EXPLODED = 1e6  # times what is usual; no loss grows so fast by learning
_EVAL_SEED = 10_000  # evaluations play other games than training does


class _Monitor:
    """Turns rollouts and losses into curves and a progress line.

    The device is read once every few seconds; the learned rewards of a rollout as soon as they are all there.

    Attributes:
      last_good: the newest checkpoint.
      online: what else to chart in concurrent mode, where it is on.
    """

    def __init__(
        self, config: TrainConfig, charts: Charts, progress: Progress, recorder: SegmentRecorder | None
    ):
        self._config, self._charts, self._progress, self._recorder = config, charts, progress, recorder
        self._log = GameLog(config.num_envs)
        self._recent: deque[Game] = deque(maxlen=_RECENT_GAMES)
        self._games = 0
        self._sums: dict[str, torch.Tensor] = {}
        self._updates = 0
        self._learns = config.reward is not None
        self._usual: deque[float] = deque(maxlen=1000)  # total losses
        self.last_good: Path | None = None
        self.online: Online | None = None
        self.resume()

    def resume(self) -> None:
        """Starts the clock of the speed, which leaves evaluations out."""
        self._clock = time.perf_counter()
        self._since = 0

    def state(self) -> dict[str, Any]:
        """The games so far, for `restore`; those in progress are lost with the emulator's state."""
        return {"games": self._games, "recent": list(self._recent)}

    def restore(self, state: dict[str, Any]) -> None:
        """Counts on from these games."""
        self._games = state["games"]
        self._recent.extend(Game(*game) for game in state["recent"])

    def games_seen(self) -> Evaluation:
        """The last games of training, as a stand-in where there is no time to evaluate."""
        games = self._recent or [Game(0.0, 0, 0.0)]
        return Evaluation(
            np.array([game.score for game in games]), np.array([game.steps for game in games]), {}
        )

    def miss(self) -> None:
        """A rollout was made that it does not see; what is left of its games is no game."""
        self._log.miss()

    def saw(self, rollout: Rollout) -> None:
        """Adds up its games. To be called before the update, or the copy of the learned rewards would wait for that."""
        learned = np.zeros_like(rollout.score) if rollout.learned is None else rollout.learned.cpu().numpy()
        for score, valid, paid in zip(rollout.score, rollout.valid, learned, strict=True):
            for game in self._log.add(score, valid, paid):
                self._games += 1
                self._recent.append(game)
        self._since += rollout.score.size

    def after(self, parts: dict[str, torch.Tensor], steps: int, lr: float) -> None:
        """Takes note of one update.

        Raises:
          UserError: something is no longer a number, or the loss has exploded.
        """
        for name, value in parts.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._updates += 1
        elapsed = time.perf_counter() - self._clock
        if elapsed >= _LOG_SECONDS:
            self._write(steps, lr, self._since / elapsed)

    def check(self, network: PolicyNet, steps: int) -> None:
        """To be called before anything is kept.

        Raises:
          UserError: a weight or a quantity since the last curves is no longer a number, or the loss has exploded.
        """
        self._means(steps)
        weights = dict(network.named_parameters())
        finite = torch.stack(torch._foreach_norm(list(weights.values()))).isfinite().tolist()
        self._refuse(
            [f"the weight {name}" for name, good in zip(weights, finite, strict=True) if not good], steps
        )

    def _means(self, steps: int) -> dict[str, float]:
        """What the updates since the last curves were like on average, by chart name; {} where there were none."""
        if not self._updates:
            return {}
        values = (torch.stack(list(self._sums.values())) / self._updates).tolist()
        scalars = dict(zip(self._sums, values, strict=True))
        self._refuse([name for name, value in scalars.items() if not np.isfinite(value)], steps)
        loss = abs(scalars["loss_total"])
        usual = max(1.0, float(np.median(self._usual))) if self._usual else np.inf
        if loss > _EXPLODED * usual:
            raise UserError(
                f"training broke after {steps} steps: loss_total exploded to {loss:.3g}, where {usual:.3g} was usual; "
                f"{self._advice()}"
            )
        return scalars

    def _refuse(self, broken: list[str], steps: int) -> None:
        if broken:
            raise UserError(
                f"training broke after {steps} steps: {', '.join(broken)} is no longer a finite number; "
                f"{self._advice()}"
            )

    def _advice(self) -> str:
        good = (
            f"the last good checkpoint is {self.last_good}"
            if self.last_good
            else "no checkpoint was made yet"
        )
        return f"{good}, try a smaller --lr"

    def _write(self, steps: int, lr: float, speed: float) -> None:
        scalars = self._means(steps)
        self._usual.append(abs(scalars["loss_total"]))
        self._sums, self._updates = {}, 0
        scalars |= {"lr": lr, "speed": speed}
        line = f"{format_count(steps)}/{format_count(self._config.steps)} steps  {speed:.0f} steps/s"
        line += f"  ETA {format_duration((self._config.steps - steps) / speed)}"
        if self._recent:
            score, length, learned = np.mean(self._recent, 0)
            scalars |= {
                "reward": self._recent[-1].score,
                "reward_100": score,
                "steps": self._recent[-1].steps,
            }
            line += f"  score {score:.1f} over {length:.0f} steps"
            if self._learns:
                scalars |= {"real_reward_sum": self._recent[-1].score, "learned_return_100": learned}
                line += f"  learned {learned:.1f}"
        line += f"  {self._games} games"
        if self.online is not None:
            scalars |= self.online.scalars(steps)
            line += f"  reward model {self.online.live.version}"
        if self._recorder is not None:
            scalars["segments"] = self._recorder.stored
            obstacle = self._recorder.obstacle
            line += f"  {self._recorder.stored} segments" + (f" ({obstacle})" if obstacle else "")
        self._charts.scalars(scalars, steps)
        self._progress.update(line)
        self.resume()


class _Evaluator:
    """Evaluates the policy, says and charts what it finds; in a finetune, also what became of it since the start.

    Attributes:
      readings: of every evaluation so far.
      comparable: those since the reward model was last replaced; learned returns of two models have no common unit.
    """

    def __init__(
        self,
        config: TrainConfig,
        arena: World,
        device: torch.device,
        bf16: bool,
        reward: RewardModel | None,
        reference: PolicyNet | None,
        teacher: Teacher | None,
        charts: Charts,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        self.readings: list[Reading] = []
        self._config, self._arena, self._device, self._bf16 = config, arena, device, bf16
        self._reward, self._reference, self._teacher = reward, reference, teacher
        self._charts, self._progress, self._stop = charts, progress, stop
        self._first: dict[str, np.ndarray] | None = None
        self._baseline: list[float] | None = None
        self._since = 0

    @property
    def comparable(self) -> list[Reading]:
        return self.readings[self._since :]

    def pay_by(self, reward: RewardModel, another: bool) -> None:
        """A reward model pays from now on. What another one measures is compared with its own first evaluation."""
        self._reward = reward
        if not another:
            return
        self._since = len(self.readings)
        if self._first is not None:
            self._first = {name: values for name, values in self._first.items() if name not in BY_REWARD}

    def state(self) -> dict[str, Any]:
        """The evaluations so far and what the policy was at the start, for `restore`."""
        return {
            "readings": [tuple(reading) for reading in self.readings],
            "first": self._first,
            "baseline": self._baseline,
            "since": self._since,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from these evaluations."""
        self.readings = [Reading(*reading) for reading in state["readings"]]
        self._baseline, self._since = state["baseline"], state.get("since", 0)
        if state["first"] is not None:
            self._first = {name: values.numpy() for name, values in state["first"].items()}

    def evaluate(self, network: PolicyNet, steps: int) -> Evaluation:
        """Evaluates the policy after so many steps of training.

        Raises:
          Stopped: the end was asked for meanwhile.
        """
        config, seed = self._config, _EVAL_SEED + self._config.seed
        watch = None
        if config.finetunes:
            watch = Watch(
                self._arena,
                self._device,
                self._bf16,
                seed,
                self._reward,
                self._reference,
                self._teacher,
                self._baseline,
            )
        events = counter(config.env, config.eval_games)
        result = evaluate(
            network,
            self._arena,
            seed,
            self._device,
            self._bf16,
            probes(config.env),
            events,
            watch,
            self._stop,
        )
        self.readings.append(_reading(result, steps))
        self._charts.scalars(_evaluation_scalars(result), steps)
        if watch is not None:
            if self._first is None:
                self._first, self._baseline = {}, watch.clip_values()
                self._charts.layout(
                    {
                        "finetune: change since the start": [f"finetune/{name}" for name in CHARTED],
                        "finetune: as measured": [_tag(name) for name in CHARTED],
                    }
                )
            self._first = result.figures | self._first
            since = changes(result.figures, self._first)
            self._charts.scalars({f"finetune/{name}": value for name, value in since.items()}, steps)
        self._progress.line(f"{format_count(steps)} steps: {result}")
        return result


def _reading(result: Evaluation, steps: int) -> Reading:
    score, half = mean_interval(result.scores)
    means = {name: float(values.mean()) for name, values in result.figures.items()}
    parts = {name: means.get(name) for name in BY_REWARD}
    return Reading(steps, score, 0.0 if np.isnan(half) else half, **parts)


def train(config: TrainConfig) -> Path | None:
    """Trains a policy as the configuration says, or goes on with a run.

    A run goes on with its weights, optimiser, schedule, counters, evaluations, bests and random generators as they
    were. What is not the same: the emulators begin new games, from another seed than the run began with; games and
    segments in the making are lost, and so are the steps since the last state.

    Returns:
      The last checkpoint written, or None without `--save`.

    Raises:
      UserError: something about the flags, a file or the disk that the user can mend.
    """
    with contextlib.ExitStack() as stack:
        run = Run(config, stack)
        run.begin()
        while run.advance():
            pass
        return run.end()


@dataclasses.dataclass
class _Counters:
    """How far a run is. Its state has them under these names."""

    steps: int
    updates: int
    new_reward_at: int  # updates before the reward model that pays now was taken
    examined: int  # steps before the last evaluation
    next_eval: int  # steps
    saved_at: int  # steps before the last checkpoint

    @classmethod
    def of(cls, config: TrainConfig, state: dict[str, Any] | None) -> Self:
        """Those of a run that begins, or goes on from a state."""
        if state is None:
            return cls(0, 0, 0, 0, config.eval_every, 0)
        known = {"new_reward_at": 0} | state  # which older states lack
        return cls(**{field.name: known[field.name] for field in dataclasses.fields(cls)})


class Run:
    """A training under way: `begin`, `advance` until there is no more to do, `end`.

    Attributes:
      network: the policy.
      count: how far the run is.
    """

    def __init__(self, config: TrainConfig, stack: contextlib.ExitStack) -> None:
        """Loads and starts all that the run needs, and goes on from its last state where there is one.

        Args:
          config: the flags.
          stack: gets what ends the emulators, the recorder and the rest.
        """
        device = resolve_device(config.dev)
        bf16 = resolve_bf16(config.bf16, device)
        self._config, self._device, self._bf16 = config, device, bf16
        keep_freed_memory()
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        # What may be refused comes first: starting the emulators takes longest.
        state = _state_to_resume(config, stack)
        world, network, reward, live, teacher, self._parents = _load(config, device, bf16, state, stack)
        self._folder = None if config.save is None else CheckpointFolder(config.save)
        self._recorder = recorder = _make_recorder(config, world, stack)
        self._run_dir = config.resume or _new_run_dir(config, stack)
        self._kept_config = dataclasses.asdict(config) | {"resume": None}
        write_config(self._run_dir, self._kept_config, resumed=config.resume is not None)
        if recorder is not None:
            recorder.origin = _origin(config, self._run_dir)
        self.count = _Counters.of(config, state)
        purge_step = None if config.resume is None else 0 if state is None else self.count.steps + 1
        self._charts = stack.enter_context(Charts(self._run_dir, purge_step))
        self._progress = progress = Progress()
        stack.callback(progress.close)
        for line in _first_words(config, world, device, self._run_dir, state):
            progress.line(line)

        self.network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.body.requires_grad_(not config.freeze_convs)
        trainable = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(trainable, lr=config.lr, eps=1e-5, fused=True)
        self._reference, self._leash = _reference_and_leash(config, self.network, state)
        pays, seed = live or reward, _game_seed(config.seed, self.count.steps)
        self._collector = Collector(
            *(world, config.rollout, device, seed, bf16, pays.pay if pays else None, recorder),
            reward_input=pays.input if pays else "frame",
            held=_held_actions(config, world, seed),
        )
        self._monitor = _Monitor(config, self._charts, progress, recorder)
        arena = make_world(config.env, config.eval_games, config.env_threads)
        stack.callback(arena.close)

        self._saved: Path | None = None
        self._disk_error: NotRecorded | None = None
        self._drifted = False
        interrupt = stack.enter_context(Interrupt())
        self._stop = lambda: interrupt.asked
        self._evaluator = _Evaluator(
            *(config, arena, device, bf16, reward, self._reference, teacher, self._charts, progress),
            stop=self._stop,
        )
        if state is not None:
            self._restore(state)
        self._online: Online | None = None
        if live is not None:
            self._online = self._monitor.online = Online(config, live, recorder, progress, self._stop)
        self._checkpoints = Every(config.checkpoint_minutes)

    def begin(self) -> None:
        """The opening, where the reward model is yet to come; an evaluation of what a finetune starts from."""
        if self._online is not None:
            with contextlib.suppress(Stopped), self._recording():
                self._online.open(self.count.steps, self._play_unlearnt)
            if self._online.live.model is not None:
                self._take_reward(self._online.live.model)
        if self._config.finetunes and not self._evaluator.readings and self._disk_error is None:
            with contextlib.suppress(Stopped):
                self._evaluator.evaluate(self.network, 0)
            self._monitor.resume()

    def _play_unlearnt(self) -> None:
        self._collector.collect(self.network, stop=self._stop)
        self._monitor.miss()

    def advance(self) -> bool:
        """One update, after all that is due before it; whether there may be more to do."""
        if self._stop() or self._disk_error is not None:
            return False
        try:
            self._evaluate_if_due()
            if self.count.steps >= self._config.steps or self._drifted:
                return False
            self._follow_reward()
            if self._checkpoints.due():
                self._keep()
            self._update_once()
        except Stopped:
            return False
        return True

    def end(self) -> Path | None:
        """Keeps how far the run is, and says how it ended.

        Returns:
          The last checkpoint written, if any.

        Raises:
          UserError: nothing could be recorded any more.
        """
        count = self.count
        self._monitor.check(self.network, count.steps)
        if count.steps > count.saved_at:
            self._save(self._monitor.games_seen(), evaluated=False)
        if self._online is not None and (
            self._drifted or min(count.steps, count.examined) >= self._config.steps
        ):
            self._online.end(count.steps)
        with contextlib.suppress(UserError) if self._disk_error else contextlib.nullcontext():
            self._keep()
        self._say_the_end()
        return self._saved

    def _evaluate_if_due(self) -> None:
        """Raises Stopped where the end was asked for meanwhile."""
        config, count = self._config, self.count
        if count.steps <= count.examined or count.steps < min(count.next_eval, config.steps):
            return
        self._monitor.check(self.network, count.steps)
        result = self._evaluator.evaluate(self.network, count.steps)
        count.examined, count.next_eval = count.steps, count.steps + config.eval_every
        self._save(result)
        warning = drifting(self._evaluator.comparable, config.drift_patience)
        if warning is not None:
            self._progress.line(f"{warning}; {_best_before(self._evaluator, config, self._folder)}")
            self._drifted = config.stop_on_drift
        if self._folder is not None:
            self._keep()  # so that what is kept there and what is known of it go together
        self._monitor.resume()

    def _follow_reward(self) -> None:
        """With --watch-reward: waits for labels if it has to, and takes a new reward model if there is one."""
        if self._online is None:
            return
        with self._recording():
            if self._online.wait(self.count.steps):
                self._monitor.resume()
        if self._online.take(self.count.steps) and self._online.live.model is not None:
            self._take_reward(self._online.live.model)

    def _update_once(self) -> None:
        """Acts for a rollout, and learns from it.

        Raises:
          Stopped: asked to, or nothing can be recorded any more; the rollout is lost.
        """
        config, network, count = self._config, self.network, self.count
        lr = config.lr * max(0.0, 1 - count.steps / config.lr_decay_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        with self._recording():
            rollout = self._collector.collect(network, config.one_pass, self._stop, config.freeze_convs)
        self._monitor.saw(rollout)
        # While the critic warms up, nothing that the policy depends on moves, nor does the price of its straying.
        policy_moves = count.updates - count.new_reward_at >= config.critic_warmup
        network.body.requires_grad_(policy_moves and not config.freeze_convs)
        network.policy.requires_grad_(policy_moves)
        parts = update(network, self._optimizer, rollout, config, self._bf16, self._leash, self._stop)
        if isinstance(network.body, Normaliser) and policy_moves and not config.freeze_convs:
            network.body.update(rollout.observations)
        if self._leash is not None and policy_moves:
            self._leash.adapt(parts["kl_ref"], rollout.score.size)
        count.steps += rollout.score.size
        count.updates += 1
        self._monitor.after(parts, count.steps, lr)

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Raises Stopped where the recorder's disk is full or its folder is gone, and takes note of that."""
        try:
            yield
        except NotRecorded as error:
            self._disk_error = error
            raise Stopped from error

    def _take_reward(self, model: RewardModel) -> None:
        """A reward model pays from now on: another one than before, or the one that a resumed run had."""
        origin = {"file": str(self._config.reward), **model.origin}
        another = self._parents.get("reward") != origin
        self._parents["reward"] = origin
        self._collector.reward_input = model.input
        self._evaluator.pay_by(model, another)
        if self._recorder is not None:
            version = str(model.origin.get("version", ""))
            self._recorder.origin = {**self._recorder.origin, "reward_version": version}
        if another:
            self.count.new_reward_at = self.count.updates
            if self._folder is not None:
                self._folder.forget_best("best-learned.dat")

    def _save(self, result: Evaluation, evaluated: bool = True) -> None:
        """Writes a checkpoint of the policy, with `--save`."""
        steps = self.count.steps
        if self._folder is not None:
            self._saved = self._folder.save(
                self.network, steps, result, self._kept_config, self._parents, evaluated=evaluated
            )
            self.count.saved_at = steps

    def _keep(self) -> None:
        """Writes the state that the run can be gone on from."""
        count, leash, recorder, folder = self.count, self._leash, self._recorder, self._folder
        self._monitor.check(self.network, count.steps)
        self._charts.flush()  # or a killed process would lose points that are not drawn again
        kept = {
            **dataclasses.asdict(count),
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "reference": None if self._reference is None else self._reference.state_dict(),
            "kl_coef": None if leash is None else leash.coef,
            "monitor": self._monitor.state(),
            "examiner": self._evaluator.state(),
            "recorder": None if recorder is None else recorder.state(),
            "folder": None if folder is None else folder.state(),
            "device": self._device.type,
            "actions": self._collector.generator.get_state(),
            "random": random_state(self._device),
        }
        save_state(self._run_dir, _STAGE, kept, self._kept_config, self._parents)
        saved_now = self._saved is not None and count.saved_at == count.steps
        self._monitor.last_good = self._saved if saved_now else self._run_dir / STATE
        self._checkpoints.restart()

    def _restore(self, state: dict[str, Any]) -> None:
        """Takes up what `_keep` wrote; the counters, the network and the reference have done so already."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._leash is not None:
            self._leash.coef = state["kl_coef"].to(self._device)
        self._monitor.restore(state["monitor"])
        self._monitor.last_good = self._run_dir / STATE
        self._evaluator.restore(state["examiner"])
        if self._recorder is not None:
            self._recorder.restore(state["recorder"])
        if self._folder is not None:
            self._folder.restore(state["folder"], self.count.steps, self._config.name)
        if state["device"] == self._device.type:
            self._collector.generator.set_state(state["actions"])
        set_random_state(state["random"], self._device)

    def _say_the_end(self) -> None:
        """Raises UserError where the run ended because nothing could be recorded any more."""
        saved, line = self._saved, self._progress.line
        where = (
            f"saved {saved}" if saved else f"nothing saved: no {'step made' if self._folder else '--save'}"
        )
        if self._disk_error is not None:
            raise UserError(
                f"stopped after {self.count.steps} steps, {where}: could not record to the DB: {self._disk_error}"
            )
        if self._stop():
            line(f"stopped by request, {where}")
            line(f"go on with --resume {self._run_dir}")
            return
        if self._drifted:
            where = f"stopped by --stop-on-drift, {where}"
        if saved is not None:
            where += f"; {_best(self._evaluator, self._config, saved.parent)}"
        if self._drifted or saved is not None:
            line(where)


def _state_to_resume(config: TrainConfig, stack: contextlib.ExitStack) -> dict[str, Any] | None:
    """The last state of the run to go on with; None where there is no such run, or it ended before its first state."""
    if config.resume is None:
        return None
    stack.enter_context(locked(config.resume))
    state = load_state(config.resume, _STAGE)
    if state is not None and config.steps <= min(state["steps"], state["examined"]):
        raise UserError(
            f"--resume {config.resume}: its {state['steps']} steps are done; expected more of them: add --steps N"
        )
    return state


def _new_run_dir(config: TrainConfig, stack: contextlib.ExitStack) -> Path:
    run_dir = make_run_dir(config.runs, config.algo, config.name)
    stack.enter_context(locked(run_dir))
    return run_dir


def _first_words(
    config: TrainConfig, world: World, device: torch.device, run_dir: Path, state: dict[str, Any] | None
) -> Iterator[str]:
    """What a run says as it begins."""
    yield f"{config.env}: {world.num_envs} environments on {device}, curves in {run_dir}"
    if state is not None:
        yield f"going on after {format_count(state['steps'])} steps; the games begin anew"
    elif config.resume is not None:
        yield "it ended before its first state: all begins anew"


class _Loaded(NamedTuple):
    """What a run is made of, and what its checkpoints will say that came from."""

    world: World
    network: PolicyNet
    reward: RewardModel | None
    live: LiveReward | None  # with --watch-reward, in place of `reward`
    teacher: Teacher | None
    parents: dict[str, Any]


def _load(
    config: TrainConfig,
    device: torch.device,
    bf16: bool,
    state: dict[str, Any] | None,
    stack: contextlib.ExitStack,
) -> _Loaded:
    """Reads the files that the flags name and starts the emulators; what does not fit together is refused."""
    teacher = None if config.teacher is None else make_teacher(config.teacher)
    start = None if config.model is None or state is not None else load_policy(config.model)
    reward = (
        None
        if config.reward is None or config.watch_reward
        else load_reward_model(config.reward, device, bf16, config.pessimism)
    )
    world = make_world(config.env, config.num_envs, config.env_threads)
    stack.callback(world.close)
    parents: dict[str, Any] = {}
    if start is not None and config.model is not None:
        network, origin = start
        check_policy(network, world, config.model)
        parents["policy"] = {"file": str(config.model), **lineage(origin)}
    else:
        network = PolicyNet(
            world.num_actions, continuous=world.continuous, observation_size=world.observation_size
        )
    if reward is not None and config.reward is not None:
        reward.check(world.spec, config.reward, world.env_id)
        parents["reward"] = {"file": str(config.reward), **reward.origin}
    live = _live_reward(config, world, device, bf16) if config.watch_reward else None
    if state is not None:
        if live is None:
            _check_same_reward(config, parents, state["parents"])
        parents = state["parents"]
        network.load_state_dict(state["network"])
    return _Loaded(world, network, reward, live, teacher, parents)


def _live_reward(config: TrainConfig, world: World, device: torch.device, bf16: bool) -> LiveReward:
    path = config.reward
    assert path is not None
    return LiveReward(
        path,
        device,
        bf16=bf16,
        pessimism=config.pessimism,
        check=lambda model: model.check(world.spec, path, world.env_id),
    )


def _check_same_reward(config: TrainConfig, now: dict[str, Any], began: dict[str, Any]) -> None:
    """Refuses another reward model than the run began with, whatever its name."""
    made = [parents.get("reward", {}).get("created") for parents in (began, now)]
    if made[0] != made[1]:
        raise UserError(
            f"--resume {config.resume}: expected the reward model that the run began with, of {made[0]}, "
            f"but {config.reward} is of {made[1]}; put that one back, or begin a new run with -m"
        )


def _make_recorder(config: TrainConfig, world: World, stack: contextlib.ExitStack) -> SegmentRecorder | None:
    """What records the segments, with `--db-path`."""
    if config.db_path is None:
        return None
    try:
        recorder = SegmentRecorder(
            config.db_path,
            world.num_envs,
            config.env,
            world.num_actions,
            config.record_prob,
            config.seed,
            max_mb=config.db_max_mb,
            policy=config.name,
            drop_oldest=config.db_drop_oldest,
            action_names=world.action_names,
        )
    except OSError as error:
        raise UserError(
            f"--db-path {config.db_path}: expected a folder to write to: {error.strerror}"
        ) from error
    stack.callback(recorder.close)
    return recorder


def _held_actions(config: TrainConfig, world: World, seed: int) -> HeldActions | None:
    """With --hold-prob: exploration by held actions."""
    if not config.hold_prob:
        return None
    if world.continuous:
        raise UserError(
            f"--hold-prob expects actions to choose from, and {config.env} has continuous ones: leave it out"
        )
    lengths = config.hold_shortest, config.hold_longest
    return HeldActions(world.num_envs, world.num_actions, config.hold_prob, *lengths, seed)


def _origin(config: TrainConfig, run_dir: Path) -> dict[str, str]:
    """What a segment says of the run that recorded it."""
    made_by = {"run": run_dir, "seed": config.seed, "model": config.model, "reward": config.reward}
    made_by |= {"git_commit": git_commit(), "torch": versions()["torch"]}
    return {name: str(value) for name, value in made_by.items() if value not in (None, "")}


def _reference_and_leash(
    config: TrainConfig, network: PolicyNet, state: dict[str, Any] | None
) -> tuple[PolicyNet | None, Leash | None]:
    """The policy that a finetune started from, and the leash to it; None where there is no such thing."""
    if config.model is None or not config.finetunes:
        return None, None
    reference = copy.deepcopy(network).requires_grad_(False)
    if state is not None:
        reference.load_state_dict(state["reference"])
    if not (config.kl or config.finetune):
        return reference, None
    return reference, Leash(reference, config.kl, config.kl_target, config.kl_horizon)


def _game_seed(seed: int, steps: int) -> int:
    """The seed after so many steps: of other games than those that the run has begun with already."""
    return int(np.random.SeedSequence([seed, steps]).generate_state(1)[0] >> 2) if steps else seed


def _best_before(evaluator: _Evaluator, config: TrainConfig, folder: CheckpointFolder | None) -> str:
    """Keeps the best checkpoint before a drift, and says which one that is."""
    best = best_before(evaluator.comparable, config.drift_patience)
    if best is not None and best.steps == 0:
        return f"the best before it is {_start(config)}"
    return (
        "no checkpoint is kept: no --save"
        if folder is None
        else f"the best before it is kept: {folder.keep_best()}"
    )


def _best(evaluator: _Evaluator, config: TrainConfig, save: Path) -> str:
    """Which policy did best at the score, as the last words of a run."""
    first, *others = evaluator.readings
    if config.finetunes and others and max(reading.score for reading in others) <= first.score:
        return f"no checkpoint beat {_start(config)} (score {first.score:.1f})"
    return f"the best is {save / 'best.dat'}"


def _start(config: TrainConfig) -> str:
    return "the policy it started from" + ("" if config.model is None else f", {config.model}")


def _evaluation_scalars(result: Evaluation) -> dict[str, float]:
    return {
        "test_reward_interval": mean_interval(result.scores)[1],
        "test_reward_best": float(result.scores.max()),
        **{_tag(name): float(values.mean()) for name, values in result.figures.items()},
    }


def _tag(name: str) -> str:
    """The chart of a figure of an evaluation."""
    return "test_reward" if name == "score" else f"test_{name}"
