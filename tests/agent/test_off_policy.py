"""What every learner with a replay does around its updates, with a learner that only notes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lib.agent.config import TrainConfig
from lib.agent.off_policy import OffPolicy
from lib.agent.replay import Batch
from lib.envs.world import Step
from lib.learner import Alone
from tests.agent.worlds import Corridor, Pays

CPU = torch.device("cpu")


class Scoring(Corridor):
    """Every step but a reset scores −3."""

    def _show(self) -> Step:
        step = super()._show()
        return step._replace(score=np.where(step.reset, 0, -3).astype(np.float32))


class Noting(OffPolicy):
    """Always chooses 0.5, and keeps the batches that it is to learn from, and how far their weights are evened out."""

    network: nn.Linear
    target: nn.Linear

    def __init__(self, *arguments: Any, **parts: Any) -> None:
        super().__init__(*arguments, **parts)
        self.optimizers = {"one": torch.optim.SGD(self.network.parameters(), lr=1.0)}
        self.batches: list[Batch] = []
        self.betas: list[float] = []
        sample = self.replay.sample

        def noted(count: int, generator: torch.Generator, beta: float = 1.0) -> Batch:
            self.betas.append(beta)
            return sample(count, generator, beta)

        vars(self.replay)["sample"] = noted

    @property
    def critics(self) -> nn.Linear:
        return self.network

    def choose(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.full((self._envs, 1), 0.5)

    def learn(self, batch: Batch) -> dict[str, torch.Tensor]:
        self.batches.append(batch)
        return {"made": torch.tensor(float(len(self.batches)))}


def learner(envs: int = 2, ranks: Sequence[Alone] = (), **flags: Any) -> Noting:
    given: dict[str, Any] = {"batch_size": 4, "learning_starts": 8, "replay_steps": 200} | flags
    config = TrainConfig(name="x", algo="sac", env="Corridor-v0", **given)
    return Noting(
        nn.Linear(1, 1), Scoring(envs), config, CPU, False, 0, **({"ranks": ranks[0]} if ranks else {})
    )


def actions_of(ours: Noting) -> list[list[float]]:
    """Of all steps so far, `[T][B]`."""
    actions: torch.Tensor = ours.replay.state()["actions"]
    return actions[: ours.replay.steps // actions.shape[1], :, 0].tolist()


def test_updates_begin_after_random_steps_and_keep_their_ratio_to_steps() -> None:
    ours = learner(replay_ratio=0.75, lr=0.1, lr_decay_steps=20)
    found = [ours.advance() for _ in range(10)]
    assert [each.steps for each in found] == [2] * 10
    # From 8 steps on 1½ updates a step of both environments; what is charted is the mean over those.
    made = [each.scalars.get("made") for each in found]
    assert made == [None] * 3 + [1, (2 + 3) / 2, 4, (5 + 6) / 2, 7, (8 + 9) / 2, 10]
    assert [each.scalars["lr"] for each in found] == pytest.approx(
        [0.1 * (1 - 2 * t / 20) for t in range(1, 11)]
    )
    assert ours.advance().scalars["lr"] == ours.optimizers["one"].param_groups[0]["lr"] == 0
    random = [action for row in actions_of(ours)[:4] for action in row]
    assert len({*random}) == 8
    assert -1 <= min(random) < -0.5
    assert 0.5 < max(random) <= 1
    assert actions_of(ours)[4:] == [[0.5, 0.5]] * 7


def test_a_policy_that_goes_on_takes_no_random_action() -> None:
    ours = learner(model=Path("p"))
    ours.advance()
    assert actions_of(ours) == [[0.5, 0.5]]


def test_a_replay_that_keeps_fewer_steps_than_learning_starts_with_is_full_first() -> None:
    ours = learner(replay_steps=8, learning_starts=1000, replay_ratio=0.5)
    assert ["made" in ours.advance().scalars for _ in range(4)] == [False, False, True, True]


def test_games_are_reported_unless_steps_were_not_seen() -> None:
    ours = learner(learning_starts=1000)
    games = [game for _ in range(41) for game in ours.advance().games]
    assert games == [(-120, 40, 0)] * 2
    ours.play()
    assert [game for _ in range(41) for game in ours.advance().games] == []
    assert ours.steps == 2 * 82
    assert ours.updates == 0


def test_playing_learns_nothing_and_goes_on_at_random() -> None:
    ours = learner(learning_starts=2)
    for _ in range(5):
        ours.play()
    assert (ours.steps, ours.updates) == (0, 0)
    assert len({action for row in actions_of(ours) for action in row}) == 10


def test_weights_make_up_for_priorities_more_and_more() -> None:
    ours = learner(steps=10, learning_starts=2, replay_ratio=0.5)
    for _ in range(6):
        ours.advance()
    assert ours.betas == pytest.approx([0.52, 0.64, 0.76, 0.88, 1, 1])  # from 0.4 to 1


def test_the_target_follows_every_few_updates() -> None:
    ours = learner(learning_starts=2, replay_ratio=0.5, target_every=3, target_step=0.25)
    target, moved = ours.target.weight.data.fill_(0.0), []
    ours.network.weight.data.fill_(1.0)
    for _ in range(6):
        ours.advance()
        moved.append(target.item())
    assert moved == [0, 0, 0.25, 0.25, 0.25, 0.25 + 0.75 / 4]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"clip_score": False}, -3),
        ({"clip_score": True}, -1),
        ({"reward": Path("r")}, 5),
        ({"reward": Path("r"), "reward_scale": 2.0, "reward_offset": 1.0}, 12),
        ({"reward": Path("r"), "reward_scale": 2.0, "score_weight": 0.5}, 10 - 1.5),
        ({"reward": Path("r"), "clip_score": True, "score_weight": 0.5}, 5 - 0.5),
    ],
)
def test_what_is_paid(flags: dict[str, Any], expected: float) -> None:
    assert learner(**flags)._paid(torch.tensor(5.0), torch.tensor(-3.0)).item() == expected


def test_the_reward_model_of_before_leaves_what_is_known_of_errors_as_it_was() -> None:
    """A resumed run takes it anew, perhaps only after further steps."""
    ours, rated = learner(priority=1.0, reward=Path("r"), watch_reward=True), list[int]()

    def pay(_: torch.Tensor, actions: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
        rated.append(len(actions))
        return torch.zeros(len(actions))

    model: Any = Pays(pay, "observation")
    ours.use_reward(model)
    for _ in range(2):
        ours.advance()
    ours.replay.prioritise(torch.arange(4), torch.tensor([1.0, 2, 3, 4]))
    before = ours.replay.state()["tree"].clone()
    rated.clear()
    ours.use_reward(model, another=False)
    assert torch.equal(ours.replay.state()["tree"], before)
    ours.use_reward(model)
    assert rated == [4, 4]
    assert ours.replay.state()["tree"][:4].unique().tolist() == pytest.approx([4])


def test_each_loss_moves_the_parameters_of_its_own_optimiser() -> None:
    ours, other = learner(), nn.Parameter(torch.tensor(7.0))
    ours.optimizers["other"] = torch.optim.SGD([other], lr=1.0)
    weight, bias = ours.network.weight, ours.network.bias
    for _ in range(2):  # gradients do not pile up
        ours.differentiate({"one": (2 * weight * other + bias).sum(), "other": (weight * other).sum()})
        assert [each.grad.item() for each in (weight, bias, other) if each.grad is not None] == [
            14,
            1,
            weight.item(),
        ]


class BesideThree(Alone):
    """The second of two processes; the first has three environments, a replay of three rows, and all else as ours."""

    rank, size = 1, 2

    def everyone(self, number: int) -> list[int]:
        return [3, number]

    def total(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [2 * tensor for tensor in tensors]


def test_a_process_keeps_draws_and_counts_by_its_share_of_the_environments() -> None:
    ours = learner(
        envs=1, ranks=[BesideThree()], batch_size=10, learning_starts=1000, replay_ratio=0.25, model=Path("p")
    )
    assert ours.replay.capacity == 200 // 4
    for _ in range(3):
        assert ours.advance().steps == 4
    assert ours.steps == 12
    # A fourth of ten, rounded down here and up elsewhere; all weigh half, since there are twice as many.
    assert [len(batch.actions) for batch in ours.batches] == [
        10 - 7
    ] * 2  # from 8 steps on, when the other's is full
    assert all(batch.weights.tolist() == [0.5] * 3 for batch in ours.batches)
    assert ours.of_all({"loss": torch.tensor(3.0)})["loss"] == 6
    ours.differentiate({"one": (3 * ours.network.weight + ours.network.bias).sum()})
    assert ours.network.weight.grad == 6
    assert ours.state()["replay"] is None


class BeforeThree(BesideThree):
    """The first of them."""

    rank = 0

    def everyone(self, number: int) -> list[int]:
        return [number, 3]


def test_every_process_draws_a_step_at_least() -> None:
    ours = learner(envs=1, ranks=[BeforeThree()], batch_size=3, learning_starts=4, replay_ratio=0.25)
    ours.advance()
    assert [len(batch.actions) for batch in ours.batches] == [1]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [2.0, 0.0]])
def test_a_process_alone_weighs_steps_as_its_replay_does(weights: list[float]) -> None:
    ours = learner()
    for _ in range(2):
        ours.advance()
    batch = ours.replay.sample(2, ours.player.generator)._replace(weights=torch.tensor(weights))
    vars(ours.replay)["sample"] = lambda *_: batch
    ours.update()
    assert ours.batches[0].weights.tolist() == weights
