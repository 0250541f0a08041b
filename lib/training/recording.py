"""Recording clips while a policy plays."""

from typing import Any

import numpy as np

from lib.agent.config import TrainConfig
from lib.agent.exploration import HeldActions
from lib.agent.forks import Forks
from lib.agent.rollout import Player
from lib.cli import UserError
from lib.envs.make import counter, probes
from lib.envs.world import Step, World
from lib.files import NotRecorded, make_folder
from lib.preferences.answers import hold_answers
from lib.preferences.events import LARGE_SCORE, LOST_LIFE, NOVELTY, Events, kinds_of
from lib.preferences.recorder import SegmentRecorder
from lib.reward.model import RewardModel
from lib.training.loop import Hook, Stop


def make_recorder(config: TrainConfig, world: World, share: range) -> SegmentRecorder | None:
    """The recorder of clips into the DB of `--db-path`, if any.

    Args:
      config: of the run.
      world: the environments of this process.
      share: which of `--num-envs` they are; each has a folder of its own in the DB.

    Raises:
      UserError: the folder cannot be written, holds answers or clips of another environment, or an event cannot be seen in
        this one.
    """
    if config.db_path is None:
        return None
    if hold_answers([config.db_path]):
        raise UserError(f"--db-path {config.db_path}: holds answers of a language model; take another folder")
    make_folder(config.db_path, "--db-path")
    try:
        return SegmentRecorder(
            config.db_path,
            world.num_envs,
            config.env,
            world.spec.num_actions,
            0.0 if config.fork else config.record_prob,
            config.seed,
            max_mb=config.db_max_mb,
            policy=config.name,
            drop_oldest=config.db_drop_oldest,
            action_names=world.action_names,
            first_env=share.start,
            events=None if config.fork else _events(config, world, config.event_envs - share.start),
            event_prob=config.event_prob,
            all_envs=config.num_envs,
        )
    except OSError as error:
        raise UserError(
            f"--db-path {config.db_path}: expected a folder to write to: {error.strerror}"
        ) from error


def make_forks(
    config: TrainConfig, world: World, recorder: SegmentRecorder, held: HeldActions, player: Player, seed: int
) -> Forks:
    """The forks of `--fork`.

    Args:
      config: of the run.
      world: the environments of this process.
      recorder: of their clips, from `make_recorder`.
      held: which actions each holds.
      player: of that world, with that recorder and those held actions.
      seed: of the moments, this process's own.

    Raises:
      UserError: the environments do not make whole groups, or an event cannot be seen in this one.
    """
    if world.num_envs % config.fork:
        raise UserError(
            f"--fork {config.fork}: expected to divide the {world.num_envs} environments of a process into whole groups; "
            "change --num-envs"
        )
    events = _events(config, world, world.num_envs)
    return Forks(player, recorder, held, config.fork, config.record_prob, events, config.event_prob, seed)


def _events(config: TrainConfig, world: World, most: int) -> Events | None:
    """The events of --event-prob in the first environments, `most` of them; None for none."""
    num_envs = min(most, world.num_envs)
    if not config.event_prob or num_envs <= 0:
        return None
    counts = counter(config.env, num_envs)
    kinds = [*kinds_of(counts), LOST_LIFE, LARGE_SCORE]
    if world.spec.observation_size is not None:
        kinds.append(NOVELTY)
    asked = kinds if config.event_kinds is None else config.event_kinds.split(",")
    unknown = [kind for kind in asked if kind not in kinds]
    if unknown:
        raise UserError(
            f"--event-kinds {config.event_kinds}: expected some of {','.join(kinds)} in {config.env}, "
            f"got {unknown[0]!r}"
        )
    if config.event_kinds is None:
        left_out = ("alarm", "shortage", "sighting", NOVELTY) if probes(config.env) else ()
        asked = [kind for kind in asked if kind not in left_out]
    return Events(asked, num_envs, counts)


class Recording(Hook):
    """Runs a recorder. If the DB cannot be written, nothing more is recorded and the run ends.

    Args:
      recorder: of the DB, if there is one.
      stop: of the run.

    Attributes:
      error: why nothing is recorded any more, or None.
    """

    def __init__(self, recorder: SegmentRecorder | None, stop: Stop) -> None:
        self.recorder, self._stop = recorder, stop
        self.error: NotRecorded | None = None

    def failed(self, error: NotRecorded) -> None:
        """Ends the run because its DB cannot be written."""
        self.error = error
        self._stop.reason = "the DB cannot be written"

    def use_reward(self, model: RewardModel) -> None:
        """From now on clips name the reward model that paid for them."""
        if self.recorder is not None:
            version = str(model.origin.get("version", ""))
            self.recorder.origin = {**self.recorder.origin, "reward_version": version}

    def state(self) -> dict[str, Any]:
        return {"recorder": None if self.recorder is None else self.recorder.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        if self.recorder is not None:
            self.recorder.restore(state["recorder"])

    def scalars(self, steps: int) -> dict[str, float]:
        return {} if self.recorder is None else {"segments": self.recorder.stored}

    def words(self) -> str:
        if self.recorder is None:
            return ""
        obstacle = self.recorder.obstacle
        return f"  {self.recorder.stored} clips" + (f" ({obstacle})" if obstacle else "")


class Tap:
    """Hands the steps of a collector to the recorder until that fails: the collector's `Recorder`."""

    def __init__(self, recorder: SegmentRecorder, recording: Recording) -> None:
        self._recorder, self._recording = recorder, recording

    def before(self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None) -> None:
        if self._recording.error is None:
            self._recorder.before(frames, actions, observations)

    def after(self, step: Step) -> None:
        if self._recording.error is None:
            try:
                self._recorder.after(step)
            except NotRecorded as error:
                self._recording.failed(error)
