"""The loop of a training run, for every learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from lib.interrupt import Interrupt
from lib.learner import ALONE, Advance, Learner


class RunConfig(Protocol):
    """The flags that hooks need of any run; a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def model(self) -> Path | None: ...
    @property
    def reward(self) -> Path | None: ...
    @property
    def finetunes(self) -> bool: ...
    @property
    def eval_every(self) -> int: ...
    @property
    def drift_patience(self) -> int: ...
    @property
    def stop_on_drift(self) -> bool: ...
    @property
    def checkpoint_minutes(self) -> float: ...
    @property
    def runs(self) -> Path: ...
    @property
    def resume(self) -> Path | None: ...


class Hook:
    """Acts around a learner's updates. By default does nothing."""

    def begin(self, learner: Learner) -> None:
        """Before the first update of this process."""

    def before(self, learner: Learner) -> None:
        """Before every update."""

    def after(self, learner: Learner, made: Advance) -> None:
        """After every update."""

    def end(self, learner: Learner) -> None:
        """After the last update of a run that ended in order."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs from it, under its own names."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned, from the state of the whole run."""

    def scalars(self, steps: int) -> dict[str, float]:
        """Its scalars for the charts after so many steps."""
        return {}

    def words(self) -> str:
        """Its part of the progress line."""
        return ""


class Stop:
    """Whether a run is to end before its steps are done.

    Attributes:
      reason: of the hook that wants it to end, for the last line; "" where none does.
    """

    def __init__(self, interrupt: Interrupt) -> None:
        self.reason = ""
        self._interrupt = interrupt

    @property
    def asked(self) -> bool:
        """Whether the user asked, by Ctrl-C, SIGTERM or closing the terminal."""
        return self._interrupt.asked

    def __call__(self) -> bool:
        return self.asked or bool(self.reason)


def run(
    learner: Learner,
    hooks: Sequence[Hook],
    steps: int,
    stop: Callable[[], bool],
    together: Callable[[bool], bool] = ALONE.together,
) -> None:
    """Plays and learns until so many steps are made, or a stop is requested.

    Hooks nest: the first one is the outermost, before every update and after it.

    Args:
      learner: whatever learns.
      hooks: what happens around it.
      steps: made by the learner in all, those before a resume included.
      stop: whether to end now; asked between two updates.
      together: makes one decision for all processes.
    """
    for hook in hooks:
        hook.begin(learner)
    while not together(stop()) and learner.steps < steps:
        update(learner, hooks)
    for hook in reversed(hooks):
        hook.end(learner)


def update(learner: Learner, hooks: Sequence[Hook]) -> None:
    """One update with its hooks."""
    for hook in hooks:
        hook.before(learner)
    made = learner.advance()
    for hook in reversed(hooks):
        hook.after(learner, made)
