"""One update: A2C as PPO of one pass, passes and their end, and what is paid."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent.actor_critic import ActorCritic, _minibatches, assess, update
from lib.agent.config import TrainConfig
from lib.agent.distributions import log_prob_of
from lib.agent.kl import KLPenalty
from lib.agent.losses import value_error
from lib.agent.network import PolicyNet
from lib.agent.rollout import Rollout
from tests.agent.worlds import Corridor, random_rollout

A2C_AS_PPO: dict[str, Any] = {
    "algo": "ppo",
    "epochs": 1,
    "minibatches": 1,
    "gae_lambda": 1.0,
    "normalise_advantages": False,
    "value_coef": 1.0,
    "grad_clip": 0.1,
}


def fresh() -> PolicyNet:
    torch.manual_seed(0)
    return PolicyNet(6, kind="small")


@torch.no_grad()
def acted_by(network: PolicyNet, played: Rollout) -> Rollout:
    """The rollout as if that network had played it."""
    logits, _ = network(played.observations.flatten(0, 1))
    return played._replace(dist_params=logits.view_as(played.dist_params))


def updated(played: Rollout, lr: float = 1e-3, **flags: Any) -> tuple[PolicyNet, dict[str, torch.Tensor]]:
    network = fresh()
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, eps=1e-5)
    return network, update(network, optimizer, played, TrainConfig(name="x", **flags), bf16=False)


def same(one: PolicyNet, other: PolicyNet) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def gradient(network: PolicyNet) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


@pytest.mark.slow
def test_a2c_is_ppo_of_one_pass() -> None:
    (a2c, parts), (ppo, others) = updated(random_rollout()), updated(random_rollout(), **A2C_AS_PPO)
    assert same(a2c, ppo)
    assert not same(a2c, fresh())
    assert {name: value.item() for name, value in parts.items()} == {
        name: value.item() for name, value in others.items()
    }
    assert parts["approx_kl"].item() == parts["clip_fraction"].item() == 0
    assert parts["epochs_done"].item() == 1


@pytest.mark.slow
def test_at_ratio_1_the_gradient_through_the_whole_network_is_that_of_a2c() -> None:
    """A second pass of a policy that has not moved (its learning rate is 0) takes the kept log-probabilities."""
    played = acted_by(fresh(), random_rollout())
    a2c, _ = updated(played, lr=0.0)
    ppo, parts = updated(played, lr=0.0, **(A2C_AS_PPO | {"epochs": 2}))
    assert parts["approx_kl"].item() == pytest.approx(0, abs=1e-6)
    assert gradient(a2c).norm() > 0.05
    torch.testing.assert_close(gradient(a2c), gradient(ppo), rtol=1e-4, atol=1e-7)


def test_passes_move_the_policy_away_from_the_one_that_acted() -> None:
    played = acted_by(fresh(), random_rollout())
    _, parts = updated(played, algo="ppo", minibatches=2)
    assert parts["epochs_done"].item() == 4
    assert parts["approx_kl"].item() > 1e-3
    assert 0 < parts["clip_fraction"].item() < 1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "epochs"), [(1e-6, 1), (1e6, 4)])
def test_passes_end_at_the_target_kl(target: float, epochs: int) -> None:
    played = acted_by(fresh(), random_rollout())
    _, parts = updated(played, algo="ppo", minibatches=2, target_kl=target)
    assert parts["epochs_done"].item() == epochs


def test_minibatches_are_a_partition_and_differ_between_passes() -> None:
    torch.manual_seed(0)
    first, second = (_minibatches(10, 5, 4, torch.device("cpu")) for _ in range(2))
    for pass_ in (first, second):
        assert [len(rows) for rows in pass_ if isinstance(rows, torch.Tensor)] == [13, 13, 12, 12]
        assert sorted(torch.cat(list(pass_)).tolist()) == list(range(50))  # type: ignore[arg-type]
    assert not torch.equal(torch.cat(list(first)), torch.cat(list(second)))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{"minibatches": 1, "value_clip_range": 0.1}, {"minibatches": 3}])
def test_ppo_learns_nothing_from_steps_that_were_ignored(flags: dict[str, Any]) -> None:
    """Environment 0 ended at step 1, so its step 2 is the reset: no trace of it may be in the weights."""
    played = acted_by(fresh(), random_rollout(envs=3))
    played.terminal[1, 0] = True
    played.valid[2, 0] = False
    penalty = KLPenalty(fresh(), 0.1, 0.0, 100)

    def learnt(played: Rollout) -> PolicyNet:
        network = fresh()
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, eps=1e-5)
        config = TrainConfig(name="x", algo="ppo", **flags)
        update(network, optimizer, played, config, False, penalty)
        return network

    quiet = learnt(played)
    played.score[2, 0], played.actions[2, 0] = -1.0, (played.actions[2, 0] + 3) % 6
    played.observations[2, 0] = 255 - played.observations[2, 0]
    played.dist_params[2, 0] = torch.tensor([50.0, 0, 0, 0, 0, -50])
    played.values[2, 0] -= 1e3
    loud = learnt(played)
    for one, other in zip(quiet.parameters(), loud.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    played.valid[2, 0] = True
    assert not same(quiet, learnt(played))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{"entropy": 0.5}, {"value_coef": 0.25}])
def test_each_part_of_the_loss_weighs_what_its_flag_says(flags: dict[str, float]) -> None:
    played = acted_by(fresh(), random_rollout())
    weights: dict[str, Any] = {"entropy": 0.0, "value_coef": 1.0}
    weights |= {"algo": "ppo", "epochs": 2, "minibatches": 1}
    without, _ = updated(played, **weights)
    weights |= flags
    network, parts = updated(played, **weights)
    assert not same(network, without)
    value, entropy = weights["value_coef"] * parts["loss_value"], weights["entropy"] * parts["entropy"]
    assert parts["loss_total"].item() == pytest.approx(
        (parts["loss_policy"] + value - entropy).item(), rel=1e-5
    )


def test_the_learning_rate_falls_to_0_with_the_steps() -> None:
    config = TrainConfig(name="x", rollout=2, num_envs=2, lr=0.1, lr_decay_steps=10)
    learner = ActorCritic(PolicyNet(1, True, 1), Corridor(2), config, torch.device("cpu"), False, 0)
    found = [learner.advance() for _ in range(4)]
    assert [each.steps for each in found] == [4] * 4
    assert [each.scalars["lr"] for each in found] == pytest.approx([0.1, 0.06, 0.02, 0])
    assert (learner.steps, learner.updates) == (16, 4)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_the_critic_is_held_to_the_values_of_the_rollout(clip: float) -> None:
    """It says about 0 where they are about ±1. Nothing moves between the passes, their learning rate being 0."""
    played = acted_by(fresh(), random_rollout())
    batch, _ = assess(played, TrainConfig(name="x", algo="ppo"), None, bf16=False)
    with torch.no_grad():
        _, values = fresh()(batch.seen)
    errors = [
        value_error(values, batch.old_values, batch.returns, each).mean().item()
        for each in (clip, 0.1 - clip)
    ]
    _, parts = updated(played, lr=0.0, algo="ppo", epochs=2, minibatches=1, value_clip_range=clip)
    assert parts["loss_value"].item() == pytest.approx(errors[0], rel=1e-4)
    assert abs(errors[0] - errors[1]) > 0.1


def test_no_step_is_longer_than_the_gradients_clip_allows() -> None:
    """By plain gradient descent, so that the step is the gradient times the rate."""

    def length(clip: float) -> float:
        network = fresh()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        update(network, optimizer, random_rollout(), TrainConfig(name="x", grad_clip=clip), bf16=False)
        moves = [new - old for new, old in zip(network.parameters(), fresh().parameters(), strict=True)]
        return math.sqrt(sum(move.square().sum().item() for move in moves))

    assert length(0.01) == pytest.approx(0.5 * 0.01, rel=1e-3)
    assert length(0) == length(1e6) > 0.5 * 0.1


LEARNED = torch.tensor([[0.25, -3.0], [0.5, 8.0], [1e6, 0.0], [0.0, 0.25]])


def judged(penalty: KLPenalty | None = None, **flags: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns of the valid steps of a rollout in which each step ends a life, so that they are its rewards."""
    played = random_rollout(learned=LEARNED.clone(), score=20.0)
    played.score[1] = [-5.0, 0.0]
    played.terminal[:] = True
    played.valid[2, 0] = False
    batch, parts = assess(played, TrainConfig(name="x", **flags), penalty, bf16=False)
    assert played.learned is not None
    assert torch.equal(played.learned, LEARNED)
    return batch.returns[batch.valid].tolist(), parts


def test_advantages_go_by_the_flags_and_by_how_the_games_ended() -> None:
    """Values 10, 20, …; the game of row 1 is cut by the time limit, a life is lost in row 2."""
    played = random_rollout(envs=1, learned=torch.tensor([[1.0], [2.0], [4.0], [8.0]]))
    played.values[:, 0] = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
    played.truncated[1] = played.terminal[2] = True
    config = TrainConfig(name="x", reward=Path("r.dat"), gamma=0.5, gae_lambda=0.7)
    batch, _ = assess(played, config, None, bf16=False)
    # δ = 1 + ½·20 − 10, 2 + ½·30 − 20, 4 − 30, 8 + ½·50 − 40; only row 0 goes on into the next.
    advantages = [1 + 0.5 * 0.7 * -3, -3, -26, -7]
    assert batch.advantages.tolist() == pytest.approx(advantages, abs=1e-5)
    assert batch.returns.tolist() == pytest.approx([9.95, 17, 4, 33], abs=1e-5)


PAID = [0.25, -3.0, 0.5, 8.0, 0.0, 0.0, 0.25]
SIGNS = [1, 1, -1, 0, 1, 1, 1]


def test_the_score_is_paid_on_top_of_the_learned_reward(tmp_path: Any) -> None:
    reward = {"reward": tmp_path / "r.dat"}
    assert judged(**reward)[0] == pytest.approx(PAID, abs=1e-5)
    signed, parts = judged(score_weight=0.5, **reward)
    assert signed == pytest.approx([p + 0.5 * s for p, s in zip(PAID, SIGNS, strict=True)], abs=1e-5)
    # The charts of the learned reward are of that alone.
    assert parts["reward_mu"].item() == pytest.approx(np.mean(PAID), rel=1e-4)
    assert parts["batch_rewards"].item() == pytest.approx(np.mean(signed), rel=1e-4)
    whole, _ = judged(score_weight=0.5, clip_score=False, **reward)
    points = [20, 20, -5, 0, 20, 20, 20]
    assert whole == pytest.approx([p + 0.5 * s for p, s in zip(PAID, points, strict=True)], abs=1e-5)


def test_an_offset_and_a_scale_change_what_is_paid_and_no_chart_of_the_learned_reward(tmp_path: Any) -> None:
    reward = {"reward": tmp_path / "r.dat", "reward_offset": 1.5, "reward_scale": 0.1, "score_weight": 0.5}
    paid, parts = judged(**reward)
    expected = [0.1 * (p + 1.5) + 0.5 * s for p, s in zip(PAID, SIGNS, strict=True)]
    assert paid == pytest.approx(expected, abs=1e-5)
    assert parts["reward_mu"].item() == pytest.approx(np.mean(PAID), rel=1e-4)
    assert parts["reward_std"].item() == pytest.approx(np.std(PAID), rel=1e-4)


def test_the_penalty_is_charged_before_the_scale(tmp_path: Any) -> None:
    reference = fresh()
    with torch.no_grad():
        reference.get_parameter("policy.2.bias")[0] += 3.0
    plain, charged = (
        judged(KLPenalty(reference, coef, 0.0, 100), reward=tmp_path / "r.dat", reward_scale=scale)[0]
        for coef, scale in ((0.25, 1.0), (0.25, 0.1))
    )
    assert charged == pytest.approx([0.1 * p for p in plain], abs=1e-4)


def test_the_penalty_is_paid_within_each_step() -> None:
    reference = fresh()
    played = random_rollout()
    with torch.no_grad():
        reference.get_parameter("policy.2.bias")[0] += 3.0
        logits, _ = reference(played.observations.flatten(0, 1))
    strayed = math.log(1 / 6) - log_prob_of(logits.view(4, 2, 6), played.actions)
    price = (0.25 * strayed)[torch.from_numpy(np.array([[1, 1], [1, 1], [0, 1], [1, 1]], bool))]
    paid, parts = judged(KLPenalty(reference, 0.25, 0.0, 100))
    assert paid == pytest.approx([p - c for p, c in zip(PAID, price.tolist(), strict=True)], abs=1e-4)
    assert parts["kl_ref"].item() > 0.1


def test_advantages_are_normalised_where_asked_and_charted_as_they_were() -> None:
    played = random_rollout(steps=8)
    played.valid[3, 1] = False
    raw, parts = assess(played, TrainConfig(name="x"), None, bf16=False)
    flat, same_parts = assess(played, TrainConfig(name="x", normalise_advantages=True), None, bf16=False)
    assert flat.advantages[flat.valid].mean().item() == pytest.approx(0, abs=1e-6)
    assert flat.advantages[flat.valid].std(correction=0).item() == pytest.approx(1, rel=1e-5)
    assert torch.equal(raw.returns, flat.returns)
    assert same_parts["advantage"].item() == parts["advantage"].item() != 0
    assert parts["advantage"].item() == pytest.approx(raw.advantages[raw.valid].mean().item(), rel=1e-5)


def test_held_actions_are_learned_from_only_if_asked() -> None:
    """Rows 1 and 3 are held: good ones, bad ones, and in environment 1 such as the policy hardly ever chooses."""
    played = random_rollout(learned=torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.0, 0.0], [-9.0, -9.0]]))
    played.values.zero_()
    played.actions.fill_(2)
    played.dist_params[:, 1, 2] = -5.0  # a chance of 0.1 %
    played.held[[1, 3]] = True
    flags: dict[str, Any] = {"reward": Path("r.dat"), "gamma": 0.0}
    without, parts = assess(played, TrainConfig(name="x", **flags), None, bf16=False)
    assert without.valid.view(4, 2).tolist() == [[True, True], [False, False]] * 2
    assert parts["reward_mu"].item() == 0

    flags |= {"hold_prob": 0.1, "learn_held": True}
    batch, parts = assess(played, TrainConfig(name="x", **flags), None, bf16=False)
    assert batch.valid.all()
    assert batch.advantages.view(4, 2).tolist() == [[0, 0], [9, 9], [0, 0], [-9, 0]]  # not rarer than rare
    assert batch.returns.tolist() == batch.old_values.tolist()  # nothing for the critic
    assert parts["advantage"].item() == 0
