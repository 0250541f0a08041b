"""Labels while it trains: the newest reward model pays, and labels fall due on a schedule.

The stages communicate only through files. A reward model is loaded between two updates when its file was replaced.
progress.json beside the DB tells the others how many labels are due (`lib.preferences.schedule`).
"""

import contextlib
import time
import zlib
from collections.abc import Callable
from typing import Any

from lib.agent.config import TrainConfig
from lib.cli import UserError
from lib.files import NotRecorded
from lib.learner import Alone, Learner
from lib.preferences.schedule import (
    LEAST_LABELS,
    LabelCount,
    LabelPlan,
    ProgressWriter,
    TrainingProgress,
    labels_due,
)
from lib.preferences.segment_db import SegmentDB
from lib.reporting import Progress
from lib.reward.live import LiveReward
from lib.training.drift import DRIFTED
from lib.training.loop import Hook, RunConfig, Stop
from lib.training.recording import Recording

_OPENING_PROB = 0.02  # chance per step that a recording begins in the opening: it is over within minutes
_SEGMENTS_PER_LABEL = 2  # of the opening: enough that no clip need be seen twice
_POLL_SECONDS = 0.2


class NewestReward(Hook):
    """Loads every new reward model, waits for the first and, with --wait-for-labels, for labels that are due.

    Args:
      config: of the run.
      live: the file in which reward models arrive.
      recording: records the clips that are labelled.
      progress: gets a line whenever something happens.
      stop: of the run.
      pay_by: lets a model pay, in all parts of the run.
      ranks: the processes that learn together, which all take the same model at once; the first one waits for labels
        and says how far the training is.
      labels: the flags that say when labels fall due, and the DB that gets them; None where none do.
    """

    def __init__(
        self,
        config: RunConfig,
        live: LiveReward,
        recording: Recording,
        progress: Progress,
        stop: Stop,
        pay_by: Callable[[Any], None],
        ranks: Alone,
        labels: TrainConfig | None = None,
    ) -> None:
        self._config, self._live, self._recording = config, live, recording
        self._progress, self._stop, self._pay_by, self._ranks = progress, stop, pay_by, ranks
        self._plan, self._db, self._slack = LabelPlan(config.steps, 0, 0), None, None
        if labels is not None:
            self._plan = LabelPlan(
                labels.steps,
                labels.labels,
                labels.opening_labels,
                labels.label_schedule,
                labels.label_halving,
            )
            self._db, self._slack = labels.db_path, labels.wait_for_labels
        self._writer: ProgressWriter | None = None
        self._count: LabelCount | None = None
        if self._db is not None and ranks.rank == 0:
            self._writer, self._count = ProgressWriter(self._db), LabelCount(self._db)
        self._fresh = False  # whether a model was read and not taken yet
        self._problem = ""

    def begin(self, learner: Learner) -> None:
        """The opening: plays and records until there are enough clips, then waits until the first model arrives.

        Raises:
          UserError: the labels of the opening are too few to fit a model on.
        """
        steps, recorder, due = learner.steps, self._recording.recorder, labels_due(self._plan, 0)
        if self._take(steps):
            return
        if recorder is not None and due < LEAST_LABELS:
            raise UserError(
                f"--opening-labels {due}: expected at least {LEAST_LABELS}, because {self._live.path} holds "
                "no reward model yet and a fit needs that many"
            )
        wanted, before, usual = _SEGMENTS_PER_LABEL * due, 0, 0.0
        self._progress.line(
            f"no reward model in {self._live.path} yet: waiting for one"
            + (f", and recording {wanted} clips to fit it on" if recorder else "")
        )
        if recorder is not None and self._db is not None:
            stored = sum(self._ranks.everyone(recorder.stored))
            before = max(0, len(SegmentDB(self._db).names) - stored)
            usual, recorder.record_prob = recorder.record_prob, max(recorder.record_prob, _OPENING_PROB)
        while not self._ranks.together(self._stop()) and not self._take(steps):
            clips = before + sum(self._ranks.everyone(0 if recorder is None else recorder.stored))
            full = self._ranks.together(recorder is not None and recorder.full)
            if recorder is not None and clips < wanted and not full:
                self._say(steps, "opening")
                learner.play()
            else:
                self._say(steps, "waiting")
                time.sleep(_POLL_SECONDS)
            if recorder is not None and self._count is not None:
                said = f"{clips} clips" + (f" ({recorder.obstacle})" if recorder.obstacle else "")
                self._progress.update(f"opening: {said}, {self._count.read()} of {due} labels")
        if recorder is not None:
            recorder.record_prob = usual

    def first(self) -> Any:
        """Waits for a model that all processes have read, and returns it. It pays only from `begin` on.

        Raises:
          UserError: a stop was requested meanwhile.
        """
        if not self._agreed():
            self._progress.line(f"no reward model in {self._live.path} yet: waiting for one")
            while not self._agreed():
                if self._ranks.together(self._stop()):
                    raise UserError(
                        f"stopped by request before there was a reward model in {self._live.path}"
                    )
                time.sleep(_POLL_SECONDS)
        return self._live.model

    def before(self, learner: Learner) -> None:
        self._wait(learner.steps)
        self._take(learner.steps)

    def end(self, learner: Learner) -> None:
        # Not where the last evaluation was cut short: that run can be resumed.
        done = learner.steps >= self._config.steps and not self._stop.asked
        if done or self._stop.reason == DRIFTED:
            with contextlib.suppress(OSError):  # best effort
                self._write(learner.steps, "over")

    def scalars(self, steps: int) -> dict[str, float]:
        given = (
            {}
            if self._count is None
            else {"labels": self._count.read(), "labels_due": labels_due(self._plan, steps)}
        )
        return {"reward_version": self._live.version, **given}

    def words(self) -> str:
        return f"  reward model {self._live.version}"

    def _take(self, steps: int) -> bool:
        """Loads a new reward model once every process has read the same, and reports it; returns whether it did."""
        live, taken = self._live, self._agreed()
        if taken and live.model is not None:
            self._fresh = False
            parents = live.model.origin.get("parents")  # a file may say anything
            labels = parents.get("labels") if isinstance(parents, dict) else None
            fitted = f", of {labels} labels" if labels is not None else ""
            self._progress.line(
                f"{steps} steps: loaded reward model {live.version}{fitted}, from {live.path}"
            )
            self._pay_by(live.model)
        return taken

    def _agreed(self) -> bool:
        """Looks at the file, and says what is wrong with it; whether every process has read the same new model."""
        live = self._live
        self._fresh |= live.refresh()
        which = -1
        if self._fresh and live.model is not None:
            which = zlib.crc32(repr(live.model.origin).encode())
        if live.problem != self._problem:
            self._problem = live.problem
            if live.problem:
                stays = f"keeping version {live.version}" if live.model else "waiting for another"
                self._progress.line(f"{live.problem}; not used, {stays}")
        everyone = self._ranks.everyone(which)
        return which >= 0 and set(everyone) == {which}

    def _wait(self, steps: int) -> None:
        """Reports the training's progress and, with --wait-for-labels, waits while too many labels are due."""
        waited = False
        while self._slack is not None and not self._ranks.together(self._stop()):
            due = 0 if self._count is None else labels_due(self._plan, steps) - self._count.read()
            if not self._ranks.together(due > self._slack):
                break
            self._say(steps, "waiting")
            unread = f"; {self._count.problem}" if self._count is not None and self._count.problem else ""
            self._progress.update(f"{steps} steps: waiting for labels, {due} due{unread}", force=not waited)
            waited = True
            time.sleep(_POLL_SECONDS)
        self._say(steps, "training")

    def _say(self, steps: int, phase: str) -> None:
        try:
            self._write(steps, phase)
        except NotRecorded as error:
            self._recording.failed(error)

    def _write(self, steps: int, phase: str) -> None:
        if self._writer is not None:
            version = None if self._live.model is None else self._live.version
            self._writer.write(TrainingProgress(self._plan, steps, phase, str(self._config.name), version))
