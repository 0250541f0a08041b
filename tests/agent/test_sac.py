"""SAC: its update against Stable-Baselines3's, its learning, and what relabelled rewards are for."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from lib.agent.config import TrainConfig
from lib.agent.distributions import squashed_sample
from lib.agent.replay import Batch
from lib.agent.sac import SAC, SACNet, network_from_state
from lib.cli import UserError
from lib.envs.make import make_world
from lib.envs.play import play
from lib.envs.spec import Spec
from tests.agent.worlds import Bandit, Corridor, Pays
from tests.envs import reach

CPU = torch.device("cpu")
DATA = Path(__file__).parent / "data"
REACH = f"{reach.__name__}:Reach-v0"


def learner(world: Any, hidden: int, bf16: bool = False, **flags: Any) -> SAC:
    torch.manual_seed(0)
    config = TrainConfig(name="x", algo="sac", env="Reach-v0", **flags)
    network = SACNet(world.spec.observation_size, world.spec.num_actions, hidden)
    return SAC(network, world, config, CPU, bf16, 0)


def test_a_squashed_sample_has_the_density_of_a_transformed_gaussian() -> None:
    torch.manual_seed(0)
    dist_params, noise = torch.randn(50, 6).double() / 2, torch.randn(50, 3).double()
    mean, log_std = dist_params.chunk(2, -1)
    actions, log_prob = squashed_sample(dist_params, noise)
    expected = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(actions, (mean + log_std.exp() * noise).tanh())
    torch.testing.assert_close(log_prob, expected.log_prob(actions).sum(-1), rtol=1e-6, atol=1e-6)


def test_a_squashed_sample_far_out_is_still_a_number() -> None:
    actions, log_prob = squashed_sample(torch.tensor([[80.0, 0.0], [-80.0, 40.0]]), torch.ones(2, 1))
    assert actions.tolist()[0] == [1.0]
    assert log_prob.isfinite().all()
    assert log_prob[0].item() == pytest.approx(-0.5 - 0.9189 + 2 * (81 - 0.6931), rel=1e-4)


def test_the_spread_of_a_squashed_sample_has_bounds() -> None:
    noise = torch.tensor([[1e-3], [1.0]])
    beyond, at_bounds = (torch.tensor([[0.0, wide], [0.5, narrow]]) for wide, narrow in ((9, -99), (2, -20)))
    for found, expected in zip(
        squashed_sample(beyond, noise), squashed_sample(at_bounds, noise), strict=True
    ):
        assert torch.equal(found, expected)
    actions, log_prob = squashed_sample(at_bounds, noise)
    assert actions[0].item() == pytest.approx(math.tanh(1e-3 * math.e**2))
    assert log_prob[1].item() == pytest.approx(
        -0.5 + 20 - math.log(2 * math.pi) / 2 - math.log(1 - math.tanh(0.5) ** 2)
    )


# --- against Stable-Baselines3 ----------------------------------------------------------------------------------


def weights_of(theirs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Their actor, critics and temperature by our names."""
    actor, critic = theirs["actor"], theirs["critic"]
    found = {
        f"actor.{layer}.{kind}": actor[f"latent_pi.{layer}.{kind}"]
        for layer in (0, 2)
        for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        found[f"actor.4.{kind}"] = torch.cat([actor[f"mu.{kind}"], actor[f"log_std.{kind}"]])
    return (
        found
        | {f"critics.{name}": value for name, value in critics_of(critic).items()}
        | {"log_alpha": theirs["log_alpha"].reshape(())}
    )


def critics_of(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for at, layer in enumerate((0, 2, 4)):
        found[f"weights.{at}"] = torch.stack([theirs[f"qf{each}.{layer}.weight"].T for each in (0, 1)])
        found[f"biases.{at}"] = torch.stack([theirs[f"qf{each}.{layer}.bias"][None] for each in (0, 1)])
    return found


@pytest.mark.parametrize(("bf16", "within"), [(False, 1e-5), (True, 1e-3)])
def test_an_update_is_that_of_stable_baselines(bf16: bool, within: float) -> None:
    """Losses, and by plain gradient descent at rate 1 all gradients and the move of the target networks.

    To 1e-5 in float32. In bf16 to 1e-3; it would be more if the actor saw critics as they were before their step.
    """
    theirs = torch.load(DATA / "sb3_sac.pt", weights_only=True)
    samples, before, after = theirs["samples"], theirs["before"], theirs["after"]
    ours = learner(Bandit(2, Spec(3, True, (5,))), 16, bf16)
    ours.network.load_state_dict(weights_of(before))
    ours.target.load_state_dict(critics_of(before["target"]))
    for name, optimizer in ours.optimizers.items():
        ours.optimizers[name] = torch.optim.SGD(optimizer.param_groups[0]["params"], lr=1.0)
    done, rewards = samples["dones"][:, 0], samples["rewards"][:, 0]
    batch = Batch(
        samples["observations"],
        samples["actions"],
        rewards,
        0.97 * (1 - done),
        samples["next_observations"],
        torch.ones(len(rewards)),
        torch.arange(len(rewards)),
    )
    parts = ours.learn_with(batch, theirs["noise"])
    ours.follow()
    for name, said in (("critic", "critic"), ("actor", "actor"), ("temperature", "ent_coef")):
        assert parts[f"loss_{name}"].item() == pytest.approx(
            theirs["logged"][f"train/{said}_loss"], abs=within
        )
    torch.testing.assert_close(ours.network.state_dict(), weights_of(after), rtol=within, atol=within)
    torch.testing.assert_close(
        dict(ours.target.state_dict()), critics_of(after["target"]), rtol=within, atol=within
    )
    moved = (weights_of(after)["actor.0.weight"] - weights_of(before)["actor.0.weight"]).abs().max()
    assert moved > 1e-2


def test_steps_without_weight_teach_nothing() -> None:
    ours = [learner(Bandit(2, Spec(1, True, (2,))), hidden=8) for _ in range(2)]
    torch.manual_seed(1)
    noise = torch.randn(2, 4, 1)
    rows = Batch(
        torch.randn(4, 2),
        torch.rand(4, 1),
        torch.randn(4),
        torch.full((4,), 0.9),
        torch.randn(4, 2),
        torch.tensor([2.0, 0, 2, 0]),
        torch.arange(4),
    )
    half = Batch(*(column[::2] for column in rows))._replace(weights=torch.ones(2))
    ours[0].learn_with(rows, noise)
    ours[1].learn_with(half, noise[:, ::2])
    torch.testing.assert_close(ours[0].network.state_dict(), ours[1].network.state_dict())


def test_what_an_update_says_and_how_far_off_each_step_was() -> None:
    """Means over all steps, each by its weight; priorities are the mean errors of both critics."""
    ours, noted = learner(Bandit(2, Spec(1, True, (2,))), hidden=8), list[torch.Tensor]()
    vars(ours.replay)["prioritise"] = lambda at, errors: noted.extend((at, errors))
    torch.manual_seed(1)
    seen, actions, returns = torch.randn(4, 2), torch.rand(4, 1), torch.tensor([1.0, -2, 3, 9])
    weights, at, noise = torch.tensor([2.0, 0.5, 1.5, 0]), torch.tensor([5, 7, 6, 8]), torch.randn(2, 4, 1)
    with torch.no_grad():
        errors = (ours.critics(seen, actions) - returns).abs()
        log_prob = squashed_sample(ours.network.actor(seen), noise[0])[1]
    # Every step ends a game, so its target is what it was paid.
    parts = ours.learn_with(Batch(seen, actions, returns, torch.zeros(4), seen, weights, at), noise)
    assert torch.equal(noted[0], at)
    torch.testing.assert_close(noted[1], errors.mean(0))
    for name, each in (
        ("loss_critic", errors.square().sum(0) / 2),
        ("loss_total", errors.square().sum(0) / 2),
        ("entropy", -log_prob),
        ("batch_rewards", returns),
    ):
        assert parts[name].item() == pytest.approx((weights * each).sum().item() / 4, rel=1e-5), name
        assert not parts[name].requires_grad
    assert parts["temperature"].item() == 1


# --- learning ---------------------------------------------------------------------------------------------------


def pays(best: float) -> Any:
    """A reward that is highest for one action."""
    return Pays(lambda frames, actions, observations: -4 * (actions[:, 0] - best).square(), "observation")


def test_novelty_is_paid_only_until_there_is_a_reward_model(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, Any] = {"reward": Path("r"), "watch_reward": True, "state_entropy": True}
    ours = learner(Corridor(2), 8, learning_starts=8, batch_size=4, replay_steps=1000, **flags)
    ours.use_reward(pays(0.6))
    batches: list[Batch] = []
    learn = ours.learn

    def watched(batch: Batch) -> Any:
        batches.append(batch)
        return learn(batch)

    monkeypatch.setattr(ours, "learn", watched)
    for _ in range(10):
        ours.advance()
    assert batches
    for batch in batches:
        torch.testing.assert_close(batch.returns, -4 * (batch.actions[:, 0] - 0.6).square())


@pytest.mark.slow
@pytest.mark.parametrize("relabelled", [True, False])
def test_rewards_changed_half_way_are_learned_only_where_the_replay_is_relabelled(relabelled: bool) -> None:
    """The best action is 0.6, and later −0.6; its value is that of the one step there is."""
    flags: dict[str, Any] = {"lr": 1e-2, "batch_size": 64, "learning_starts": 400, "replay_ratio": 0.25}
    ours = learner(Bandit(8, Spec(1, True, (1,))), 16, reward=Path("r"), **flags)

    def chosen() -> float:
        return ours.policy().act(torch.ones(1, 1), torch.Generator()).actions.item()

    ours.player.reward = pays(0.6)
    for _ in range(120):
        ours.advance()
    assert chosen() == pytest.approx(0.6, abs=0.15)
    if relabelled:
        ours.use_reward(pays(-0.6))
    else:
        ours.player.reward = pays(-0.6)
    for _ in range(120):
        ours.advance()
    if relabelled:
        assert chosen() == pytest.approx(-0.6, abs=0.15)
    else:
        assert abs(chosen() - -0.6) > 0.3


def mean_score(policy: Any, seed: int = 5) -> float:
    world = make_world(REACH, 32)
    total = 0.0
    for turn in play(world, policy, seed, CPU):
        total += float(turn.outcome().score[turn.counts].sum())
    return total / 32


@pytest.mark.slow
def test_sac_learns_to_reach() -> None:
    """A still policy scores about −60, one that goes straight to its goal about −4."""
    ours = learner(
        make_world(REACH, 8),
        32,
        gamma=0.8,
        lr=3e-3,
        batch_size=64,
        learning_starts=300,
        replay_ratio=0.25,
        target_step=0.02,
    )
    before = mean_score(ours.policy())
    while ours.steps < 2200:
        ours.advance()
    assert before < -50
    assert mean_score(ours.policy()) > -15


def spread(state_entropy: bool) -> float:
    """Standard deviation of the places visited in the second half of an opening."""
    flags: dict[str, Any] = {"reward": Path("r"), "watch_reward": True, "lr": 1e-2, "batch_size": 64}
    flags |= {"learning_starts": 400, "replay_ratio": 0.125, "replay_steps": 20_000, "gamma": 0.9}
    ours = learner(Corridor(8), 16, state_entropy=state_entropy, **flags)
    places = []
    for step in range(400):
        ours.play()
        if step >= 200:
            places.append(ours.player.viewer.observations.clone())
    return torch.cat(places).std().item()


@pytest.mark.slow
def test_state_entropy_visits_unlike_states() -> None:
    """A policy that goes one way throughout has a spread of about 2; that of actions by chance is 0.3."""
    assert spread(state_entropy=True) > 2 * spread(state_entropy=False)


def test_values_of_unlike_states_are_forgotten_with_the_first_reward_model() -> None:
    flags: dict[str, Any] = {"reward": Path("r"), "watch_reward": True, "state_entropy": True}
    ours = learner(Corridor(2), 8, learning_starts=8, batch_size=4, replay_steps=1000, **flags)
    for _ in range(10):
        ours.play()
    assert (ours.steps, ours.updates) == (0, 7)
    actor, critics = (
        copy.deepcopy(module.state_dict()) for module in (ours.network.actor, ours.network.critics)
    )
    ours.use_reward(pays(0.6))
    torch.testing.assert_close(dict(ours.network.actor.state_dict()), dict(actor), rtol=0, atol=0)
    now = ours.network.critics.state_dict()
    assert all(not torch.equal(now[name], critics[name]) for name in now)
    assert all(torch.equal(now[name], value) for name, value in ours.target.state_dict().items())
    assert not ours.optimizers["critics"].state
    assert ours.optimizers["actor"].state
    ours.advance()
    kept = copy.deepcopy(ours.network.critics.state_dict())
    ours.use_reward(pays(-0.6))  # a later one finds values of an earlier one, which are worth keeping
    assert all(torch.equal(kept[name], value) for name, value in ours.network.critics.state_dict().items())


def test_what_rewards_taught_is_not_lost_to_unlike_states() -> None:
    """A resumed run may have to wait for its reward model once more."""
    flags: dict[str, Any] = {"reward": Path("r"), "watch_reward": True, "state_entropy": True}
    ours, resumed = (
        learner(Corridor(2), 8, learning_starts=8, batch_size=4, replay_steps=1000, **flags) for _ in range(2)
    )
    ours.use_reward(pays(0.6))
    for _ in range(10):
        ours.advance()
    resumed.load_state(ours.state())
    resumed.play()
    assert resumed.updates == ours.updates > 0
    assert all(
        torch.equal(now, before)
        for now, before in zip(resumed.network.parameters(), ours.network.parameters(), strict=True)
    )


def test_a_policy_plays_its_mean_actions() -> None:
    torch.manual_seed(0)
    network, seen = SACNet(2, 3, hidden=8), torch.randn(4, 2)
    actions = network.acting().act(seen, torch.Generator()).actions
    assert torch.equal(actions, network.actor(seen)[:, :3].tanh())


# --- files ------------------------------------------------------------------------------------------------------


def test_a_network_is_made_of_its_weights_alone_and_others_are_refused() -> None:
    state = SACNet(4, 2, hidden=24).state_dict()
    network = network_from_state(state, "f")
    assert network.spec == Spec(2, True, (4,))
    assert network.critics.weights[1].shape == (2, 24, 24)
    for broken, says in (
        ({"actor.0.weight": torch.zeros(5)}, "f: expected the weights of a policy of --algo sac"),
        (state | {"actor.2.weight": torch.zeros(24, 3)}, "expected actor.2.weight of shape"),
        (state | {"actor.0.weight": torch.zeros(9000, 4)}, "at most 4096 units"),
        (state | {"more": torch.zeros(1)}, "more do not belong here"),
        (
            {name: value for name, value in state.items() if name != "log_alpha"},
            "log_alpha, which is missing",
        ),
    ):
        with pytest.raises(UserError, match=says):
            network_from_state(broken, "f")
