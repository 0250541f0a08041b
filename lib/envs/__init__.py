"""Worlds: the Atari vector environment, Gymnasium environments and a small world with a known best behaviour."""
