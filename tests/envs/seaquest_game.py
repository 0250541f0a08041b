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
        env, self._state = _console()
        self._ale = env.ale
        self.names = env.get_action_meanings()
        self._actions = dict(zip(self.names, env.ale.getMinimalActionSet(), strict=True))
        self.frames: list[np.ndarray] = []
        self.memory: list[Memory] = []
        self.scores: list[float] = []

    @property
    def ale(self) -> Any:
        """The console that all games share, with this game in it."""
        self._ale.restoreSystemState(self._state)
        return self._ale

    def play(self, action: str, steps: int) -> None:
        ale, chosen = self.ale, self._actions[action]
        assert not ale.game_over(), "the picture would be that of another game"
        for _ in range(steps):
            shown, score = [], 0.0
            for frame in range(4):
                score += float(ale.act(chosen))
                if frame >= 2:  # only these are looked at
                    shown.append(ale.getScreenRGB())
            ram = ale.getRAM()
            self.frames.append(np.maximum(*shown))
            self.memory.append(Memory(int(ram[102]), int(ram[62]), int(ram[59]), int(ram[97])))
            self.scores.append(score)
        self._state = ale.cloneSystemState()

    def give(self, *, oxygen: int | None = None, divers: int | None = None) -> None:
        ale = self.ale
        for address, value in ((102, oxygen), (62, divers)):
            if value is not None:
                ale.setRAM(address, value)
        self._state = ale.cloneSystemState()


@functools.cache
def _console() -> tuple[Any, Any]:
    """An environment, which takes a third of a second to make, and its state as a game begins."""
    env: Any = gymnasium.make("SeaquestNoFrameskip-v4").unwrapped
    env.reset(seed=0)
    return env, env.ale.cloneSystemState()


def begun() -> Game:
    """A game in which the submarine is a little below the surface, with nothing near it."""
    first, game = _played_before(), Game()
    game._state = first._state
    game.frames, game.memory, game.scores = [*first.frames], [*first.memory], [*first.scores]
    return game


@functools.cache
def _played_before() -> Game:
    game = Game()
    game.play("NOOP", 34)
    game.play("DOWN", 8)
    return game
