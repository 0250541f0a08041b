"""Learning to play Atari games from human preferences: the library behind the numbered scripts."""
