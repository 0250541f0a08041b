"""DPO: against the best policy there is, and from the labels of a DB to a folder."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.cli import UserError
from lib.preferences.segments import save_segment
from lib.preferences.teachers import label_with_teacher
from lib.reward.config import FitConfig
from lib.reward.loss import preference_loss
from lib.text.config import TextConfig
from lib.text.dpo import Policies, PolicyNet, implicit_rewards, train_dpo
from lib.text.language import load_language_model
from lib.text.layers import token_log_probs
from tests.disk import disk_full_after
from tests.label_ui.dbs import segment
from tests.text.dbs import answer_db, random_texts
from tests.text.tiny import save_tiny
from tests.text.word_world import WORDS, Optimum

BETA = 0.25


def test_padding_is_left_out() -> None:
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, float("nan")]])
    reference = torch.tensor([[-2.0, -2.5], [-1.0, 7.0]])
    mask = torch.tensor([[True, True], [True, False]])
    assert implicit_rewards(log_probs, reference, mask, 0.5).tolist() == [-0.5, 0.25]


@pytest.mark.slow
def test_comparisons_lead_to_the_best_policy_there_is() -> None:
    """95 % of what max E[r] − β KL(π ‖ π_ref) is above the reference, from answers of the reference in pairs.

    The reward is a sum over places, so π* differs from π_ref by a logit of each first word, pair and last word.
    """
    rng, batch, steps = np.random.default_rng(0), 2048, 240
    each = rng.normal(size=(3, WORDS))
    reward = each[0][:, None, None] + each[1][:, None] + each[2]
    reward = (reward - reward.mean()) / reward.std()
    tables = [torch.from_numpy(rng.normal(size=(WORDS,) * place)) for place in (1, 2, 3)]
    moved = [
        torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in ((40,), (40, 40), (40,))
    ]

    def log_policy(shifts: list[torch.Tensor]) -> list[torch.Tensor]:
        return [F.log_softmax(table + shift, -1) for table, shift in zip(tables, shifts, strict=True)]

    def whole(parts: list[torch.Tensor]) -> np.ndarray:
        return (parts[0][:, None, None] + parts[1][:, :, None] + parts[2]).detach().numpy()

    def of_tokens(parts: list[torch.Tensor], words: torch.Tensor) -> torch.Tensor:
        a, b, c = words
        return torch.stack([parts[0][a], parts[1][a, b], parts[2][a, b, c]])

    reference = log_policy([torch.zeros(())] * 3)
    best, chances = Optimum(whole(reference), reward, BETA), np.exp(whole(reference)).ravel()
    optimizer = torch.optim.Adam(moved, lr=0.1)
    kls, mask = [best.kl(whole(reference))], torch.ones(3, batch, dtype=torch.bool)
    for step in range(steps):
        drawn = rng.choice(reward.size, (2, batch), p=chances / chances.sum())
        policy, sides = log_policy(moved), []
        for side in drawn:
            words = torch.from_numpy(np.stack(np.unravel_index(side, reward.shape)))
            sides.append(implicit_rewards(of_tokens(policy, words), of_tokens(reference, words), mask, BETA))
        odds = reward.ravel()[drawn[0]] - reward.ravel()[drawn[1]]
        preferred1 = torch.from_numpy((rng.random(batch) < 1 / (1 + np.exp(-odds))).astype(float))
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
        optimizer.zero_grad()
        preference_loss(sides[0], sides[1], preferred1).mean().backward()
        optimizer.step()
        if (step + 1) % 80 == 0:
            kls.append(best.kl(whole(log_policy(moved))))
    found, begun = best.objective(whole(log_policy(moved))), best.objective(whole(reference))
    assert kls == sorted(kls, reverse=True)
    assert found - begun >= 0.95 * (best.best - begun)


@pytest.fixture
def config(tmp_path: Path) -> TextConfig:
    label_with_teacher(answer_db(tmp_path / "db", random_texts(40, 3)), "keyword", 80, keyword="w3")
    return TextConfig(
        model=save_tiny(tmp_path / "model"),
        db_path=tmp_path / "db",
        name="d",
        save=tmp_path / "saves",
        runs=tmp_path / "runs",
        algo="dpo",
        unfrozen="2",
        lr=1e-2,
        epochs=4,
        kl=0.1,
        bf16=False,
    )


@pytest.mark.slow
def test_a_db_of_labels_becomes_a_model_that_says_what_was_preferred(config: TextConfig) -> None:
    assert config.save is not None
    folder = train_dpo(config).path
    assert folder == config.save / "d"
    cpu = torch.device("cpu")
    before, after = load_language_model(config.model, cpu), load_language_model(folder, cpu)
    assert after.root is not None
    assert (after.root.at, after.root.weights) == (2, before.weights)
    gains = []
    for text in ("w3 w3 w3", "w1 w4 w5"):
        tokens = before.encode("prompt 1"), before.encode_answer(text, True)
        was, now = (token_log_probs(model.network, *tokens).sum() for model in (before, after))
        gains.append(float(now - was))
    assert gains[0] > gains[1] + 1
    assert not list(config.runs.rglob("state.dat"))  # which nothing could resume from
    with pytest.raises(UserError, match="found a folder; take another -n"):
        train_dpo(config)


def test_resume_is_refused(config: TextConfig) -> None:
    with pytest.raises(UserError, match="--algo dpo cannot be resumed"):
        dataclasses.replace(config, resume=config.runs)


def test_flags_about_the_model_are_heeded(config: TextConfig) -> None:
    with pytest.raises(UserError, match=r"--unfrozen 9: .* has 4 layers; take fewer"):
        train_dpo(dataclasses.replace(config, unfrozen="9"))
    with pytest.raises(UserError, match=r"--chat: .* has no chat template"):
        train_dpo(dataclasses.replace(config, chat=True))


def test_it_learns_from_answers_alone(config: TextConfig, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    save_segment(tmp_path / "clips" / "00" / "00000000.dat", segment(0))
    for db in (tmp_path / "clips", tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"--db-path {db}: expected a DB of answers, found none in it"):
            train_dpo(dataclasses.replace(config, db_path=db))


def test_a_full_disk_is_told_in_one_line(config: TextConfig) -> None:
    assert config.db_path is not None
    assert config.save is not None
    fitting = FitConfig(dbs=[config.db_path], name="d", out=config.save, model=config.model, cut=2, upper=9)
    material = Policies(fitting, beta=0.1)
    with (
        disk_full_after(1000),
        pytest.raises(UserError, match=r"--save .*d: could not be written: File too large"),
    ):
        material.save(config.save / "d", material.data.language, {}, {}, {}, None)
    assert not list(config.save.iterdir())


def test_dropout_is_off(config: TextConfig) -> None:
    assert config.db_path is not None
    dropping = save_tiny(config.runs / "model", attention_dropout=0.5)
    fitting = FitConfig(
        dbs=[config.db_path], name="d", out=config.runs, model=dropping, cut=2, upper=9, lr=0.0, bf16=False
    )
    member = Policies(fitting, beta=0.1).begin(np.arange(60), np.arange(60, 80), 0)
    assert member.train_epoch(lambda: False) == pytest.approx(np.log(2), abs=1e-5)  # as of the reference


def test_it_begins_at_the_reference_in_bf16(config: TextConfig) -> None:
    assert config.db_path is not None
    flags: dict[str, Any] = {"cut": 2, "upper": 9, "lr": 0.0, "bf16": True}
    fitting = FitConfig(dbs=[config.db_path], name="d", out=config.runs, model=config.model, **flags)
    member = Policies(fitting, beta=0.1).begin(np.arange(60), np.arange(60, 80), 0)
    assert member.train_epoch(lambda: False) == pytest.approx(np.log(2), abs=2e-5)
    assert member.held_out().loss == pytest.approx(np.log(2), abs=2e-5)


def test_it_begins_at_the_reference_and_answers_count_alone(config: TextConfig) -> None:
    assert config.db_path is not None
    material = Policies(
        FitConfig(
            dbs=[config.db_path], name="d", out=config.runs, model=config.model, cut=2, upper=9, bf16=False
        ),
        beta=0.1,
    )
    states = material.states[:7]
    network, _ = material.make()
    assert isinstance(network, PolicyNet)
    torch.testing.assert_close(network(states), torch.zeros(7), atol=1e-5, rtol=0)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    together = network(states)
    for row, one in enumerate(states):
        torch.testing.assert_close(network([one])[0], together[row], atol=1e-5, rtol=1e-4)
        answer = material.data.store.answers[row]
        expected = token_log_probs(
            material.data.language.network,
            material.data.language.encode(answer.prompt),
            material.data.language.encode_answer(answer.text, True),
        )
        torch.testing.assert_close(one.reference, expected, atol=1e-5, rtol=1e-4)
