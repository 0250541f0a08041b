"""Cutting segments out of a batch of running games at little cost."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.envs.world import Step
from lib.files import NotRecorded, remove_stale
from lib.preferences.dropping import drop_oldest
from lib.preferences.events import Events
from lib.preferences.recordings import EventClips, Recording
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import (
    FORK,
    MAX_ACTION_NAME,
    RANDOM,
    SEGMENT_LENGTH,
    Segment,
    Sidecar,
    save_segment,
)

_TEMPORARY = re.compile(r"\.[0-9]+\.dat\.[0-9]+-[0-9a-f]{8}\.tmp")  # as save_segment names them
_IN_VAIN = 20  # recordings cut short before `obstacle` says so
# Of the limit, what dropping old segments comes down to: finding them takes some milliseconds, so not every time.
_ROOM = 0.95


class SegmentRecorder:
    """Records segments of B environments: at every step each of them may begin one.

    Call `before` when the actions are chosen and `after` with their outcome, every step. A segment holds the frame
    each action was chosen on and, in its sidecar, that action's outcome. It never crosses a reset: one that is
    unfinished when its game is reset is dropped. Files are `<db>/<env, 2 digits>/<number, 8 digits>.dat`, where the
    number is the step the segment began at, counted on from the largest number the DB holds already.

    In the sidecar `life_lost` marks every terminal, the last life's included; `game_over` those that ended the game.
    Which of them did shows one step later (see `Step`), so a segment that ends on a terminal is saved then.

    Only the frames of environments that are being recorded are copied. A finished segment is compressed and written
    at once, about 5 ms for Atari's; with the usual probability that is some 30 µs a step of 16 environments.

    With `events`, the first environments also record segments that end shortly after an event (see `EventClips`). They
    never share a step with a segment begun at random, and those are the same with and without them. The sidecar's
    `reason` tells which is which.

    Attributes:
      steps: decisions of all environments so far; it numbers the segments, and a resumed run may set it.
      policy: checkpoint the recording policy came from; it may change while recording.
      origin: short texts by name about the origin of segments, such as the run, its seed and the
        commit of the code; it may change as well.
      record_prob: probability that an environment that is not being recorded begins a segment at a step; it may change
        while recording.
      stored: segments saved by this recorder.
      stored_bytes: their size on disk.
      full: the DB has reached `max_mb`; nothing more is recorded.

    Args:
      db_path: the DB, created if missing.
      num_envs: B.
      env_id: goes into the sidecars.
      num_actions: goes into the sidecars.
      record_prob: probability that an environment that is not being recorded begins a segment at a step.
      seed: decides which ones do, together with `first_env`.
      max_mb: size of the DB, in 10⁶ bytes and counting what lies in it already, from which on nothing more is
        recorded; it is passed by less than one segment. None: no limit.
      policy: see the attribute.
      first_env: index of the first environment, the name of its folder.
      drop_oldest: at `max_mb`, drop the oldest segments that no label names instead of ending the recording.
      action_names: what the environment calls its actions, for the sidecars. Names that only count the actions, or do
        not match `num_actions`, are left out.
      events: what to look for in the first environments; None for nothing.
      event_prob: probability that an event is recorded.
      all_envs: environments that are recorded into the DB at once, those of other processes included; None for B. The
        others are taken to store as much as these.

    Raises:
      UserError: the DB holds clips of another environment, which cannot be compared with these.
      OSError: it cannot be created or read.
    """

    def __init__(
        self,
        db_path: Path,
        num_envs: int,
        env_id: str,
        num_actions: int,
        record_prob: float,
        seed: int,
        max_mb: float | None = None,
        policy: str = "",
        first_env: int = 0,
        drop_oldest: bool = False,
        action_names: Sequence[str] = (),
        events: Events | None = None,
        event_prob: float = 1.0,
        all_envs: int | None = None,
    ) -> None:
        self.steps = 0
        self.policy = policy
        self.origin: dict[str, str] = {}
        self.stored = 0
        self.stored_bytes = 0
        self._cut_short = 0  # recordings that a game did not last for
        self._db_path = db_path
        self._db_path.mkdir(parents=True, exist_ok=True)
        SegmentDB(db_path).check_environment(env_id)
        self._env_id = env_id
        self._num_actions = num_actions
        names = tuple(name[:MAX_ACTION_NAME] for name in action_names)
        counted = names == tuple(map(str, range(num_actions)))
        self._action_names = names if len(names) == num_actions and not counted else ()
        self._first_env = first_env
        self.record_prob = record_prob
        self._all_envs = num_envs if all_envs is None else all_envs
        self._seed = [seed, first_env]
        self._rng = np.random.default_rng(self._seed)
        self._event_clips = None if events is None else EventClips(events, event_prob, [seed, first_env, 1])
        self._drawn = np.zeros(num_envs, bool)  # environments that record a segment begun at random
        self._recordings: dict[int, Recording] = {}
        self._reasons: dict[int, str] = {}  # of environments that fork
        self._awaiting_outcome: dict[int, Recording] = {}
        self._spare_frames: list[np.ndarray] = []

        for folder in self._db_path.glob("[0-9][0-9]*/"):
            remove_stale(folder, _TEMPORARY)
        present = [path for path in self._db_path.glob("*/*.dat") if path.stem.isdecimal()]
        self.first_number = 1 + max((int(path.stem) for path in present), default=-1)
        self._max_bytes = np.inf if max_mb is None else max_mb * 1e6
        self._present_bytes = 0
        for path in present:
            with contextlib.suppress(FileNotFoundError):  # another process drops old ones
                self._present_bytes += path.stat().st_size
        self._drop_oldest = drop_oldest
        self._make_room()
        self._begin()

    @property
    def recording(self) -> np.ndarray:
        """bool `[B]`: environments whose frame the next `before` stores. Where none is set, frames may be anything."""
        watched = 0 if self._event_clips is None or self.full else self._event_clips.num_envs
        return self._drawn | (np.arange(len(self._drawn)) < watched)

    @property
    def full(self) -> bool:
        """Whether the DB has reached `max_mb`."""
        return self._present_bytes + self._stored_by_all >= self._max_bytes

    @property
    def _stored_by_all(self) -> int:
        """Bytes that the recorders of all environments have stored."""
        return self.stored_bytes * self._all_envs // len(self._drawn)

    @property
    def obstacle(self) -> str:
        """What keeps it from storing segments, in a few words; "" if nothing does."""
        if self.full:
            return "DB full"
        if self._cut_short >= _IN_VAIN and not self.stored:
            return f"no game lasts the {SEGMENT_LENGTH} steps of a clip"
        return ""

    def fork(self, sources: np.ndarray) -> None:
        """Makes games that continue from one moment begin a segment at the next step.

        Args:
          sources: int64 `[B]`, the environment whose game each continues from; −1 if none begins.
        """
        if not self.full:
            self._drawn |= sources >= 0
            for env, source in enumerate(sources.tolist()):
                if source >= 0:
                    self._reasons[env] = (
                        f"{FORK}{self._first_env + source:02d}/{self.first_number + self.steps:08d}"
                    )

    def before(self, frames: np.ndarray, actions: np.ndarray, observations: np.ndarray | None = None) -> None:
        """Note the frames and observations for the next step's actions.

        Args:
          frames: uint8 [B, H, W, 3]; not kept.
          actions: int64 [B], or float32 [B, A] in −1 … 1; `after` drops those of games that are reset.
          observations: float32 [B, D], where the policy sees no pictures; not kept.
        """
        if self._event_clips is not None and not self.full:
            self._event_clips.before(frames, actions, observations)
        for env in map(int, np.flatnonzero(self._drawn)):
            recording = self._recordings.get(env)
            if recording is None:
                spare = self._spare_frames
                recording = self._recordings[env] = Recording(
                    step=self.steps,
                    policy=self.policy,
                    frames=spare.pop() if spare else np.empty((SEGMENT_LENGTH, *frames.shape[1:]), np.uint8),
                    actions=np.empty(
                        (SEGMENT_LENGTH, *actions.shape[1:]), np.int64 if actions.ndim == 1 else np.float32
                    ),
                    observations=None
                    if observations is None
                    else np.empty((SEGMENT_LENGTH, *observations.shape[1:]), np.float32),
                    scores=np.empty(SEGMENT_LENGTH, np.float32),
                    terminal=np.empty(SEGMENT_LENGTH, bool),
                    reason=self._reasons.pop(env, RANDOM),
                )
            recording.frames[recording.length] = frames[env]
            recording.actions[recording.length] = actions[env]
            if recording.observations is not None and observations is not None:
                recording.observations[recording.length] = observations[env]

    def after(self, step: Step) -> None:
        """Note the outcome of the actions that `before` was given, and save the segments it completes.

        Args:
          step: what the world said.

        Raises:
          NotRecorded: a segment could not be written; names its file, which is removed.
        """
        finished = [
            (env, recording, bool(step.reset[env])) for env, recording in self._awaiting_outcome.items()
        ]
        self._awaiting_outcome.clear()
        if self._event_clips is not None and not self.full:
            finished += self._of_events(self._event_clips.after(step, self._drawn))
        for env, recording in list(self._recordings.items()):
            if step.reset[env]:
                self._spare_frames.append(recording.frames)
                self._cut_short += 1
            else:
                recording.scores[recording.length] = step.score[env]
                recording.terminal[recording.length] = step.terminal[env]
                recording.length += 1
                if recording.length < SEGMENT_LENGTH:
                    continue
                if step.terminal[env]:
                    self._awaiting_outcome[env] = recording
                else:
                    finished.append((env, recording, False))
            self._drawn[env] = False
            del self._recordings[env]
        self.steps += self._all_envs
        self._begin()
        # Last, so that one that cannot be written leaves the segments in the making as they should be.
        for env, recording, game_over in finished:
            self._save(env, recording, game_over)

    def cut(self, games: np.ndarray) -> None:
        """Some games ended without a separate step for the reset (see `Step`), and new ones begin.

        Args:
          games: bool [B]. Their segments in the making are dropped; a terminal that came last was a game over.

        Raises:
          NotRecorded: as from `after`.
        """
        finished = []
        if self._event_clips is not None:
            finished += self._of_events(self._event_clips.cut(games))
        for env in map(int, np.flatnonzero(games)):
            if env in self._awaiting_outcome:
                finished.append((env, self._awaiting_outcome.pop(env), True))
            if env in self._recordings:
                self._spare_frames.append(self._recordings.pop(env).frames)
                self._cut_short += 1
            self._drawn[env] = False
        self._begin(games)
        for env, recording, game_over in finished:
            self._save(env, recording, game_over)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, for `restore`; unfinished segments are not included."""
        events = self._event_clips
        return {
            "steps": self.steps,
            "stored": self.stored,
            "first_number": self.first_number,
            "rng": self._rng.bit_generator.state,
            "event_rng": None if events is None else events.rng.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where a recorder of the same DB stopped: numbers continue from its own, and no existing one is used.

        The state is that of the first environments; recorders of others draw anew.
        """
        first = self._seed[1] == 0
        self.steps, self.first_number = state["steps"], state["first_number"]
        self.stored = state["stored"] if first else 0
        self._rng = np.random.default_rng([*self._seed, self.steps])
        if first:
            self._rng.bit_generator.state = state["rng"]
        self._drawn[:] = False
        if self._event_clips is not None:
            if first:
                self._event_clips.rng.bit_generator.state = state["event_rng"]
            self._event_clips.forget()
        self._begin()

    def close(self) -> None:
        """End the recording. Unfinished segments are dropped, also those whose last outcome is not known yet."""
        self._recordings.clear()
        self._awaiting_outcome.clear()
        self._spare_frames.clear()
        self._drawn[:] = False
        self.record_prob = 0.0
        self._event_clips = None

    def _begin(self, among: np.ndarray | None = None) -> None:
        """Draw which environments begin a segment at the next step, among these (bool [B]) or all."""
        if self.full:
            self._drawn[:] = False
            self._recordings.clear()
        else:
            drawn = self._rng.random(len(self._drawn)) < self.record_prob
            self._drawn |= drawn if among is None else drawn & among

    def _of_events(self, clips: list[tuple[int, Recording, bool]]) -> list[tuple[int, Recording, bool]]:
        """Event clips with the step that they began at and the policy that played them."""
        for _, recording, _ in clips:
            recording.step = self.steps - SEGMENT_LENGTH * self._all_envs
            recording.policy = self.policy
        return clips

    def _save(self, env: int, recording: Recording, game_over: bool) -> None:
        if self.full:
            return
        game_overs = np.zeros(SEGMENT_LENGTH, bool)
        game_overs[-1] = game_over
        sidecar = Sidecar(
            scores=recording.scores,
            life_lost=recording.terminal,
            game_over=game_overs,
            env_id=self._env_id,
            num_actions=self._num_actions,
            policy=recording.policy,
            step=recording.step,
            origin=self.origin,
            action_names=self._action_names,
            reason=recording.reason,
        )
        segment = Segment(recording.frames, recording.actions, sidecar, recording.observations)
        number = self.first_number + recording.step
        while True:
            path = self._db_path / f"{self._first_env + env:02d}" / f"{number:08d}.dat"
            try:
                self.stored_bytes += save_segment(path, segment)
                break
            except OSError as error:
                if not (isinstance(error, FileExistsError) and path.exists()):
                    raise NotRecorded(error.errno, error.strerror, str(path)) from error
                number += 1  # another run records into this DB
        self.stored += 1
        if not sidecar.of_event:  # those bring their own
            self._spare_frames.append(recording.frames)
        self._make_room()

    def _make_room(self) -> None:
        """Drops old segments if the DB is full and `drop_oldest` is set."""
        if self.full and self._drop_oldest:
            try:
                left = drop_oldest(self._db_path, _ROOM * self._max_bytes)
            except OSError as error:
                raise NotRecorded(error.errno, error.strerror, error.filename) from error
            self._present_bytes = left - self._stored_by_all
