"""The loss by hand on tiny steps, and its gradients by sign and against A2C's."""

import math
from typing import Any

import pytest
import torch

from lib.agent.distributions import log_prob_of
from lib.agent.losses import actor_critic_loss, surrogate_loss, value_error

# Policies (¼, ¾) and (½, ½); the third step was ignored by its environment and must not matter.
LOGITS = torch.tensor([[0.0, math.log(3)], [7.0, 7.0], [1e3, -1e3]])
VALUES = torch.tensor([1.0, 2.0, 1e3])
ACTIONS = torch.tensor([1, 0, 1])
ADVANTAGES = torch.tensor([2.0, -4.0, 1e6])
RETURNS = torch.tensor([4.0, 2.5, -1e6])
VALID = torch.tensor([True, True, False])


def loss(
    logits: torch.Tensor = LOGITS,
    values: torch.Tensor = VALUES,
    old_log_probs: torch.Tensor | None = None,
    advantages: torch.Tensor = ADVANTAGES,
    returns: torch.Tensor = RETURNS,
    valid: torch.Tensor = VALID,
    **settings: float,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    defaults = {"clip_range": 0.0, "value_clip_range": 0.0, "entropy_coef": 0.1, "value_coef": 0.5}
    count = len(logits)
    return actor_critic_loss(
        logits,
        values,
        ACTIONS[:count],
        old_log_probs,
        VALUES[:count],
        advantages,
        returns,
        valid,
        valid.sum(),
        **(defaults | settings),
    )


def test_a2c_by_hand() -> None:
    total, parts = loss()
    value = ((1 - 4) ** 2 + (2 - 2.5) ** 2) / 2
    entropy = (-(math.log(1 / 4) / 4 + math.log(3 / 4) * 3 / 4) + math.log(2)) / 2
    assert parts["loss_policy"].item() == -(2 - 4) / 2  # the ratio is 1
    assert parts["loss_value"].item() == pytest.approx(value, rel=1e-6)
    assert parts["entropy"].item() == pytest.approx(entropy, rel=1e-6)
    assert parts["loss_entropy"].item() == pytest.approx(-0.1 * entropy, rel=1e-6)
    assert total.item() == pytest.approx(1 + 0.5 * value - 0.1 * entropy, rel=1e-6)
    assert parts["loss_total"].item() == total.item()
    assert parts["values"].item() == pytest.approx(1.5)
    assert parts["approx_kl"].item() == parts["clip_fraction"].item() == 0
    _, parts = loss(valid=torch.tensor([True, False, False]))
    assert (parts["loss_policy"].item(), parts["loss_value"].item()) == (-2, 9)  # the mean of one step


def test_ppo_by_hand() -> None:
    """Old policies (½, ½) and (¼, ¾): the ratios are 1.5 and 2; only the first is cut, to 1.2."""
    old = torch.tensor([math.log(1 / 2), math.log(1 / 4), -1e30])
    total, parts = loss(old_log_probs=old, clip_range=0.2, value_clip_range=0.25)
    # −min(1.5·2, 1.2·2) and −min(2·−4, 1.2·−4): pessimism cuts what would be too good only.
    assert parts["loss_policy"].item() == pytest.approx((-2.4 + 8) / 2, rel=1e-6)
    assert parts["clip_fraction"].item() == 1
    fallen = torch.tensor([math.log(3 / 4), math.log(0.8), 0.0])  # the ratios are 1 and ⅝
    assert loss(old_log_probs=fallen, clip_range=0.2)[1]["clip_fraction"].item() == 0.5
    kl = (1.5 - 1 - math.log(1.5) + 2 - 1 - math.log(2)) / 2
    assert parts["approx_kl"].item() == pytest.approx(kl, rel=1e-5)
    assert total.isfinite()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # within the clip: d(−ρÂ)/d log ρ = −ρÂ
        (1.5, 2.0, -2.4, 0.0),  # up enough
        (0.5, 2.0, -1.0, -1.0),  # fell, though good: must come back
        (0.5, -2.0, 1.6, 0.0),  # down enough
        (1.5, -2.0, 3.0, 3.0),  # rose, though bad: must come back
    ],
)
def test_the_clipped_surrogate(ratio: float, advantage: float, expected: float, gradient: float) -> None:
    log_ratio = torch.tensor(math.log(ratio), requires_grad=True)
    result = surrogate_loss(log_ratio, torch.tensor(advantage), 0.2)
    result.backward()
    assert result.item() == pytest.approx(expected, rel=1e-6)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(gradient, rel=1e-6)


def test_without_a_clip_range_the_ratio_is_free() -> None:
    assert surrogate_loss(torch.tensor(math.log(1.5)), torch.tensor(2.0), 0.0).item() == pytest.approx(-3)


@pytest.mark.parametrize(
    ("value", "returned", "clip", "expected"),
    [
        (3.0, 4.0, 0.0, 1.0),
        (3.0, 4.0, 0.5, 6.25),  # went from 1 to 3, may go to 1.5: (1.5 − 4)²
        (1.25, 4.0, 0.5, 2.75**2),  # within the clip
        (3.0, 1.0, 0.5, 4.0),  # moved away from the return: the real error is the larger
        (-1.0, 0.0, 0.5, 1.0),  # from 1 to −1, past 0.5: 0.5² is less than (−1)²
        (-1.0, -2.0, 0.5, 6.25),  # went towards the return, may go to 0.5 only: (0.5 + 2)²
    ],
)
def test_the_clipped_value(value: float, returned: float, clip: float, expected: float) -> None:
    error = value_error(torch.tensor(value), torch.tensor(1.0), torch.tensor(returned), clip)
    assert error.item() == expected


def test_gradients_point_the_right_way_and_masked_steps_have_none() -> None:
    logits, values = LOGITS.clone().requires_grad_(), VALUES.clone().requires_grad_()
    total, parts = loss(logits, values, entropy_coef=0.0)
    assert not any(part.requires_grad for part in parts.values())
    total.backward()
    assert logits.grad is not None
    assert values.grad is not None
    # dL/dz = Â (π − 1ₐ) / N: the better action up (down the gradient), the worse one down.
    expected = torch.tensor([[0.25 * 2, -0.25 * 2], [-0.5 * -4, 0.5 * -4], [0, 0]]) / 2
    torch.testing.assert_close(logits.grad, expected)
    # dL/dv = 2 c_v (v − G) / N
    torch.testing.assert_close(values.grad, torch.tensor([-3.0, -0.5, 0.0]) / 2)


def random_steps(count: int = 64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "dist_params": torch.randn(count, 6, generator=generator, dtype=torch.float64),
        "values": torch.randn(count, generator=generator, dtype=torch.float64),
        "actions": torch.randint(0, 6, (count,), generator=generator),
        "old_values": torch.randn(count, generator=generator, dtype=torch.float64),
        "advantages": torch.randn(count, generator=generator, dtype=torch.float64),
        "returns": torch.randn(count, generator=generator, dtype=torch.float64),
        "valid": torch.rand(count, generator=generator) < 0.8,
    }


def gradients(steps: dict[str, Any], old: torch.Tensor | None, clip: float) -> list[torch.Tensor]:
    given = steps | {name: steps[name].clone().requires_grad_() for name in ("dist_params", "values")}
    coefs: dict[str, Any] = {
        "clip_range": clip,
        "value_clip_range": 0.0,
        "entropy_coef": 0.01,
        "value_coef": 1.0,
    }
    total, _ = actor_critic_loss(**given, old_log_probs=old, count=steps["valid"].sum(), **coefs)
    total.backward()
    return [given["dist_params"].grad, given["values"].grad]


def test_at_ratio_1_the_gradient_of_ppo_is_that_of_a2c() -> None:
    """And both are that of −log π Â + c_v (v − G)² − c_e H, written out."""
    steps = random_steps()
    a2c = gradients(steps, None, 0.0)
    ppo = gradients(steps, log_prob_of(steps["dist_params"], steps["actions"]), 0.2)

    logits, values = steps["dist_params"].clone().requires_grad_(), steps["values"].clone().requires_grad_()
    distribution = torch.distributions.Categorical(logits=logits)
    each = (
        -distribution.log_prob(steps["actions"]) * steps["advantages"]
        + (values - steps["returns"]) ** 2
        - 0.01 * distribution.entropy()
    )
    each[steps["valid"]].mean().backward()
    for ours, same, direct in zip(a2c, ppo, (logits.grad, values.grad), strict=True):
        torch.testing.assert_close(ours, same, rtol=0, atol=1e-15)
        torch.testing.assert_close(ours, direct, rtol=0, atol=1e-8)  # the weights of a mean are float32


def test_no_gradient_flows_through_advantages_and_returns() -> None:
    advantages, returns = ADVANTAGES.clone().requires_grad_(), RETURNS.clone().requires_grad_()
    total, _ = loss(values=VALUES.clone().requires_grad_(), advantages=advantages, returns=returns)
    total.backward()
    assert advantages.grad is None
    assert returns.grad is None


@pytest.mark.parametrize("old", [None, torch.tensor([-1.0, -2.0, -1e30])])
def test_a_batch_without_a_valid_step_teaches_nothing(old: torch.Tensor | None) -> None:
    logits = LOGITS.clone().requires_grad_()
    total, _ = loss(logits, old_log_probs=old, valid=torch.zeros(3, dtype=torch.bool), clip_range=0.2)
    total.backward()
    assert total.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()
