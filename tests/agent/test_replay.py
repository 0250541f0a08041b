"""What a replay hands out: which steps, which returns, which observations, paid by which model."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lib.agent.replay import Batch, Replay
from lib.agent.returns import n_step_returns
from lib.agent.rollout import Played, Player
from lib.agent.sum_tree import SumTree
from lib.checkpoints import storable
from lib.cli import UserError
from lib.envs.spec import Spec
from lib.envs.world import Step
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from tests.agent.worlds import Row, ScriptedWorld

CPU = torch.device("cpu")
VECTORS = Spec(3, observation_shape=(1,))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def score(learned: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    return score


def learned(learned: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    return learned


def shown(*numbers: float) -> torch.Tensor:
    """Observations of one number for each environment."""
    return torch.tensor(numbers)[:, None]


def played(rows: Sequence[Row], held: Sequence[bool] | None = None, action: int = 0) -> Played:
    """One step of every environment; greys are shown by the next observation, and not looked at here."""
    columns = list(zip(*rows, strict=True))
    flags = [np.array(column, bool) for column in columns[2:]]
    step = Step(np.empty(0, np.uint8), np.array(columns[1], np.float32), *flags)
    nothing = np.zeros(len(rows), bool)
    return Played(torch.full((len(rows),), action), None, nothing if held is None else np.array(held), step)


def filled(scripts: Sequence[Sequence[Row]], steps: int = 1000, **flags: float) -> Replay:
    """A replay of vectors that has been shown the greys of scripts, which step by step lead from one row to the next."""
    replay = Replay(VECTORS, len(scripts), steps, CPU, score, **({"gamma": 0.5} | flags))  # type: ignore[arg-type]
    replay.begin(shown(*(float(script[0].grey) for script in scripts)))
    for rows in list(zip(*scripts, strict=True))[1:]:
        replay.add(played(rows), shown(*(float(row.grey) for row in rows)))
    return replay


def by_observation(batch: Batch) -> dict[float, tuple[float, float, float]]:
    """Return, discount and what follows, of every step that counts, by its observation."""
    columns = batch.observations[:, 0], batch.returns, batch.discounts, batch.following[:, 0], batch.weights
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {seen: (paid, discount, after) for seen, paid, discount, after, weight in rows if weight}


SCRIPT = [
    Row(10),
    Row(11, score=1),
    Row(12, score=2, terminal=True),  # a life: the game goes on
    Row(13, score=4),
    Row(14, score=8, truncated=True),
    Row(20, reset=True),
    Row(21, score=16),
    Row(22, score=32),
]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (
            1,
            {
                10: (1, 0.5, 11),
                11: (2, 0, 12),
                12: (4, 0.5, 13),
                13: (8, 0.5, 14),
                20: (16, 0.5, 21),
                21: (32, 0.5, 22),
            },
        ),
        (
            3,
            {
                10: (1 + 2 / 2, 0, 12),
                11: (2, 0, 12),
                12: (4 + 8 / 2, 0.25, 14),
                13: (8, 0.5, 14),
                20: (16 + 32 / 2, 0.25, 22),  # the newest step has no third
                21: (32, 0.5, 22),
            },
        ),
    ],
)
def test_returns_end_with_lives_games_and_what_is_known(
    n: int, expected: dict[float, tuple[float, float, float]]
) -> None:
    """The step from 14 was ignored: its environment reset."""
    replay = filled([SCRIPT], n_step=n)
    batch = replay.sample(500, generator())
    assert by_observation(batch) == expected
    assert batch.weights.mean().item() == pytest.approx(1)


def test_a_return_ends_before_a_held_action() -> None:
    """Steps 2 and 3 are held: the return of 1 ends with the value of the state in which the holding began."""
    replay = Replay(VECTORS, 1, 100, CPU, score, gamma=0.5, n_step=3)
    replay.begin(shown(0.0))
    for at in range(1, 7):
        replay.add(played([Row(0, score=2.0**at)], held=[at in (3, 4)]), shown(float(at)))
    found = by_observation(replay.sample(500, generator()))
    expected = {0: (2 + 4 / 2, 0.25, 2), 1: (4, 0.5, 2), 2: (8, 0.5, 3), 3: (16 + 32 / 2 + 64 / 4, 0.125, 6)}
    assert {seen: found[seen] for seen in expected} == expected


def test_n_step_returns_of_a_lasting_game() -> None:
    rewards = torch.tensor([[1.0, 2, 4], [8.0, 16, 32]])
    none = torch.zeros(2, 3, dtype=torch.bool)
    returns, discounts, lengths = n_step_returns(rewards, none, none, 0.9)
    assert returns.tolist() == pytest.approx([1 + 1.8 + 4 * 0.81, 8 + 14.4 + 32 * 0.81])
    assert discounts.tolist() == pytest.approx([0.9**3] * 2)
    assert lengths.tolist() == [3, 3]


def test_a_ring_keeps_the_newest_steps_of_every_environment() -> None:
    """10 rows: 9 whole ones and the open one."""
    scripts = [[Row(100 * env + t, score=100 * env + t) for t in range(35)] for env in range(2)]
    replay = filled(scripts, steps=20, n_step=2)
    assert (replay.capacity, replay.steps) == (20, 18)
    found = by_observation(replay.sample(2000, generator()))
    newest = {34.0, 134.0}
    assert found.keys() == {float(100 * env + t) for env in range(2) for t in range(25, 34)}
    for seen, (paid, discount, after) in found.items():
        whole = seen + 2 not in {number + 1 for number in newest}
        assert after == seen + 1 + whole
        assert (paid, discount) == ((seen + 1 + (seen + 2) / 2, 0.25) if whole else (seen + 1, 0.5))


def test_uniform_draws_are_uniform() -> None:
    replay = filled([SCRIPT[:5]] * 3)
    drawn = replay.sample(12_000, generator())
    counts = torch.bincount(drawn.at, minlength=12)[:12].double()
    chi2 = ((counts - 1000).square() / 1000).sum().item()
    assert chi2 < 31.3  # 99.9 % of χ² with 11 degrees of freedom


@pytest.mark.parametrize("priority", [0.0, 1.0])
def test_pictures_are_stacked_as_the_policy_saw_them(priority: float) -> None:
    """Over several rounds of the ring, across lives, games and time limits; those with lost frames are left out."""
    left = [Row(10 + t, terminal=t % 7 == 3, reset=t % 7 == 4 and t % 2 == 0) for t in range(60)]
    right = [Row(110 + t, truncated=t % 11 == 5, reset=t % 11 == 6) for t in range(60)]
    world = ScriptedWorld([left, right])
    player = Player(world, CPU, seed=0)
    replay = Replay(world.spec, 2, 2 * 14, CPU, score, gamma=0.9, n_step=2, priority=priority)
    observations = player.look()
    replay.begin(observations)
    truth: dict[int, torch.Tensor] = {}
    for _ in range(59):
        truth |= {int(each[-1, 0, 0]): each.clone() for each in observations}
        step = player.play(torch.zeros(2, dtype=torch.int64), observations)
        observations = player.viewer.observations
        replay.add(step, observations)
    truth |= {int(each[-1, 0, 0]): each.clone() for each in observations}
    batch = replay.sample(100, generator())
    newest = set()
    for seen in (batch.observations, batch.following):
        for stack in seen:
            newest.add(int(stack[-1, 0, 0]))
            assert torch.equal(stack, truth[int(stack[-1, 0, 0])])
    # The observations of the last 13 whole rows but 3, and what followed on these.
    expected = {first + t for first in (10, 110) for t in range(49, 60)}
    assert newest == expected - (
        {159} if priority else set()
    )  # its action was ignored: never drawn by priority
    assert any(stack[0, 0, 0] == 0 for stack in batch.observations)


def test_new_games_begin_with_black_frames() -> None:
    replay = Replay(Spec(3), 1, 100, CPU, score, gamma=0.9)
    for game in (10, 50):  # the second cuts the first
        replay.begin(torch.full((1, 4, 84, 84), game, dtype=torch.uint8))
        replay.add(played([Row(0)]), torch.full((1, 4, 84, 84), game + 1, dtype=torch.uint8))
    batch = replay.sample(50, generator())
    stacks = {tuple(stack[:, 0, 0].tolist()) for stack in (*batch.observations, *batch.following)}
    assert stacks == {(0, 0, 0, 10), (0, 0, 10, 11), (0, 0, 0, 50), (0, 0, 50, 51)}


def test_too_small_a_replay_is_refused_and_a_large_one_capped() -> None:
    with pytest.raises(UserError, match=r"--replay-steps 20, --replay-mb .*at least 6 steps of each of"):
        Replay(Spec(3), 4, 20, CPU, score, gamma=0.9)
    capped = Replay(Spec(3), 4, 10**9, CPU, score, gamma=0.9, max_mb=1)
    assert 0.9 < capped.megabytes <= 1
    assert capped.capacity == pytest.approx(1e6 / (84 * 84 + 20), abs=4)


# --- rewards ----------------------------------------------------------------------------------------------------


def reward_model(seed: int, members: int = 2) -> RewardModel:
    torch.manual_seed(seed)
    networks = [RewardNet((8, 8, 3), 3, input="observation", observation_size=1) for _ in range(members)]
    return RewardModel([Member(network.eval(), 0.1, 0.01) for network in networks], CPU)


def test_relabelling_leaves_no_reward_of_an_earlier_model() -> None:
    """Whatever was paid when it happened, what is learned from is paid by the newest model."""
    replay = Replay(VECTORS, 2, 40, CPU, learned, gamma=0.5)
    first, second = reward_model(1), reward_model(2)
    observations = shown(0.0, 100.0)
    replay.begin(observations)
    for at in range(1, 31):
        step = played([Row(0), Row(0)], action=at % 3)
        step = step._replace(learned=first.pay(torch.empty(0), step.actions, observations))
        observations = shown(float(at), 100.0 + at)
        replay.add(step, observations)

    def paid_by(model: RewardModel) -> bool:
        batch = replay.sample(200, generator())
        expected = model.pay(torch.empty(0), batch.actions, batch.observations)
        return torch.allclose(batch.returns, expected, atol=1e-5)

    assert paid_by(first)
    replay.relabel(second)
    assert paid_by(second)
    assert not paid_by(first)


def test_relabelling_pictures_shows_the_model_what_the_policy_saw() -> None:
    script = [Row(10 + t, reset=t == 6, terminal=t == 5) for t in range(30)]
    world = ScriptedWorld([script, script])
    player = Player(world, CPU, seed=0)
    replay = Replay(world.spec, 2, 2 * 20, CPU, learned, gamma=0.9)
    observations = player.look()
    replay.begin(observations)
    for _ in range(29):
        step = player.play(torch.zeros(2, dtype=torch.int64), observations)
        observations = player.viewer.observations
        replay.add(step, observations)
    torch.manual_seed(0)
    model = RewardModel([Member(RewardNet((84, 84, 3), 5, input="observation"), 0.0, 0.1)], CPU)
    replay.relabel(model)
    batch = replay.sample(20, generator())
    expected = model.pay(torch.empty(0), batch.actions, batch.observations)
    torch.testing.assert_close(batch.returns, expected, rtol=1e-3, atol=1e-4)
    assert batch.returns.std() > 0


# --- priorities -------------------------------------------------------------------------------------------------


def test_a_sum_tree_draws_in_proportion() -> None:
    tree = SumTree(5, CPU)
    tree.set(torch.arange(5), torch.tensor([1.0, 0, 2, 5, 2]))
    assert tree.total == 10
    points = torch.tensor([0, 0.0999, 0.1, 0.2999, 0.3, 0.7999, 0.8, 0.9999999999999999], dtype=torch.float64)
    assert tree.draw(points).tolist() == [0, 0, 2, 2, 3, 3, 4, 4]
    tree.set(torch.tensor([3, 0, 3]), torch.tensor([0.0, 4, 0]))
    assert tree.weights.tolist() == [4, 0, 2, 0, 2]
    assert tree.total == 8
    assert tree.draw(torch.tensor([0.49, 0.5, 0.74, 0.75], dtype=torch.float64)).tolist() == [0, 2, 2, 4]


def test_steps_are_drawn_by_their_errors_and_weighted_for_it() -> None:
    """P ∝ |δ|^α and w = (N P)^−β over the largest (arXiv 1511.05952, eq. 1 and section 3.4)."""
    replay = filled([SCRIPT], priority=0.5)
    everything = replay.sample(300, generator())
    index = everything.at.unique()
    assert len(index) == 6  # new ones are all as likely, the ignored one never
    errors = torch.tensor([1.0, 4, 9, 16, 25, 36])
    replay.prioritise(index, errors)
    drawn = replay.sample(21_000, generator(), beta=0.4)
    for at, (row, error) in enumerate(zip(index, errors, strict=True)):
        here = drawn.at == row
        assert here.sum().item() == pytest.approx(1000 * (at + 1), abs=3)  # strata leave little to chance
        weight = (error.sqrt() / 1) ** -0.4
        assert drawn.weights[here].mean().item() == pytest.approx(weight.item(), rel=1e-4)


def test_overwritten_steps_lose_their_priority() -> None:
    scripts = [[Row(100 * env + t, score=float(t)) for t in range(40)] for env in range(2)]
    replay = filled(scripts, steps=20, priority=1.0)
    seen = {round(number) for number in replay.sample(500, generator()).observations[:, 0].tolist()}
    assert seen == {*range(30, 39), *range(130, 139)}


def test_what_was_known_of_errors_goes_with_the_reward_model_that_they_were_of() -> None:
    """From then on all are drawn alike, by the highest priority so far, but those that are never learned from."""
    replay = filled([SCRIPT], priority=0.5)
    index = replay.sample(300, generator()).at.unique()
    replay.prioritise(index, torch.tensor([0.25, 0.5, 4, 9, 16, 25]))
    replay.relabel(reward_model(1))
    weights = replay.state()["tree"]
    torch.testing.assert_close(weights[index], torch.full((6,), 5.0, dtype=torch.float64))
    assert weights.count_nonzero() == 6


# --- state ------------------------------------------------------------------------------------------------------


def test_the_state_of_a_full_replay_is_saved_without_a_copy_of_it() -> None:
    replay = filled([[Row(t, score=float(t)) for t in range(25)]], steps=10)
    kept, saved = replay.state(), storable(replay.state())
    columns = {name: value for name, value in kept.items() if isinstance(value, torch.Tensor)}
    assert columns.keys() >= {"observations", "actions", "score", "terminal"}
    for name, column in columns.items():
        assert saved[name].data_ptr() == column.data_ptr(), name


@pytest.mark.parametrize("steps", [10, 100])
def test_a_loaded_replay_is_what_it_was_and_cuts_the_games_under_way(steps: int) -> None:
    script = [Row(t, score=float(t)) for t in range(25)]
    saved = filled([script], steps=steps, priority=1.0, n_step=3)
    loaded = Replay(VECTORS, 1, steps, CPU, score, gamma=0.5, n_step=3, priority=1.0)
    loaded.load_state(saved.state())
    assert by_observation(loaded.sample(400, generator())) == by_observation(saved.sample(400, generator()))
    loaded.begin(shown(50.0))
    loaded.add(played([Row(51, score=51)]), shown(51.0))
    found = by_observation(loaded.sample(800, generator()))
    loaded.relabel(reward_model(1))  # the cut row as well, which has no action of its own
    # Returns are bootstrapped from what the cut games showed last, 24, and that is never learned from.
    expected = {22: (23 + 24 / 2, 0.25, 24), 23: (24, 0.5, 24), 50: (51, 0.5, 51)}
    assert {seen: found.get(seen) for seen in (22, 23, 24, 50)} == expected | {24: None}


def test_stacks_of_a_long_game_have_no_black_frames() -> None:
    replay = Replay(Spec(3), 1, 400, CPU, score, gamma=0.9)
    replay.begin(torch.full((1, 4, 84, 84), 1, dtype=torch.uint8))
    for step in range(300):
        replay.add(played([Row(0)]), torch.full((1, 4, 84, 84), 1 + step % 200, dtype=torch.uint8))
    seen = replay._seen(torch.arange(3, 300), torch.zeros(297, dtype=torch.int64))
    assert (seen[..., 0, 0] > 0).all()


def test_a_new_step_is_drawn_as_often_as_that_of_the_largest_error() -> None:
    replay = filled([SCRIPT[:3]], priority=1.0)
    replay.prioritise(torch.tensor([0]), torch.tensor([7.0]))
    replay.add(played([Row(13)]), shown(13.0))
    assert replay.state()["tree"][2].item() == pytest.approx(7)
    loaded = Replay(VECTORS, 1, 1000, CPU, score, gamma=0.5, priority=1.0)
    loaded.load_state(replay.state())
    loaded.begin(shown(0.0))
    loaded.add(played([Row(1)]), shown(1.0))
    assert loaded.state()["tree"][4].item() == pytest.approx(7), "after a resume, too"


def test_a_step_without_an_error_may_be_drawn_again() -> None:
    replay = filled([SCRIPT[:3]], priority=1.0)
    replay.prioritise(torch.tensor([0]), torch.tensor([0.0]))
    assert replay.state()["tree"][0] > 0
