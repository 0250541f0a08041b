"""Saving policies, and the state that a run resumes from."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import torch

from lib.agent.checkpoints import CheckpointFolder
from lib.agent.evaluate import Evaluation
from lib.cli import UserError
from lib.devices import random_state
from lib.learner import Advance, Learner
from lib.reward.model import RewardModel
from lib.runs import STATE, Timer, save_state
from lib.training.charts import ChartsHook
from lib.training.loop import Hook, RunConfig
from lib.training.recording import Recording
from lib.training.summary import PAGE, log_evaluation, read_evaluations, write_summary


class Checkpoints(Hook):
    """Saves the policy when it was evaluated and at the end, and the state every so many minutes.

    Args:
      config: of the run.
      run_dir: of the run.
      folder: of the policies, if they are saved.
      parents: what the run's files say they came from.
      device: of the networks.
      monitor: checks the learner before anything is saved.
      recording: of clips; where it failed, the state may fail to be written on the same disk.
      stage: the script of the run.

    Attributes:
      folder: see above.
      saved: the policy saved last.
      hooks: whose state belongs to the run's.
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        folder: CheckpointFolder | None,
        parents: dict[str, Any],
        device: torch.device,
        monitor: ChartsHook,
        recording: Recording,
        stage: str,
    ) -> None:
        self.folder = folder
        if folder is not None:
            folder.run = run_dir.name
        self.saved: Path | None = None
        self.hooks: list[Hook] = []
        self._config, self._run_dir, self._parents = config, run_dir, parents
        self._device, self._monitor, self._recording, self._stage = device, monitor, recording, stage
        self._kept_config = dataclasses.asdict(config) | {"resume": None}
        self._saved_at = 0  # steps
        self._state_due = False
        self._timer = Timer(config.checkpoint_minutes)

    def before(self, learner: Learner) -> None:
        if self._timer.due():
            self.save_state(learner)

    def after(self, learner: Learner, made: Advance) -> None:
        if self._state_due:  # so that the policies and what the state says of them go together
            self.save_state(learner)

    def end(self, learner: Learner) -> None:
        # A full disk is reported by what failed first.
        with contextlib.suppress(UserError) if self._recording.error else contextlib.nullcontext():
            if learner.steps > self._saved_at:
                self.save_policy(learner, self._monitor.games_seen(), evaluated=False)
            self.save_state(learner)
            if self.folder is not None:
                root, rows = self.folder.root, read_evaluations(self.folder.root)
                if rows and rows[-1]["run"] == self._run_dir.name:
                    write_summary(root, root / PAGE, self._kept_config)

    def use_reward(self, model: RewardModel) -> bool:
        """Notes the reward model that pays from now on; returns whether it differs from the previous one."""
        origin = {"file": str(self._config.reward), **model.origin}
        another = self._parents.get("reward") != origin
        self._parents["reward"] = origin
        if another and self.folder is not None:
            self.folder.forget_best("best-learned.dat")
        return another

    def save_policy(self, learner: Learner, games: Evaluation, evaluated: bool = True) -> None:
        """Writes the policy, with `--save`.

        Args:
          learner: whose policy it is.
          games: what the file's name tells.
          evaluated: whether the games are an evaluation of these very weights; others never make a best.
        """
        if self.folder is None:
            return
        self.saved = self.folder.save(
            learner.policy(), learner.steps, games, self._kept_config, self._parents, evaluated
        )
        self._saved_at = learner.steps
        self._state_due = True

    def log(self, games: Evaluation, steps: int) -> None:
        """Writes an evaluation after so many steps, with `--save`."""
        if self.folder is not None:
            log_evaluation(self.folder.root, self._run_dir.name, steps, games)

    def save_state(self, learner: Learner) -> None:
        """Writes the state needed to resume.

        Raises:
          UserError: something is no longer a number, or the file cannot be written.
        """
        self._monitor.check(learner)
        self._monitor.flush()
        state = {**learner.state(), "random": random_state(self._device)}
        for hook in self.hooks:
            state |= hook.state()
        save_state(self._run_dir, self._stage, state, self._kept_config, self._parents)
        saved_now = self.saved is not None and self._saved_at == learner.steps
        self._monitor.last_good = self.saved if saved_now else self._run_dir / STATE
        self._state_due = False
        self._timer.restart()

    def state(self) -> dict[str, Any]:
        folder = None if self.folder is None else self.folder.state()
        return {"saved_at": self._saved_at, "folder": folder}

    def load_state(self, state: dict[str, Any]) -> None:
        self._saved_at = state["saved_at"]
        self._monitor.last_good = self._run_dir / STATE
        if self.folder is not None:
            self.folder.restore(state["folder"], state["steps"])
