"""01_a2c.py on Seaquest, in which some environments practise climbs: their games begin where one is called for.

Where a situation is rare, an agent has little to learn from: v1 meets some three climbs in a game of 1,700 steps. A state of
the emulator can be restored, so an environment that practises begins each game at a moment of another environment's play
(arXiv 1812.03381 begins at moments of a demonstration). Takes the flags of 01_a2c.py:

    .venv/bin/python -m experiments.practice -n NAME -m MODEL --gamma 0.999 …
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ale_py
import numpy as np

from lib import cli
from lib.agent.config import MAY_DIFFER, TrainConfig
from lib.cli import UserError, flag
from lib.envs.forking import ForkingAtari
from lib.envs.make import choice
from lib.envs.world import Step
from lib.runs import parse_resumable
from lib.training.train import Trained, train

_MOMENTS = 1024
_AGAIN = 0.02  # chance per step that a lasting situation is kept once more


class PractisingAtari(ForkingAtari):
    """Games of which the first ones begin at moments of the others.

    A game of practice ends with a lost life, or is truncated. Until there are moments it is an ordinary game.

    Args:
      env_id, num_envs: as of `ForkingAtari`.
      practising: how many environments practise.
      steps: after which a game of practice is truncated.
      calls: whether an environment's step shows a moment to practise, bool `[B]`.
    """

    def __init__(
        self, env_id: str, num_envs: int, practising: int, steps: int, calls: Callable[[Step], np.ndarray]
    ) -> None:
        super().__init__(env_id, num_envs)
        self._practises = np.arange(num_envs) < practising
        self._steps, self._calls = steps, calls
        self._called = np.zeros(num_envs, bool)
        self._moments: list[
            tuple[ale_py.ALEState, np.ndarray]
        ] = []  # a state of the emulator and what it shows
        self._seen = 0

    def _begin(self, env: int) -> None:
        if not (self._practises[env] and self._moments):
            super()._begin(env)
            return
        state, frame = self._moments[self._rng.integers(len(self._moments))]
        self._games[env].restoreState(state)
        self._frames[env] = frame

    def _step(self, score: np.ndarray, reset: np.ndarray, lost: np.ndarray) -> Step:
        step = super()._step(score, reset, lost)
        practice = self._practises & bool(self._moments)
        cut = step.truncated | (practice & (self._made >= self._steps) & ~step.terminal)
        self._over = self._over | cut | (practice & step.terminal)
        calls = self._calls(step) & ~(self._practises | self._over | reset)
        again = self._rng.random(self.num_envs) < _AGAIN
        for env in np.flatnonzero(calls & (~self._called | again)):
            self._keep((self._games[env].cloneState(), self._frames[env].copy()))
        self._called = calls
        return step._replace(truncated=cut)

    def _keep(self, moment: tuple[ale_py.ALEState, np.ndarray]) -> None:
        """In place of the oldest, if there are many."""
        if len(self._moments) < _MOMENTS:
            self._moments.append(moment)
        else:
            self._moments[self._seen % _MOMENTS] = moment
        self._seen += 1


@dataclass(frozen=True)
class PracticeConfig(TrainConfig):
    """A training run in which some environments practise."""

    practice: float = flag(
        default=0.5,
        min=0.0,
        max=1.0,
        help="share of the environments that practise; the others find the moments",
    )
    practice_steps: int = flag(default=200, min=1, help="steps after which a game of practice ends")


def train_with_practice(config: PracticeConfig) -> Trained:
    """`lib.training.train.train`, in such a world.

    Raises:
      UserError: nothing is known of when to act in this environment.
    """
    when = choice(config.env)
    if when is None:
        raise UserError(f"--env {config.env}: expected Seaquest, of which it is known when to climb")

    def make_world(env_id: str, num_envs: int, num_threads: int) -> PractisingAtari:
        practising = round(config.practice * num_envs)
        return PractisingAtari(env_id, num_envs, practising, config.practice_steps, when.applies)

    return train(config, make_training_world=make_world)


def main(argv: Sequence[str] | None = None) -> None:
    train_with_practice(
        parse_resumable(PracticeConfig, MAY_DIFFER, argv, description=(__doc__ or "").splitlines()[0])
    )


if __name__ == "__main__":
    cli.run(main)
