"""Loss, standardisation, pessimism and adaptive ℓ2 against numbers that HumanCompatibleAI/imitation computed.

Its outputs lie in data/imitation.json beside their inputs and the functions that made them. Nothing of it is needed
here. Where the two differ on purpose, a test says by how much, and holds both to that.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.preferences.segments import Segment
from lib.reward import clips as clips_module
from lib.reward import member as member_module
from lib.reward.config import FitConfig
from lib.reward.epoch import HeldOut, output_statistics, segment_returns
from lib.reward.fit import fit
from lib.reward.loss import preference_accuracy, preference_loss
from lib.reward.member import adapted_l2
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.store import SegmentStore
from tests.reward.clips import grey_db

CPU = torch.device("cpu")
FRAME_SHAPE = (43, 43, 3)
STORED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "imitation.json").read_text())
PAIRS, PAID = STORED["pairs"], STORED["standardised"]
NOISE = list(enumerate(PAIRS["noise_prob"]))


def near(values: Any) -> Any:
    return pytest.approx(np.array(values), rel=1e-6, abs=1e-6)


def numbered(segments: int, steps: int) -> SegmentStore:
    """Segments of blank frames in which every step has an action of its own: 0, 1, 2, …, by which it is told."""
    store = SegmentStore(100)
    for actions in np.arange(segments * steps).reshape(segments, steps):
        segment = Segment(np.zeros((steps, *FRAME_SHAPE), np.uint8), actions, None)
        store.add(None, "", segment)  # type: ignore[arg-type]  # held in memory: there is no DB
    return store


def returns() -> tuple[torch.Tensor, torch.Tensor]:
    """R₁, R₂ of the stored pairs, exact: the rewards are multiples of 1/64."""
    rewards = torch.tensor([PAIRS["rewards1"], PAIRS["rewards2"]])
    both, count, steps = rewards.shape
    sums = segment_returns(
        lambda _, actions: rewards.flatten()[actions],
        numbered(both * count, steps),
        np.arange(both * count),
        CPU,
        stride=1,
        offset=0,
    ).double()
    return sums[:count], sums[count:]


def preferences() -> torch.Tensor:
    return torch.tensor(PAIRS["preference1"], dtype=torch.float64)


def test_the_stored_pairs_are_many_and_of_every_kind() -> None:
    return1, return2 = returns()
    difference, preference1 = (return1 - return2).numpy(), preferences().numpy()
    assert len(difference) == 39
    assert STORED["version"] == "1.0.1"
    assert PAIRS["noise_prob"] == [0, 0.01, 0.1, 0.3]
    for mu in (0, 0.5, 1):
        drawn = difference[(preference1 == mu) & (np.abs(difference) < 15) & (difference != 0)]
        assert len(drawn) == 8
        assert sorted(difference[preference1 == mu])[-2:] == [16, 60]
        assert sorted(difference[preference1 == mu])[:2] == [-60, -16]


@pytest.mark.parametrize(("row", "noise"), NOISE)
def test_probabilities_are_those_of_imitation(row: int, noise: float) -> None:
    """The loss of a first segment that is preferred is −log P'; its noise_prob is our error rate.

    Tighter than the rest. A difference of −60 it clips to −50, so that P = 2e-22 instead of 9e-27.
    """
    return1, return2 = returns()
    probability = torch.exp(-preference_loss(return1, return2, torch.ones_like(return1), noise))
    assert probability.numpy() == pytest.approx(np.array(PAIRS["probability"][row]), rel=1e-9, abs=1e-20)


@pytest.mark.parametrize(("row", "noise"), NOISE)
def test_losses_and_gradients_are_those_of_imitation(row: int, noise: float) -> None:
    return1, return2 = returns()
    return1.requires_grad_()
    losses = preference_loss(return1, return2, preferences(), noise)
    losses.sum().backward()
    assert return1.grad is not None
    # Where a teacher never errs, it clips and rounds what lies past ±50: see below.
    comparable = ((return1 - return2).abs() <= 50).numpy() | (noise > 0)
    assert comparable.sum() == (39 if noise else 33)
    assert losses.detach().numpy()[comparable] == near(np.array(PAIRS["loss"][row])[comparable])
    assert return1.grad.numpy()[comparable] == near(np.array(PAIRS["gradient"][row])[comparable])


def test_past_its_threshold_imitation_clips_where_ours_stays_exact() -> None:
    """Where the model is wrong by 60 and the teacher never errs, ours costs 60 and keeps its gradient.

    imitation clips the difference to 50 and so loses the gradient; on the other side 1 − P rounds to 0, whose
    logarithm PyTorch's binary cross-entropy sets to −100.
    """
    return1, return2 = returns()
    difference, preference1 = return1 - return2, preferences()
    theirs = torch.tensor(PAIRS["loss"][0], dtype=torch.float64)
    low, high = difference == -60, difference == 60
    clipped = preference_loss(difference.clamp(-50, 50), torch.zeros_like(difference), preference1)
    assert theirs[low].tolist() == near(clipped[low])
    assert theirs[high].tolist() == near((1 - preference1[high]) * 100)
    ours = preference_loss(return1, return2, preference1)
    assert ours[low].tolist() == near(preference1[low] * 60)
    assert ours[high].tolist() == near((1 - preference1[high]) * 60)
    assert [PAIRS["gradient"][0][at] for at in torch.nonzero(low | high)] == [0] * 6


@pytest.mark.parametrize(("row", "noise"), NOISE[1:])
def test_the_loss_of_a_batch_is_that_of_imitation_as_it_comes(row: int, noise: float) -> None:
    """Its probabilities are float32, which tells 1 − P from 0 only where a teacher errs, and coarsely where seldom."""
    loss = preference_loss(*returns(), preferences(), noise).mean()
    assert loss.item() == pytest.approx(PAIRS["loss_of_the_batch"][row], rel=1e-5 if noise < 0.1 else 1e-6)


def test_accuracy_over_decided_pairs_is_that_of_imitation() -> None:
    # It counts a tie as a preference for the second segment: a teacher's, so it was given the others only, and a model's,
    # which is then right by the order of the pair. Ours is right about neither.
    return1, return2 = returns()
    hits = preference_accuracy(return1, return2, preferences())
    assert sum(PAIRS["accuracy"]) == 13
    tied = (return1 == return2)[preferences() != 0.5]
    assert hits[~tied].tolist() == [
        hit == 1 for hit, tie in zip(PAIRS["accuracy"], tied, strict=True) if not tie
    ]
    assert 0 < tied.sum() < 4
    assert not hits[tied].any()


def paying(rewards: list[float]) -> RewardNet:
    """A network that pays action i the i-th reward, whatever the frame: a hidden unit for each action."""
    network = RewardNet(FRAME_SHAPE, len(rewards)).eval()
    with torch.no_grad():
        for parameter in network.out.parameters():
            parameter.zero_()
        network.state_dict()["out.0.weight"][: len(rewards), -len(rewards) :] = torch.eye(len(rewards))
        network.state_dict()["out.2.weight"][0, : len(rewards)] = torch.tensor(rewards)
    return network


def members() -> list[Member]:
    """Three, standardised over four segments of ten steps, as `fit` does it."""
    networks = [paying(rewards) for rewards in PAID["rewards"]]
    return [Member(network, *output_statistics(network, numbered(4, 10), bf16=False)) for network in networks]


def pay(model: RewardModel) -> np.ndarray:
    return model.pay(torch.zeros(40, *FRAME_SHAPE, dtype=torch.uint8), torch.arange(40)).double().numpy()


def unit(member: int) -> float:
    """One of imitation's normalised rewards in ours: sqrt(variance + eps) over our standard deviation.

    RunningNorm divides by sqrt(population variance + 1e-5), ours by the sample standard deviation. Over n steps these
    differ by sqrt((n − 1) / n), 1e-5 for a thousand clips of 50 steps, and by what eps is beside the variance, which
    counts where a network's outputs are small (5 % for the third).
    """
    variance, count = PAID["running_var"][member], len(PAID["rewards"][member])
    return math.sqrt((variance + PAID["eps"]) / (variance * count / (count - 1)))


def test_statistics_are_those_of_imitation_over_the_same_rewards() -> None:
    assert PAID["eps"] == 1e-5
    for index, member in enumerate(members()):
        count = len(PAID["rewards"][index])
        assert member.mean == pytest.approx(PAID["running_mean"][index], rel=1e-6)
        assert member.std**2 * (count - 1) / count == pytest.approx(PAID["running_var"][index], rel=1e-6)


def test_standardised_rewards_are_those_of_imitation_up_to_its_unit() -> None:
    assert [unit(index) for index in range(3)] == pytest.approx([0.98743, 0.98742, 1.03307], abs=1e-5)
    for index, member in enumerate(members()):
        ours = pay(RewardModel([member], CPU))
        assert ours == near(unit(index) * np.array(PAID["normalised"][index]))


def test_an_ensemble_pays_what_imitation_does() -> None:
    """The mean of standardised members, and less where they disagree: AddSTDRewardWrapper's with a negative alpha.

    Its variance is of the sample (ddof 1), our spread of the population: alpha is −k · sqrt((M − 1) / M). To compare
    nothing but this, our members take its mean and sqrt(variance + eps).
    """
    theirs = [
        Member(paying(rewards), mean, math.sqrt(variance + PAID["eps"]))
        for rewards, mean, variance in zip(
            PAID["rewards"], PAID["running_mean"], PAID["running_var"], strict=True
        )
    ]
    assert pay(RewardModel(theirs, CPU)) == near(PAID["mean"])
    spread = pay(RewardModel(theirs, CPU)) - pay(RewardModel(theirs, CPU, pessimism=1.0))
    assert spread**2 == near(np.array(PAID["variance"]) * 2 / 3)
    assert PAID["alpha"] == [0, -0.5, -2]
    for alpha, expected in zip(PAID["alpha"], PAID["mean_plus_alpha_std"], strict=True):
        assert pay(RewardModel(theirs, CPU, pessimism=-alpha * math.sqrt(3 / 2))) == near(expected)


def test_l2_is_scaled_as_by_imitation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boundaries of the interval and a training loss of 0 among them.

    A λ of 0, which it refuses, stays 0 with us. Its updater gets the losses that it is called with; its own trainer
    calls it with sums over batches, of which there are fewer held out, ours with means over pairs.
    """
    rows = STORED["scaled"]["rows"]
    assert len(rows) == 38
    changes = set()
    for step, l2, train_loss, held_out_loss, expected in rows:
        with monkeypatch.context() as patched:
            if step != 0.5:  # which is ours
                patched.setattr(member_module, "_L2_STEP", step)
            assert adapted_l2(l2, train_loss, held_out_loss) == pytest.approx(expected, rel=1e-9)
        changes.add((step, np.sign(expected - l2)))
    assert len(changes) == 6


@pytest.mark.slow
def test_a_fit_under_l2_takes_the_steps_of_imitation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the last layer under given gradients and losses, λ adapted between epochs.

    LpRegularizer adds λ Σ θ² to the loss, whose gradient is 2 λ θ; ours is ½ λ Σ θ², as Adam's weight decay: our λ is
    twice its. (Its trainer's AdamW decays weights by 0.01 besides; it was given Adam here.)
    """
    stored = STORED["fit"]
    gradients = torch.tensor(stored["gradients"])
    used: list[float] = []
    reached: list[list[float]] = []

    def train_epoch(network: RewardNet, optimizer: torch.optim.Optimizer, *_: Any) -> float:
        weight = network.get_parameter("out.2.weight")
        theta = weight.data[0, : gradients.shape[2]]
        if not used:
            theta[:] = torch.tensor(stored["parameters"])
        used.append(optimizer.param_groups[0]["weight_decay"])
        for gradient in gradients[len(used) - 1]:
            weight.grad = torch.zeros_like(weight)
            weight.grad[0, : len(gradient)] = gradient
            optimizer.step()
        reached.append(theta.tolist())
        return stored["losses"][len(used) - 1][0]

    def judge(*_: Any, **__: Any) -> HeldOut:
        return HeldOut(stored["losses"][len(used) - 1][1], 3, 4)

    monkeypatch.setattr(clips_module, "train_epoch", train_epoch)
    monkeypatch.setattr(clips_module, "evaluate_pairs", judge)
    fit(
        FitConfig(
            dbs=[grey_db(tmp_path / "db", segments=30, labels=40)],
            name="steps",
            out=tmp_path,
            runs=tmp_path / "runs",
            bf16=False,
            lr=stored["lr"],
            l2=2 * stored["lambda"][0],
            epochs=len(gradients),
            patience=len(gradients),
        )
    )
    assert used == near(2 * np.array(stored["lambda"]))
    assert np.array(reached) == near(stored["parameters_after_epochs"])
