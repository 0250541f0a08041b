"""The loss by hand on two tiny steps, its gradients by sign, and the draw of actions by frequency."""

import math

import pytest
import torch

from lib.agent.a2c import a2c_loss, sample_actions

# Policies (¼, ¾) and (½, ½); the third step was ignored by its environment and must not matter.
LOGITS = torch.tensor([[0.0, math.log(3)], [7.0, 7.0], [1e3, -1e3]])
VALUES = torch.tensor([1.0, 2.0, 1e3])
ACTIONS = torch.tensor([1, 0, 1])
ADVANTAGES = torch.tensor([2.0, -4.0, 1e6])
RETURNS = torch.tensor([4.0, 2.5, -1e6])
VALID = torch.tensor([True, True, False])


def loss(logits: torch.Tensor = LOGITS, values: torch.Tensor = VALUES, valid: torch.Tensor = VALID) -> dict:
    total, parts = a2c_loss(logits, values, ACTIONS, ADVANTAGES, RETURNS, valid, 0.1, 0.5)
    return {"total": total, **parts}


def test_by_hand() -> None:
    parts = loss()
    policy = (-math.log(3 / 4) * 2 - math.log(1 / 2) * -4) / 2
    value = ((1 - 4) ** 2 + (2 - 2.5) ** 2) / 2
    entropy = (-(math.log(1 / 4) / 4 + math.log(3 / 4) * 3 / 4) + math.log(2)) / 2
    assert parts["loss_policy"].item() == pytest.approx(policy, rel=1e-6)
    assert parts["loss_value"].item() == pytest.approx(value, rel=1e-6)
    assert parts["entropy"].item() == pytest.approx(entropy, rel=1e-6)
    assert parts["loss_entropy"].item() == pytest.approx(-0.1 * entropy, rel=1e-6)
    assert parts["total"].item() == pytest.approx(policy + 0.5 * value - 0.1 * entropy, rel=1e-6)
    assert parts["loss_total"].item() == parts["total"].item()
    assert parts["advantage"].item() == pytest.approx(-1)
    assert parts["values"].item() == pytest.approx(1.5)
    assert parts["batch_rewards"].item() == pytest.approx(3.25)
    assert not any(part.requires_grad for name, part in parts.items() if name != "total")


def test_gradients_point_the_right_way_and_masked_steps_have_none() -> None:
    logits, values = LOGITS.clone().requires_grad_(), VALUES.clone().requires_grad_()
    total, _ = a2c_loss(logits, values, ACTIONS, ADVANTAGES, RETURNS, VALID, 0.0, 0.5)
    total.backward()
    assert logits.grad is not None
    assert values.grad is not None
    # dL/dz = Â (π − 1ₐ) / N: the better action up (down the gradient), the worse one down.
    expected = torch.tensor([[0.25 * 2, -0.25 * 2], [-0.5 * -4, 0.5 * -4], [0, 0]]) / 2
    torch.testing.assert_close(logits.grad, expected)
    # dL/dv = 2 c_v (v − G) / N
    torch.testing.assert_close(values.grad, torch.tensor([-3.0, -0.5, 0.0]) / 2)


def test_the_entropy_bonus_evens_the_policy_out() -> None:
    logits = LOGITS[:2].clone().requires_grad_()
    zeros = torch.zeros(2)
    total, _ = a2c_loss(logits, zeros, ACTIONS[:2], zeros, zeros, VALID[:2], 1.0, 1.0)
    total.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] > 0  # the likelier action becomes less likely
    assert logits.grad[0, 0] < 0
    torch.testing.assert_close(logits.grad[1], torch.zeros(2))  # an even policy is already at the top


def test_no_gradient_flows_through_advantages_and_returns() -> None:
    advantages, returns = ADVANTAGES.clone().requires_grad_(), RETURNS.clone().requires_grad_()
    values = VALUES.clone().requires_grad_()
    total, _ = a2c_loss(LOGITS, values, ACTIONS, advantages, returns, VALID, 0.1, 0.5)
    total.backward()
    assert advantages.grad is None
    assert returns.grad is None


def test_a_batch_without_a_valid_step_teaches_nothing() -> None:
    logits = LOGITS.clone().requires_grad_()
    total, _ = a2c_loss(
        logits, VALUES, ACTIONS, ADVANTAGES, RETURNS, torch.zeros(3, dtype=torch.bool), 0.1, 0.5
    )
    total.backward()
    assert total.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_actions_are_drawn_with_the_probabilities_of_the_softmax() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = 40_000
    logits = (probabilities.log() + 3).expand(draws, 4)
    actions = sample_actions(logits, torch.Generator().manual_seed(0))
    assert actions.shape == (draws,)
    assert actions.dtype == torch.int64
    counts = torch.bincount(actions, minlength=4)
    bound = 4 * (draws * probabilities * (1 - probabilities)).sqrt()
    assert ((counts - draws * probabilities).abs() < bound).all()


def test_each_row_is_drawn_from_its_own_policy() -> None:
    rows = torch.arange(50) % 7
    logits = torch.nn.functional.one_hot(rows, 7) * 1e3
    assert torch.equal(sample_actions(logits.float()), rows)


def test_a_generator_makes_draws_repeat() -> None:
    logits = torch.zeros(200, 18)

    def draw(seed: int) -> torch.Tensor:
        return sample_actions(logits, torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
