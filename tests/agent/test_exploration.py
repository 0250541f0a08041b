"""Held actions: how long, how often, and that they end with their game."""

import numpy as np

from lib.agent.exploration import HeldActions


def test_held_actions_last_as_long_as_asked_and_end_with_their_game() -> None:
    held = HeldActions(2, num_actions=4, prob=1.0, shortest=3, longest=3, seed=0)
    played, where = zip(*(held.replace(np.array([9, 9])) for _ in range(3)), strict=True)
    assert np.all(where)
    assert all(np.array_equal(played[0], later) for later in played)
    assert played[0].max() < 4

    held.drop(np.array([True, False]))
    never = HeldActions(2, num_actions=4, prob=0.0, shortest=3, longest=3, seed=0)
    assert never.replace(np.array([9, 8]))[0].tolist() == [9, 8]
    lengths = []
    some = HeldActions(1, num_actions=4, prob=0.2, shortest=2, longest=5, seed=1)
    run = 0
    for _ in range(2000):
        if some.replace(np.array([9]))[1][0]:
            run += 1
        elif run:
            lengths.append(run)
            run = 0
    assert min(lengths) == 2
    assert max(lengths) >= 5  # two may follow each other
