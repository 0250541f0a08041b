"""DQN: its update against Stable-Baselines3's and closed forms, its settings, its exploration, its learning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lib.agent.config import TrainConfig
from lib.agent.dqn import DQN, QNet, QPolicy, network_from_state, quantile_huber_loss
from lib.agent.evaluate import evaluate
from lib.agent.replay import Batch
from lib.cli import UserError
from lib.envs.make import make_world
from lib.envs.spec import Spec
from tests.agent.worlds import Bandit, Pays

CPU = torch.device("cpu")
DATA = Path(__file__).parent / "data"
VECTORS = Spec(3, observation_shape=(5,))


def learner(world: Any, hidden: int = 16, **flags: Any) -> DQN:
    torch.manual_seed(0)
    config = TrainConfig(name="x", algo="dqn", env=world.env_id, **flags)
    spec = world.spec
    network = QNet(spec.num_actions, spec.observation_size, config.dueling, config.quantiles, hidden)
    return DQN(network, world, config, CPU, False, 0)


def descending(ours: DQN) -> DQN:
    """By plain gradient descent at rate 1, so that a step is a gradient."""
    ours.optimizers["values"] = torch.optim.SGD(ours.network.parameters(), lr=1.0)
    return ours


def batch_of(samples: dict[str, torch.Tensor], gamma: float = 0.97) -> Batch:
    rewards, dones = samples["rewards"][:, 0], samples["dones"][:, 0]
    return Batch(
        samples["observations"],
        samples["actions"].flatten(),
        rewards,
        gamma * (1 - dones),
        samples["next_observations"],
        torch.ones(len(rewards)),
        torch.arange(len(rewards)),
    )


def weights_of(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their weights by our names."""
    named = {name.replace("q_net.", "actions."): value for name, value in theirs.items()}
    return named | {"levels": torch.tensor([0.5])}


def theirs() -> Any:
    return torch.load(DATA / "sb3_dqn.pt", weights_only=True)


def loaded(**flags: Any) -> DQN:
    """A learner with their weights before the update."""
    ours = descending(learner(Bandit(2, VECTORS), grad_clip=0.2, **flags))
    ours.network.load_state_dict(weights_of(theirs()["before"]["online"]))
    ours.target.load_state_dict(weights_of(theirs()["before"]["target"]))
    return ours


def test_an_update_is_that_of_stable_baselines() -> None:
    """The loss and, by plain gradient descent at rate 1, all clipped gradients, to 1e-5."""
    ours = loaded(double=False)
    parts = ours.learn(batch_of(theirs()["samples"]))
    assert parts["loss_total"].item() == pytest.approx(theirs()["logged"]["train/loss"], abs=1e-5)
    after = weights_of(theirs()["after"]["online"])
    torch.testing.assert_close(dict(ours.network.state_dict()), after, rtol=1e-5, atol=1e-5)
    assert parts["grad_norm"] > 0.2  # so that the clip was tested as well


def test_double_takes_the_target_networks_value_of_the_learning_networks_choice() -> None:
    ours, batch = loaded(double=True), batch_of(theirs()["samples"])
    with torch.no_grad():
        choice = ours.network(batch.following)[..., 0].argmax(1)
        after = ours.target(batch.following)[..., 0]
        rows = torch.arange(len(choice))
        errors = batch.returns + batch.discounts * after[rows, choice]
        errors -= ours.network(batch.observations)[rows, batch.actions, 0]
    assert (after.argmax(1) != choice).any()
    expected = torch.where(errors.abs() < 1, errors.square() / 2, errors.abs() - 0.5).mean()
    assert ours.learn(batch)["loss_total"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_an_update_by_quantiles_says_what_it_learned_from() -> None:
    """Means over all steps, each by its weight; priorities are the errors of the means of the quantiles."""
    flags: dict[str, Any] = {"dueling": True, "quantiles": 3}
    ours, elsewhere = (descending(learner(Bandit(2, VECTORS), 8, **flags)) for _ in range(2))
    noted: list[torch.Tensor] = []
    vars(ours.replay)["prioritise"] = lambda at, errors: noted.extend((at, errors))
    torch.manual_seed(1)
    for parameter in elsewhere.network.parameters():
        nn.init.normal_(parameter)
    ours.target.load_state_dict(elsewhere.network.state_dict())
    seen, following, returns = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([1.0, -2, 3, 9])
    discounts, weights = torch.tensor([0.9, 0, 0.9, 0.5]), torch.tensor([2.0, 0.5, 1.5, 0])
    actions, at, rows = torch.tensor([0, 1, 2, 2]), torch.tensor([5, 7, 6, 8]), torch.arange(4)
    with torch.no_grad():
        after = ours.target(following)[rows, ours.network(following).mean(2).argmax(1)]
        targets, values = returns[:, None] + discounts[:, None] * after, ours.network(seen)[rows, actions]
    levels = torch.tensor([1 / 6, 1 / 2, 5 / 6])
    torch.testing.assert_close(ours.network.levels, levels)
    parts = ours.learn(Batch(seen, actions, returns, discounts, following, weights, at))
    errors = (targets.mean(1) - values.mean(1)).abs()
    assert torch.equal(noted[0], at)
    torch.testing.assert_close(noted[1], errors)
    for name, each in (
        ("loss_total", quantile_huber_loss(values, targets, levels)),
        ("values", values.mean(1)),
        ("td_error", errors),
        ("batch_rewards", returns),
    ):
        assert parts[name].item() == pytest.approx((weights * each).sum().item() / 4, rel=1e-5), name
        assert not parts[name].requires_grad


def test_the_quantile_loss_term_by_term() -> None:
    values, targets = torch.tensor([[0.0, 1.0], [2.0, 2.0]]), torch.tensor([[0.5, 3.0, 0.2], [2.0, 1.0, 5.0]])
    levels = torch.tensor([0.25, 0.75])
    expected = []
    for row in range(2):
        total = 0.0
        for i in range(2):
            for j in range(3):
                error = (targets[row, j] - values[row, i]).item()
                huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
                total += abs(levels[i].item() - (error < 0)) * huber / 3
        expected.append(total)
    assert quantile_huber_loss(values, targets, levels).tolist() == pytest.approx(expected)


def test_quantiles_settle_at_the_quantiles_of_the_targets() -> None:
    """Of a uniform distribution over 0 … 10, whose quantile τ is 10 τ; errors are large beside the Huber loss's bend."""
    levels = (torch.arange(5) + 0.5) / 5
    values = torch.full((1, 5), 5.0, requires_grad=True)
    targets = torch.linspace(0, 100, 2001)[None]
    for _ in range(600):
        (gradient,) = torch.autograd.grad(quantile_huber_loss(values, targets, levels).sum(), values)
        with torch.no_grad():
            values -= 2.0 * gradient
    torch.testing.assert_close(values.detach()[0], 100 * levels, rtol=0, atol=1.0)


def test_dueling_streams_add_up_to_a_state_and_its_actions() -> None:
    torch.manual_seed(0)
    network, seen = QNet(3, 5, dueling=True, quantiles=2, hidden=8), torch.randn(7, 5)
    assert network.value is not None
    found, value = network(seen), network.value(seen)
    assert found.shape == (7, 3, 2)
    torch.testing.assert_close(found.mean(1), value)
    apart = network.actions(seen).view(7, 3, 2)
    torch.testing.assert_close(found[:, 0] - found[:, 2], apart[:, 0] - apart[:, 2])


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 1.0), (0.3, 0.8), (1.0, 1 / 3)])
def test_so_many_actions_are_random(epsilon: float, share: float) -> None:
    """A random one may be the best one."""
    torch.manual_seed(0)
    network, seen = QNet(3, 5, hidden=8), torch.ones(1, 5).expand(6000, -1)
    best = network(seen[:1]).argmax(1)[0, 0]
    actions = QPolicy(network, epsilon=epsilon).act(seen, torch.Generator().manual_seed(1)).actions
    assert (actions == best).float().mean().item() == pytest.approx(share, abs=0.02)


def test_exploration_falls_with_the_steps_and_a_policy_goes_on_without() -> None:
    ours = learner(Bandit(4, VECTORS), steps=1000, exploration=0.5, epsilon=0.2, replay_steps=100)
    shares = []
    for ours.steps in (0, 250, 500, 900):
        shares.append(ours.epsilon)
    assert shares == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert learner(Bandit(4, VECTORS), model=Path("p"), epsilon=0.2).epsilon == pytest.approx(0.2)


def test_a_run_resumed_for_more_steps_does_not_explore_anew() -> None:
    flags: dict[str, Any] = {"exploration": 0.5, "epsilon": 0.2, "replay_steps": 100}
    ended, longer = (learner(Bandit(4, VECTORS), steps=steps, **flags) for steps in (1000, 100_000))
    ended.steps = 1000
    longer.load_state(ended.state())
    assert longer.epsilon == pytest.approx(0.2)
    again = learner(Bandit(4, VECTORS), steps=1_000_000, **flags)
    again.load_state(longer.state())
    assert again.epsilon == pytest.approx(0.2)


# --- learning ---------------------------------------------------------------------------------------------------


def best_is(action: int) -> Any:
    return Pays(lambda frames, actions, observations: 3.0 * (actions == action), "observation")


@pytest.mark.slow
@pytest.mark.parametrize("relabelled", [True, False])
def test_rewards_changed_half_way_are_learned_only_where_the_replay_is_relabelled(relabelled: bool) -> None:
    """Actions are random, so as many old rewards speak for action 0 as new ones for action 2."""
    spec = Spec(3, observation_shape=(1,))
    flags: dict[str, Any] = {"lr": 1e-2, "learning_starts": 100, "replay_ratio": 0.5, "epsilon": 1.0}
    ours = learner(Bandit(8, spec), 8, reward=Path("r"), steps=10, target_every=10, **flags)

    def values() -> list[float]:
        with torch.no_grad():
            return ours.network(torch.ones(1, 1))[0, :, 0].tolist()

    ours.player.reward = best_is(0)
    for _ in range(80):
        ours.advance()
    assert values() == pytest.approx([3, 0, 0], abs=0.3)
    if relabelled:
        ours.use_reward(best_is(2))
    ours.player.reward = best_is(2)
    for _ in range(80):
        ours.advance()
    first, _, last = values()
    assert (last > 2.7 and first < 0.3) if relabelled else (first > 0.7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"dueling": True, "quantiles": 8, "n_step": 3, "priority": 0.6}], ids=str
)
def test_dqn_learns_to_balance(settings: dict[str, Any]) -> None:
    """CartPole-v1: 22 steps by chance."""
    flags: dict[str, Any] = {
        **{"steps": 4000, "num_envs": 8, "lr": 2e-3, "batch_size": 64, "learning_starts": 400, "gamma": 0.95},
        **{"replay_ratio": 0.125, "target_every": 20, "exploration": 0.3, "clip_score": False},
    }
    ours = learner(make_world("CartPole-v1", 8), 64, **flags | settings)
    while ours.steps < 4000:
        ours.advance()
    found = evaluate(ours.policy(), make_world("CartPole-v1", 8), 7, CPU)
    assert found.scores.mean() > 60


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        {"observation_size": 4, "hidden": 24},
        {"observation_size": 4, "dueling": True, "quantiles": 5},
        {"dueling": True},
        {"kind": "small", "quantiles": 5},
    ],
    ids=str,
)
def test_a_network_is_made_of_its_weights_alone(form: dict[str, Any]) -> None:
    network = QNet(3, **form)
    assert network.spec == Spec(3, False, (4,) if "observation_size" in form else (4, 84, 84))
    again = network_from_state(network.state_dict(), "f")
    assert (again.spec, again.kind) == (network.spec, network.kind)
    assert (again.dueling, again.quantiles) == (network.dueling, network.quantiles)
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    assert {name: value.shape for name, value in again.state_dict().items()} == shapes


def test_weights_of_others_are_refused() -> None:
    state = QNet(3, 4, hidden=24).state_dict()
    for broken, says in (
        ({"levels": torch.zeros(1)}, "f: expected the weights of a policy of --algo dqn"),
        (state | {"levels": torch.zeros(0)}, "f: expected the weights of a policy of --algo dqn"),
        (state | {"actions.2.weight": torch.zeros(24, 3)}, "expected actions.2.weight of shape"),
        (state | {"actions.0.weight": torch.zeros(9000, 4)}, "at most 4096 units"),
        (state | {"more": torch.zeros(1)}, "more do not belong here"),
    ):
        with pytest.raises(UserError, match=says):
            network_from_state(broken, "f")
