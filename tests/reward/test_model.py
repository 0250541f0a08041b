"""The reward model: the original's weights fit, what it pays is standardised, others are refused."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.agent.config import TrainConfig
from lib.cli import UserError
from lib.envs.observation import Observer, grey_resize_cpu
from lib.envs.spec import Spec
from lib.reward.checkpoints import load_reward_model, save_reward_model
from lib.reward.masks import Mask
from lib.reward.model import Member, RewardModel
from lib.reward.network import RewardNet, conv_features, halved, halved_mask, observed_mask, randomly_shifted
from lib.training.train import train

CPU = torch.device("cpu")
SEAQUEST = (210, 160, 3)
SMALL = (48, 52, 3)


def original(num_actions: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the original's weights: blocks of convolution, batch norm, dropout, leaky ReLU."""
    shapes: dict[str, tuple[int, ...]] = {}
    for at, channels, kernel in ((0, 3, 7), (4, 16, 5), (8, 16, 3), (12, 16, 3)):
        shapes[f"conv.{at}.weight"] = (16, channels, kernel, kernel)
        shapes[f"conv.{at}.bias"] = (16,)
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"conv.{at + 1}.{name}"] = (16,)
        shapes[f"conv.{at + 1}.num_batches_tracked"] = ()
    shapes |= {"out.0.weight": (64, 8960 + num_actions), "out.0.bias": (64,)}
    return shapes | {"out.2.weight": (1, 64), "out.2.bias": (1,)}


def test_has_the_weights_of_the_original() -> None:
    state = RewardNet(SEAQUEST, 18).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == original(18)
    assert state["out.0.weight"].shape[1] == 8978


@pytest.mark.parametrize(
    ("frame_shape", "features"), [(SEAQUEST, 16 * 28 * 20), ((43, 43, 3), 16), ((84, 84, 3), 16 * 49)]
)
def test_the_convolutions_fit_any_picture(frame_shape: tuple[int, int, int], features: int) -> None:
    assert conv_features(frame_shape) == features
    network = RewardNet(frame_shape, 3).eval()
    assert network(torch.zeros(2, *frame_shape, dtype=torch.uint8), torch.tensor([0, 2])).shape == (2,)


@pytest.mark.parametrize("frame_shape", [(42, 160, 3), (210, 42, 3)])
def test_too_small_a_picture_is_said(frame_shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match=f"{frame_shape[0]}×{frame_shape[1]} pixels are too small.*43×43"):
        RewardNet(frame_shape, 3)


def worn(
    frame_shape: tuple[int, int, int] = SMALL, num_actions: int = 4, seed: int = 0, **options: Any
) -> RewardNet:
    """A network whose batch norms have seen something: no statistic or weight is trivial."""
    torch.manual_seed(seed)
    network = RewardNet(frame_shape, num_actions, **options)
    with torch.no_grad():
        for layer in network.conv:
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.running_mean.normal_(0, 0.3)  # type: ignore[union-attr]
                layer.running_var.uniform_(0.01, 0.1)  # type: ignore[union-attr]
                layer.weight.uniform_(-2, 2)
                layer.bias.normal_()
        network.state_dict()["out.2.weight"].uniform_(-0.6, 0.6)
    return network


def steps(count: int, num_actions: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (count, *SMALL), generator=generator)
    brightness = torch.rand(count, 1, 1, 3, generator=generator)
    frames = (noise * brightness).to(torch.uint8)
    return frames, torch.randint(0, num_actions, (count,), generator=generator)


def test_computes_what_the_original_does() -> None:
    network = worn().eval()
    state = network.state_dict()
    frames, actions = steps(6)
    x = frames.permute(0, 3, 1, 2) / 255
    for at, stride in ((0, 3), (4, 2), (8, 1), (12, 1)):
        x = torch.nn.functional.conv2d(x, state[f"conv.{at}.weight"], state[f"conv.{at}.bias"], stride)
        norm = {
            name: state[f"conv.{at + 1}.{name}"].view(-1, 1, 1) for name in ("running_mean", "running_var")
        }
        scale, shift = (state[f"conv.{at + 1}.{name}"].view(-1, 1, 1) for name in ("weight", "bias"))
        x = (x - norm["running_mean"]) / (norm["running_var"] + 1e-5).sqrt() * scale + shift
        x = torch.where(x > 0, x, 0.01 * x)
    x = torch.cat([x.flatten(1), torch.eye(4)[actions]], 1) @ state["out.0.weight"].T + state["out.0.bias"]
    expected = torch.where(x > 0, x, 0.01 * x) @ state["out.2.weight"].T + state["out.2.bias"]
    torch.testing.assert_close(network(frames, actions), expected[:, 0], rtol=1e-4, atol=1e-4)


def test_the_action_counts() -> None:
    network = worn().eval()
    frames, _ = steps(1)
    judged = {network(frames, torch.tensor([action])).item() for action in range(4)}
    assert len(judged) == 4


def test_evaluation_is_deterministic_and_fitting_is_not() -> None:
    network, (frames, actions) = worn(dropout=0.5), steps(8)
    network.eval()
    assert torch.equal(network(frames, actions), network(frames, actions))
    # A step is judged by itself: whatever else is in the batch.
    torch.testing.assert_close(
        network(frames[:1], actions[:1]), network(frames, actions)[:1], rtol=1e-4, atol=1e-5
    )
    network.train()
    assert not torch.equal(network(frames, actions), network(frames, actions))


def test_the_copy_for_paying_computes_the_same() -> None:
    network, (frames, actions) = worn(dropout=0.5), steps(32)
    fast = network.for_paying()
    network.eval()
    expected = network(frames, actions)
    assert expected.std() > 0.5
    torch.testing.assert_close(fast(frames, actions), expected, rtol=1e-4, atol=1e-4)
    assert not any(isinstance(layer, torch.nn.BatchNorm2d | torch.nn.Dropout) for layer in fast.modules())
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    # It is a copy: the original is as it was and may be fitted on.
    assert {name for name in network.state_dict() if name.startswith("conv.1.")}
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_pays_the_standardised_output_without_clipping() -> None:
    network, (frames, actions) = worn().eval(), steps(64)
    raw = network(frames, actions).detach()
    mean, std = 1.5, 0.002
    paid = RewardModel([Member(network, mean, std)], CPU).pay(frames, actions)
    assert paid.abs().max() > 500
    torch.testing.assert_close(paid, (raw - mean) / std, rtol=1e-3, atol=0.1)
    assert not paid.requires_grad
    assert len(set(paid.tolist())) > 60


def test_in_bf16_it_pays_what_autocast_makes_of_its_weights() -> None:
    network, (frames, actions) = worn(), steps(16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = (network.for_paying()(frames, actions) - 0.3) / 2.0
    model = RewardModel([Member(network, 0.3, 2.0)], CPU, bf16=True)
    assert torch.equal(model.pay(frames, actions), expected)
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}


def test_an_ensemble_pays_the_mean_of_its_standardised_members() -> None:
    members = [Member(worn(seed=0).eval(), 0.3, 2.0), Member(worn(seed=1).eval(), -1.0, 0.5)]
    frames, actions = steps(10)
    expected = sum((member.network(frames, actions) - member.mean) / member.std for member in members) / 2
    torch.testing.assert_close(
        RewardModel(members, CPU).pay(frames, actions),
        torch.as_tensor(expected).detach(),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("pessimism", [0.0, 0.5, 2.0])
def test_pessimism_pays_less_where_members_disagree(pessimism: float) -> None:
    members = [Member(worn(seed=seed).eval(), 0.1 * seed, 1.0 + seed) for seed in range(3)]
    frames, actions = steps(10)
    with torch.no_grad():
        each = torch.stack(
            [(member.network(frames, actions) - member.mean) / member.std for member in members]
        )
    spread = ((each - each.mean(0)).square().sum(0) / 3).sqrt()
    assert spread.min() > 0.01
    torch.testing.assert_close(
        RewardModel(members, CPU, pessimism=pessimism).pay(frames, actions),
        each.mean(0) - pessimism * spread,
        rtol=1e-3,
        atol=1e-3,
    )


def test_members_that_agree_are_paid_in_full() -> None:
    members, (frames, actions) = [Member(worn(), 0.3, 2.0)] * 3, steps(10)
    torch.testing.assert_close(
        RewardModel(members, CPU, pessimism=3.0).pay(frames, actions),
        RewardModel(members[:1], CPU).pay(frames, actions),
        rtol=1e-4,
        atol=1e-4,
    )


def test_pessimism_needs_an_ensemble(tmp_path: Path) -> None:
    for name, count in (("one.dat", 1), ("two.dat", 2)):
        members = [Member(worn(seed=seed), 0.0, 1.0) for seed in range(count)]
        save_reward_model(tmp_path / name, RewardModel(members, CPU), {}, {}, {})
    torch.save(worn(SEAQUEST, 18).state_dict(), tmp_path / "bare.dat")
    for name in ("one.dat", "bare.dat"):
        with pytest.raises(UserError, match=rf"{name}: --pessimism 0\.5 expected an ensemble.*--ensemble 3"):
            load_reward_model(tmp_path / name, pessimism=0.5)
        load_reward_model(tmp_path / name, pessimism=0.0)
    with pytest.raises(UserError, match=r"one\.dat: --pessimism 2 expected an ensemble"):
        train(TrainConfig(name="x", reward=tmp_path / "one.dat", pessimism=2))
    with pytest.raises(UserError, match=r"--pessimism expects a reward model .*add -r FILE"):
        TrainConfig(name="x", pessimism=2)
    frames, actions = steps(5)
    hopeful, wary = (
        load_reward_model(tmp_path / "two.dat", pessimism=k).pay(frames, actions) for k in (0, 1)
    )
    assert (wary < hopeful).all()


def test_observations_that_are_missing_are_said() -> None:
    frames, actions = steps(3)
    pictures, vectors = (
        RewardModel([Member(RewardNet(SMALL, 4, input="observation", observation_size=size), 0.0, 1.0)], CPU)
        for size in (None, 5)
    )
    with pytest.raises(ValueError, match="a reward model of observations got none"):
        pictures.pay(frames, actions)
    with pytest.raises(ValueError, match="a reward model of vectors got none"):
        vectors.each_along(frames.numpy(), actions.numpy())


def test_the_loss_has_its_units_back() -> None:
    members = [Member(worn(seed=seed).eval(), 0.1 * seed, 1.0 + seed) for seed in range(2)]
    frames, actions = steps(7)
    model = RewardModel(members, CPU)
    fitted = torch.stack([member.network(frames, actions) for member in members]).detach()
    mended = model.unstandardised(model.each(frames, actions).numpy())
    np.testing.assert_allclose(mended, fitted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("linear", [False, True])
def test_in_other_units_a_network_of_vectors_computes_the_same_and_sees_further(linear: bool) -> None:
    torch.manual_seed(0)
    form: dict[str, Any] = {"input": "observation", "observation_size": 3, "linear": linear}
    network = RewardNet((84, 84, 3), 2, **form).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    network.mean.copy_(torch.tensor([0.0, 1.0, -2.0]))
    network.std.copy_(torch.tensor([0.1, 1.0, 2.0]))
    other = copy.deepcopy(network)
    other.see_in(torch.tensor([0.5, 1.0, 0.0]), torch.tensor([1.0, 0.5, 2.0]))
    near, actions = torch.rand(20, 3), torch.arange(20) % 2
    torch.testing.assert_close(other(near, actions), network(near, actions))
    far = torch.tensor([[1.5, 0, 0], [2.5, 0, 0]])
    torch.testing.assert_close(*network(far, actions[[0, 0]]).split(1))
    assert abs(other(far, actions[[0, 0]]).diff()) > 1e-3


def test_pays_a_network_in_training_mode_as_in_evaluation() -> None:
    network, (frames, actions) = worn(dropout=0.5).train(), steps(4)
    paid = RewardModel([Member(network, 0.0, 1.0)], CPU).pay(frames, actions)
    torch.testing.assert_close(paid, network.eval()(frames, actions).detach(), rtol=1e-4, atol=1e-4)


def test_shifts_and_noise_are_of_the_fit_alone() -> None:
    """Noise is in units of pixels in 0 … 1. Here the convolutions hand on the picture as it is."""
    torch.manual_seed(0)
    frames, actions = torch.full((4, *SMALL), 51, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    frames[:, 20] = 204
    seen: list[torch.Tensor] = []
    for flags in ({"noise": 0.1}, {"shift": 2}):
        network = RewardNet(SMALL, 6, **flags)
        same = torch.nn.Conv2d(3, 3, 1, bias=False)
        torch.nn.init.dirac_(same.weight)
        network.conv = torch.nn.Sequential(same)
        vars(network)["_head"] = lambda features, actions: seen.append(features.detach())
        network.eval()(frames, actions)
        network.train()(frames, actions)
    judged, noisy, still, shifted = seen
    plain = frames.permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(judged, plain)
    assert (noisy - plain).std().item() == pytest.approx(0.1, rel=0.03)
    torch.testing.assert_close(still, plain)
    assert not torch.equal(shifted, plain)


MASKS = [(10, 4, 20, 9), (0, 40, 52, 8)]  # the second reaches three of the frame's sides


@pytest.mark.parametrize("mode", ["fitting", "judging", "paying"])
def test_what_a_mask_hides_has_no_influence(mode: str) -> None:
    frames, actions = steps(8)
    hidden = torch.zeros(SMALL[:2], dtype=torch.bool)
    for x, y, width, height in MASKS:
        hidden[y : y + height, x : x + width] = True
    noise = torch.randint(0, 256, frames.shape, dtype=torch.uint8)
    inside = torch.where(hidden[..., None], noise, frames)
    beside = frames.clone()
    beside[:, 13, 15] = 255 - beside[:, 13, 15]  # the row below the first mask
    assert not torch.equal(inside, frames)

    network = worn(masks=MASKS, dropout=0.0).train(mode == "fitting")
    judge = RewardModel([Member(network, 0.0, 1.0)], CPU).pay if mode == "paying" else network
    given = frames.clone()
    with torch.no_grad():
        assert torch.equal(judge(inside, actions), judge(given, actions))
        assert not torch.equal(judge(beside, actions), judge(frames, actions))
        blank = torch.where(hidden[..., None], 0, frames)
        unmasked = worn(dropout=0.0).train(mode == "fitting")
        plain = RewardModel([Member(unmasked, 0.0, 1.0)], CPU).pay if mode == "paying" else unmasked
        assert torch.equal(judge(frames, actions), plain(blank, actions))
    assert torch.equal(given, frames)  # the caller's are left as they were


def test_each_picture_is_shifted_by_its_own_pixels_with_edges_repeated() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(200, 3, 9, 7, generator=generator)
    torch.manual_seed(0)
    moved = randomly_shifted(pictures, 2)
    assert moved.shape == pictures.shape
    padded = torch.nn.functional.pad(pictures, (2, 2, 2, 2), mode="replicate")
    found: set[tuple[int, int]] = set()
    for before, after in zip(padded, moved, strict=True):
        fits = [
            (x, y) for x in range(5) for y in range(5) if torch.equal(before[:, y : y + 9, x : x + 7], after)
        ]
        assert len(fits) == 1
        found.update(fits)
    assert len(found) == 25  # every way, not moving at all among them


@pytest.mark.parametrize("options", [{"shift": 3}, {"noise": 0.1}])
def test_shifts_and_noise_are_for_fitting_only_and_masks_hold_under_them(options: dict[str, Any]) -> None:
    frames, actions = steps(16)
    network = worn(dropout=0.0, masks=MASKS, **options)
    plain = worn(dropout=0.0, masks=MASKS)
    inside = frames.clone()
    for x, y, width, height in MASKS:
        inside[:, y : y + height, x : x + width] = 255

    def fitted(given: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        with torch.no_grad():
            return network.train()(given, actions)

    assert torch.equal(fitted(frames), fitted(inside))
    assert not torch.equal(fitted(frames), plain.train()(frames, actions))
    network.load_state_dict(plain.state_dict())  # the batch norms have moved
    paid = RewardModel([Member(network, 0.0, 1.0)], CPU).pay(frames, actions)
    assert torch.equal(paid, RewardModel([Member(plain, 0.0, 1.0)], CPU).pay(frames, actions))
    assert torch.equal(network.eval()(frames, actions), plain.eval()(frames, actions))


def test_masks_come_back(tmp_path: Path) -> None:
    path, (frames, actions) = tmp_path / "reward-x.dat", steps(5)
    model = RewardModel(
        [Member(worn(masks=MASKS), 0.0, 1.0), Member(worn(masks=MASKS, seed=1), 0.0, 1.0)], CPU
    )
    save_reward_model(path, model, {}, {}, {})
    loaded = load_reward_model(path)
    assert [list(member.network.masks) for member in loaded.members] == [MASKS, MASKS]
    assert torch.equal(loaded.pay(frames, actions), model.pay(frames, actions))


def test_numpy_arrays_are_paid_alike() -> None:
    model, (frames, actions) = RewardModel([Member(worn(), 0.5, 2.0)], CPU), steps(5)
    paid = model.rewards(frames.numpy(), actions.numpy().astype(np.int32))
    assert paid.dtype == np.float32
    np.testing.assert_allclose(paid, model.pay(frames, actions).numpy(), rtol=1e-5, atol=1e-5)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "models" / "reward-x.dat"
    model = RewardModel([Member(worn(), 0.25, 3.0)], CPU)
    save_reward_model(path, model, {"lr": 0.1}, {"labels": 7}, {"held_out_loss": 0.5})
    content = torch.load(path, weights_only=True)
    assert content["results"] == {"held_out_loss": 0.5}
    loaded = load_reward_model(path)
    assert (loaded.spec.frame_shape, loaded.spec.num_actions) == (SMALL, 4)
    assert (loaded.members[0].mean, loaded.members[0].std) == (0.25, 3.0)
    assert loaded.origin == {
        "config": {"lr": 0.1},
        "parents": {"labels": 7},
        "results": {"held_out_loss": 0.5},
        **{key: content[key] for key in ("versions", "git_commit", "created")},
    }
    frames, actions = steps(5)
    assert torch.equal(loaded.pay(frames, actions), model.pay(frames, actions))


def test_a_bare_state_dict_of_the_original_loads(tmp_path: Path) -> None:
    state = worn(SEAQUEST, 18).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == original(18)
    torch.save(state, tmp_path / "reward.dat")
    model = load_reward_model(tmp_path / "reward.dat")
    assert (model.spec.frame_shape, model.spec.num_actions) == (SEAQUEST, 18)
    frames = torch.zeros(2, *SEAQUEST, dtype=torch.uint8)
    network = RewardNet(SEAQUEST, 18).eval()
    network.load_state_dict(state)
    actions = torch.tensor([0, 17])
    torch.testing.assert_close(
        model.pay(frames, actions), network(frames, actions).detach(), rtol=1e-4, atol=1e-4
    )


def test_refuses_what_is_no_reward_model(tmp_path: Path) -> None:
    state = RewardNet(SMALL, 4).state_dict()  # of other frames than the original's
    torch.save(state, tmp_path / "small.dat")
    torch.save({"policy.0.weight": torch.zeros(2, 2)}, tmp_path / "policy.dat")
    broken = {**RewardNet(SEAQUEST, 18).state_dict(), "conv.0.weight": torch.zeros(16, 1, 7, 7)}
    torch.save(broken, tmp_path / "broken.dat")
    for name, says in [
        ("small.dat", "expected the reward network for 210×160×3 frames"),
        ("policy.dat", r"expected the weights of a reward model .*is it a policy\?"),
        ("broken.dat", r"expected the reward network.*conv\.0\.weight"),
        ("none.dat", "no such file"),
    ]:
        with pytest.raises(UserError, match=says) as caught:
            load_reward_model(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "state",
    [{"reference.x": torch.zeros(2)}, {"reference.0.weight": torch.zeros(3)}],
    ids=["without layers", "of one dimension"],
)
def test_refuses_an_implied_reward_whose_layers_do_not_fit(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    path = tmp_path / "r.dat"
    save_reward_model(path, RewardModel([Member(RewardNet(SMALL, 4), 0.0, 1.0)], CPU), {}, {}, {})
    payload = torch.load(path, weights_only=True)
    payload["members"][0]["state_dict"] = state
    torch.save(payload, path)
    with pytest.raises(UserError, match=r"r\.dat: expected the reward network for"):
        load_reward_model(path)


def test_refuses_an_environment_it_was_not_fitted_for() -> None:
    model = RewardModel([Member(RewardNet(SMALL, 4), 0.0, 1.0)], CPU)
    model.check(Spec(4, frame_shape=SMALL), Path("r.dat"), "Grey-v0")
    for spec, says in (
        (Spec(5, frame_shape=SMALL), "4 actions, but Pong has 5 actions"),
        (Spec(3, frame_shape=SMALL), "4 actions, but Pong has 3 actions"),
        (Spec(4, frame_shape=(52, 48, 3)), "frames of 48×52 pixels, but Pong has frames of 52×48 pixels"),
    ):
        with pytest.raises(UserError, match=rf"r\.dat: a reward model for {says}; fit one on"):
            model.check(spec, Path("r.dat"), "Pong")


def test_sums_over_a_segment_begin_near_zero() -> None:
    # A fit that allows for a teacher's errors gets no gradient from a pair that begins far on the wrong side.
    torch.manual_seed(0)
    network = RewardNet((210, 160, 3), 18).eval()
    frames = torch.randint(0, 256, (50, 210, 160, 3), dtype=torch.uint8)
    with torch.no_grad():
        assert network(frames, torch.arange(50) % 18).sum().abs() < 0.5


def observation_net(masks: Sequence[Mask] = ()) -> RewardNet:
    torch.manual_seed(0)
    network = RewardNet((210, 160, 3), 6, masks=masks, input="observation").eval()
    torch.nn.init.normal_(network.out.get_submodule("2").weight)  # type: ignore[arg-type]
    return network


def test_a_network_of_observations_ignores_the_action() -> None:
    observations = torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8)
    network = observation_net()
    rewards = network(observations, torch.zeros(5, dtype=torch.int64))
    assert torch.equal(rewards, network(observations, torch.full((5,), 5)))
    assert rewards.std() > 0
    assert network.out[0].in_features == 16 * 7 * 7


def test_a_mask_hides_every_pixel_of_the_observation_that_it_touches() -> None:
    """Whatever stands under the mask in the frame, the observation's blanked pixels are all that it changes."""
    mask = (57, 9, 51, 11)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (6, 210, 160, 3), dtype=np.uint8)
    other = frames.copy()
    other[:, 9:20, 57:108] = rng.integers(0, 256, (6, 11, 51, 3))
    model = RewardModel([Member(observation_net([mask]), 0.0, 1.0)], CPU)
    actions = np.zeros(6, np.int64)
    assert np.array_equal(model.rewards_along(frames, actions), model.rewards_along(other, actions))
    plain = RewardModel([Member(observation_net(), 0.0, 1.0)], CPU)
    assert not np.array_equal(plain.rewards_along(frames, actions), plain.rewards_along(other, actions))


def test_paying_along_a_clip_stacks_its_frames() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 210, 160, 3), dtype=np.uint8)
    model = RewardModel([Member(observation_net(), 0.5, 2.0)], CPU)
    actions = np.zeros(6, np.int64)
    observer = Observer(1, (210, 160, 3), CPU)
    stacks = np.stack(
        [observer.push(torch.from_numpy(f[None]), torch.tensor([False]))[0].numpy().copy() for f in frames]
    )
    along = model.rewards_along(frames, actions)
    # From the fourth step on the clip tells all that an observation spans.
    np.testing.assert_allclose(along[3:], model.rewards(frames, actions, stacks)[3:], rtol=1e-4, atol=1e-5)
    still = np.repeat(grey_resize_cpu(frames[:1]), 4, 0)[None]
    np.testing.assert_allclose(
        along[0], model.rewards(frames[:1], actions[:1], still)[0], rtol=1e-4, atol=1e-5
    )


def test_a_model_of_observations_is_read_back_as_one(tmp_path: Path) -> None:
    model = RewardModel([Member(observation_net([(1, 2, 3, 4)]), 0.5, 2.0)], CPU)
    save_reward_model(tmp_path / "r.dat", model, config={}, parents={}, results={})
    loaded = load_reward_model(tmp_path / "r.dat")
    assert (loaded.input, loaded.spec) == ("observation", Spec(6, frame_shape=(210, 160, 3)))
    frames = np.random.default_rng(0).integers(0, 256, (4, 210, 160, 3), dtype=np.uint8)
    actions = np.arange(4)
    assert np.array_equal(loaded.rewards_along(frames, actions), model.rewards_along(frames, actions))
    payload = torch.load(tmp_path / "r.dat", weights_only=True)
    torch.save({**payload, "input": "sound"}, tmp_path / "sound.dat")
    with pytest.raises(
        UserError, match="expected a reward model of frames or observations, got one of 'sound'"
    ):
        load_reward_model(tmp_path / "sound.dat")


def test_what_each_member_says_along_a_clip() -> None:
    frames, actions = np.random.default_rng(0).integers(0, 256, (4, 84, 84, 3), dtype=np.uint8), np.arange(4)
    members = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        members.append(Member(RewardNet((84, 84, 3), 5).eval(), 0.1 * seed, float(seed)))
    each = RewardModel(members, CPU).each_along(frames, actions)
    assert each.shape == (2, 4)
    for row, member in zip(each, members, strict=True):
        alone = RewardModel([member], CPU).rewards(frames, actions)
        np.testing.assert_allclose(row, alone, rtol=1e-5, atol=1e-6)
    cautious = RewardModel(members, CPU, pessimism=2.0).rewards_along(frames, actions)
    np.testing.assert_allclose(cautious, each.mean(0) - 2 * each.std(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 210, 160, 3), (1000, 86, 88, 3), (2, 87, 91, 3)])
def test_halved_frames_are_rounded_means_of_four_pixels(shape: tuple[int, ...]) -> None:
    frames = torch.randint(0, 256, shape, dtype=torch.uint8)
    rows, columns = shape[1] // 2, shape[2] // 2
    blocks = frames[:, : 2 * rows, : 2 * columns].int().unflatten(2, (columns, 2)).unflatten(1, (rows, 2))
    expected = ((blocks.sum((2, 4)) + 2) // 4).to(torch.uint8)
    assert torch.equal(halved(frames), expected)
    on_gpu = F.avg_pool2d(frames[:, : 2 * rows, : 2 * columns].permute(0, 3, 1, 2).float(), 2) + 0.5
    assert torch.equal(on_gpu.to(torch.uint8).permute(0, 2, 3, 1), expected)


def test_a_network_of_halved_frames_is_that_of_the_smaller_picture(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mask = (7, 8, 21, 10)
    network = RewardNet((210, 160, 3), 6, masks=[mask], half_size=True).eval()
    small = RewardNet((105, 80, 3), 6, masks=[halved_mask(mask)]).eval()
    small.load_state_dict(network.state_dict())
    frames, actions = torch.randint(0, 256, (4, 210, 160, 3), dtype=torch.uint8), torch.arange(4)
    expected = small(halved(frames), actions)
    assert torch.equal(network(frames, actions), expected)
    changed = frames.clone()
    changed[:, 8:18, 7:28] += 1
    assert torch.equal(network(changed, actions), expected)
    changed[:, 20, 40] += 128
    assert not torch.equal(network(changed, actions), expected)
    model = RewardModel([Member(network, 0.5, 2.0)], torch.device("cpu"))
    save_reward_model(tmp_path / "half.dat", model, {}, {}, {})
    read = load_reward_model(tmp_path / "half.dat")
    torch.testing.assert_close(read.pay(frames, actions), (expected - 0.5) / 2)
    assert read.members[0].network.half_size


def test_an_observed_mask_covers_all_that_it_touches() -> None:
    """Of 210×160 pixels 84×84 are left: 80 to 120 of a row become 42 to 63, 105 to 126 of a column 42 to 50.4."""
    assert observed_mask((80, 105, 40, 21), (210, 160, 3)) == (42, 42, 21, 9)


def test_a_halved_mask_covers_all_that_it_touches() -> None:
    assert halved_mask((4, 6, 8, 2)) == (2, 3, 4, 1)
    assert halved_mask((5, 7, 1, 1)) == (2, 3, 1, 1)
    assert halved_mask((5, 7, 2, 2)) == (2, 3, 2, 2)
