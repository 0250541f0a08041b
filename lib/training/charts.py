"""Charts and progress of learning every few seconds, and checks whether it has failed."""

import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.agent.evaluate import Evaluation
from lib.cli import UserError
from lib.learner import Advance, Game, Learner
from lib.reporting import Charts, Progress, format_count, format_duration
from lib.training.loop import Hook, RunConfig

LOG_SECONDS = 2.0
_RECENT_GAMES = 100
_EXPLODED = 1e6  # times what is usual; no loss grows so fast by learning


class ChartsHook(Hook):
    """Averages and charts the updates' scalars, with the games that ended and the speed of learning.

    The device is read once every few seconds.

    Args:
      config: of the run.
      charts: for TensorBoard.
      progress: on the terminal.
      seconds: of learning between two points.
      unit: what a step is.

    Attributes:
      others: hooks that have something to add.
      last_good: the newest checkpoint, named where learning breaks.
      unit: see above.
    """

    def __init__(
        self,
        config: RunConfig,
        charts: Charts,
        progress: Progress,
        seconds: float = LOG_SECONDS,
        unit: str = "steps",
    ) -> None:
        self.others: Sequence[Hook] = ()
        self.last_good: Path | None = None
        self._config, self._charts, self._progress = config, charts, progress
        self._seconds, self.unit = seconds, unit
        self._recent: deque[Game] = deque(maxlen=_RECENT_GAMES)
        self._games = 0
        self._usual: deque[float] = deque(maxlen=1000)  # total losses
        self._restart()

    def _restart(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._newest: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._steps = 0
        self._elapsed = 0.0

    def before(self, learner: Learner) -> None:
        self._began = time.perf_counter()

    def after(self, learner: Learner, made: Advance) -> None:
        """Raises UserError if something is no longer finite, or the loss has exploded."""
        self._elapsed += time.perf_counter() - self._began
        self._games += len(made.games)
        self._recent.extend(made.games)
        self._steps += made.steps
        for name, value in made.scalars.items():
            if isinstance(value, torch.Tensor):
                self._sums[name] = self._sums[name] + value if name in self._sums else value
                self._counts[name] += 1
            else:
                self._newest[name] = value
        if self._elapsed >= self._seconds:
            self._write(learner.steps)

    def end(self, learner: Learner) -> None:
        self.check(learner)

    def state(self) -> dict[str, Any]:
        return {"monitor": {"games": self._games, "recent": list(self._recent)}}

    def load_state(self, state: dict[str, Any]) -> None:
        self._games = state["monitor"]["games"]
        self._recent.extend(Game(*game) for game in state["monitor"]["recent"])

    def games_seen(self) -> Evaluation:
        """The last games of training, as a substitute if there is no time to evaluate."""
        games = self._recent or [Game(0.0, 0, 0.0)]
        return Evaluation(
            np.array([game.score for game in games]), np.array([game.steps for game in games]), {}
        )

    def check(self, learner: Learner) -> None:
        """Call it before anything is saved.

        Raises:
          UserError: a weight or a quantity since the last point is no longer a number, or the loss has exploded.
        """
        self._means(learner.steps)
        weights = dict(learner.weights())
        finite = torch.stack(torch._foreach_norm(list(weights.values()))).isfinite().tolist()
        broken = [f"the weight {name}" for name, good in zip(weights, finite, strict=True) if not good]
        self._refuse(broken, learner.steps)

    def flush(self) -> None:
        """Writes what is buffered, or a killed process would lose points that are not drawn again."""
        self._charts.flush()

    def _means(self, steps: int) -> dict[str, float]:
        """Averages over the updates since the last point, by chart name, and the newest of what is not averaged."""
        if not self._sums:  # a learner may play for a while before it learns
            return dict(self._newest)
        sums = torch.stack(list(self._sums.values())).tolist()
        scalars = {name: total / self._counts[name] for name, total in zip(self._sums, sums, strict=True)}
        self._refuse([name for name, value in scalars.items() if not np.isfinite(value)], steps)
        loss = abs(scalars["loss_total"])
        usual = max(1.0, float(np.median(self._usual))) if self._usual else np.inf
        if loss > _EXPLODED * usual:
            raise UserError(
                f"training failed after {steps} steps: loss_total exploded to {loss:.3g} from about "
                f"{usual:.3g}; {self._advice()}"
            )
        return scalars | self._newest

    def _refuse(self, broken: list[str], steps: int) -> None:
        if broken:
            raise UserError(
                f"training failed after {steps} steps: {', '.join(broken)} is no longer finite; "
                f"{self._advice()}"
            )

    def _advice(self) -> str:
        good = (
            f"the last good checkpoint is {self.last_good}"
            if self.last_good
            else "no checkpoint has been saved yet"
        )
        return f"{good}; try a smaller --lr"

    def _write(self, steps: int) -> None:
        scalars = self._means(steps)
        if "loss_total" in scalars:
            self._usual.append(abs(scalars["loss_total"]))
        speed = self._steps / self._elapsed
        scalars["speed"] = speed
        unit = self.unit
        line = f"{format_count(steps)}/{format_count(self._config.steps)} {unit}  {speed:.{0 if speed >= 10 else 1}f} {unit}/s"
        line += f"  ETA {format_duration((self._config.steps - steps) / speed)}"
        if self._recent:
            score, length, learned = np.mean(self._recent, 0)
            last = self._recent[-1]
            scalars |= {"reward": last.score, "reward_100": score, "steps": last.steps}
            line += f"  score {score:.1f} over {length:.0f} steps"
            if self._config.reward is not None:
                scalars |= {"real_reward_sum": last.score, "learned_return_100": learned}
                line += f"  learned {learned:.1f}"
            line += f"  {self._games} games"
        for hook in self.others:
            scalars |= hook.scalars(steps)
            line += hook.words()
        self._charts.scalars(scalars, steps)
        self._progress.update(line)
        self._restart()
