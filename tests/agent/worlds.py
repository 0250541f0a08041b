"""A world that plays back a script, a policy that can be read off its actions and values, rewards, a made-up rollout."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from lib.agent.network import PolicyNet
from lib.agent.rollout import Rollout
from lib.envs.spec import Spec
from lib.envs.world import Step


class Row(NamedTuple):
    """One step of one environment: the picture is all of one grey, the rest is about what led to it."""

    grey: int
    score: float = 0.0
    terminal: bool = False
    truncated: bool = False
    reset: bool = False


class ScriptedWorld:
    """Plays one script of rows per environment, whatever the actions, and keeps these.

    The arrays of a step are overwritten by the next `recv`, as the interface allows.
    """

    def __init__(self, scripts: Sequence[Sequence[Row]], num_actions: int = 5, size: int = 84) -> None:
        self.env_id, self.num_envs = "Scripted-v0", len(scripts)
        self.spec = Spec(num_actions, frame_shape=(size, size, 3))
        self.action_names = [str(action) for action in range(num_actions)]
        self.sent: list[np.ndarray] = []
        self.seeds: list[int] = []
        self._scripts = scripts
        self._at = 0
        self._step = Step(
            np.zeros((len(scripts), size, size, 3), np.uint8),
            np.zeros(len(scripts), np.float32),
            *np.zeros((3, len(scripts)), bool),
        )

    def reset(self, seed: int) -> Step:
        self.seeds.append(seed)
        self._at = 0
        return self._show()

    def send(self, actions: np.ndarray) -> None:
        assert actions.dtype == np.int64
        assert actions.shape == (self.num_envs,)
        self.sent.append(actions.copy())

    def recv(self) -> Step:
        self._at += 1
        assert len(self.sent) >= self._at
        return self._show()

    def close(self) -> None:
        pass

    def _show(self) -> Step:
        for env, script in enumerate(self._scripts):
            row = script[self._at]
            self._step.frames[env] = row.grey
            self._step.score[env] = row.score
            self._step.terminal[env] = row.terminal
            self._step.truncated[env] = row.truncated
            self._step.reset[env] = row.reset or self._at == 0
        return self._step


class GreyReader(PolicyNet):
    """Chooses action grey mod A of the newest picture, and values a state at its grey / 100."""

    def __init__(self, num_actions: int = 5) -> None:
        nn.Module.__init__(self)
        self.spec = Spec(num_actions)

    def features(self, observations: torch.Tensor) -> torch.Tensor:
        assert observations.dtype == torch.uint8
        return observations[:, -1, 40, 40].long()

    def dist_params(self, features: torch.Tensor) -> torch.Tensor:
        actions = self.spec.num_actions
        return nn.functional.one_hot(features % actions, actions).float() * 1e4

    def values(self, features: torch.Tensor) -> torch.Tensor:
        return features.float() / 100


@dataclass
class Pays:
    """A reward that a function pays; see `lib.agent.rollout.Reward`."""

    by: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    input: str = "frame"

    def pay(self, frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
        return self.by(frames, actions, observations)


def random_rollout(
    steps: int = 4, envs: int = 2, learned: torch.Tensor | None = None, score: float = 1.0, seed: int = 0
) -> Rollout:
    """Noise of 6 actions in which nothing ends; the acting policy was uniform."""
    generator = torch.Generator().manual_seed(seed)
    return Rollout(
        observations=torch.randint(0, 256, (steps, envs, 4, 84, 84), generator=generator, dtype=torch.uint8),
        actions=torch.randint(0, 6, (steps, envs), generator=generator),
        dist_params=torch.zeros(steps, envs, 6),
        values=torch.randn(steps + 1, envs, generator=generator),
        learned=learned,
        score=np.full((steps, envs), score, np.float32),
        terminal=np.zeros((steps, envs), bool),
        truncated=np.zeros((steps, envs), bool),
        valid=np.ones((steps, envs), bool),
        held=np.zeros((steps, envs), bool),
    )


class Corridor:
    """A point on a line that begins in the middle, 0; an action moves it by at most 0.1, games last 40 steps."""

    def __init__(self, num_envs: int) -> None:
        self.env_id, self.num_envs = "Corridor-v0", num_envs
        self.spec = Spec(1, True, (1,), (8, 8, 3))
        self.action_names = ["right"]
        self._steps = 0
        self._at: np.ndarray = np.zeros((num_envs, 1), np.float32)

    def reset(self, seed: int) -> Step:
        return self._show()

    def send(self, actions: np.ndarray) -> None:
        self._steps += 1
        self._at = self._at + 0.1 * actions if self._steps % 41 else np.zeros_like(self._at)

    def recv(self) -> Step:
        return self._show()

    def close(self) -> None:
        pass

    def _show(self) -> Step:
        truncated, reset = (np.full(self.num_envs, self._steps % 41 == at) for at in (40, 0))
        frames, terminal = np.zeros((self.num_envs, 8, 8, 3), np.uint8), np.zeros(self.num_envs, bool)
        return Step(frames, np.zeros(self.num_envs, np.float32), terminal, truncated, reset, self._at)


class Bandit:
    """Shows one vector for ever; each step is a game's worth by itself, as each loses a life.

    Args:
      num_envs: B.
      spec: of vectors; continuous actions, or actions to choose from.
    """

    def __init__(self, num_envs: int, spec: Spec) -> None:
        assert spec.observation_size is not None
        self.env_id, self.num_envs = "Bandit-v0", num_envs
        self.spec = dataclasses.replace(spec, frame_shape=(8, 8, 3))
        self.action_names = [str(action) for action in range(spec.num_actions)]
        self._seen = np.ones((num_envs, spec.observation_size), np.float32)

    def reset(self, seed: int) -> Step:
        return self._show(True)

    def send(self, actions: np.ndarray) -> None:
        pass

    def recv(self) -> Step:
        return self._show(False)

    def close(self) -> None:
        pass

    def _show(self, reset: bool) -> Step:
        terminal, truncated, first = (np.full(self.num_envs, flag) for flag in (not reset, False, reset))
        frames = np.zeros((self.num_envs, 8, 8, 3), np.uint8)
        return Step(frames, np.zeros(self.num_envs, np.float32), terminal, truncated, first, self._seen)
