"""The original's reward: the sign of a sliding z-score, by hand; and that it is what a finetune is paid."""

from pathlib import Path

import pytest
import torch

from experiments import original_reward
from experiments.original_reward import WINDOW, OriginalReward, SlidingSign, load_original_reward
from lib.reward.checkpoints import load_reward_model
from lib.reward.model import RewardModel
from tests.reward.models import save_unfitted


def test_a_reward_is_compared_with_the_mean_of_its_own_environment() -> None:
    pay = SlidingSign()
    # The mean is over what has been seen, the reward itself among it: of 5 alone it is 5.
    assert pay(torch.tensor([5.0, -2.0])).tolist() == [0, 0]
    assert pay(torch.tensor([7.0, -4.0])).tolist() == [1, -1]  # above 6; below −3
    assert pay(torch.tensor([5.5, -3.0])).tolist() == [-1, 0]  # 17.5 / 3 = 5.83; −9 / 3 = −3


def test_size_is_lost_and_a_steadily_good_state_is_worth_nothing() -> None:
    pay = SlidingSign()
    pay(torch.tensor([0.0, 0.0]))
    assert pay(torch.tensor([0.001, 1000.0])).tolist() == [1, 1]
    steady = torch.tensor([0.1, 1e9])  # neither is exact in binary
    for _ in range(WINDOW):
        paid = pay(steady)
    assert paid.tolist() == [0, 0]


def test_what_lies_longer_ago_than_the_window_is_forgotten() -> None:
    pay = SlidingSign()
    pay(torch.tensor([-1e6]))
    for _ in range(WINDOW - 2):
        pay(torch.tensor([3.0]))
    assert pay(torch.tensor([2.0])).item() == 1  # the window still begins with −1e6
    assert pay(torch.tensor([2.0])).item() == -1  # 98 threes and 2 twos


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_unfitted(tmp_path / "reward.dat", mean=0.01, std=1e-4)


def test_only_what_is_paid_differs(saved: Path) -> None:
    usual, model = load_reward_model(saved), load_original_reward(saved)
    assert isinstance(model, OriginalReward)
    generator = torch.Generator().manual_seed(1)
    window, signs = [], set[float]()
    for _ in range(5):
        frames = torch.randint(0, 256, (3, 84, 84, 3), generator=generator, dtype=torch.uint8)
        actions = torch.randint(0, 5, (3,), generator=generator)
        assert torch.equal(model.each(frames, actions), usual.each(frames, actions))
        window.append(usual.pay(frames, actions).double())
        expected = (window[-1] - torch.stack(window).mean(0)).sign().tolist()
        assert model.pay(frames, actions).tolist() == expected
        signs.update(expected)
    assert {-1.0, 1.0} <= signs


def test_a_finetune_is_paid_by_it(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RewardModel] = []
    monkeypatch.setattr(original_reward, "train", lambda config, reward: seen.append(reward))
    original_reward.main(["-n", "v1", "-r", str(saved)])
    assert [type(model) for model in seen] == [OriginalReward]
