"""What is drawn, and that nothing beside it matters."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.cli import UserError
from lib.text.layers import token_log_probs
from lib.text.sampling import _chosen, sample
from tests.text.tiny import FAMILIES, tiny

# 2 ends a text, and would be its padding; one prompt comes twice.
PROMPTS = [[4, 5, 6], [2, 2, 9, 9, 9, 2], [4, 5, 6], [7]]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_and_its_log_probs_do_not_depend_on_those_beside_it(family: str, tmp_path: Path) -> None:
    model = tiny(tmp_path, family)
    chances = np.random.default_rng(0).random((len(PROMPTS), 24))
    together = sample(model, PROMPTS, chances, temperature=0.7)
    assert together is not None
    for row, (prompt, drawn) in enumerate(zip(PROMPTS, together, strict=True)):
        alone = sample(model, [prompt], chances[row : row + 1], temperature=0.7)
        assert alone is not None
        assert drawn.tokens.tolist() == alone[0].tokens.tolist()
        np.testing.assert_allclose(drawn.log_probs, alone[0].log_probs, rtol=1e-5, atol=1e-5)
        whole = token_log_probs(model.network, prompt, drawn.tokens.tolist(), 0.7)
        np.testing.assert_allclose(drawn.log_probs, whole, rtol=1e-5, atol=1e-5)  # cached = uncached


def test_an_answer_ends_with_the_token_that_ends_it_or_at_the_limit(tmp_path: Path) -> None:
    model = tiny(tmp_path)
    drawn = sample(model, [[4]] * 200, np.random.default_rng(0).random((200, 10)))
    assert drawn is not None
    ended = [one for one in drawn if one.finished]
    assert 0 < len(ended) < 200
    for one in drawn:
        assert len(one.tokens) == len(one.log_probs) <= 10
        assert (one.tokens[-1] == 2) == one.finished
        assert 2 not in one.tokens[:-1]
        assert one.finished or len(one.tokens) == 10
    assert {len(one.tokens) for one in ended} - {10}  # an end before the limit was kept


def test_any_of_several_tokens_ends_an_answer(tmp_path: Path) -> None:
    model = dataclasses.replace(tiny(tmp_path), ends=frozenset((2, 9)))
    drawn = sample(model, [[4]] * 200, np.random.default_rng(0).random((200, 10)))
    assert drawn is not None
    assert {int(one.tokens[-1]) for one in drawn if one.finished} == {2, 9}
    for one in drawn:
        assert not {2, 9} & set(one.tokens[:-1].tolist())


def test_tokens_are_drawn_as_often_as_their_probability_says(tmp_path: Path) -> None:
    model = tiny(tmp_path, initializer_range=0.2)
    count = 4000
    drawn = sample(model, [[4, 5]] * count, np.random.default_rng(0).random((count, 1)), temperature=2.0)
    assert drawn is not None
    often = np.bincount([int(one.tokens[0]) for one in drawn], minlength=32) / count
    logits = model.network(input_ids=torch.tensor([[4, 5]])).logits[0, -1]
    expected = torch.softmax(logits / 2, 0).numpy()
    assert np.all(np.abs(often - expected) < 4 * np.sqrt(expected * (1 - expected) / count) + 1e-4)
    for one in drawn[:20]:
        assert np.exp(one.log_probs[0]) == pytest.approx(expected[one.tokens[0]], rel=1e-4)


def test_what_has_no_probability_is_never_chosen() -> None:
    log_p = torch.log(torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).repeat(4, 1))
    uniform = torch.tensor([0.0, 0.499, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert _chosen(log_p, uniform).tolist() == [1, 1, 3, 3]


def test_a_request_to_stop_ends_it_between_two_tokens(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    chances = np.full((len(PROMPTS), 50), 0.5)
    assert sample(tiny(tmp_path), PROMPTS, chances, should_stop=lambda: next(asked)) is None


def test_weights_that_are_no_numbers_are_said(tmp_path: Path) -> None:
    model = tiny(tmp_path)
    model.network.model.norm.weight.data[3] = torch.nan
    with pytest.raises(UserError, match="expected a language model whose weights are numbers"):
        sample(model, PROMPTS, np.full((len(PROMPTS), 5), 0.5))
