"""Training on a reward model that is refitted meanwhile: files are all that the stages say to each other.

A reward model is taken between two updates when its file has been replaced (`LiveReward`). Beside the DB lies progress.json, by
which the others know how many labels are due (`Online`, lib/preferences/schedule.py).
"""

import contextlib
import time
from collections.abc import Callable

from lib.agent.config import TrainConfig
from lib.cli import UserError
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.schedule import (
    LEAST_LABELS,
    LabelCount,
    LabelPlan,
    ProgressWriter,
    TrainingProgress,
    labels_due,
)
from lib.preferences.segments import SegmentDB
from lib.reporting import Progress
from lib.reward.live import LiveReward

_OPENING_PROB = 0.02  # chance per step that a recording begins in the opening: it is over within minutes
_SEGMENTS_PER_LABEL = 2  # of the opening: enough that no clip need be seen twice
_POLL_SECONDS = 0.2


class Online:
    """What a training does between two updates in concurrent mode.

    Args:
      config: of the training.
      live: the reward model.
      recorder: of the training, where it records.
      progress: gets a line whenever something happens.
      stop: whether to give up waiting.
    """

    def __init__(
        self,
        config: TrainConfig,
        live: LiveReward,
        recorder: SegmentRecorder | None,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        self.live = live
        self._config, self._recorder, self._progress, self._stop = config, recorder, progress, stop
        self._plan = LabelPlan(
            config.steps, config.labels, config.opening_labels, config.label_schedule, config.label_halving
        )
        self._writer: ProgressWriter | None = None
        self._count: LabelCount | None = None
        self._before = 0  # segments
        if config.db_path is not None:
            self._writer, self._count = ProgressWriter(config.db_path), LabelCount(config.db_path)
            stored = 0 if recorder is None else recorder.stored  # of a run that goes on
            self._before = max(0, len(SegmentDB(config.db_path).names) - stored)
        self._problem = ""

    def open(self, steps: int, play: Callable[[], object]) -> None:
        """The opening: plays and records until there are clips enough, then waits, all until the first model is there.

        Args:
          steps: of training so far.
          play: some steps of every environment, of which nothing is learnt.

        Raises:
          Stopped: from `play`.
          NotRecorded: from `play`, or progress.json could not be written.
          UserError: the labels of the opening are too few to fit a model on.
        """
        if self.take(steps):
            return
        recorder, due = self._recorder, labels_due(self._plan, 0)
        if recorder is not None and due < LEAST_LABELS:
            raise UserError(
                f"--opening-labels {due}: expected at least {LEAST_LABELS}, as {self.live.path} holds no reward model yet "
                "and none is fitted on fewer"
            )
        wanted = _SEGMENTS_PER_LABEL * due
        self._progress.line(
            f"no reward model in {self.live.path} yet: waiting for one"
            + (f", and recording {wanted} clips to fit it on" if recorder else "")
        )
        usual = 0.0
        if recorder is not None:
            usual, recorder.record_prob = recorder.record_prob, max(recorder.record_prob, _OPENING_PROB)
        while not self._stop() and not self.take(steps):
            clips = 0 if recorder is None else self._before + recorder.stored
            if recorder is not None and clips < wanted and not recorder.full:
                self._say(steps, "opening")
                play()
            else:
                self._say(steps, "waiting")
                time.sleep(_POLL_SECONDS)
            if recorder is not None and self._count is not None:
                said = f"{clips} clips" + (f" ({recorder.obstacle})" if recorder.obstacle else "")
                self._progress.update(f"opening: {said}, {self._count.read()} of {due} labels")
        if recorder is not None:
            recorder.record_prob = usual

    def take(self, steps: int) -> bool:
        """Takes a new reward model where there is one, and says so; whether it did.

        Args:
          steps: of training so far.
        """
        live = self.live
        taken = live.refresh()
        if taken and live.model is not None:
            parents = live.model.origin.get("parents")  # a file may say anything
            labels = parents.get("labels") if isinstance(parents, dict) else None
            fitted = f", of {labels} labels" if labels is not None else ""
            self._progress.line(f"{steps} steps: took reward model {live.version}{fitted}, from {live.path}")
        if live.problem != self._problem:
            self._problem = live.problem
            if live.problem:
                goes_on = f"going on with version {live.version}" if live.model else "waiting for another"
                self._progress.line(f"{live.problem}; not taken, {goes_on}")
        return taken

    def wait(self, steps: int) -> bool:
        """Says how far the training is and, with --wait-for-labels, waits while too many labels are due.

        Args:
          steps: of training so far.

        Returns:
          Whether there was anything to wait for.

        Raises:
          NotRecorded: progress.json could not be written.
        """
        slack, waited = self._config.wait_for_labels, False
        while slack is not None and self._count is not None and not self._stop():
            due = labels_due(self._plan, steps) - self._count.read()
            if due <= slack:
                break
            self._say(steps, "waiting")
            unread = f"; {self._count.problem}" if self._count.problem else ""
            self._progress.update(f"{steps} steps: waiting for labels, {due} due{unread}", force=not waited)
            waited = True
            time.sleep(_POLL_SECONDS)
        self._say(steps, "training")
        return waited

    def end(self, steps: int) -> None:
        """Says that the training is over, all its steps being done."""
        with contextlib.suppress(OSError):  # which is worth no failure any more
            self._say(steps, "over")

    def scalars(self, steps: int) -> dict[str, float]:
        """What to chart: the version of the reward model, labels given and due."""
        given = (
            {}
            if self._count is None
            else {"labels": self._count.read(), "labels_due": labels_due(self._plan, steps)}
        )
        return {"reward_version": self.live.version, **given}

    def _say(self, steps: int, phase: str) -> None:
        if self._writer is not None:
            version = None if self.live.model is None else self.live.version
            self._writer.write(TrainingProgress(self._plan, steps, phase, self._config.name, version))
