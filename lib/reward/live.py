"""A reward model that is replaced while it pays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.cli import UserError
from lib.files import signature

if TYPE_CHECKING:  # PyTorch is needed only where a model is loaded
    import torch

    from lib.reward.model import RewardModel

_log = logging.getLogger(__name__)


class LiveReward:
    """The newest reward model in a file that may be replaced at any time, or appear only later.

    Writers rename a whole new file to the path, as 03_reward_train.py does. A file that cannot be used is skipped, and
    the previous model keeps paying. Several wrappers in one process may share a LiveReward, and so its model.

    Attributes:
      path: the file.
      model: the newest model that could be used; None before the first.
      version: the model's, as 03_reward_train.py --watch counts them; 0 for one that was fitted without.
      problem: why the file's current content was not used; "" if it was.

    Args:
      path: a checkpoint of 03_reward_train.py.
      dev: device of the networks: cpu, cuda, cuda:1.
      every: seconds between looks at the file when polled.
      wait: whether the file may still be missing. If not, it is read at once.
      clock: seconds from any origin.
      bf16: whether the networks compute in bf16.
      pessimism: k of `RewardModel`.
      check: raises UserError for a model that does not fit.
      load: reads the file in place of `load_reward_model`, and raises UserError where it cannot be used.

    Raises:
      UserError: without `wait`, the file is missing or holds no reward model that fits.
    """

    def __init__(
        self,
        path: str | Path,
        dev: str | torch.device = "cpu",
        every: float = 1.0,
        wait: bool = True,
        clock: Callable[[], float] = time.monotonic,
        *,
        bf16: bool = False,
        pessimism: float = 0.0,
        check: Callable[[RewardModel], None] | None = None,
        load: Callable[[Path], Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.model: RewardModel | None = None
        self.version = 0
        self.problem = ""
        self._dev, self._bf16, self._pessimism, self._check = str(dev), bf16, pessimism, check
        self._read = load or self._load
        self._every, self._clock, self._next = every, clock, clock()
        self._seen: tuple[int, ...] | None = None
        if not wait and not self.refresh():
            raise UserError(
                self.problem or f"{self.path}: expected a reward checkpoint, but there is no such file"
            )

    @property
    def input(self) -> str:
        """What the model sees; observations before there is a model, because those need no frames drawn."""
        return "observation" if self.model is None else self.model.input

    def refresh(self) -> bool:
        """Looks at the file, which takes microseconds, and loads a new model. Sets `problem` if that fails.

        Returns:
          Whether a new model was loaded.
        """
        self._next = self._clock() + self._every
        try:
            now = signature(self.path)
            if now is None or now == self._seen:
                return False
            self._seen = now
            import torch

            # Processes that learn together draw alike from PyTorch's generator, but one may read a model that another
            # misses; and a new network draws its first weights.
            with torch.random.fork_rng(devices=()):
                model = self._read(self.path)
        except (OSError, UserError) as error:
            self.problem = str(error)
            return False
        self.model, self.problem = model, ""
        version = model.origin.get("version")  # a file may say anything
        self.version = version if type(version) is int else 0
        return True

    def poll(self) -> None:
        """`refresh`, at most every `every` seconds. Warns once of a file that cannot be used."""
        if self._clock() < self._next:
            return
        before = self._seen
        self.refresh()
        if self.problem and self._seen != before:
            stays = "still waiting" if self.model is None else "the previous model stays"
            _log.warning("%s; %s", self.problem, stays)

    def pay(self, frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
        """`RewardModel.pay` of the newest model; 0 before there is one."""
        if self.model is None:
            import torch

            return torch.zeros(len(actions), device=actions.device)
        return self.model.pay(frames, actions, observations)

    def _load(self, path: Path) -> RewardModel:
        from lib.devices import resolve_device
        from lib.reward.checkpoints import load_reward_model

        model = load_reward_model(path, resolve_device(self._dev), self._bf16, self._pessimism)
        if self._check is not None:
            self._check(model)
        return model
