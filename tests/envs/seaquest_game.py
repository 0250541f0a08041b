"""A game of Seaquest whose memory can be read and written, for situations that scripted actions rarely reach."""

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
        self._env = gymnasium.make("SeaquestNoFrameskip-v4")
        self._env.reset(seed=0)
        self.ale: Any = self._env.unwrapped.ale  # type: ignore[attr-defined]
        self.names = self._env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self.frames: list[np.ndarray] = []
        self.memory: list[Memory] = []
        self.scores: list[float] = []

    def play(self, action: str, steps: int) -> None:
        for _ in range(steps):
            shown, score = [], 0.0
            for _ in range(4):
                frame, points, *_ = self._env.step(self.names.index(action))
                shown.append(frame)
                score += float(points)
            ram = self.ale.getRAM()
            self.frames.append(np.maximum(shown[-1], shown[-2]))
            self.memory.append(Memory(int(ram[102]), int(ram[62]), int(ram[59]), int(ram[97])))
            self.scores.append(score)

    def give(self, *, oxygen: int | None = None, divers: int | None = None) -> None:
        for address, value in ((102, oxygen), (62, divers)):
            if value is not None:
                self.ale.setRAM(address, value)


def begun() -> Game:
    """A game in which the submarine is a little below the surface, with nothing near it."""
    game = Game()
    game.play("NOOP", 34)
    game.play("DOWN", 8)
    return game
