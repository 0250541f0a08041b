"""Atari games that can be copied while they run."""

import ale_py
import numpy as np

from lib.cli import UserError
from lib.envs.atari import FRAME_SKIP, atari_settings, shown_and_taken
from lib.envs.spec import Spec
from lib.envs.world import TIME_LIMIT, Step

_NOOPS = 30


class ForkingAtari:
    """The games of `AtariWorld`, played in turn on separate emulators, each of which can continue another's game.

    The emulator's vector, which is several times faster, cannot copy a game.

    Raises:
      UserError: the id names no Atari game.
    """

    def __init__(self, env_id: str, num_envs: int, time_limit: int = TIME_LIMIT) -> None:
        settings = atari_settings(env_id)
        if settings is None:
            raise UserError(f"--fork works for Atari games only, and {env_id} is not one: leave it out")
        self.env_id, self.num_envs = env_id, num_envs
        self.action_names, shape = shown_and_taken(env_id)
        self.spec = Spec(len(self.action_names), frame_shape=shape)
        self._settings, self._limit = settings, time_limit
        self._games: list[ale_py.ALEInterface] = []
        self._frames = np.zeros((num_envs, *shape), np.uint8)
        self._actions = np.zeros(num_envs, np.int64)

    def reset(self, seed: int) -> Step:
        """Start a new game in every environment. See `World.reset`."""
        self._rng = np.random.default_rng(seed)
        self._games = [self._game(int(each)) for each in self._rng.integers(2**31, size=self.num_envs)]
        self._moves = self._games[0].getMinimalActionSet()
        if self._settings.get("full_action_space"):
            self._moves = self._games[0].getLegalActionSet()
        self._over, self._made = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, int)
        for env in range(self.num_envs):
            self._begin(env)
        return self._step(np.zeros(self.num_envs, np.float32), ~self._over, self._over)

    def send(self, actions: np.ndarray) -> None:
        """Hand over the next actions. See `World.send`."""
        self._actions = actions

    def recv(self) -> Step:
        """Play them. See `World.recv`."""
        score, reset = np.zeros(self.num_envs, np.float32), self._over
        self._made = np.where(reset, 0, self._made + 1)
        lives = np.array([game.lives() for game in self._games])
        for env, game in enumerate(self._games):
            if reset[env]:
                self._begin(env)
                lives[env] = game.lives()
            else:
                score[env] = self._play(env, self._moves[self._actions[env]])
        lost = np.array([game.lives() < before for game, before in zip(self._games, lives, strict=True)])
        return self._step(score, reset, lost)

    def take(self, sources: np.ndarray) -> Step:
        """Environment i continues the game of environment `sources[i]` from now on, int64 `[B]`; its own game is lost.

        Returns:
          What the games show now, without a transition.
        """
        states = {source: self._games[source].cloneState() for source in set(sources.tolist())}
        for env, source in enumerate(sources.tolist()):
            if env != source:
                self._games[env].restoreState(states[source])
        self._frames[:], self._made = self._frames[sources], self._made[sources]
        none = np.zeros(self.num_envs, bool)
        return self._step(np.zeros(self.num_envs, np.float32), none, none)

    def close(self) -> None:
        """Free the emulators. See `World.close`."""
        self._games.clear()

    def _game(self, seed: int) -> ale_py.ALEInterface:
        game = ale_py.ALEInterface()
        game.setInt("random_seed", seed)
        game.setFloat("repeat_action_probability", self._settings.get("repeat_action_probability", 0.0))
        game.loadROM(str(ale_py.roms.get_rom_path(self._settings["game"])))
        return game

    def _begin(self, env: int) -> None:
        game = self._games[env]
        game.reset_game()
        for _ in range(int(self._rng.integers(_NOOPS + 1))):
            game.act(ale_py.Action.NOOP)
        if ale_py.Action.FIRE in self._moves:
            game.act(ale_py.Action.FIRE)
        self._frames[env] = game.getScreenRGB()

    def _play(self, env: int, move: ale_py.Action) -> float:
        """The score of four emulator frames; the picture is the maximum over the last two."""
        game = self._games[env]
        score = sum(game.act(move) for _ in range(FRAME_SKIP - 1))
        before = game.getScreenRGB()
        score += game.act(move)
        np.maximum(before, game.getScreenRGB(), out=self._frames[env])
        return float(score)

    def _step(self, score: np.ndarray, reset: np.ndarray, lost: np.ndarray) -> Step:
        over = np.array([game.game_over() for game in self._games])
        cut = (self._made >= self._limit) & ~over
        self._over = over | cut
        return Step(self._frames, score, lost | over, cut, reset)
