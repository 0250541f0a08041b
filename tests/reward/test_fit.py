"""Fitting on clips whose quality is their brightness: it is found, in seconds, and failures are said."""

import dataclasses
import itertools
import math
import signal
import threading
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from lib.cli import UserError, parse
from lib.preferences.labels import LabelLog
from lib.preferences.segments import Segment, save_segment
from lib.reward import clips as clips_module
from lib.reward.checkpoints import load_reward_model
from lib.reward.clips import Clips
from lib.reward.config import FitConfig
from lib.reward.data import Pairs, load_preferences
from lib.reward.epoch import (
    HeldOut,
    checked_statistics,
    evaluate_ensemble,
    evaluate_pairs,
    output_statistics,
    pair_loss,
    renew_batch_norms,
    segment_returns,
    train_epoch,
)
from lib.reward.fit import fit
from lib.reward.loss import preference_loss
from lib.reward.member import adapted_l2
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet
from lib.reward.report.judged import kept as kept_epoch
from lib.reward.split import split_by_segment
from lib.reward.store import SegmentStore
from tests.reward.clips import add_labels, clip, forked_db, grey_db, save

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grey_db(tmp_path_factory.mktemp("grey") / "db", segments=60, labels=120)


def config(db: Path, tmp_path: Path, **flags: Any) -> FitConfig:
    given = {
        "name": "grey",
        "out": tmp_path / "rewards",
        "runs": tmp_path / "runs",
        "bf16": False,
        "lr": 3e-3,
        "frame_stride": 1,
    }
    return FitConfig(dbs=[db], **{**given, **flags})


def test_a_script_may_name_folders_by_text(db: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"dbs": [str(db)], "out": str(tmp_path)}
    made = FitConfig(name="grey", **given)
    assert (made.dbs, made.out) == ([db], tmp_path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input": "frames"}, "--input: expected one of .*frame.*; got 'frames'"),
        ({"loss": "bt"}, "--loss: expected one of .*; got 'bt'"),
        ({"epochs": 0}, "--epochs: expected a whole number of at least 1; got 0"),
        ({"ensemble": 0}, "--ensemble: expected a whole number .*; got 0"),
        ({"lr": -1}, "--lr: expected a number of at least .*; got -1"),
        ({"error_rate": 3.0}, "--error-rate: expected a number from .*; got 3.0"),
    ],
)
def test_what_no_flag_takes_a_script_may_not_say_either(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        FitConfig(**{"dbs": [Path("db")], "name": "x", "out": Path("out"), **given})


def test_continuations_of_one_moment_are_on_one_side(tmp_path: Path) -> None:
    """Frames of one moment look the same, so that a fit to one pair of them would know the others."""
    folder = forked_db(tmp_path / "db", 12)
    save_segment(folder / "00/00000100.dat", clip(100, steps=2))
    add_labels(folder, [("00/00000000.dat", "00/00000100.dat", 1)])

    data = Clips(config(folder, tmp_path, held_out=0.3))
    pairs, units = data.units()
    assert units[:2] == [(str(folder), "fork of 00/00000000"), (str(folder), "fork of 00/00000001")]
    assert units[12:] == [(str(folder), "00/00000100.dat")]
    train, test = split_by_segment(pairs, 0.3, 0)
    moments = [
        {data.data.labels[at].sample1.rpartition("/")[2] for at in side.tolist()} for side in (train, test)
    ]
    assert len(test) >= 7
    assert moments[0].isdisjoint(moments[1])


@pytest.mark.slow
def test_a_fit_leaves_the_draws_of_whoever_calls_it_alone(db: Path, tmp_path: Path) -> None:
    """As between two trainings of Stable-Baselines3, whose actions come of the same generator; in a thread as well."""
    torch.manual_seed(1)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    thread = threading.Thread(target=fit, args=[config(db, tmp_path, epochs=1, frame_stride=25)])
    thread.start()
    thread.join()
    assert (tmp_path / "rewards" / "reward-grey.dat").exists()
    assert torch.equal(torch.rand(3), drawn)


def fit_path(config: FitConfig) -> Path:
    return fit(config).path


@pytest.fixture(scope="module")
def fitted(db: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit_path(config(db, tmp_path_factory.mktemp("fit"), epochs=12))


@pytest.mark.slow
def test_brightness_is_learned_from_comparisons(fitted: Path) -> None:
    assert fitted.name == "reward-grey.dat"
    results = torch.load(fitted, weights_only=True)["results"]
    assert results["held_out_decided"] >= 10
    assert results["held_out_correct"] > 0.9 * results["held_out_decided"]
    assert results["held_out_loss"] < 0.35
    # On clips that no fit has seen, brighter is better throughout.
    model = load_reward_model(fitted)
    greys = np.arange(30, 240, 30)
    frames = np.stack([clip(int(grey), steps=1, seed=1000).frames[0] for grey in greys])
    paid = model.rewards(frames, np.zeros(len(greys), int))
    assert (np.diff(paid) > 0).all()


@pytest.mark.slow
def test_pays_mean_zero_and_standard_deviation_one_over_the_segments(fitted: Path, db: Path) -> None:
    model, store = load_reward_model(fitted), load_preferences([db], 100).segments
    paid = np.concatenate([model.rewards(*store.get(index)) for index in range(len(store))])
    assert len(paid) == 5 * len(store)
    assert paid.mean() == pytest.approx(0, abs=1e-3)
    assert paid.std() == pytest.approx(1, rel=5e-3)


def test_the_checkpoint_says_where_it_comes_from(fitted: Path, db: Path) -> None:
    content = torch.load(fitted, weights_only=True)
    count = len(load_preferences([db], 100).pairs)
    assert content["parents"] == {
        "dbs": [{"db": str(db), "labels": count, "labellers": {"unknown": count}, "policies": {}}],
        "labels": count,
    }
    assert content["config"]["epochs"] == 12
    assert (content["frame_shape"], content["num_actions"]) == ([48, 48, 3], 4)


def weights(path: Path) -> list[torch.Tensor]:
    return list(torch.load(path, weights_only=True)["members"][0]["state_dict"].values())


def test_the_same_seed_gives_the_same_model(db: Path, tmp_path: Path) -> None:
    one, same, other = (
        weights(fit_path(config(db, tmp_path / name, epochs=1, seed=seed, frame_stride=5)))
        for name, seed in (("one", 3), ("same", 3), ("other", 4))
    )
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_streaming_from_disk_gives_the_same_model(db: Path, tmp_path: Path) -> None:
    held, streamed = (
        weights(fit_path(config(db, tmp_path / str(mb), epochs=1, frame_stride=5, memory_mb=mb)))
        for mb in (100, 0)
    )
    assert all(torch.equal(a, b) for a, b in zip(held, streamed, strict=True))


class Grey(RewardNet):
    """r̂ = 1000 × the brightness of the frame's first pixel + the action."""

    def __init__(self) -> None:
        super().__init__((48, 48, 3), 4)

    def forward(self, frames: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return 1000 * frames[:, 0, 0, 0].float() + actions


class Still(Grey):
    """Grey with something to take a gradient of."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, frames: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return super().forward(frames, actions) + self.bias


def store_of(*segments: np.ndarray) -> SegmentStore:
    """A store of segments whose steps have these first pixels, and actions 0, 1, 2, 3, 0, …"""
    store = SegmentStore(memory_mb=10)
    for index, greys in enumerate(segments):
        frames = np.zeros((len(greys), 48, 48, 3), np.uint8)
        frames[:, 0, 0, 0] = greys
        held = Segment(frames, np.arange(len(greys)) % 4, None)
        store.add(None, str(index), held)  # type: ignore[arg-type]  # of no DB: all are held in memory
    return store


def test_a_return_is_the_sum_over_the_steps() -> None:
    store, device = store_of(np.arange(6), np.array([7, 7])), torch.device("cpu")
    returns = segment_returns(Grey(), store, np.array([1, 0, 1]), device, 1, 0)
    assert returns.tolist() == [14_001, 15_000 + 7, 14_001]


def test_a_stride_estimates_the_sum_from_every_nth_step() -> None:
    store, device = store_of(np.arange(7)), torch.device("cpu")
    # Steps 0, 3, 6 of 7, then 1, 4 and 2, 5: each sum times 7 ÷ the number of its steps.
    for offset, total, count in ((0, 9000 + 0 + 3 + 2, 3), (1, 5000 + 1, 2), (2, 7000 + 2 + 1, 2)):
        returns = segment_returns(Grey(), store, np.array([0]), device, 3, offset)
        assert returns.item() == pytest.approx(total * 7 / count)


@pytest.mark.parametrize("flags", [{"model": Path("m")}, {"cut": 3}, {"upper": 2}, {"length_control": True}])
def test_what_applies_to_answers_is_refused_for_clips(
    db: Path, tmp_path: Path, flags: dict[str, Any]
) -> None:
    name = next(iter(flags)).replace("_", "-")
    with pytest.raises(
        UserError, match=f"--{name} applies to answers of a language model, but .* holds clips"
    ):
        fit(FitConfig(dbs=[db], name="x", out=tmp_path, runs=tmp_path, **flags))
    with pytest.raises(UserError, match="--audit-env expects --audit POLICY"):
        FitConfig(dbs=[db], name="x", out=tmp_path, audit_env="CartPole-v1")


def test_a_db_given_twice_is_refused(tmp_path: Path) -> None:
    """Its clips would stand on both sides of the split."""
    (tmp_path / "db").mkdir()
    with pytest.raises(UserError, match="expected each DB once"):
        FitConfig(dbs=[tmp_path / "db", tmp_path / "other" / ".." / "db"], name="x", out=tmp_path)


def test_a_segment_shorter_than_the_stride_counts_by_one_step() -> None:
    store = store_of(np.array([4, 4]), np.arange(7))
    for offset in range(10):
        returns = segment_returns(Grey(), store, np.array([0, 1]), CPU, 10, offset)
        action = offset % 2
        assert returns.tolist() == [2 * (4000 + action), 7 * (1000 * (offset % 7) + offset % 7 % 4)]


def test_judging_counts_decided_pairs() -> None:
    store = store_of(np.array([0]), np.array([1]), np.array([2]))
    first, second = np.array([0, 1, 2, 1] * 5), np.array([1, 2, 0, 2] * 5)
    pairs = Pairs(first, second, np.array([0, 1, 1, 0.5] * 5, np.float32), np.ones(20, np.float32))
    result = evaluate_pairs(Grey(), store, pairs, preference_loss, CPU, bf16=False)
    assert (result.correct, result.decided) == (10, 15)  # right, wrong, right, tie
    # −log σ of differences of 1000, −1000, 2000 in favour, and half of each way for the tie.
    assert result.loss == pytest.approx((0 + 1000 + 0 + 500) / 4)
    assert result.accuracy == pytest.approx(2 / 3)
    assert (result.chosen, result.rejected) == (4000 / 3, 2000 / 3)  # 1000, 1000, 2000; 0, 2000, 0


def test_pairs_are_judged_a_few_steps_at_a_time() -> None:
    """However many there are, and however long: what the network computes for a part has to fit into the cache."""
    store = store_of(np.array([0, 1]), np.arange(300))
    seen: list[int] = []

    def rewards(inputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        seen.append(len(inputs))
        return torch.zeros(len(inputs))

    for pair, stride, most in (((0, 0), 1, 160), ((1, 1), 10, 160), ((1, 1), 1, 600)):
        first, second = (np.full(100, index) for index in pair)
        pairs = Pairs(first, second, np.ones(100, np.float32), np.ones(100, np.float32))
        seen.clear()
        assert evaluate_pairs(rewards, store, pairs, preference_loss, CPU, False, stride).decided == 100
        assert max(seen) <= most
        assert len(seen) <= 100


def test_fitting_and_judging_use_the_loss_asked_for(db: Path, tmp_path: Path) -> None:
    """Pairs that differ by 1000: surely right costs −log(1 − ε/2), surely wrong −log(ε/2)."""
    store = store_of(np.array([0]), np.array([1]))
    pairs = Pairs(np.array([0, 0]), np.array([1, 1]), np.array([0, 1], np.float32), np.ones(2, np.float32))
    for flags, expected in (
        ({}, (-math.log(0.95) - math.log(0.05)) / 2),
        ({"error_rate": 0.4}, (-math.log(0.8) - math.log(0.2)) / 2),
        ({"error_rate": 0.0}, 500),
        ({"loss": "original"}, (math.log(2) / 2 + 0 + math.log(2) / 2 + 1000 / 2) / 2),
    ):
        asked = config(db, tmp_path, **flags)
        result = evaluate_pairs(Grey(), store, pairs, pair_loss(asked), CPU, bf16=False)
        assert result.loss == pytest.approx(expected)
        assert (result.correct, result.decided) == (1, 2)
        network = Still()
        optimizer = torch.optim.SGD(network.parameters(), lr=0)
        trained = train_epoch(network, optimizer, store, pairs, asked, np.random.default_rng(0), bf16=False)
        assert trained == pytest.approx(expected)


def test_a_label_of_double_weight_counts_like_two(db: Path, tmp_path: Path) -> None:
    store = store_of(np.array([0]), np.array([1]))
    first, second = np.array([0, 0]), np.array([1, 1])
    pairs = Pairs(first, second, np.array([0, 1], np.float32), np.array([1, 3], np.float32))
    asked = config(db, tmp_path, error_rate=0.0)  # Bradley-Terry: right costs 0, wrong 1000
    assert evaluate_pairs(Grey(), store, pairs, pair_loss(asked), CPU, bf16=False).loss == pytest.approx(750)
    network = Still()
    optimizer = torch.optim.SGD(network.parameters(), lr=0)
    trained = train_epoch(network, optimizer, store, pairs, asked, np.random.default_rng(0), bf16=False)
    assert trained == pytest.approx(750)


class Slope(torch.nn.Module):
    """r̂ = w × the first pixel, noting whether it is being trained."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.modes = torch.nn.Parameter(torch.zeros(())), set[bool]()

    def forward(self, frames: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        self.modes.add(self.training)
        return self.w * frames[:, 0, 0, 0].float()


@pytest.mark.parametrize("nll_weight", [0.0, 0.7])
def test_an_update_descends_the_weighted_mean_of_its_batch_and_the_penalty(
    db: Path, tmp_path: Path, nll_weight: float
) -> None:
    """Batches of 20 pairs, which go through the network in two parts. dL/dw = (σ(w d) − μ) d of each pair, less the
    return of the better clip, by its weight, where one is better."""
    rng, rate = np.random.default_rng(1), 1e-4
    greys = rng.integers(0, 200, (2, 40))
    store, difference = store_of(*(np.array([grey]) for grey in greys.ravel())), greys[0] - greys[1]
    wanted, weight = (
        rng.choice([0, 0.5, 1], 40).astype(np.float32),
        rng.uniform(0.5, 2, 40).astype(np.float32),
    )
    pairs = Pairs(np.arange(40), np.arange(40, 80), wanted, weight)
    flags = {"policy": tmp_path / "v0.dat", "nll_weight": nll_weight}
    asked, network = config(db, tmp_path, error_rate=0.0, batch_size=20, **flags), Slope().eval()
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    found = train_epoch(
        *(network, optimizer, store, pairs, asked, np.random.default_rng(0), False),
        penalty=lambda: 3 * network.w,
    )
    w, total = 0.0, 0.0
    for batch in np.random.default_rng(0).permutation(40).reshape(2, 20):
        chance = 1 / (1 + np.exp(-w * difference[batch]))
        losses = -wanted[batch] * np.log(chance) - (1 - wanted[batch]) * np.log(1 - chance)
        total += (weight[batch] * losses).sum()
        slopes = (chance - wanted[batch]) * difference[batch]
        slopes -= nll_weight * np.choose(
            (2 * wanted[batch]).astype(int), [greys[1][batch], 0, greys[0][batch]]
        )
        w -= rate * ((weight[batch] * slopes).sum() / weight[batch].sum() + 3)
    assert network.w.item() == pytest.approx(w, rel=1e-4)
    assert found == pytest.approx(total / weight.sum(), rel=1e-4)
    assert network.modes == {True}


def test_batch_norms_are_renewed_to_what_the_weights_make_of_training_pairs(db: Path, tmp_path: Path) -> None:
    """Of the first layer, whose weights are 1: means and variances of sums of 7×7×3 grey pixels."""
    store = load_preferences([db], 100).segments
    pairs = Pairs(np.array([0, 2]), np.array([1, 3]), np.array([0, 1], np.float32), np.ones(2, np.float32))
    network = RewardNet((48, 48, 3), 4)
    first, norm = network.conv[0], network.conv[1]
    assert isinstance(first, torch.nn.Conv2d)
    assert isinstance(norm, torch.nn.BatchNorm2d)
    torch.nn.init.ones_(first.weight)
    torch.nn.init.constant_(cast(torch.Tensor, first.bias), 0)
    mean, var = cast(torch.Tensor, norm.running_mean), cast(torch.Tensor, norm.running_var)
    mean.fill_(1e6)
    frames = np.concatenate([store.inputs(index, 1, 0)[0] for index in range(4)])
    sums = torch.nn.functional.conv2d(
        torch.from_numpy(frames).permute(0, 3, 1, 2).double() / 255, first.weight.detach().double(), stride=3
    )[:, 0]
    momentum = norm.momentum
    renew_batch_norms(network, store, pairs, config(db, tmp_path), np.random.default_rng(0), bf16=False)
    assert mean.tolist() == pytest.approx([float(sums.mean())] * 16, rel=1e-4)
    assert var.tolist() == pytest.approx([float(sums.var())] * 16, rel=1e-3)
    assert norm.momentum == momentum
    assert not any(layer.training for layer in network.modules())


def test_a_network_without_batch_norms_is_left_alone(db: Path, tmp_path: Path) -> None:
    """Nor are draws made, on which the order of the next epoch's pairs depends."""
    rng, network = np.random.default_rng(0), Still()
    store = store_of(np.array([0]), np.array([1]))
    pairs = Pairs(np.array([0]), np.array([1]), np.zeros(1, np.float32), np.ones(1, np.float32))
    renew_batch_norms(network, store, pairs, config(db, tmp_path), rng, bf16=False)
    assert rng.random() == np.random.default_rng(0).random()


@pytest.mark.slow
def test_no_epoch_fails_on_held_out_pairs_once_brightness_is_learned(db: Path, tmp_path: Path) -> None:
    """With means and variances of earlier weights some had a loss above 1 at a training loss of 0.05."""
    for seed in range(3):
        made = fit(config(db, tmp_path, input="observation", frame_stride=5, epochs=12, seed=seed))
        assert max(epoch.held_out_loss for epoch in made.history[3:]) < 0.3


@pytest.mark.parametrize("out", ["file", "file/below", "/proc", "/proc/below"])
def test_an_output_folder_that_cannot_be_used_is_said_before_anything_is_read(
    tmp_path: Path, out: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"-o .*{out}: expected a folder to write to: "):
        fit(config(tmp_path / "no such db", tmp_path, out=tmp_path / out))
    assert not (tmp_path / "runs").exists()


def test_a_folder_in_the_place_of_the_model_is_said_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "rewards" / "reward-grey.dat").mkdir(parents=True)
    with pytest.raises(UserError, match=r"reward-grey\.dat: .* found a folder"):
        fit(config(tmp_path / "no such db", tmp_path))


def test_what_a_fit_returns(db: Path, tmp_path: Path) -> None:
    made = fit(config(db, tmp_path, epochs=2, ensemble=2, frame_stride=5))
    assert [(epoch.member, epoch.epoch) for epoch in made.history] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert np.isfinite([epoch.train_loss + epoch.held_out_loss for epoch in made.history]).all()
    assert made.path.is_file()
    assert (made.run_dir / "config.json").is_file()
    assert len(made.model.members) == 2
    assert not set(made.train) & set(made.test)
    assert made.best.decided == (made.data.pairs.preference1[made.test] != 0.5).sum()


def test_l2_is_raised_above_one_and_a_half_lowered_below_one_point_one_and_else_left() -> None:
    assert adapted_l2(0.01, 1.0, 1.6) == pytest.approx(0.015)
    assert adapted_l2(0.01, 1.0, 1.0) == pytest.approx(0.005)
    for held_out_loss in (1.1, 1.3, 1.5):
        assert adapted_l2(0.01, 1.0, held_out_loss) == 0.01
    assert adapted_l2(0.0, 1.0, 9.0) == 0
    assert adapted_l2(0.01, 0.0, 0.5) == pytest.approx(0.015)  # no division by a training loss of 0


def test_l2_is_adapted_between_epochs(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = [(0.5, 1.0), (0.5, 0.6), (0.5, 0.4), (0.5, 0.3)]  # above, within, below, below the interval
    used: list[float] = []

    def train_spy(network: RewardNet, optimizer: torch.optim.Optimizer, *rest: Any) -> float:
        used.append(optimizer.param_groups[0]["weight_decay"])
        _shake(network)
        return losses[len(used) - 1][0]

    def judge_spy(*_: Any) -> HeldOut:
        return HeldOut(losses[len(used) - 1][1], 3, 4)

    monkeypatch.setattr(clips_module, "train_epoch", train_spy)
    monkeypatch.setattr(clips_module, "evaluate_pairs", judge_spy)
    fit_path(config(db, tmp_path, epochs=4, l2=0.01))
    assert used == pytest.approx([0.01, 0.015, 0.015, 0.0075])


def test_l2_shrinks_the_weights(db: Path, tmp_path: Path) -> None:
    def size(path: Path) -> float:
        return float(
            torch.load(path, weights_only=True)["members"][0]["state_dict"]["out.0.weight"][:, :-4].norm()
        )  # of the pictures

    free, held = (
        size(fit_path(config(db, tmp_path / str(l2), epochs=2, frame_stride=5, lr=0.01, l2=l2)))
        for l2 in (0, 1)
    )
    assert held < 0.9 * free


@pytest.mark.slow
def test_brightness_is_learned_under_augmentation(db: Path, tmp_path: Path) -> None:
    path = fit_path(config(db, tmp_path, epochs=8, shift=2, noise=0.05, l2=1e-4))
    results = torch.load(path, weights_only=True)["results"]
    assert results["held_out_correct"] > 0.9 * results["held_out_decided"]


def test_the_original_recipe_learns_brightness(db: Path, tmp_path: Path) -> None:
    results = torch.load(fit_path(config(db, tmp_path, epochs=12, loss="original")), weights_only=True)[
        "results"
    ]
    assert results["held_out_correct"] > 0.8 * results["held_out_decided"]


def test_accuracy_is_not_a_number_where_all_are_ties() -> None:
    store = store_of(np.array([0]), np.array([1]))
    pairs = Pairs(np.array([0]), np.array([1]), np.array([0.5], np.float32), np.ones(1, np.float32))
    assert np.isnan(evaluate_pairs(Grey(), store, pairs, preference_loss, CPU, bf16=False).accuracy)


def test_statistics_are_of_every_step_of_every_segment() -> None:
    store = store_of(np.array([1, 2, 3]), np.array([10]))
    mean, std = output_statistics(Grey(), store, bf16=False)
    values = np.array([1000, 2001, 3002, 10_000])
    assert mean == pytest.approx(values.mean())
    assert std == pytest.approx(values.std(ddof=1))


def test_a_constant_model_is_refused() -> None:
    with pytest.raises(UserError, match="pays the same for everything"):
        checked_statistics(1.0, 1e-9)  # a rounding error
    with pytest.raises(UserError, match="pays the same for everything"):
        output_statistics(Grey(), store_of(np.array([7]), np.array([7])), bf16=False)


def test_an_interrupt_keeps_the_best_so_far(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the second epoch, which is then made to look worse than the first."""
    judged: list[list[torch.Tensor]] = []

    def spy(network: RewardNet, *rest: Any) -> HeldOut:
        assert not network.training
        judged.append([value.clone() for value in network.state_dict().values()])
        if len(judged) == 2:
            signal.raise_signal(signal.SIGINT)
        return HeldOut(float(len(judged)), 3, 4)

    monkeypatch.setattr(clips_module, "evaluate_pairs", spy)
    path = fit_path(config(db, tmp_path, epochs=50, frame_stride=5, batch_size=1))
    assert len(judged) == 3  # each epoch, and at the end what is kept, by every step
    kept = weights(path)
    assert all(torch.equal(a, b) for a, b in zip(judged[2], judged[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept, judged[0], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept, judged[1], strict=True))
    assert torch.load(path, weights_only=True)["results"]["held_out_loss"] == 3
    said = capsys.readouterr().out
    assert "stopped by request; keeping epoch 1" in said
    assert str(path) in said


def test_what_is_paid_in_bf16_has_mean_0(tmp_path: Path) -> None:
    # Pong: nearly all pixels are the same throughout, so rounding errors of the weights add up.
    database, rng = tmp_path / "db", np.random.default_rng(0)
    names = []
    for number in range(24):
        segment = clip(0, size=84, env_id="PongNoFrameskip-v4", num_actions=6, seed=number)
        segment.frames[:] = (144, 72, 17)
        for frame, x in zip(segment.frames, rng.integers(0, 80, len(segment.frames)), strict=True):
            frame[3 * number : 3 * number + 4, x : x + 2] = 236
        (database / f"{number % 3:02d}").mkdir(parents=True, exist_ok=True)
        names.append(save(database, number, segment))
    add_labels(database, [(one, two, 2) for one, two in itertools.pairwise(names)])
    path = fit_path(
        config(database, tmp_path, bf16=True, epochs=12, batch_size=4, patience=12, input="observation")
    )
    model, store = load_reward_model(path, bf16=True), load_preferences([database], 100).segments
    paid = np.concatenate([model.rewards_along(*store.get(index)[:2]) for index in range(len(store))])
    assert paid.mean() == pytest.approx(0, abs=0.05)
    assert paid.std() == pytest.approx(1, abs=0.05)


def standardised_returns(member: Member, store: SegmentStore) -> np.ndarray:
    """Σₜ (r̂ − mean) / std of every segment."""
    network = member.network.eval()
    with torch.no_grad():
        rewards = [network(*map(torch.tensor, store.get(index)[:2])) for index in range(len(store))]
    return np.array([float(((reward - member.mean) / member.std).sum()) for reward in rewards])


def test_an_ensemble_is_judged_by_its_averaged_standardised_returns(db: Path) -> None:
    data = load_preferences([db], 100)
    members = []
    for seed, mean, std in ((1, 0.02, 0.5), (2, -0.1, 2.5)):
        torch.manual_seed(seed)
        members.append(Member(RewardNet((48, 48, 3), 4), mean, std))
    result = evaluate_ensemble(RewardModel(members, CPU), data.segments, data.pairs, preference_loss, CPU)

    first, second = data.pairs.first, data.pairs.second
    average = np.mean([standardised_returns(member, data.segments) for member in members], 0)
    decided = data.pairs.preference1 != 0.5
    hits = (average[first] > average[second]) == (data.pairs.preference1 == 1)
    assert (result.correct, result.decided) == (hits[decided].sum(), decided.sum())
    difference = (0.5 + 2.5) / 2 * (average[first] - average[second])
    losses = np.logaddexp(0, difference) - data.pairs.preference1 * difference
    assert result.loss == pytest.approx(losses.mean(), rel=1e-4)


def test_one_member_is_judged_as_it_was_fitted_where_clips_differ_in_length() -> None:
    """Every step counts the mean that standardising takes away, and a longer clip has more of them."""
    store = SegmentStore(100)
    for number, (grey, steps) in enumerate(((40, 2), (60, 9), (120, 4), (200, 1))):
        store.add(cast(Any, None), str(number), clip(grey, steps=steps))
    pairs = Pairs(np.array([0, 0, 1]), np.array([1, 2, 3]), *np.ones((2, 3), np.float32))
    torch.manual_seed(0)
    network = RewardNet((48, 48, 3), 4).eval()
    torch.nn.init.normal_(cast(torch.nn.Linear, network.out[-1]).weight, std=0.1)
    member = Member(network, 0.9, 0.3)
    alone = evaluate_pairs(network, store, pairs, preference_loss, CPU, False)
    ensemble = evaluate_ensemble(RewardModel([member], CPU), store, pairs, preference_loss, CPU)
    assert ensemble.correct == alone.correct
    assert ensemble.loss == pytest.approx(alone.loss, rel=1e-5)


def test_an_ensemble_is_fitted_judged_and_kept(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Pairs] = []
    trained = train_epoch

    def spy(network: RewardNet, *rest: Any) -> float | None:
        seen.append(rest[2])
        return trained(network, *rest)

    monkeypatch.setattr(clips_module, "train_epoch", spy)
    path = fit_path(config(db, tmp_path, ensemble=3, epochs=1, frame_stride=5))

    data = load_preferences([db], 100)
    train, _ = split_by_segment(data.pairs, FitConfig.held_out, 0)
    assert len(seen) == 3
    for pairs in seen:  # each member is fitted to all of them
        np.testing.assert_array_equal(pairs.first, data.pairs.first[train])
        np.testing.assert_array_equal(pairs.second, data.pairs.second[train])

    content = torch.load(path, weights_only=True)
    assert len(content["members"]) == len(content["results"]["members"]) == 3
    starts = [member["state_dict"]["out.2.weight"] for member in content["members"]]
    assert not torch.equal(starts[0], starts[1])
    store = data.segments
    for member in load_reward_model(path).members:  # each standardised
        assert output_statistics(member.network, store, bf16=False, stride=5) == pytest.approx(
            (member.mean, member.std), abs=1e-5
        )
    said = capsys.readouterr().out
    assert "member 1 of 3, epoch 1: loss" in said
    assert "member 3 of 3, epoch 1: loss" in said
    figures = {"held_out_loss", "held_out_correct", "held_out_decided"}
    assert all(set(member) == figures for member in content["results"]["members"])
    assert set(content["results"]) == figures | {"members"}


@pytest.mark.slow
def test_an_ensemble_learns_brightness(db: Path, tmp_path: Path) -> None:
    results = torch.load(fit_path(config(db, tmp_path, epochs=8, ensemble=2)), weights_only=True)["results"]
    assert results["held_out_correct"] > 0.9 * results["held_out_decided"]
    members = [member["held_out_loss"] for member in results["members"]]
    assert min(members) / 2 < results["held_out_loss"] < 2 * max(members)  # in the same unit


@pytest.mark.parametrize(
    ("at", "kept", "said"),
    [(1, 1, "keeping epoch 1"), (5, 2, "keeping the members fitted so far, 2")],
)
def test_an_interrupt_drops_the_member_half_fitted_unless_it_is_the_first(
    db: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: int,
    kept: int,
    said: str,
) -> None:
    epochs = 0

    def interrupted(network: RewardNet, *rest: Any) -> float:
        nonlocal epochs
        epochs += 1
        if epochs == at:
            signal.raise_signal(signal.SIGINT)
        return _shake(network)

    monkeypatch.setattr(clips_module, "train_epoch", interrupted)
    path = fit_path(config(db, tmp_path, ensemble=4, epochs=2))
    assert epochs == at
    assert len(torch.load(path, weights_only=True)["members"]) == kept
    assert f"stopped by request; {said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("losses", "batch_size", "best"),
    [
        ([0.9, 0.5, 0.6, 0.4, 0.7, 0.4, 0.41], 1, 4),
        # 90 pairs in 18 updates an epoch: only from the fourth on does an epoch count.
        ([0.1, 0.2, 0.3, 0.8, 0.5, 0.6, 0.7, 0.8], 5, 5),
        ([0.1, 0.2, 0.3, 0.8, 0.9, 0.9, 0.9], 5, 4),
    ],
)
def test_stops_after_epochs_without_improvement(
    db: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    losses: list[float],
    batch_size: int,
    best: int,
) -> None:
    seen: list[list[torch.Tensor]] = []

    def spy(network: RewardNet, *rest: Any) -> HeldOut:
        seen.append([value.clone() for value in network.state_dict().values()])
        return HeldOut([*losses, 0.0][len(seen) - 1], 3, 4)

    monkeypatch.setattr(clips_module, "evaluate_pairs", spy)
    monkeypatch.setattr(clips_module, "train_epoch", _shake)
    fitted = fit(config(db, tmp_path, epochs=50, patience=3, batch_size=batch_size))
    assert len(seen) == best + 3 == len(losses)
    assert all(torch.equal(a, b) for a, b in zip(weights(fitted.path), seen[best - 1], strict=True))
    assert kept_epoch(fitted.history).epoch == best
    starred = [line for line in capsys.readouterr().out.splitlines() if "% *" in line]
    assert starred[-1].startswith(f"epoch {best}:")
    assert not any(
        line.startswith(("epoch 1:", "epoch 2:", "epoch 3:")) for line in starred if batch_size > 1
    )


def test_an_epoch_from_weights_that_have_learned_counts_at_once(db: Path, tmp_path: Path) -> None:
    clips = clips_module.Clips(config(db, tmp_path, batch_size=16))
    new, again = (clips.begin(np.arange(90), np.arange(90, 100), number) for number in range(2))
    assert again.begin_from(new.network.state_dict())
    counted = []
    for member in (new, again):
        member.end_epoch(0.5, HeldOut(0.6, 3, 4))
        member.end_epoch(0.4, HeldOut(0.7, 3, 4))
        counted.append((member.counts, member.best_epoch))
    assert counted == [(False, 2), (True, 1)]


def _shake(network: RewardNet, *rest: Any) -> float:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    return 0.5


@pytest.mark.parametrize(
    ("shape", "asked", "half_size"),
    [
        ((210, 160, 3), None, True),
        ((210, 160, 3), False, False),
        ((210, 158, 3), None, False),
        ((84, 84, 3), None, False),
        ((96, 96, 3), True, True),
    ],
)
def test_frames_are_halved_where_enough_is_left(
    shape: tuple[int, int, int], asked: bool | None, half_size: bool
) -> None:
    """Those held for the fit, and what the network looks at; people see them whole."""
    frames = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    frames.flags.writeable = False  # as those that were read
    store = SegmentStore(memory_mb=10, half_frames=asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.add(None, "a", Segment(frames, np.arange(6) % 4, None))  # type: ignore[arg-type]  # of no DB
    store._load = lambda index: Segment(frames, np.arange(6) % 4, None)  # type: ignore[method-assign]
    given = FitConfig(dbs=[Path("db")], name="r", out=Path(), half_frames=asked)
    network = clips_module.new_network(given, store, CPU).eval()
    assert (store.half_size, network.half_size) == (half_size, half_size)
    height, width, _ = shape
    expected = (height // 2, width // 2) if half_size else (height, width)
    assert store.get(0)[0].shape[1:3] == store.inputs(0, 2)[0].shape[1:3] == expected
    assert np.array_equal(store.frames(0), frames)
    seen, actions = map(torch.tensor, store.inputs(0, 2))
    with torch.no_grad():
        assert torch.equal(network(seen, actions), network(torch.from_numpy(frames[::2].copy()), actions))


def test_too_few_labels_are_said(tmp_path: Path) -> None:
    db = grey_db(tmp_path / "db", segments=8, labels=8)
    with pytest.raises(
        UserError, match=r"at least 10 labels to fit on, found [5-8]; label more with 02_label_ui"
    ):
        fit_path(config(db, tmp_path))
    assert not (tmp_path / "rewards").exists()


def test_what_was_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = grey_db(tmp_path / "db", segments=30, labels=30)
    add_labels(db, [(save(db, 99, clip(9)), "00/77777777.dat", 1)])
    fit_path(config(db, tmp_path, epochs=1, frame_stride=5))
    said = capsys.readouterr().out
    assert said.count("left out") >= 1
    assert "00/77777777.dat" in said
    assert "held-out accuracy" in said


def test_where_only_ties_are_held_out_no_accuracy_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = grey_db(tmp_path / "db", segments=30, labels=30)
    log = LabelLog(db / "labels.json")
    chosen = [dataclasses.replace(label, strategy="disagreement") for label in log.read()]
    log.path.unlink()
    for label in chosen:
        log.append(label)
    add_labels(db, [(save(db, 98, clip(9)), save(db, 99, clip(9)), 0)])
    fit_path(config(db, tmp_path, epochs=1, frame_stride=5))
    said = capsys.readouterr().out
    assert "nan" not in said
    assert "held-out accuracy unknown (only ties), loss 0." in said


def test_a_mask_holds_in_the_fit_and_in_the_payout(db: Path, tmp_path: Path) -> None:
    """The lower half carries as much as the upper; hidden, it counts neither when fitting nor when paying."""
    flags = {"mask": ["0,24,48,24", "40,0,8,8"], "ensemble": 2, "epochs": 1, "frame_stride": 5}
    model = load_reward_model(fit_path(config(db, tmp_path, **flags)))
    assert [member.network.masks for member in model.members] == [((0, 24, 48, 24), (40, 0, 8, 8))] * 2
    bright, dark = clip(200, steps=4), clip(20, steps=4)
    mixed = bright.frames.copy()
    mixed[:, 24:] = dark.frames[:, 24:]
    paid = model.rewards(bright.frames, bright.actions)
    assert np.array_equal(model.rewards(mixed, bright.actions), paid)
    mixed[:, 23] = dark.frames[:, 23]
    assert not np.array_equal(model.rewards(mixed, bright.actions), paid)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ("0,0,49,10", "--mask 0,0,49,10: expected a rectangle within frames of 48 rows and 48 columns"),
        ("seaquest-score", "a preset of seaquest, but the clips are of Grey-v0"),
        ("the score", "--mask the score: expected X,Y,W,H in pixels"),
    ],
)
def test_a_mask_that_does_not_fit_is_said_before_anything_is_made(
    db: Path, tmp_path: Path, mask: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        fit_path(config(db, tmp_path, mask=[mask]))
    assert not (tmp_path / "runs").exists()


def test_masks_are_flags_of_their_own_and_repeatable() -> None:
    read = parse(FitConfig, ["-n", "x", "-o", "o", "--mask", "1,2,3,4", "--mask", "pong-score", "db", "db2"])
    assert read.mask == ["1,2,3,4", "pong-score"]
    assert read.dbs == [Path("db"), Path("db2")]


@pytest.mark.parametrize("name", ["", "a/b", "../x"])
def test_a_name_that_is_no_file_name_is_said(db: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="expected a name"):
        fit_path(config(db, tmp_path, name=name))


@pytest.mark.slow
def test_a_model_of_observations_finds_the_brighter_clips(db: Path, tmp_path: Path) -> None:
    made = fit(config(db, tmp_path, input="observation", epochs=8))
    assert made.best.accuracy > 0.8
    model = load_reward_model(made.path)
    assert model.input == "observation"
    dark, bright = (model.rewards_along(c.frames, c.actions).mean() for c in (clip(30), clip(220)))
    assert bright > dark + 1


def test_epochs_are_judged_by_the_steps_that_are_fitted_and_the_result_by_all(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strides: list[int] = []
    judge_by = evaluate_pairs

    def spy(*arguments: Any) -> HeldOut:
        strides.append(arguments[6] if len(arguments) > 6 else 1)
        return judge_by(*arguments)

    monkeypatch.setattr(clips_module, "evaluate_pairs", spy)
    fit(config(db, tmp_path / "some", epochs=2, frame_stride=5))
    assert strides == [5, 5, 1]
    strides.clear()
    fit(config(db, tmp_path / "all", epochs=2))
    assert strides == [1, 1]


@pytest.mark.slow
def test_a_pessimistic_ensemble_still_pays_nothing_on_average(db: Path, tmp_path: Path) -> None:
    made = fit(config(db, tmp_path, ensemble=3, epochs=2, frame_stride=5))
    plain, cautious = (load_reward_model(made.path, pessimism=k) for k in (0.0, 4.0))
    assert cautious.disagreement == made.model.disagreement > 0.01
    segments = [load_preferences([db], 100).segments.get(index) for index in range(len(made.data.segments))]
    paid = [np.concatenate([m.rewards_along(*segment) for segment in segments]) for m in (plain, cautious)]
    assert abs(paid[1].mean() - paid[0].mean()) < 0.05 * 4 * cautious.disagreement
    assert paid[1].std() > 0
    assert not np.allclose(paid[0], paid[1], atol=0.01)


def test_statistics_from_every_fifth_step_are_nearly_those_of_all(fitted: Path, db: Path) -> None:
    (member,) = load_reward_model(fitted).members
    store = load_preferences([db], 100).segments
    all_steps, some = (output_statistics(member.network, store, False, stride) for stride in (1, 5))
    assert all_steps == pytest.approx((member.mean, member.std), abs=1e-4 * member.std)
    assert some == pytest.approx(all_steps, rel=0.05, abs=0.05 * all_steps[1])
