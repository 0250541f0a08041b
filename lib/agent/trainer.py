"""Training and finetuning: rollouts, updates, evaluations, and what is said and kept about them."""

import contextlib
import copy
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lib.agent.actor_critic import actor_critic_loss, log_prob_of
from lib.agent.checkpoints import CheckpointFolder, check_policy, load_policy
from lib.agent.config import TrainConfig
from lib.agent.evaluate import CutShort, Evaluation, evaluate
from lib.agent.leash import Leash
from lib.agent.network import Normaliser, PolicyNet
from lib.agent.online import NewestReward, Online
from lib.agent.returns import explained_variance, lambda_advantages, normalised
from lib.agent.rollout import Collector, Game, GameLog, Rollout, autocast
from lib.agent.watch import BY_REWARD, CHARTED, Reading, Watch, best_before, changes, drifting
from lib.cli import UserError
from lib.envs.make import counter, gauges, make_world, probes
from lib.envs.world import World
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.teachers import Teacher, make_teacher
from lib.reward.model import RewardModel, load_reward_model
from lib.runs import (
    STATE,
    Charts,
    Every,
    Interrupt,
    Progress,
    Stopped,
    format_count,
    format_duration,
    git_commit,
    has_fast_bf16,
    held,
    lineage,
    load_state,
    make_run_dir,
    mean_interval,
    random_state,
    resolve_device,
    save_state,
    set_random_state,
    versions,
    write_config,
)

_STAGE = "01_a2c.py"
_LOG_SECONDS = 2.0
_RECENT_GAMES = 100
_EXPLODED = 1e6  # times what is usual; no loss grows so fast by learning
_EVAL_SEED = 10_000  # evaluations play other games than training does


class Batch(NamedTuple):
    """What the passes of an update go over: the N = T·B steps of a rollout, on the device."""

    seen: (
        torch.Tensor
    )  # features [N, F] where the rollout has them, else observations, uint8 [N, 4, 84, 84] or float32 [N, D]
    actions: torch.Tensor  # int64 [N], or float32 [N, A] as they were drawn
    old_log_probs: torch.Tensor  # float32 [N], of the acting policy
    old_values: torch.Tensor  # float32 [N], of the acting policy
    advantages: torch.Tensor  # float32 [N]
    returns: torch.Tensor  # float32 [N]
    valid: torch.Tensor  # bool [N]


def assess(
    rollout: Rollout, config: TrainConfig, leash: Leash | None, bf16: bool
) -> tuple[Batch, dict[str, torch.Tensor]]:
    """What every step of a rollout was worth: rewards, the price of the leash, advantages and returns.

    Args:
      rollout: T steps of B environments.
      config: discount, λ, and what is paid.
      leash: to the reference policy, where there is one.
      bf16: whether the reference computes in bf16.

    Returns:
      The batch to learn from, and scalars on the device by chart name; reading them is left to whoever logs, so that
      nothing waits here.
    """
    device = rollout.actions.device
    terminal, truncated, valid = (
        torch.from_numpy(flags).to(device, non_blocking=True)
        for flags in (rollout.terminal, rollout.truncated, rollout.valid)
    )
    weight = valid / valid.sum().clamp(min=1)
    parts: dict[str, torch.Tensor] = {}
    if rollout.learned is None or config.score_weight:
        score = torch.from_numpy(rollout.score).to(device, non_blocking=True)
        score = score.sign() if config.clip_score else score
    if rollout.learned is None:
        rewards = score
    else:
        rewards = rollout.learned
        mean = (rewards * weight).sum()
        parts["reward_mu"] = mean
        parts["reward_std"] = ((rewards - mean).square() * weight).sum().sqrt()
        if config.score_weight:
            rewards = rewards + config.score_weight * score
    if leash is not None:
        rewards, scalars = leash.pull(rollout, rewards, valid, bf16)
        parts |= scalars

    values = rollout.values.detach()
    advantages = lambda_advantages(rewards, values, terminal, truncated, config.gamma, config.gae_lambda)
    values = values[:-1]
    returns = advantages + values
    parts["advantage"] = (advantages * weight).sum()
    parts["batch_rewards"] = (returns * weight).sum()
    parts["explained_variance"] = explained_variance(values, returns, valid)
    if config.normalise_advantages:
        advantages = normalised(advantages, valid)
    old = log_prob_of(rollout.logits.detach(), rollout.actions)
    seen = rollout.observations if rollout.features is None else rollout.features
    steps = (seen, rollout.actions, old, values, advantages, returns, valid)
    return Batch(*(rows.flatten(0, 1) for rows in steps)), parts


def update(
    network: PolicyNet,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: TrainConfig,
    bf16: bool,
    leash: Leash | None = None,
    stop: Callable[[], bool] | None = None,
) -> dict[str, torch.Tensor]:
    """The passes over one rollout: one for A2C, several over minibatches for PPO.

    Args:
      network: the policy that gathered the rollout.
      optimizer: of its trainable parameters.
      rollout: T steps of B environments.
      config: what is paid, passes, clips and weights of the loss.
      bf16: whether networks compute in bf16.
      leash: to the reference policy, where there is one.
      stop: asked before every minibatch but the first whether to leave it at that.

    Returns:
      Scalars on the device by chart name, averaged over the passes. Only `--target-kl` waits for the device, once
      a pass.
    """
    batch, parts = assess(rollout, config, leash, bf16)
    device, count = batch.actions.device, len(batch.actions)
    passes: list[dict[str, torch.Tensor]] = []
    for epoch in range(config.epochs):
        for rows in _minibatches(count, config.minibatches, device):
            if passes and stop is not None and stop():
                break
            part = Batch(*(column[rows] for column in batch))
            if config.one_pass and rollout.logits.requires_grad:
                logits, values = rollout.logits.flatten(0, 1), rollout.values[:-1].flatten()
            else:
                with autocast(device, bf16):
                    features = network.features(part.seen) if rollout.features is None else part.seen
                    logits, values = network.logits(features), network.values(features)
            loss, scalars = actor_critic_loss(
                logits,
                values,
                part.actions,
                None if config.one_pass else part.old_log_probs,
                part.old_values,
                part.advantages,
                part.returns,
                part.valid,
                clip=config.clip,
                value_clip=config.value_clip,
                entropy_coef=config.entropy,
                value_coef=config.value_coef,
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            passes.append(scalars | _gradient_scalars(gradients))
            nn.utils.clip_grad_norm_(parameters, config.grad_clip)
            optimizer.step()
        last = epoch == config.epochs - 1
        if config.target_kl and not last and passes[-1]["approx_kl"] > config.target_kl:
            break
    means = torch.stack([torch.stack(list(scalars.values())) for scalars in passes]).mean(0)
    parts |= dict(zip(passes[0], means.unbind(), strict=True))
    return parts | {"epochs_done": torch.full((), epoch + 1.0, device=device)}


def _minibatches(count: int, parts: int, device: torch.device) -> Sequence[slice | torch.Tensor]:
    """Rows of each minibatch of a pass, in random order; all as they are where there is but one."""
    if parts == 1:
        return [slice(None)]
    return torch.randperm(count, device=device).tensor_split(parts)


def _gradient_scalars(gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Root mean square, largest size and variance of all components, before clipping."""
    count = sum(gradient.numel() for gradient in gradients)
    squares = torch.stack(torch._foreach_norm(gradients, 2)).square().sum() / count
    # aminmax goes over the data once; an L∞ norm took 25 times as long on a CPU.
    largest = torch.stack([torch.stack(gradient.aminmax()).abs().max() for gradient in gradients]).max()
    mean = torch.stack([gradient.sum() for gradient in gradients]).sum() / count
    return {"grad_l2": squares.sqrt(), "grad_max": largest, "grad_var": squares - mean.square()}


class _Monitor:
    """Turns rollouts and losses into curves and a progress line, touching the device once every few seconds.

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

    def after(self, rollout: Rollout, parts: dict[str, torch.Tensor], steps: int, lr: float) -> None:
        """Takes note of one update.

        Raises:
          UserError: something is no longer a number, or the loss has exploded.
        """
        learned = np.zeros_like(rollout.score) if rollout.learned is None else rollout.learned.cpu().numpy()
        for score, valid, paid in zip(rollout.score, rollout.valid, learned, strict=True):
            for game in self._log.add(score, valid, paid):
                self._games += 1
                self._recent.append(game)
        for name, value in parts.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._updates += 1
        self._since += rollout.score.size
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


class _Examiner:
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

    def replace_reward(self, reward: RewardModel | None) -> None:
        """Another reward model pays from now on; what it measures is compared with its own first evaluation."""
        self._reward, self._since = reward, len(self.readings)
        if self._first is not None:
            self._first = {name: values for name, values in self._first.items() if name not in BY_REWARD}

    def state(self) -> dict[str, Any]:
        """The evaluations so far and what the policy was at the start, for `restore`."""
        return {
            "readings": [tuple(reading) for reading in self.readings],
            "first": self._first,
            "baseline": self._baseline,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from these evaluations."""
        self.readings = [Reading(*reading) for reading in state["readings"]]
        self._baseline = state["baseline"]
        if state["first"] is not None:
            self._first = {name: values.numpy() for name, values in state["first"].items()}

    def examine(self, network: PolicyNet, steps: int) -> Evaluation:
        """Evaluates the policy after so many steps of training.

        Raises:
          CutShort: the end was asked for meanwhile.
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
            gauges(config.env),
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
    device = resolve_device(config.dev)
    bf16 = has_fast_bf16(device) if config.bf16 is None else config.bf16
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    parents: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        # What may be refused comes first: starting the emulators takes longest.
        state = None
        if config.resume is not None:
            stack.enter_context(held(config.resume))
            state = load_state(config.resume, _STAGE)
            if state is not None and config.steps <= min(state["steps"], state["examined"]):
                raise UserError(
                    f"--resume {config.resume}: its {state['steps']} steps are done; expected more of them: "
                    f"add --steps N"
                )
        teacher = None if config.teacher is None else make_teacher(config.teacher)
        start = None if config.model is None or state is not None else load_policy(config.model)
        reward = (
            None
            if config.reward is None or config.watch_reward
            else load_reward_model(config.reward, device, bf16, config.pessimism)
        )
        world = make_world(config.env, config.num_envs, config.env_threads)
        stack.callback(world.close)
        if start is not None and config.model is not None:
            network, origin = start
            check_policy(network, world, config.model)
            parents["policy"] = {"file": str(config.model), **lineage(origin)}
        else:
            network = PolicyNet(
                world.num_actions, continuous=world.continuous, observation_size=world.observation_size
            )
        if reward is not None and config.reward is not None:
            reward.check_world(world, config.reward)
            parents["reward"] = {"file": str(config.reward), **reward.origin}
        live = NewestReward(config, world, device, bf16) if config.watch_reward else None
        if state is not None:
            if live is None:
                _check_same_reward(config, parents, state["parents"])
            parents = state["parents"]
            network.load_state_dict(state["network"])
        folder = None if config.save is None else CheckpointFolder(config.save)
        recorder = None
        if config.db_path is not None:
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
                )
            except OSError as error:
                raise UserError(
                    f"--db-path {config.db_path}: expected a folder to write to: {error.strerror}"
                ) from error
            stack.callback(recorder.close)
        if config.resume is None:
            run_dir = make_run_dir(config.runs, config.algo, config.name)
            stack.enter_context(held(run_dir))
        else:
            run_dir = config.resume
        kept_config = dataclasses.asdict(config) | {"resume": None}
        write_config(run_dir, kept_config, resumed=config.resume is not None)
        if recorder is not None:
            made_by = {"run": run_dir, "seed": config.seed, "model": config.model, "reward": config.reward}
            made_by |= {"git_commit": git_commit(), "torch": versions()["torch"]}
            recorder.origin = {name: str(value) for name, value in made_by.items() if value not in (None, "")}
        steps, updates, examined, next_eval = 0, 0, 0, config.eval_every
        if state is not None:
            steps, updates, examined = state["steps"], state["updates"], state["examined"]
            next_eval = state["next_eval"]
        purge_step = None if config.resume is None else 0 if state is None else steps + 1
        charts = stack.enter_context(Charts(run_dir, purge_step))
        progress = Progress()
        stack.callback(progress.close)
        progress.line(f"{config.env}: {world.num_envs} environments on {device}, curves in {run_dir}")
        if config.resume is not None:
            progress.line(
                "it ended before its first state: all begins anew"
                if state is None
                else f"going on after {format_count(steps)} steps; the games begin anew"
            )

        network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.body.requires_grad_(not config.freeze_convs)
        trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(trainable, lr=config.lr, eps=1e-5, fused=True)
        leash, reference = None, None
        if config.finetunes and config.model is not None:
            reference = copy.deepcopy(network).requires_grad_(False)
            if state is not None:
                reference.load_state_dict(state["reference"])
        if reference is not None and (config.kl or config.finetune):
            leash = Leash(reference, config.kl, config.kl_target, config.kl_horizon)
        # Other games than those that the run has begun with already.
        seed = (
            int(np.random.SeedSequence([config.seed, steps]).generate_state(1)[0] >> 2)
            if steps
            else config.seed
        )
        pays = live or reward
        collector = Collector(
            *(world, config.rollout, device, seed, bf16, pays.pay if pays else None, recorder),
            *((pays.input,) if pays else ()),
        )
        monitor = _Monitor(config, charts, progress, recorder)
        arena = make_world(config.env, config.eval_games, config.env_threads)
        stack.callback(arena.close)

        saved, saved_at = None, 0
        disk_error: OSError | None = None
        drifted = False
        interrupt = stack.enter_context(Interrupt())

        def stop() -> bool:
            return interrupt.asked

        examiner = _Examiner(
            *(config, arena, device, bf16, reward, reference, teacher, charts, progress), stop=stop
        )
        if state is not None:
            optimizer.load_state_dict(state["optimizer"])
            if leash is not None:
                leash.coef = state["kl_coef"].to(device)
            monitor.restore(state["monitor"])
            monitor.last_good = run_dir / STATE
            examiner.restore(state["examiner"])
            if recorder is not None:
                recorder.restore(state["recorder"])
            if folder is not None:
                saved_at = state["saved_at"]
                folder.restore(state["folder"], steps, config.name)
            if state["device"] == device.type:
                collector.generator.set_state(state["actions"])
            set_random_state(state["random"], device)
        online, new_reward_at = None, 0 if state is None else state.get("new_reward_at", 0)
        if live is not None:
            online = monitor.online = Online(config, live, recorder, progress, stop)
        checkpoints = Every(config.checkpoint_minutes)

        def keep() -> None:
            """Writes the state that the run can be gone on from."""
            monitor.check(network, steps)
            charts.flush()  # or a killed process would lose points that are not drawn again
            kept = {
                "steps": steps,
                "updates": updates,
                "new_reward_at": new_reward_at,
                "examined": examined,
                "next_eval": next_eval,
                "saved_at": saved_at,
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "reference": None if reference is None else reference.state_dict(),
                "kl_coef": None if leash is None else leash.coef,
                "monitor": monitor.state(),
                "examiner": examiner.state(),
                "recorder": None if recorder is None else recorder.state(),
                "folder": None if folder is None else folder.state(),
                "device": device.type,
                "actions": collector.generator.get_state(),
                "random": random_state(device),
            }
            save_state(run_dir, _STAGE, kept, kept_config, parents)
            monitor.last_good = saved if saved_at == steps and saved else run_dir / STATE
            checkpoints.restart()

        def take_reward(model: RewardModel | None) -> None:
            """From now on another reward model pays than before."""
            examiner.replace_reward(model)
            if model is not None:
                collector.reward_input = model.input
                parents["reward"] = {"file": str(config.reward), **model.origin}
            if model is not None and recorder is not None:
                recorder.origin = {**recorder.origin, "reward_version": str(model.origin.get("version", ""))}
            if folder is not None:
                folder.forget_best("best-learned.dat")

        if online is not None:
            try:
                online.open(steps, lambda: collector.collect(network, stop=stop))
            except Stopped:
                pass
            except OSError as error:
                disk_error = error
            take_reward(online.live.model)
        if config.finetunes and not examiner.readings and disk_error is None:  # what the policy was before
            with contextlib.suppress(CutShort):
                examiner.examine(network, 0)
            monitor.resume()
        while not interrupt.asked and disk_error is None:
            if steps > examined and (steps >= next_eval or steps >= config.steps):
                monitor.check(network, steps)
                try:
                    result = examiner.examine(network, steps)
                except CutShort:
                    break
                examined, next_eval = steps, steps + config.eval_every
                if folder is not None:
                    saved, saved_at = folder.save(network, steps, result, kept_config, parents), steps
                warning = drifting(examiner.comparable, config.drift_patience)
                if warning is not None:
                    progress.line(f"{warning}; {_best_before(examiner, config, folder)}")
                    drifted = config.stop_on_drift
                if folder is not None:
                    keep()  # so that what is kept there and what is known of it go together
                monitor.resume()
            if steps >= config.steps or drifted:
                break
            if online is not None:
                try:
                    if online.wait(steps):
                        monitor.resume()
                except OSError as error:
                    disk_error = error
                    break
                if online.take(steps):
                    take_reward(online.live.model)
                    new_reward_at = updates
            if checkpoints.due():
                keep()
            lr = config.lr * max(0.0, 1 - steps / config.lr_decay_steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            try:
                rollout = collector.collect(network, config.one_pass, stop, config.freeze_convs)
            except Stopped:
                break
            except OSError as error:  # the recorder's disk is full, or its folder is gone
                disk_error = error
                break
            # While the critic warms up, nothing that the policy depends on moves, nor does the price of its straying.
            policy_moves = updates - new_reward_at >= config.critic_warmup
            network.body.requires_grad_(policy_moves and not config.freeze_convs)
            network.policy.requires_grad_(policy_moves)
            parts = update(network, optimizer, rollout, config, bf16, leash, stop)
            if isinstance(network.body, Normaliser) and policy_moves and not config.freeze_convs:
                network.body.update(rollout.observations)
            if leash is not None and policy_moves:
                leash.adapt(parts["kl_ref"], rollout.score.size)
            steps, updates = steps + rollout.score.size, updates + 1
            monitor.after(rollout, parts, steps, lr)
        monitor.check(network, steps)
        if folder is not None and steps > saved_at:
            saved = folder.save(network, steps, monitor.games_seen(), kept_config, parents, evaluated=False)
            saved_at = steps
        if online is not None and (drifted or min(steps, examined) >= config.steps):
            online.end(steps)
        with contextlib.suppress(UserError) if disk_error else contextlib.nullcontext():
            keep()
        where = f"saved {saved}" if saved else f"nothing saved: no {'step made' if folder else '--save'}"
        if disk_error is not None:
            raise UserError(f"stopped after {steps} steps, {where}: could not record to the DB: {disk_error}")
        if interrupt.asked:
            progress.line(f"stopped by request, {where}")
            progress.line(f"go on with --resume {run_dir}")
        else:
            if drifted:
                where = f"stopped by --stop-on-drift, {where}"
            if saved is not None:
                where += f"; {_best(examiner, config, saved.parent)}"
            if drifted or saved is not None:
                progress.line(where)
        return saved


def _check_same_reward(config: TrainConfig, now: dict[str, Any], began: dict[str, Any]) -> None:
    """Refuses another reward model than the run began with, whatever its name."""
    made = [parents.get("reward", {}).get("created") for parents in (began, now)]
    if made[0] != made[1]:
        raise UserError(
            f"--resume {config.resume}: expected the reward model that the run began with, of {made[0]}, "
            f"but {config.reward} is of {made[1]}; put that one back, or begin a new run with -m"
        )


def _best_before(examiner: _Examiner, config: TrainConfig, folder: CheckpointFolder | None) -> str:
    """Keeps the best checkpoint before a drift, and says which one that is."""
    best = best_before(examiner.comparable, config.drift_patience)
    if best is not None and best.steps == 0:
        return f"the best before it is {_start(config)}"
    return (
        "no checkpoint is kept: no --save"
        if folder is None
        else f"the best before it is kept: {folder.keep_best()}"
    )


def _best(examiner: _Examiner, config: TrainConfig, save: Path) -> str:
    """Which policy did best at the score, as the last words of a run."""
    first, *others = examiner.readings
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
