"""The policy network: the original's weights fit, others are refused, frozen convolutions stay."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.policies import ActorCriticCnnPolicy

from lib.agent.actor_critic import update
from lib.agent.config import TrainConfig
from lib.agent.dqn import QNet
from lib.agent.network import PolicyNet, autocast, policy_from_state
from lib.agent.rollout import Rollout
from lib.cli import UserError
from lib.reward.implied import PolicyRatio, ratio_of
from lib.reward.network import RewardNet
from tests.agent.worlds import random_rollout

ORIGINAL = {
    "conv.0.weight": (32, 4, 8, 8),
    "conv.0.bias": (32,),
    "conv.2.weight": (64, 32, 4, 4),
    "conv.2.bias": (64,),
    "conv.4.weight": (64, 64, 3, 3),
    "conv.4.bias": (64,),
    "policy.0.weight": (512, 3136),
    "policy.0.bias": (512,),
    "policy.2.weight": (18, 512),
    "policy.2.bias": (18,),
    "value.0.weight": (512, 3136),
    "value.0.bias": (512,),
    "value.2.weight": (1, 512),
    "value.2.bias": (1,),
}


def test_has_the_weights_of_the_original() -> None:
    assert {name: tuple(value.shape) for name, value in PolicyNet(18).state_dict().items()} == ORIGINAL


def test_a_state_dict_of_the_original_loads() -> None:
    generator = torch.Generator().manual_seed(0)
    state = {name: 0.01 * torch.randn(shape, generator=generator) for name, shape in ORIGINAL.items()}
    network = policy_from_state(state, "original.dat")
    assert network.spec.num_actions == 18
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())

    # The forward pass spelt out: ÷ 255, ReLU between layers, none behind the last.
    pictures = torch.randint(0, 256, (2, 4, 84, 84), generator=generator, dtype=torch.uint8)
    x = pictures / 255
    for name, stride in (("conv.0", 4), ("conv.2", 2), ("conv.4", 1)):
        x = torch.nn.functional.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], stride).relu()
    x = x.flatten(1)
    hidden = {
        head: (x @ state[f"{head}.0.weight"].T + state[f"{head}.0.bias"]).relu()
        for head in ("policy", "value")
    }
    expected = {head: hidden[head] @ state[f"{head}.2.weight"].T + state[f"{head}.2.bias"] for head in hidden}
    logits, values = network(pictures)
    torch.testing.assert_close(logits, expected["policy"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values, expected["value"][:, 0], rtol=1e-4, atol=1e-5)
    for features in (network.conv.by_blocks, network.conv.by_strides):
        torch.testing.assert_close(features(pictures, torch.float32), x, rtol=1e-4, atol=1e-5)


def test_the_shared_one_is_that_of_stable_baselines3() -> None:
    spaces = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8), gymnasium.spaces.Discrete(6)
    theirs = ActorCriticCnnPolicy(*spaces, lr_schedule=lambda _: 0.0)
    places = {f"features_extractor.cnn.{n}": f"conv.{n}" for n in (0, 2, 4)} | {
        "features_extractor.linear.0": "conv.7",
        "action_net": "policy.0",
        "value_net": "value.0",
    }
    state = {
        f"{ours}.{kind}": theirs.state_dict()[f"{name}.{kind}"]
        for name, ours in places.items()
        for kind in ("weight", "bias")
    }
    network = policy_from_state(state, "theirs")
    assert network.kind == "shared"
    pictures = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    logits, values = network(pictures)
    hidden = theirs.extract_features(pictures)
    torch.testing.assert_close(logits, theirs.action_net(hidden), rtol=1e-4, atol=1e-5)
    theirs_values = theirs.predict_values(pictures)
    torch.testing.assert_close(values, theirs_values.flatten(), rtol=1e-4, atol=1e-5)
    for features in (network.conv.by_blocks, network.conv.by_strides):
        torch.testing.assert_close(features(pictures, torch.float32), hidden, rtol=1e-4, atol=1e-5)


def test_the_small_one_is_that_of_a3c() -> None:
    torch.manual_seed(0)
    network = PolicyNet(6, kind="small")
    assert sum(weights.numel() for weights in network.conv.parameters()) == 16 * (4 * 8 * 8 + 1) + 32 * (
        16 * 4 * 4 + 1
    )
    assert [layer.out_features for layer in network.policy if isinstance(layer, torch.nn.Linear)] == [256, 6]
    again = policy_from_state(network.state_dict(), "small")
    assert again.kind == "small"
    pictures = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    for ours, theirs in zip(again(pictures), network(pictures), strict=True):
        torch.testing.assert_close(ours, theirs)
    by_blocks, by_strides = (
        at(pictures, torch.float32) for at in (network.conv.by_blocks, network.conv.by_strides)
    )
    torch.testing.assert_close(by_blocks, by_strides, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["separate", "shared", "small"])
def test_no_picture_is_no_error(kind: str) -> None:
    """A rank of several may have no row of a minibatch."""
    logits, values = PolicyNet(18, kind=kind)(torch.empty(0, 4, 84, 84, dtype=torch.uint8))
    (logits.sum() + values.sum()).backward()
    assert (logits.shape, values.shape) == ((0, 18), (0,))


def test_the_first_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    logits, _ = PolicyNet(18)(torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8))
    assert logits.softmax(-1).min() > 0.9 / 18


@cache
def untaught() -> dict[str, torch.Tensor]:
    return PolicyNet(6).state_dict()


def weights(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    state: dict[str, Any] = {
        **untaught(),
        **{k.replace("__", "."): v for k, v in changes.items()},
    }
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: RewardNet((210, 160, 3), 18).state_dict(),
            r"expected the weights of a policy.*is it a reward model\?",
        ),
        (dict, r"expected the weights of a policy.*got none"),
        (lambda: weights(conv__2__bias=None), r"conv\.2\.bias, which is missing"),
        (
            lambda: weights(conv__0__weight=torch.zeros(32, 3, 8, 8)),
            r"conv\.0\.weight of shape \(32, 4, 8, 8\), got \(32, 3, 8, 8\)",
        ),
        (lambda: weights(value__2__bias=torch.zeros(2)), r"value\.2\.bias of shape \(1,\), got \(2,\)"),
        (lambda: weights(lstm__weight=torch.zeros(1)), r"another network: lstm\.weight"),
        (lambda: weights(policy__2__weight=torch.zeros(6)), r"expected the weights of a policy"),
        (lambda: weights(policy__2__bias=torch.zeros(7)), r"policy\.2\.bias of shape \(6,\), got \(7,\)"),
    ],
)
def test_refuses_weights_of_another_network(make: Callable[[], dict[str, torch.Tensor]], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        policy_from_state(make(), "some.dat")
    assert str(caught.value).startswith("some.dat: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def updated(played: Rollout, frozen: bool = False, **flags: Any) -> tuple[PolicyNet, PolicyNet, dict]:
    """The network before and after one update."""
    torch.manual_seed(0)
    network, before = PolicyNet(6), PolicyNet(6)
    before.load_state_dict(network.state_dict())
    network.conv.requires_grad_(not frozen)
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=1e-3, eps=1e-5)
    parts = update(network, optimizer, played, TrainConfig(name="test", **flags), bf16=False)
    return before, network, parts


def changed(before: PolicyNet, after: PolicyNet) -> set[str]:
    return {
        name.split(".")[0]
        for (name, old), new in zip(before.state_dict().items(), after.state_dict().values(), strict=True)
        if not torch.equal(old, new)
    }


def test_an_update_changes_everything() -> None:
    before, after, _ = updated(random_rollout())
    assert changed(before, after) == {"conv", "policy", "value"}
    assert all(parameter.grad is not None for parameter in after.parameters())


def test_frozen_convolutions_get_no_gradient_and_do_not_change() -> None:
    before, after, _ = updated(random_rollout(), frozen=True)
    assert changed(before, after) == {"policy", "value"}
    assert all(parameter.grad is None for parameter in after.conv.parameters())


def gradient(network: PolicyNet) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]).double()


def test_the_gradient_is_clipped() -> None:
    _, free, _ = updated(random_rollout(score=-1.0), grad_clip=1e9)
    _, clipped, _ = updated(random_rollout(score=-1.0), grad_clip=0.1)
    before = gradient(free)
    assert before.norm() > 0.2
    torch.testing.assert_close(gradient(clipped), before * 0.1 / before.norm(), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("clip", [0.1, 1e9])
def test_charts_show_the_gradient_before_clipping(clip: float) -> None:
    _, free, _ = updated(random_rollout(), grad_clip=1e9)
    _, _, parts = updated(random_rollout(), grad_clip=clip)
    expected = gradient(free)
    assert parts["grad_l2"].item() == pytest.approx(expected.square().mean().sqrt().item(), rel=1e-3)
    assert parts["grad_max"].item() == pytest.approx(expected.abs().max().item(), rel=1e-3)
    assert parts["grad_var"].item() == pytest.approx(expected.var(correction=0).item(), rel=1e-3)


def test_an_update_learns_nothing_from_steps_that_were_ignored() -> None:
    """Environment 0 ended at step 1, so its step 2 is the reset: no trace of it may be in the weights."""
    played = random_rollout()
    played.terminal[1, 0] = True
    played.valid[2, 0] = False
    _, quiet, _ = updated(played)
    played.score[2, 0], played.actions[2, 0] = -1.0, (played.actions[2, 0] + 3) % 6
    played.observations[2, 0] = 255 - played.observations[2, 0]
    played.values[2, 0] -= 1e3
    _, loud, _ = updated(played)
    for one, other in zip(quiet.parameters(), loud.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)

    played.valid[2, 0] = True
    _, seen, _ = updated(played)
    assert any((a - b).abs().max() > 1e-4 for a, b in zip(quiet.parameters(), seen.parameters(), strict=True))


@pytest.mark.parametrize(("clip", "mean"), [(True, 1.0), (False, 20.0)])
def test_the_score_is_signed_only_where_asked(clip: bool, mean: float) -> None:
    played = random_rollout(score=20.0)
    played.terminal[:] = True  # so that returns are rewards
    _, _, parts = updated(played, clip_score=clip)
    assert parts["batch_rewards"].item() == pytest.approx(mean, rel=1e-5)
    assert "reward_mu" not in parts


def test_the_learned_reward_replaces_the_score_and_keeps_its_size() -> None:
    learned = torch.tensor([[0.25, -3.0], [0.5, 8.0], [1e6, 0.0], [0.0, 0.25]])
    played = random_rollout(learned=learned, score=1e3)
    played.terminal[:] = True
    played.valid[2, 0] = False
    _, _, parts = updated(played)
    assert parts["batch_rewards"].item() == pytest.approx(6 / 7, rel=1e-4)
    paid = np.array([0.25, -3.0, 0.5, 8.0, 0.0, 0.0, 0.25])  # the valid ones
    assert parts["reward_mu"].item() == pytest.approx(paid.mean(), rel=1e-4)
    assert parts["reward_std"].item() == pytest.approx(paid.std(), rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [partial(PolicyNet, 3, observation_size=4), partial(QNet, 3, 4), partial(QNet, 3, 4, dueling=True)],
)
def test_heads_tell_large_values_apart_in_bf16(make: Callable[[], PolicyNet | QNet]) -> None:
    """bf16 has eight bits: between 512 and 1024 its numbers are 4 apart."""
    torch.manual_seed(0)
    network, vectors = make(), torch.randn(64, 4)
    head: Any = network.value if isinstance(network, PolicyNet) else network.actions
    with torch.no_grad():
        head[-1].bias.fill_(1000.0)
        found = []
        for bf16 in (False, True):
            with autocast(torch.device("cpu"), bf16):
                values = network(vectors)
            found.append(values[1] if isinstance(network, PolicyNet) else values)
    assert found[1].dtype == torch.float32
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0.1)


def test_an_implied_reward_in_bf16_is_the_same_when_it_is_loaded() -> None:
    torch.manual_seed(0)
    fitted = PolicyRatio(PolicyNet(3, kind="small").policy, 1.0, (84, 84, 3))
    with torch.no_grad():
        for layer in fitted.policy:
            if isinstance(layer, torch.nn.Linear):
                layer.weight.mul_(3)
    loaded = ratio_of(fitted.state_dict(), (84, 84, 3))
    assert loaded is not None
    seen, actions = torch.randn(64, 2592), torch.arange(64) % 3
    with torch.no_grad(), autocast(torch.device("cpu"), True):
        assert torch.equal(fitted(seen, actions), loaded(seen, actions))
