"""Measures of a finetune: of scripted games by hand, and a teacher's word on fresh clips."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lib.agent.evaluate import Evaluation, evaluate
from lib.agent.finetune_metrics import FinetuneMetrics, agreement, changes, preference
from lib.agent.network import ActorPolicy, PolicyNet
from lib.envs.spec import Spec
from lib.interrupt import Stopped
from lib.preferences.segments import Segment
from lib.preferences.teachers import Teacher, make_teacher
from lib.reward.model import RewardModel
from tests.agent.test_evaluate import CPU, CUT, LONG, SHORT
from tests.agent.worlds import GreyReader, Row, ScriptedWorld


class GreyReward(RewardModel):
    """Members that say grey and grey + 2·action: their mean is grey + action, their deviation the action."""

    def __init__(self, input: str = "frame", members: int = 2) -> None:
        self.input, self.members, self._pessimism = input, [None] * members, 0.0  # type: ignore[list-item]

    def each(self, inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        grey = inputs[:, 40, 40, 0] if self.input == "frame" else inputs[:, -1, 40, 40]
        return torch.stack([grey + 2.0 * member * actions for member in range(len(self.members))])


class Leaning(PolicyNet):
    """Two actions: even, but 3 to 1 from a grey of 20 on."""

    def __init__(self, threshold: int) -> None:
        nn.Module.__init__(self)
        self.spec, self.threshold = Spec(2), threshold

    def features(self, observations: torch.Tensor) -> torch.Tensor:
        return observations[:, -1, 40, 40].float()

    def dist_params(self, features: torch.Tensor) -> torch.Tensor:
        lean = torch.where(features >= self.threshold, math.log(3), 0.0)
        return torch.stack([lean, torch.zeros_like(lean)], 1)

    def values(self, features: torch.Tensor) -> torch.Tensor:
        return features


def played(network: PolicyNet, world: ScriptedWorld, **measured: Any) -> tuple[Evaluation, FinetuneMetrics]:
    metrics = FinetuneMetrics(world, CPU, 0, **measured)
    return evaluate(ActorPolicy(network), world, seed=9, device=CPU, observers=[metrics]), metrics


@pytest.mark.parametrize("input", ["frame", "observation"])
def test_learned_return_and_disagreement_of_every_game(input: str) -> None:
    """Actions are grey mod 5; the action on the last frame of a game is ignored, and nothing is paid for it."""
    result, _ = played(GreyReader(), ScriptedWorld([SHORT, CUT, LONG]), reward=GreyReward(input))
    assert result.measures["learned"].tolist() == [10, 11 + 1 + 21 + 1, 12 + 2 + 22 + 2 + 0]
    assert result.measures["disagreement"].tolist() == pytest.approx([0, 1, 4 / 3])
    assert set(result.measures) == {"learned", "disagreement"}
    assert result.overall == {}
    assert str(result).endswith("steps 2  learned 27.33  disagreement 0.78")


def test_one_member_cannot_disagree() -> None:
    result, _ = played(GreyReader(), ScriptedWorld([SHORT]), reward=GreyReward(members=1))
    assert set(result.measures) == {"learned"}


def test_the_kl_is_exact_and_over_the_states_that_were_visited() -> None:
    world = ScriptedWorld([SHORT, CUT, LONG], num_actions=2)
    result, _ = played(Leaning(20), world, reference=ActorPolicy(Leaning(256)))
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert result.measures["kl"].tolist() == pytest.approx([0, kl / 2, kl / 3], abs=1e-6)
    same, _ = played(Leaning(20), world, reference=ActorPolicy(Leaning(20)))
    assert same.measures["kl"].tolist() == [0, 0, 0]


def test_an_evaluation_can_be_cut_short() -> None:
    world = ScriptedWorld([LONG])
    asked = iter([False, False, True])
    with pytest.raises(Stopped):
        evaluate(ActorPolicy(GreyReader()), world, seed=9, device=CPU, stop=lambda: next(asked))
    assert len(world.sent) == 2


# --- clips -----------------------------------------------------------------------------------------------------


def shades(*clips: tuple[int, float], rest: int = 20) -> list[Row]:
    """A game of clips of one grey and a score on each step, an unfinished clip behind them, and its end."""
    rows = [Row(grey, score) for grey, score in clips for _ in range(50)]
    rows = [rows[0]._replace(score=0.0), *rows[1:]]
    return [*rows, *[Row(255)] * rest, Row(255, terminal=True), Row(0, reset=True)]


def shade(segment: Segment) -> float:
    """Grey of a clip that is all of one grey."""
    assert segment.frames.shape == (50, 84, 84, 3)
    assert (segment.frames == segment.frames[0, 0, 0, 0]).all()
    assert segment.sidecar is not None
    assert (segment.actions == segment.frames[0, 0, 0, 0] % 5).all()
    return float(segment.frames[0, 0, 0, 0])


def test_clips_lie_end_to_end_and_an_unfinished_one_is_none() -> None:
    world = ScriptedWorld([shades((10, 0.0), (32, 1.0)), shades((21, 0.0), (43, 0.0))])
    result, metrics = played(GreyReader(), world, reward=GreyReward(), teacher=Teacher(shade))
    assert sorted(metrics.clip_values()) == [10, 21, 32, 43]
    assert result.overall == {
        "agreement": 1.0,
        "preferred": 0.5,
    }  # dark pays less; half are better than themselves


def test_the_outcome_of_a_clip_is_that_of_its_own_actions() -> None:
    """A row's score is what led to it: the first of each clip belongs to the one before."""
    world = ScriptedWorld([shades((10, 0.0), (32, 1.0), (20, 2.0))])
    result, metrics = played(GreyReader(), world, reward=GreyReward(), teacher=make_teacher("score"))
    assert sorted(metrics.clip_values()) == [1, 49 + 2, 49 * 2]
    # Learned returns are 50·(grey + grey mod 5): 500, 1700, 1000. Right about the first, wrong about the others.
    assert result.overall["agreement"] == pytest.approx(2 / 3)


def test_of_a_long_game_a_few_clips_count() -> None:
    values = []
    for seed in range(2):
        world = ScriptedWorld([shades(*[(5 * n, 0.0) for n in range(1, 31)])])
        metrics = FinetuneMetrics(world, CPU, seed, teacher=Teacher(shade))
        result = evaluate(ActorPolicy(GreyReader()), world, seed=0, device=CPU, observers=[metrics])
        assert result.overall == {"preferred": 0.5}  # nobody's learned return to agree with
        values.append(sorted(metrics.clip_values()))
        assert len(set(values[-1])) == len(values[-1]) == 8
        assert set(values[-1]) <= {5.0 * n for n in range(1, 31)}
        assert max(values[-1]) > 50  # not just the first
    assert values[0] != values[1]


def test_new_clips_are_compared_with_those_of_the_start() -> None:
    world = ScriptedWorld([shades((10, 0.0), (32, 1.0))])
    result, _ = played(GreyReader(), world, teacher=Teacher(shade), baseline=[10.0, 20.0])
    # 10 is like 10 and below 20, 32 is above both.
    assert result.overall == {"preferred": (0.5 + 0 + 1 + 1) / 4}


def test_games_too_short_for_a_clip_tell_nothing() -> None:
    result, metrics = played(
        GreyReader(), ScriptedWorld([SHORT]), reward=GreyReward(), teacher=Teacher(shade)
    )
    assert metrics.clip_values() == []
    assert result.overall == {}


def test_agreement_by_hand() -> None:
    oracle = make_teacher("oracle")
    # Pairs of values: (1, 2), (1, 2), (2, 2) alike and left out; the learned return is right, then equal.
    assert agreement([0.1, 0.7, 0.1], [1, 2, 2], oracle) == 0.75
    assert agreement([3, 2, 1], [1, 2, 3], oracle) == 0
    assert agreement([1, 2], [5, 5], oracle) is None
    assert agreement([], [], oracle) is None
    # Below a tenth of the mean score, 10, this teacher cannot tell: only 30 is told from the others.
    assert agreement([0, 1, 2], [0.5, 0, 29.5], make_teacher("skip")) == 1


def test_preference_by_hand() -> None:
    assert (
        preference([3, 1], [1, 2], make_teacher("mistake")) == (1 + 1 + 0.5 + 0) / 4
    )  # asked without errors
    assert preference([1], [0.95], make_teacher("equal")) == 0.5
    assert preference([1.0], [], make_teacher("oracle")) is None
    assert preference([0.5, 40], [0, 0.5], make_teacher("skip")) == 1


# --- the course of it ------------------------------------------------------------------------------------------


def test_changes_are_in_parts_of_the_start() -> None:
    start = {
        "score": np.array([100.0, 300]),
        "learned": np.array([-20.0, -60]),
        "kl": np.zeros(2),
        "agreement": np.array([0.8]),
        "oxygen": np.ones(2),
        "surface": np.array([-1.0, 1.0]),
    }
    now = {
        "score": np.array([100.0]),
        "learned": np.array([20.0]),
        "kl": np.array([0.3]),
        "agreement": np.array([0.6]),
        "oxygen": np.zeros(2),
        "surface": np.array([0.5]),
        "refuels": np.ones(1),
    }
    assert changes(start, start) == dict.fromkeys(["learned", "score", "kl", "agreement", "surface"], 0)
    assert changes(now, start) == pytest.approx(
        {"score": -0.5, "learned": 1.5, "kl": 0.3, "agreement": -0.25, "surface": 0.5}
    )
