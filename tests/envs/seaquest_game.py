"""A game of Seaquest whose memory can be read and written, for situations that scripted actions rarely reach."""

import functools
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np

gymnasium.register_envs(ale_py)


class Memory(NamedTuple):
    """What the game itself keeps."""

    oxygen: int
    divers: int
    spare: int
    height: int


class Game:
    """One game whose memory can be read and written; a step is four frames, as in AtariWorld."""

    def __init__(self) -> None:
        env: Any = gymnasium.make("SeaquestNoFrameskip-v4").unwrapped
        env.reset(seed=0)
        self.ale = env.ale
        self.names = env.get_action_meanings()
        self._actions = dict(zip(self.names, self.ale.getMinimalActionSet(), strict=True))
        self.frames: list[np.ndarray] = []
        self.memory: list[Memory] = []
        self.scores: list[float] = []

    def play(self, action: str, steps: int) -> None:
        chosen = self._actions[action]
        for _ in range(steps):
            shown, score = [], 0.0
            for frame in range(4):
                score += float(self.ale.act(chosen))
                if frame >= 2:  # only these are looked at
                    shown.append(self.ale.getScreenRGB())
            ram = self.ale.getRAM()
            self.frames.append(np.maximum(*shown))
            self.memory.append(Memory(int(ram[102]), int(ram[62]), int(ram[59]), int(ram[97])))
            self.scores.append(score)

    def give(self, *, oxygen: int | None = None, divers: int | None = None) -> None:
        for address, value in ((102, oxygen), (62, divers)):
            if value is not None:
                self.ale.setRAM(address, value)


def begun() -> Game:
    """A game in which the submarine is a little below the surface, with nothing near it."""
    first, state = _played_before()
    game = Game()
    game.ale.restoreSystemState(state)
    game.frames, game.memory, game.scores = [*first.frames], [*first.memory], [*first.scores]
    return game


@functools.cache
def _played_before() -> tuple[Game, Any]:
    game = Game()
    game.play("NOOP", 34)
    game.play("DOWN", 8)
    return game, game.ale.cloneSystemState()
