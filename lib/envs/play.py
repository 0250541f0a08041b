"""Playing a policy: one loop for evaluations, measures, audits, fresh clips and videos."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch

from lib.envs.observation import Viewer
from lib.envs.spec import Spec
from lib.envs.world import Step, World
from lib.interrupt import Stopped


class Decision(NamedTuple):
    """A policy's actions in a batch of states."""

    actions: torch.Tensor
    """int64 `[B]` or float32 `[B, A]` within ±1: as the environment takes them."""
    dist_params: torch.Tensor | None = None
    """float32 `[B, …]`, the parameters of the distribution the actions were drawn from, of policies that have one."""


class Policy(Protocol):
    """Chooses actions.

    Attributes:
      spec: what it sees and does.
    """

    spec: Spec

    def act(self, observations: torch.Tensor, generator: torch.Generator) -> Decision:
        """Chooses the next actions.

        Args:
          observations: uint8 `[B, 4, 84, 84]` or float32 `[B, D]`, on the policy's device.
          generator: source of randomness on that device.
        """
        ...


class Turn:
    """One step of every game of a world. It is handed out while the emulator works; `outcome` waits for that.

    Attributes:
      step: what the games show; its frames and flags are overwritten by the outcome.
      observations: uint8 `[B, 4, 84, 84]` or float32 `[B, D]` on the device.
      decision: what the policy does.
      actions: the same actions as an array, int64 `[B]` or float32 `[B, A]`.
      running: bool `[B]`, whether the first game of each environment was still running in `step`.
    """

    def __init__(
        self, world: World, viewer: Viewer, step: Step, decision: Decision, running: np.ndarray
    ) -> None:
        self.step, self.decision, self.running = step, decision, running
        self.actions = decision.actions.cpu().numpy()
        self._world, self._viewer = world, viewer
        self._outcome: Step | None = None

    @property
    def observations(self) -> torch.Tensor:
        return self._viewer.observations

    def frames(self) -> torch.Tensor:
        """The frames of `step` on the device, uint8 `[B, H, W, 3]`."""
        return self._viewer.frames()

    def inputs(self, kind: str) -> torch.Tensor:
        """What a reward model whose `input` is "frame" or "observation" looks at."""
        return self.frames() if kind == "frame" else self.observations

    def outcome(self) -> Step:
        """The outcome of the actions. From the first call on, the frames of `step` are gone."""
        if self._outcome is None:
            self._outcome = self._world.recv()
        return self._outcome

    @property
    def counts(self) -> np.ndarray:
        """bool `[B]`: whether the outcome belongs to the first game of each environment; it does not after a reset."""
        counts: np.ndarray = self.running & ~self.outcome().reset
        return counts


@torch.no_grad()
def play(
    world: World,
    policy: Policy,
    seed: int,
    device: torch.device,
    steps: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Turn]:
    """Plays one full game in every environment, however long, so that short games count no more often than long ones.

    Args:
      world: B environments; they are reset.
      policy: on `device`.
      seed: of the games and of the actions.
      device: where observations are made.
      steps: play so many steps in every environment instead, over as many games as that takes.
      stop: asked at every step whether to give up.

    Yields:
      Every step, while the emulator works on it. A game's last frame is shown in one more turn, whose outcome is the reset
      and does not count.

    Raises:
      Stopped: `stop` said so.
    """
    generator = torch.Generator(device).manual_seed(seed)
    viewer = Viewer(world, device)
    step, running = world.reset(seed), np.ones(world.num_envs, bool)
    made = 0
    while running.any() if steps is None else made < steps:
        if stop is not None and stop():
            raise Stopped
        decision = policy.act(viewer.look(step), generator)
        turn = Turn(world, viewer, step, decision, running)
        world.send(turn.actions)
        yield turn
        step, running = turn.outcome(), turn.counts
        made += 1
