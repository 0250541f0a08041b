"""What a rollout says about which step, with a world that plays back a script."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent.actor_critic import assess, update
from lib.agent.config import TrainConfig
from lib.agent.exploration import HeldActions
from lib.agent.kl import KLPenalty
from lib.agent.network import PolicyNet
from lib.agent.rollout import Collector, GameLog, Rollout
from lib.envs.gym_world import GymWorld
from lib.learner import Game
from lib.preferences.recorder import SegmentRecorder
from lib.preferences.segment_db import SegmentDB
from tests.agent.worlds import GreyReader, Pays, Row, ScriptedWorld

CPU = torch.device("cpu")

LEFT = [
    Row(10),
    Row(21, score=1),
    Row(32, score=20, terminal=True),  # a life
    Row(43, score=3),
    Row(54, score=4, terminal=True),  # the game
    Row(65, reset=True),
    Row(76, score=6),
]
RIGHT = [
    Row(110),
    Row(121, score=-1),
    Row(132, score=-2, truncated=True),
    Row(143, reset=True),
    Row(154, score=-4),
    Row(165, score=-5),
    Row(176, score=-6),
]


def newest(rollout: Rollout) -> list[list[int]]:
    """Grey of the newest picture of every observation, [T][B]."""
    return rollout.observations[:, :, -1, 40, 40].tolist()


def pay(frames: torch.Tensor, actions: torch.Tensor, observations: torch.Tensor) -> torch.Tensor:
    assert frames.shape == (2, 84, 84, 3)
    assert observations.shape == (2, 4, 84, 84)
    assert torch.equal(observations[:, -1, 0, 0], frames[:, 0, 0, 0])  # both of the same step
    return frames[:, 0, 0, 0].float() * 10 + actions


def test_each_row_is_about_the_action_chosen_on_its_observation() -> None:
    world = ScriptedWorld([LEFT, RIGHT])
    collector = Collector(world, 3, CPU, seed=5, bf16=False, reward=Pays(pay))
    assert world.seeds == [5]

    first = collector.collect(GreyReader())
    assert newest(first) == [[10, 110], [21, 121], [32, 132]]
    assert first.features is None
    assert first.actions.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert [sent.tolist() for sent in world.sent] == [[0, 0], [1, 1], [2, 2]]
    assert first.score.tolist() == [[1, -1], [20, -2], [3, 0]]
    assert first.terminal.tolist() == [[False, False], [True, False], [False, False]]
    assert first.truncated.tolist() == [[False, False], [False, True], [False, False]]
    assert first.valid.tolist() == [[True, True], [True, True], [True, False]]
    # What the actions were drawn from: the reader is sure of grey mod 5.
    assert first.dist_params.argmax(-1).tolist() == first.actions.tolist()
    assert first.dist_params.shape == (3, 2, 5)
    # v of every state acted in, and of the one after: row 2 on the right is the cut game's last frame.
    torch.testing.assert_close(
        first.values * 100, torch.tensor([[10.0, 110], [21, 121], [32, 132], [43, 143]])
    )
    # Paid for the frame that the action was chosen on, before the world overwrote it.
    assert first.learned is not None
    assert first.learned.tolist() == [[100, 1100], [211, 1211], [322, 1322]]

    second = collector.collect(GreyReader())
    assert newest(second) == [[43, 143], [54, 154], [65, 165]]
    assert second.actions.tolist() == [[3, 3], [4, 4], [0, 0]]
    assert second.score.tolist() == [[4, -4], [0, -5], [6, -6]]
    assert second.terminal.tolist() == [[True, False], [False, False], [False, False]]
    assert not second.truncated.any()
    assert second.valid.tolist() == [[True, True], [False, True], [True, True]]
    torch.testing.assert_close(second.values[-1] * 100, torch.tensor([76.0, 176]))
    assert second.learned is not None
    assert second.learned.tolist() == [[433, 1433], [544, 1544], [650, 1650]]


def test_observations_are_stacked_and_begin_black_after_a_reset() -> None:
    collector = Collector(ScriptedWorld([LEFT, RIGHT]), 6, CPU, seed=0, bf16=False)
    rollout = collector.collect(GreyReader())
    stacks = rollout.observations[:, :, :, 40, 40]
    assert stacks[:, 0].tolist() == [
        [0, 0, 0, 10],
        [0, 0, 10, 21],
        [0, 10, 21, 32],  # a lost life hides nothing
        [10, 21, 32, 43],
        [21, 32, 43, 54],
        [0, 0, 0, 65],
    ]
    assert stacks[3:5, 1].tolist() == [[0, 0, 0, 143], [0, 0, 143, 154]]
    assert rollout.learned is None
    # All of a picture is of one grey.
    assert (rollout.observations == rollout.observations[:, :, :, :1, :1]).all()


def test_the_recorder_is_given_each_frame_with_its_own_action_and_outcome(tmp_path: Path) -> None:
    script = [Row(t, score=t * t) for t in range(120)]
    world = ScriptedWorld([script], size=8)
    recorder = SegmentRecorder(tmp_path, 1, "Scripted-v0", 5, record_prob=1.0, seed=0)
    collector = Collector(world, 10, CPU, seed=0, bf16=False, recorder=recorder)
    for _ in range(10):
        collector.collect(GreyReader())
    recorder.close()
    db = SegmentDB(tmp_path)
    assert len(db.names) == 2
    for name in db.names:
        segment = db.load(name)
        shown = segment.frames[:, 0, 0, 0].astype(int)
        assert (np.diff(shown) == 1).all()
        assert segment.actions.tolist() == (shown % 5).tolist()
        assert segment.sidecar is not None
        assert segment.sidecar.scores.tolist() == ((shown + 1) ** 2).tolist()


def play(seed: int, steps: int = 12) -> Rollout:
    torch.manual_seed(0)
    return Collector(GymWorld("MovingDot-v0", 3), steps, CPU, seed, bf16=False).collect(
        PolicyNet(5, kind="small")
    )


def test_the_same_seed_gives_the_same_rollout() -> None:
    one, same, other = play(1), play(1), play(2)
    for ours, theirs in zip(one, same, strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    assert not torch.equal(one.actions, other.actions)
    assert not torch.equal(one.observations, other.observations)


def test_rollouts_follow_on_one_another() -> None:
    """Six of one step, three of two, or one of six."""

    def played(steps: int, times: int) -> list[Rollout]:
        torch.manual_seed(0)
        network = PolicyNet(5, kind="small")
        collector = Collector(GymWorld("MovingDot-v0", 3), steps, CPU, 0, bf16=False)
        return [copy.deepcopy(collector.collect(network)) for _ in range(times)]  # buffers are written again

    (whole,) = played(6, 1)
    for steps, times in ((1, 6), (2, 3), (3, 2)):
        parts = played(steps, times)
        assert torch.equal(torch.cat([part.observations for part in parts]), whole.observations)
        assert torch.equal(torch.cat([part.actions for part in parts]), whole.actions)
        values = torch.cat([part.values[:-1] for part in parts])
        torch.testing.assert_close(values, whole.values[:-1])
        torch.testing.assert_close(parts[-1].values[-1], whole.values[-1])


def add(log: GameLog, score: list[float], valid: list[bool], learned: list[float]) -> list[Game]:
    return log.add(np.array(score, np.float32), np.array(valid), np.array(learned, np.float32))


def test_games_are_added_up_by_environment() -> None:
    log = GameLog(3)
    assert add(log, [1, 10, 100], [True, True, True], [0.5, 0.25, 0]) == []
    assert add(log, [2, 20, 200], [True, True, True], [0.5, 0.25, 0]) == []
    # Environment 1 is being reset: what a step says that was ignored does not count.
    assert add(log, [4, 999, 400], [True, False, True], [1, 999, 0]) == [Game(30, 2, 0.5)]
    assert add(log, [999, 40, 999], [False, True, False], [999, 2, 999]) == [Game(7, 3, 2), Game(700, 3, 0)]
    assert add(log, [8, 50, 0], [True, True, True], [0, 3, 0]) == []
    assert add(log, [0, 0, 0], [True, False, False], [0, 0, 0]) == [Game(90, 2, 5), Game(0, 1, 0)]


def test_a_reset_without_a_game_before_it_is_no_game() -> None:
    log = GameLog(1)
    assert add(log, [0], [False], [0]) == []
    assert add(log, [0], [False], [0]) == []


def test_the_rest_of_a_game_that_began_unseen_is_no_game() -> None:
    log = GameLog(2)
    log.miss()
    assert add(log, [5, 5], [True, True], [0, 0]) == []
    assert add(log, [5, 0], [True, False], [0, 0]) == []
    assert add(log, [0, 3], [False, True], [0, 0]) == []
    assert add(log, [7, 0], [True, False], [0, 0]) == [Game(3, 1, 0)]
    assert add(log, [0, 0], [False, True], [0, 0]) == [Game(7, 1, 0)]


def test_a_kept_graph_gives_the_gradient_of_a_second_pass() -> None:
    def gradients(keep_graph: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        network = PolicyNet(5, kind="small")
        network.conv[0].requires_grad_(False)  # as in a finetune
        collector = Collector(GymWorld("MovingDot-v0", 3), 4, CPU, seed=0, bf16=False)
        rollout = collector.collect(network, keep_graph)
        assert rollout.dist_params.requires_grad == keep_graph
        logits, values = rollout.dist_params.flatten(0, 1), rollout.values[:-1].flatten()
        if not keep_graph:
            logits, values = network(rollout.observations.flatten(0, 1))
        (logits.square().sum() + values.square().sum()).backward()
        return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]

    kept, second = gradients(True), gradients(False)
    assert len(kept) == len(second) == 10
    for one, other in zip(kept, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"algo": "ppo"}])
def test_with_a_frozen_body_features_teach_as_observations_do(flags: dict[str, Any]) -> None:
    reference = PolicyNet(5, kind="small")

    def learnt(keep_features: bool) -> tuple[PolicyNet, dict[str, torch.Tensor]]:
        network = copy.deepcopy(reference)
        network.body.requires_grad_(False)
        with torch.no_grad():  # somewhere else than the reference, but for the body
            for parameter in (*network.policy.parameters(), *network.value.parameters()):
                parameter.mul_(6)
        collector = Collector(
            GymWorld("MovingDot-v0", 3),
            4,
            CPU,
            seed=0,
            bf16=False,
            reward=Pays(lambda _, actions, __: actions.float()),
        )
        config = TrainConfig(name="x", reward=Path("r.dat"), **flags)
        rollout = collector.collect(network, config.one_pass, keep_features=keep_features)
        assert (rollout.features is not None) == keep_features
        optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=1e-2)
        torch.manual_seed(1)  # of the minibatches
        penalty = KLPenalty(copy.deepcopy(reference), 0.5, 0.0, 100)
        return network, update(network, optimizer, rollout, config, False, penalty)

    (kept, parts), (again, others) = learnt(True), learnt(False)
    assert parts["kl_ref"].item() > 1e-4
    for name, value in parts.items():
        assert value.item() == pytest.approx(others[name].item(), rel=1e-3, abs=1e-5), name
    for one, other in zip(kept.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class _HoldsSecondStep(HeldActions):
    """Holds action 4 in the left environment at the second and third step."""

    def __init__(self) -> None:
        super().__init__(2, 5, 0.0, 1, 1, seed=0)
        self._at = 0

    def replace(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._at += 1
        held = np.array([self._at in (2, 3), False])
        return np.where(held, 4, actions), held


def test_held_steps_are_played_and_paid_but_the_return_before_them_is_cut() -> None:
    world = ScriptedWorld([LEFT, RIGHT])
    collector = Collector(world, 4, CPU, seed=5, bf16=False, reward=Pays(pay), held=_HoldsSecondStep())
    rollout = collector.collect(GreyReader())
    assert [sent.tolist() for sent in world.sent] == [[0, 0], [4, 1], [4, 2], [3, 3]]
    assert rollout.held.tolist() == [[False, False], [True, False], [True, False], [False, False]]
    # The step before the holding is bootstrapped, and nothing reaches back across it.
    assert rollout.truncated[:, 0].tolist() == [True, False, False, False]
    assert rollout.truncated[:, 1].tolist() == [False, True, False, False]
    assert rollout.learned is not None
    assert rollout.learned[1].tolist() == [214, 1211]  # for the action that was played
    assert rollout.actions.tolist() == [sent.tolist() for sent in world.sent]

    batch, _ = assess(rollout, TrainConfig(name="t"), None, False)
    assert batch.valid.view(4, 2).tolist() == [[True, True], [False, True], [False, False], [True, True]]
