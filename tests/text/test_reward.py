"""A reward model for text: its numbers, its fit, its file."""

import dataclasses
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lib.cli import UserError
from lib.learner import ALONE
from lib.preferences.answers import Answer, save_answer
from lib.preferences.teachers import label_with_teacher
from lib.reporting import Charts
from lib.reward import refit
from lib.reward.checkpoints import load_reward_model
from lib.reward.config import FitConfig
from lib.reward.data import Pairs
from lib.reward.fit import fit as fit_to
from lib.reward.split import by_unit, split_by_segment
from lib.text.fit import AnswerMember, Answers, TextFit, length_correlation, length_slope
from lib.text.report import text_figures, write_text_report
from lib.text.reward import (
    Shape,
    States,
    TextMember,
    TextRewardModel,
    TextRewardNet,
    frozen_states,
    load_text_reward,
    save_text_reward,
)
from lib.tools.fit_labels import fit_labels
from tests.text.dbs import answer_db, answers_to, random_texts
from tests.text.tiny import FAMILIES, save_tiny, tiny

CPU = torch.device("cpu")


def _answers() -> list[Answer]:
    """Tokens that contain the end of a text, which is also the padding, anywhere."""
    rng = np.random.default_rng(0)
    return [
        Answer(
            "p", "t", True, rng.integers(0, 32, size), np.append(rng.integers(0, 32, length), 2), tokenizer=""
        )
        for size, length in ((1, 1), (3, 9), (7, 2), (2, 20), (5, 5))
    ]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_answers_reward_and_gradient_do_not_depend_on_those_beside_it(
    family: str, pooling: str, tmp_path: Path
) -> None:
    language = tiny(tmp_path, family)
    answers = [dataclasses.replace(a, tokenizer=language.vocabulary) for a in _answers()]
    for at, upper in ((0, 4), (2, 1), (4, 0)):
        shape = Shape(at, upper, pooling)
        torch.manual_seed(0)
        network = TextRewardNet(language.network.model, shape)
        torch.nn.init.normal_(network.head.weight)
        together = network(frozen_states(language, shape, answers))
        for row, answer in enumerate(answers):
            alone = network(frozen_states(language, shape, [answer]))
            torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)
        grads = []
        for outputs in (
            together.sum(),
            *(network(frozen_states(language, shape, [a])).sum() for a in answers),
        ):
            network.zero_grad()
            outputs.backward()
            grads.append([w.grad.clone() for w in network.parameters() if w.grad is not None])
        for whole, *parts in zip(*grads, strict=True):
            torch.testing.assert_close(torch.stack(parts).sum(0), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_all_upper_layers_it_is_the_whole_model_on_the_last_token(family: str, tmp_path: Path) -> None:
    language = tiny(tmp_path, family)
    answers = [dataclasses.replace(a, tokenizer=language.vocabulary) for a in _answers()]
    for at in (0, 2, 4):
        network = TextRewardNet(language.network.model, Shape(at, 4 - at))
        torch.nn.init.normal_(network.head.weight)
        rated = network(frozen_states(language, Shape(at, 4 - at), answers))
        for row, answer in enumerate(answers):
            tokens = torch.tensor([[*answer.prompt_tokens, *answer.tokens]])
            state = language.network.model(input_ids=tokens, use_cache=False).last_hidden_state[0, -1]
            torch.testing.assert_close(network.head(state)[0], rated[row], atol=1e-5, rtol=1e-5)
    assert len(TextRewardNet(language.network.model, Shape(2, 1)).layers.layers) == 1


def test_a_mean_is_over_the_answer_and_not_over_its_prompt(tmp_path: Path) -> None:
    language = tiny(tmp_path)
    answers = [dataclasses.replace(a, tokenizer=language.vocabulary) for a in _answers()]
    network = TextRewardNet(language.network.model, Shape(2, 2, "mean"))
    torch.nn.init.normal_(network.head.weight)
    rated = network(frozen_states(language, Shape(2, 2), answers))
    for row, answer in enumerate(answers):
        tokens = torch.tensor([[*answer.prompt_tokens, *answer.tokens]])
        states = language.network.model(input_ids=tokens, use_cache=False).last_hidden_state[0]
        mean = states[len(answer.prompt_tokens) :].mean(0)
        torch.testing.assert_close(network.head(mean)[0], rated[row], atol=1e-5, rtol=1e-5)


def test_what_an_answers_length_explains_is_taken_out_about_the_mean(tmp_path: Path) -> None:
    language = tiny(tmp_path)
    member = TextMember(TextRewardNet(language.network.model, Shape(2, 0)), 0.0, 1.0)
    model = TextRewardModel(language, [member], slope=0.5, words=10.0)
    np.testing.assert_allclose(model.paid(np.array([[1.0, 2.0]]), np.array([10, 12])), [1.0, 1.0])


def test_whole_prompts_are_held_out() -> None:
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(40), 4)
    first = rng.integers(0, 160, 120)
    second = 4 * (first // 4) + (first + rng.integers(1, 4, 120)) % 4
    pairs = Pairs(first, second, np.ones(120, np.float32), np.ones(120, np.float32))
    by_prompt, names = by_unit(pairs, [("", f"prompt {number}") for number in prompts])
    assert names == [("", f"prompt {number}") for number in range(40)]
    train, test = split_by_segment(by_prompt, 0.25, 0)
    assert len(train) + len(test) == 120
    assert 25 <= len(test) <= 40
    assert not set(prompts[pairs.first[train]]) & set(prompts[pairs.first[test]])


def test_slope_and_correlation_with_length_are_within_prompts() -> None:
    prompts, words = np.array([0, 0, 0, 1, 1, 2]), np.array([1.0, 2, 3, 10, 12, 5])
    values = 0.5 * words + np.array(
        [7.0, 7, 7, -9, -9, 99]
    )  # of what differs between prompts, nothing counts
    assert length_slope(values, words, prompts) == pytest.approx(0.5)
    assert length_correlation(values, words, prompts) == pytest.approx(1)
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 10, 500)
    words, noise = rng.normal(size=500), rng.normal(size=500)
    slope = length_slope(words + noise, words, prompts)
    assert slope == pytest.approx(1, abs=0.15)
    assert length_correlation(words + noise - slope * words, words, prompts) == pytest.approx(0, abs=1e-12)
    assert length_slope(noise, np.ones(500), prompts) == 0
    assert np.isnan(length_correlation(noise, np.ones(500), prompts))
    assert length_correlation(1e-6 * words, words, prompts) == pytest.approx(1)  # however small


class Slope(torch.nn.Module):
    """r̂ = w × the state of an answer, noting whether it is being trained."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.modes = torch.nn.Parameter(torch.zeros(())), set[bool]()

    def forward(self, batch: Sequence[States]) -> torch.Tensor:
        self.modes.add(self.training)
        return self.w * torch.stack([one.states[0, 0] for one in batch])


def test_an_update_descends_the_weighted_mean_of_its_batch_and_all_answers_are_judged(tmp_path: Path) -> None:
    """Batches of 12 pairs, which go through the network in two parts. dL/dw = (σ(w d) − μ) d of each pair."""
    rng, rate = np.random.default_rng(1), 0.1
    values, wanted = rng.normal(size=60), rng.choice([0, 0.5, 1], 30).astype(np.float32)
    weight = rng.uniform(0.5, 2, 30).astype(np.float32)
    pairs = Pairs(np.arange(30), np.arange(30, 60), wanted, weight)
    states = [States(torch.full((1 + at % 7, 1), float(value)), 1) for at, value in enumerate(values)]
    config = FitConfig(dbs=[tmp_path], name="x", out=tmp_path, error_rate=0.0, batch_size=12)
    network = Slope()
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    of = {
        "config": config,
        "device": CPU,
        "bf16": False,
        "states": states,
        "data": SimpleNamespace(pairs=pairs),
    }
    material: Any = SimpleNamespace(**of, make=lambda: (network, optimizer))
    member = AnswerMember(material, np.arange(24), np.arange(24, 30), 0)
    found = member.train_epoch(lambda: False)
    difference, w, total = values[:30] - values[30:], 0.0, 0.0

    def losses(these: np.ndarray) -> np.ndarray:
        sure = np.logaddexp(0, -w * difference[these]), np.logaddexp(0, w * difference[these])
        return weight[these] * (wanted[these] * sure[0] + (1 - wanted[these]) * sure[1])

    for batch in np.random.default_rng(config.seed).permutation(24).reshape(2, 12):
        total += losses(batch).sum()
        slopes = (1 / (1 + np.exp(-w * difference[batch])) - wanted[batch]) * difference[batch]
        w -= rate * (weight[batch] * slopes).sum() / weight[batch].sum()
    assert network.w.item() == pytest.approx(w, rel=1e-4)
    assert found == pytest.approx(total / weight[:24].sum(), rel=1e-4)
    assert network.modes == {True}

    network.modes.clear()
    judged, test = member.held_out(), np.arange(24, 30)
    assert judged.loss == pytest.approx(losses(test).sum() / weight[test].sum(), rel=1e-4)
    decided = wanted[test] != 0.5
    assert judged.decided == decided.sum()
    assert judged.correct == ((w * difference[test] > 0) == (wanted[test] == 1))[decided].sum()
    assert member.statistics() == pytest.approx(((w * values).mean(), (w * values).std()), rel=1e-4)
    assert network.modes == {False}


def _config(tmp_path: Path, **options: Any) -> FitConfig:
    settings: dict[str, Any] = {
        **{"dbs": [tmp_path / "db"], "name": "t", "out": tmp_path / "out", "runs": tmp_path / "runs"},
        **{
            "model": save_tiny(tmp_path / "model"),
            "cut": 1,
            "upper": 2,
            "lr": 1e-2,
            "epochs": 8,
            "bf16": False,
        },
    }
    return FitConfig(**settings | options)


def fit_text(config: FitConfig) -> TextFit:
    return fit_to(config, ALONE, Answers)


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    db = answer_db(tmp_path / "db", random_texts(80, 3))
    label_with_teacher(db, "keyword", 150, keyword="w3")
    return tmp_path


@pytest.mark.slow
def test_it_learns_a_taste_from_labels_and_comes_back_from_its_file(labelled: Path) -> None:
    fit = fit_text(_config(labelled, seed=1))
    assert fit.best.accuracy > 0.8
    held_out = {fit.data.store.answers[i].prompt for i in fit.data.pairs.first[fit.test]}
    assert not held_out & {fit.data.store.answers[i].prompt for i in fit.data.pairs.first[fit.train]}
    again, each = load_text_reward(fit.path, CPU), fit.model.each(fit.data.states)
    np.testing.assert_allclose(
        again.rate(fit.data.store.answers), fit.model.paid(each, fit.data.store.words()), atol=1e-5
    )
    np.testing.assert_allclose(each.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(each.std(1), 1, atol=1e-5)
    said = write_text_report(fit, Charts(None))
    assert "labels prefer the longer answer" in said
    page = fit.path.with_suffix(".report.html").read_text()
    assert f"{fit.best.correct} of {fit.best.decided}" in page
    assert "What it likes most" in page


@pytest.mark.slow
def test_the_same_seed_fits_the_same_model(labelled: Path) -> None:
    first, second = (fit_text(_config(labelled, epochs=2, name=name)) for name in "ab")
    for one, two in zip(first.model.members, second.model.members, strict=True):
        states = one.network.state_dict(), two.network.state_dict()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.slow
def test_a_fit_that_was_stopped_resumes_as_if_it_had_not_been(labelled: Path, monkeypatch: Any) -> None:
    config = _config(labelled, ensemble=2, epochs=2, checkpoint_minutes=0.0)
    whole = fit_text(config)
    train_epoch, left = AnswerMember.train_epoch, [True] * 3

    def killed(self: AnswerMember, should_stop: Any) -> float | None:
        left.pop()  # an IndexError stands for SIGKILL
        return train_epoch(self, should_stop)

    with monkeypatch.context() as patched:
        patched.setattr(AnswerMember, "train_epoch", killed)
        with pytest.raises(IndexError):
            fit_text(dataclasses.replace(config, runs=labelled / "stopped"))
    (run,) = (labelled / "stopped").iterdir()
    again = fit_text(dataclasses.replace(config, resume=run, runs=labelled / "stopped"))
    assert [(epoch.member, epoch.epoch) for epoch in again.history] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for one, two in zip(whole.model.members, again.model.members, strict=True):
        states = one.network.state_dict(), two.network.state_dict()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
        assert (one.mean, one.std) == (two.mean, two.std)


@pytest.mark.slow
def test_a_watch_refits_as_labels_come_and_no_prompt_changes_sides(labelled: Path, monkeypatch: Any) -> None:
    log = labelled / "db" / "labels.json"
    lines = log.read_text().splitlines(keepends=True)
    happens = [60, 150, 150, None]

    def next_one(seconds: float) -> None:
        count = happens.pop(0)
        if count is None:
            signal.raise_signal(signal.SIGINT)
        else:
            log.write_text("".join(lines[:count]))

    log.write_text("")
    monkeypatch.setattr(refit, "time", SimpleNamespace(sleep=next_one))
    published: list[dict[str, Any]] = []

    def save(path: Path, *rest: Any) -> None:
        save_text_reward(path, *rest)
        published.append(torch.load(path, weights_only=True))

    monkeypatch.setattr(Answers, "save", staticmethod(save))
    refit.keep_refitting(_config(labelled, watch=True, epochs=1, refit_epochs=1, refit_every=30), Answers)
    one, two = (content["refit"] for content in published)
    assert [content["version"] for content in published] == [1, 2]
    assert set(map(tuple, one["trained"])) < set(map(tuple, two["trained"]))
    assert not set(map(tuple, two["trained"])) & set(map(tuple, two["held"]))
    assert {prompt for _, prompt in two["held"]} <= {f"prompt {number}" for number in range(80)}


@pytest.mark.slow
def test_length_is_measured_and_taken_out_on_demand(tmp_path: Path) -> None:
    db = answer_db(tmp_path / "db", random_texts(80, 3))
    label_with_teacher(db, "shorter", 150)
    fit = fit_text(_config(tmp_path, pooling="mean", epochs=3))
    figures = text_figures(fit)
    assert (figures.length.longer.hits, figures.length.longer.count) == (0, 150)
    assert figures.length.paid == figures.length.learned < -0.5
    controlled = fit_text(_config(tmp_path, pooling="mean", length_control=True, name="c", epochs=3))
    figures = text_figures(controlled)
    assert abs(figures.length.paid) < 1e-9
    assert figures.length.learned < -0.5
    # What is printed and kept is about what is paid, which no longer knows what the labels are about.
    assert fit.best.accuracy > 0.7 > 0.5 > controlled.best.accuracy
    share = figures.held_out
    assert (controlled.best.correct, controlled.best.decided) == (share.hits, share.count)
    again = load_text_reward(controlled.path, CPU).rate(controlled.data.store.answers)
    assert (
        abs(length_correlation(again, controlled.data.store.words(), controlled.data.store.prompts())) < 1e-4
    )


@pytest.mark.slow
def test_an_ensemble_has_members_of_its_own_and_labels_across_prompts_are_left_out(labelled: Path) -> None:
    with open(labelled / "db" / "labels.json", "a") as file:
        file.write(
            json.dumps({"sample1": "00/00000000.dat", "sample2": "01/00000000.dat", "label": 1}) + "\n"
        )
    fit = fit_text(_config(labelled, ensemble=2, epochs=2))
    each = fit.model.each(fit.data.states)
    assert each.shape == (2, len(fit.data.store.answers))
    assert not np.allclose(each[0], each[1])
    assert len(fit.data.pairs) == 150
    assert any("answer different prompts" in problem for problem in fit.data.problems)


def test_a_policy_of_frames_is_not_fitted_to_answers(tmp_path: Path) -> None:
    db = answer_db(tmp_path / "db", random_texts(4, 2))
    with pytest.raises(UserError, match=r"--policy applies to clips, but .*db holds answers; .* --algo dpo"):
        fit_labels(FitConfig(dbs=[db], name="x", out=tmp_path, policy=tmp_path / "p.dat"))


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_one_line(labelled: Path) -> None:
    config = _config(labelled, epochs=1)
    for options, match in (
        ({"survived": True}, "--survived applies to clips"),
        ({"mask": ["0,0,1,1"]}, "--mask applies to clips"),
        ({"steps": 5}, "--steps applies to clips"),
        ({"half_frames": True}, "--half-frames applies to clips"),
        ({"features": Path("p.dat")}, "--features applies to clips"),
        ({"model": None}, "expected a language model|expected the folder of a language model"),
        ({"cut": 5}, "--cut 5: .* has 4 layers"),
    ):
        with pytest.raises(UserError, match=match):
            fit_text(dataclasses.replace(config, **options))
    path = fit_text(config).path
    with pytest.raises(UserError, match="a reward model for text"):
        load_reward_model(path)
    other = save_tiny(labelled / "other", initializer_range=0.3)
    whole = torch.load(path, weights_only=True)
    torch.save(whole | {"base": whole["base"] | {"folder": str(other)}}, labelled / "bad.dat")
    with pytest.raises(UserError, match="fitted on a language model of weights"):
        load_text_reward(labelled / "bad.dat", CPU)
    changes: tuple[dict[str, Any], ...] = (
        {"shape": {"at": -1, "upper": 2, "pooling": "last"}},
        {"slope": "x"},
        {"slope": 10**400},
        {"members": []},
        {"base": 1},
        {"base": {"weights": "0", "chat": False}},
        {"base": whole["base"] | {"chat": torch.zeros(2)}},
    )
    for change in changes:
        torch.save(whole | change, labelled / "bad.dat")
        with pytest.raises(UserError, match="fit it again"):
            load_text_reward(labelled / "bad.dat", CPU)
    [member] = whole["members"]
    torch.save(whole | {"members": [member | {"state_dict": torch.zeros(2)}]}, labelled / "bad.dat")
    with pytest.raises(UserError, match="expected weights by name, got a Tensor"):
        load_text_reward(labelled / "bad.dat", CPU)


def test_answers_that_name_no_model_need_one(tmp_path: Path) -> None:
    db = answer_db(tmp_path / "db", random_texts(20, 2), policy="")
    label_with_teacher(db, "shorter", 15)
    with pytest.raises(
        UserError, match=r"expected -m FOLDER, .*: the answers are imported, which names none"
    ):
        fit_text(FitConfig(dbs=[db], name="t", out=tmp_path))


def test_stored_tokens_are_rated_and_text_of_another_vocabulary_is_encoded(tmp_path: Path) -> None:
    language = tiny(tmp_path / "m")
    shape = Shape(2, 0)
    drawn = Answer("w1 w2", "w3", True, np.array([5, 6]), np.array([7, 2]), tokenizer=language.vocabulary)
    plain = Answer("w1 w2", "w3", True)
    foreign = dataclasses.replace(drawn, prompt_tokens=np.array([900]), tokenizer="another")
    model = TextRewardModel(language, [TextMember(TextRewardNet(language.network.model, shape), 0.0, 1.0)])
    rated = model.rate([drawn, plain, foreign])
    assert rated[0] == pytest.approx(rated[1]) == pytest.approx(rated[2])
    with pytest.raises(UserError, match="has the token 900"):
        model.rate([dataclasses.replace(foreign, tokenizer=language.vocabulary)])


def test_prompts_are_put_to_the_model_as_they_were(tmp_path: Path) -> None:
    """A reward model of bare prompts says so, and is not used where they are put into the chat template."""
    language = tiny(tmp_path / "model", chat=True)
    for chat in (False, True):
        asked = dataclasses.replace(language, chat=chat)
        db = tmp_path / f"db-{chat}"
        db.mkdir()
        for prompt in range(10):
            tokens = asked.encode(f"w{prompt}")
            for number, text in enumerate(("w1", "w1 w2", "w1 w2 w3")):
                drawn = np.array(asked.encode_answer(text, True))
                answer = Answer(
                    *(f"w{prompt}", text, True, np.array(tokens), drawn),
                    log_probs=np.zeros(len(drawn), np.float32),
                    tokenizer=language.vocabulary,
                )
                save_answer(db / f"{prompt:02d}" / f"{number:08d}.dat", answer)
        label_with_teacher(db, "shorter", 20)
        config = _config(tmp_path, dbs=[db], model=tmp_path / "model", epochs=1, name=f"{chat}")
        fit = fit_text(config)
        assert load_text_reward(fit.path, CPU).language.chat is chat
        other = dataclasses.replace(language, chat=not chat)
        with pytest.raises(UserError, match="leave out --no-chat" if chat else "add --no-chat"):
            load_text_reward(fit.path, CPU, loaded=other)


def test_a_folder_spelt_in_two_ways_is_one_model(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    texts = random_texts(20, 2)
    answer_db(tmp_path / "db", texts, policy=str(tmp_path / "model"))
    answers_to(tmp_path / "db", "more", "w1", "w2 w3", folder="90", policy=f"{tmp_path}/db/../model")
    label_with_teacher(tmp_path / "db", "shorter", 20)
    assert fit_text(_config(tmp_path, model=None, epochs=1)).path.exists()


def test_answers_longer_than_the_model_was_made_for_are_counted(
    labelled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers_to(labelled / "db", "more", "w1 " * 300, "w2", folder="90")
    label_with_teacher(labelled / "db", "shorter", 200)
    fit_text(_config(labelled, epochs=1))
    assert "1 of 242 answers are with their prompts longer than the 256 tokens" in capsys.readouterr().out
