"""Policies of vectors and of continuous actions: networks, what is learned from what, and that they learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent.actor_critic import ActorCritic, assess, update
from lib.agent.checkpoints import load_policy
from lib.agent.config import TrainConfig
from lib.agent.evaluate import evaluate
from lib.agent.kl import KLPenalty
from lib.agent.network import ActorPolicy, Normaliser, PolicyNet, policy_from_state
from lib.agent.rollout import Collector
from lib.checkpoints import check_weights
from lib.cli import UserError
from lib.envs.make import make_world
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from lib.training.train import train
from tests.agent.worlds import Pays

CPU = torch.device("cpu")
REACH = "tests.envs.reach:Reach-v0"


def reach_policy(log_std: float = 0.0) -> PolicyNet:
    network = PolicyNet(2, continuous=True, observation_size=5)
    with torch.no_grad():
        network.policy[-1].log_std.fill_(log_std)  # type: ignore[operator]
    return network


@pytest.mark.parametrize("kind", [(3, False, 5), (2, True, 5), (2, True, None), (4, False, None)])
def test_a_policy_comes_back_from_its_weights(kind: tuple[int, bool, int | None]) -> None:
    count, continuous, size = kind
    network = PolicyNet(count, continuous=continuous, observation_size=size)
    loaded = policy_from_state(network.state_dict(), "m.dat")
    spec = loaded.spec
    assert (spec.num_actions, spec.continuous, spec.observation_size) == kind
    seen = torch.randint(0, 255, (3, 4, 84, 84), dtype=torch.uint8) if size is None else torch.randn(3, size)
    logits, values = loaded(seen)
    assert logits.shape == (3, 2 * count if continuous else count)
    assert values.shape == (3,)
    assert torch.equal(logits, network(seen)[0])
    if continuous:
        assert not logits[:, count:].any()  # a spread of 1 to begin with


def test_a_policy_that_claims_too_much_is_refused() -> None:
    state = {**PolicyNet(2, observation_size=3).state_dict(), "normaliser.mean": torch.zeros(5000)}
    with pytest.raises(UserError, match="1 to 4096 numbers, got 5000"):
        policy_from_state(state, "m.dat")


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    normaliser = Normaliser(3)
    some = torch.tensor([[-2.0, 0.5, 9.0]])
    torch.testing.assert_close(normaliser(some), some)  # nothing is known of them yet
    seen = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 20.0, 0.1]) + 5
    for part in (seen[:7], seen[7:8], seen[8:].view(4, 8, 3)):
        normaliser.update(part)
    torch.testing.assert_close(normaliser.mean, seen.mean(0))
    torch.testing.assert_close(normaliser.var, seen.var(0, correction=0))
    assert normaliser.count == 40
    torch.testing.assert_close(normaliser(seen).std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert normaliser(seen + 1e6).max() == 10


def test_numbers_with_squares_beyond_float32_are_told_apart_and_leave_weights_that_load() -> None:
    network = PolicyNet(2, observation_size=2)
    for _ in range(2):
        network.normaliser.update(torch.tensor([[0.0, 3e38], [1.0, -3e38]]))
    check_weights(network.state_dict(), "m.dat")
    assert network.normaliser(torch.tensor([[1.0, 3e38], [1.0, -3e38]])).tolist() == [[1, 10], [1, -10]]


def test_learned_from_as_drawn_recorded_and_judged_as_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    world = make_world(REACH, 3)
    recorder = SegmentRecorder(tmp_path, 3, REACH, 2, record_prob=1.0, seed=0)
    judged: list[tuple[torch.Size, torch.Tensor, torch.Tensor]] = []

    def pay(frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
        judged.append((frames.shape, actions.clone(), observations.clone()))
        return actions.sum(-1)

    collector = Collector(world, 50, CPU, 0, False, Pays(pay, "observation"), recorder)
    rollout = collector.collect(reach_policy())
    assert rollout.actions.shape == (50, 3, 2)
    assert rollout.dist_params.shape == (50, 3, 4)
    assert rollout.actions.abs().max() > 1.5
    assert {shape for shape, *_ in judged} == {torch.Size([0])}  # no frame was asked for
    assert rollout.learned is not None
    torch.testing.assert_close(rollout.learned, rollout.actions.clamp(-1, 1).sum(-1))
    db = SegmentDB(tmp_path)
    assert db.names == ["00/00000000.dat", "01/00000000.dat", "02/00000000.dat"]
    for env, name in enumerate(db.names):
        segment = db.load(name)
        assert segment.continuous
        assert np.array_equal(segment.actions, rollout.actions[:, env].clamp(-1, 1).numpy())
        assert segment.observations is not None
        assert np.array_equal(segment.observations, rollout.observations[:, env].numpy())
        assert torch.equal(torch.tensor(segment.observations), torch.stack([o[env] for *_, o in judged]))
        assert segment.frames.shape == (50, 48, 48, 3)
        assert len(np.unique(segment.frames, axis=0)) > 40
    world.close()


def test_a_reward_of_frames_gets_frames() -> None:
    shapes = []

    def pay(frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
        shapes.append(frames.shape)
        return torch.zeros(2)

    Collector(make_world(REACH, 2), 3, CPU, 0, False, Pays(pay)).collect(reach_policy())
    assert shapes == [(2, 48, 48, 3)] * 3


def config(**flags: Any) -> TrainConfig:
    return TrainConfig(**{"name": "x", "env": REACH, "num_envs": 4, **flags})


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_an_update_moves_the_gaussian_towards_what_paid(algo: str) -> None:
    torch.manual_seed(0)
    network = reach_policy()
    flags = config(algo=algo, gamma=0.0, gae_lambda=0.0, entropy=0.0, lr=1e-2, normalise_advantages=False)
    optimizer = torch.optim.Adam(network.parameters(), lr=flags.lr)
    collector = Collector(
        make_world(REACH, 4),
        32,
        CPU,
        0,
        False,
        Pays(lambda frames, actions, seen: actions[:, 0], "observation"),
    )
    before = network(torch.zeros(1, 5))[0][0, 0]
    for _ in range(3):
        update(network, optimizer, collector.collect(network, flags.one_pass), flags, bf16=False)
    assert network(torch.zeros(1, 5))[0][0, 0] > before + 0.02


def test_the_penalty_prices_gaussians() -> None:
    network = reach_policy()
    penalty = KLPenalty(reach_policy(log_std=-1.0), 0.5, 0.0, 1)
    rollout = Collector(make_world(REACH, 2), 4, CPU, 0, False).collect(network)
    flags = config(clip_score=False)
    batch, parts = assess(rollout, flags, penalty, bf16=False)
    assert batch.actions.shape == (8, 2)
    # Means nearly alike: each of two numbers has −1 − 0 + e²/2 − ½.
    assert parts["kl_ref"].item() == pytest.approx(2 * (-1.5 + np.e**2 / 2), rel=0.02)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_finetune_sees_vectors_on_the_scale_that_its_policy_learned_with(frozen: bool) -> None:
    network = reach_policy()
    flags = config(algo="a2c", freeze_convs=frozen)
    learner = ActorCritic(network, make_world(REACH, 4), flags, CPU, False, 0)
    before = [value.clone() for value in network.body.buffers()]
    learner.advance()
    assert all(map(torch.equal, before, network.body.buffers())) == frozen


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_learns_to_reach_the_goal(tmp_path: Path, algo: str) -> None:
    """By chance the point ends up in a corner and a game scores about −80; three moves away from its goal, about −5."""
    flags = {
        "a2c": {"steps": 25_000, "lr": 2e-3, "rollout": 8},
        "ppo": {"steps": 16_000, "lr": 1e-3, "epochs": 8},
    }
    saved = train(
        config(
            algo=algo,
            num_envs=16,
            save=tmp_path / "save",
            runs=tmp_path,
            eval_games=16,
            eval_every=10**9,
            gamma=0.9,
            entropy=0.0,
            **flags[algo],
        )
    ).checkpoint
    assert saved is not None
    network, origin = load_policy(saved)
    assert isinstance(network.body, Normaliser)
    assert network.body.count == origin["steps"]
    chance = evaluate(ActorPolicy(reach_policy()), make_world(REACH, 16), 5, CPU).scores.mean()
    assert chance < -50
    assert np.mean(origin["evaluation"]["scores"]) > -30
