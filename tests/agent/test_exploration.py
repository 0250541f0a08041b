"""Held actions: how long, how often, and that they end with their game; distances to nearest neighbours."""

import numpy as np
import pytest
import torch

from lib.agent.exploration import HeldActions, state_entropy


def test_held_actions_last_as_long_as_asked_and_end_with_their_game() -> None:
    held = HeldActions(2, num_actions=4, prob=1.0, shortest=3, longest=3, seed=0)
    played, where = zip(*(held.replace(np.array([9, 9])) for _ in range(3)), strict=True)
    assert np.all(where)
    assert all(np.array_equal(played[0], later) for later in played)
    assert played[0].max() < 4

    asked = HeldActions(2, num_actions=4, prob=0.0, shortest=3, longest=3, seed=0)
    assert asked.replace(np.array([9, 8]))[0].tolist() == [9, 8]
    asked.begin(np.array([True, True]))
    assert asked.replace(np.array([9, 8]))[1].tolist() == [True, True]
    asked.drop(np.array([True, False]))
    assert [asked.replace(np.array([9, 8]))[1].tolist() for _ in range(3)] == [
        [False, True],
        [False, True],
        [False, False],
    ]

    some = HeldActions(500, num_actions=4, prob=0.0, shortest=2, longest=5, seed=1)
    some.begin(np.ones(500, bool))
    steps = np.sum([some.replace(np.full(500, 9))[1] for _ in range(10)], axis=0)
    assert set(steps.tolist()) == {2, 3, 4, 5}


def test_state_entropy_is_the_distance_to_the_nth_neighbour() -> None:
    others = torch.tensor([[0.0], [1], [3], [7], [20]])
    states = torch.tensor([[0.0], [5.0]])
    # The third of 0, 1, 3, 7, 20 and of 2, 2, 4, 5, 15, over their mean.
    assert state_entropy(states, others, neighbour=3).tolist() == pytest.approx([3 / 3.5, 4 / 3.5], rel=1e-4)
    stretched = torch.cat(
        [others, 100 * others[[2, 0, 4, 1, 3]]], 1
    )  # no number counts for more because it is large
    alone = torch.cat([others, others[[2, 0, 4, 1, 3]]], 1)
    torch.testing.assert_close(
        state_entropy(stretched, stretched), state_entropy(alone, alone), rtol=1e-3, atol=0
    )


def test_state_entropy_sees_through_a_number_that_never_changes() -> None:
    torch.manual_seed(0)
    moving = torch.randn(300, 3)
    fixed = torch.cat([moving, torch.full((300, 1), 7.0)], 1)
    torch.testing.assert_close(
        state_entropy(fixed[:30], fixed), state_entropy(moving[:30], moving), rtol=1e-3, atol=0
    )
