"""Adapters: what they compute, what they leave alone, and the files that hold them."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.cli import UserError
from lib.learner import Advance
from lib.reporting import format_count
from lib.text.language import LanguageModel, load_language_model, merge, read_policy
from lib.text.layers import above, upper_copy, with_adapters
from lib.text.learner import TextLearner
from lib.text.lora import adapter_size, adapters, fold
from lib.text.memory import tell_memory
from lib.text.reward import load_text_reward
from lib.text.train import finetune
from tests.text.tiny import FAMILIES, tiny, tiny_finetune, tiny_learner

CPU = torch.device("cpu")
LORA: dict[str, Any] = {"lora": 3, "unfrozen": None}
ROWS = torch.tensor([[4, 5, 6, 7, 2, 9, 30, 1], [8, 2, 2, 11, 12, 13, 14, 15]])


@torch.no_grad()
def logits(network: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = network(input_ids=ROWS, use_cache=False).logits
    return found


def moved(model: LanguageModel, rank: int = 3) -> torch.nn.Module:
    """With adapters that are not 0."""
    network: torch.nn.Module = with_adapters(model.network, rank)
    torch.manual_seed(1)
    for weight in adapters(network).values():
        torch.nn.init.normal_(weight, std=0.1)
    return network


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_begin_as_nothing_are_wa_plus_ba_and_leave_the_base_alone(
    family: str, tmp_path: Path
) -> None:
    model = tiny(tmp_path, family)
    before = logits(model.network)
    assert torch.equal(logits(with_adapters(model.network, 3)), before)
    network = moved(model)
    assert not torch.allclose(logits(network), before, atol=0.1)
    assert torch.equal(logits(model.network), before)
    changes = adapters(network)
    assert len(changes) == 2 * 7 * 4
    assert sum(weight.numel() for weight in changes.values()) == adapter_size(model.network.model.layers, 3)
    # By hand: the weights of the whole model, changed.
    whole = copy.deepcopy(model.network)
    for name, b in changes.items():
        if name.endswith(".b"):
            with torch.no_grad():
                layer = whole.get_submodule(name.removesuffix(".b"))
                layer.weight += b @ changes[name.removesuffix("b") + "a"]
    torch.testing.assert_close(logits(network), logits(whole), atol=1e-4, rtol=1e-5)
    # What a reward model is fitted on top of.
    states = torch.randn(2, 5, 16)
    expected = above(network.model, 2)(inputs_embeds=states, use_cache=False).last_hidden_state
    layers = upper_copy(network.model, 2, 2)
    assert not adapters(layers)
    torch.testing.assert_close(
        layers(inputs_embeds=states, use_cache=False).last_hidden_state, expected, atol=1e-5, rtol=1e-5
    )
    fold(network)
    torch.testing.assert_close(logits(network), logits(whole), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bf16", [False, True])
def test_adapters_alone_learn_and_the_reference_stays_bit_equal(bf16: bool, tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, bf16=bf16, rank=3)
    base = learner.language.network
    before, said = copy.deepcopy(base.state_dict()), logits(base)
    assert torch.equal(logits(learner.policy().network), said)
    for _ in range(3):
        learner.advance()
    assert torch.equal(logits(base), said)
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert not torch.equal(logits(learner.policy().network), said)
    learned = dict(learner.weights())
    assert {weight.dtype for weight in learned.values()} == {torch.float32}
    top = {name for name in learned if not name.startswith("critic.")}
    assert top == adapters(learner.policy().network.model).keys() == learner.state()["top"].keys()


@pytest.mark.slow
def test_a_checkpoint_holds_adapters_alone_and_merges_into_a_whole_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, learners = tiny_finetune(tmp_path), list[TextLearner]()
    advance = TextLearner.advance

    def advancing(self: TextLearner) -> Advance:
        learners.append(self)
        return advance(self)

    monkeypatch.setattr(TextLearner, "advance", advancing)
    lora = dataclasses.replace(config, **LORA, updates=2)
    finetune(lora)
    folder = tmp_path / "saves" / "latest"
    assert "adapters of rank 3 on the 4 layers are trained" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["adapters.safetensors", "policy.json"]
    base = load_language_model(config.model, CPU)
    from safetensors.torch import load_file

    kept = load_file(folder / "adapters.safetensors")
    assert sum(value.numel() for value in kept.values()) == adapter_size(base.network.model.layers, 3)
    model = load_language_model(folder, CPU)
    assert torch.equal(logits(model.network), logits(learners[-1].policy().network))
    assert not torch.allclose(logits(model.network), logits(base.network), atol=1e-3)
    merge(folder, tmp_path / "whole")
    whole = load_language_model(tmp_path / "whole", CPU)
    assert whole.root is None
    torch.testing.assert_close(
        logits(whole.network.double()), logits(model.network.double()), atol=1e-5, rtol=1e-5
    )

    # A finetune goes on from adapters of the same rank, and its checkpoints are of the same root.
    finetune(dataclasses.replace(lora, model=folder, save=tmp_path / "saves2", updates=1))
    again = tmp_path / "saves2" / "latest"
    about = read_policy(again)
    assert (about["rank"], about["at"], about["folder"]) == (3, 0, str(config.model))
    now = logits(load_language_model(again, CPU).network)
    assert torch.equal(now, logits(learners[-1].policy().network))
    assert not torch.equal(now, logits(model.network))
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model": folder, "lora": 4}, "was finetuned with --lora 3; continue with that"),
        ({"model": folder, "lora": 0}, "was finetuned with --lora 3; continue with that"),
        ({"lora": 17}, "--lora 17: expected a rank below the width of .*, 16"),
    )
    for changes, match in wrong:
        with pytest.raises(UserError, match=match):
            finetune(dataclasses.replace(lora, **changes))

    bad = tmp_path / "bad"
    bad.mkdir()
    for change, weights, match in (
        ({"rank": -1}, kept, "policy.json cannot be read"),
        ({"rank": 10**9}, kept, "expected adapters of .*: adapters of rank 1000000000"),
        ({"rank": 2}, kept, "expected adapters of .*: .*size mismatch"),
        ({}, {name: kept[name] for name in list(kept)[1:]}, "other weights than adapters"),
    ):
        from safetensors.torch import save_file

        save_file(weights, bad / "adapters.safetensors")
        (bad / "policy.json").write_text(json.dumps(about | change))
        with pytest.raises(UserError, match=match):
            load_language_model(bad, CPU)


def test_memory_counts_adapters(tmp_path: Path) -> None:
    config = tiny_finetune(tmp_path)
    language = load_language_model(config.model, CPU)
    reward = load_text_reward(tmp_path / "reward.dat", CPU, loaded=language)
    lora = dataclasses.replace(config, **LORA, algo="rloo", answers=4)
    size = adapter_size(language.network.model.layers, 3)
    assert f"for the {format_count(size)} trained" in tell_memory(lora, language, reward, 0, 5)
