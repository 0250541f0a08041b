"""Folders of language models, and what their layers compute apart."""

import dataclasses
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lib.cli import UserError
from lib.preferences.prompts import Message
from lib.text.language import load_language_model, merge, read_policy, root_of, save_policy, save_whole
from lib.text.layers import between, padded, upper_copy
from tests.disk import disk_full_after
from tests.text.tiny import FAMILIES, save_tiny, tiny


def _apart(base: Any, at: int, tokens: torch.Tensor) -> torch.Tensor:
    lower, upper = between(base, 0, at), upper_copy(base, at, len(base.layers) - at)
    states = lower(inputs_embeds=base.embed_tokens(tokens), use_cache=False).last_hidden_state
    return torch.as_tensor(upper(inputs_embeds=states, use_cache=False).last_hidden_state)


@pytest.mark.parametrize("family", FAMILIES)
def test_lower_and_upper_layers_compute_what_the_whole_does(family: str, tmp_path: Path) -> None:
    base = tiny(tmp_path, family).network.model
    tokens = torch.randint(0, 32, (3, 9))
    whole = base(input_ids=tokens, use_cache=False).last_hidden_state
    for at in range(5):
        torch.testing.assert_close(_apart(base, at, tokens), whole, atol=1e-5, rtol=1e-5)
    assert len(base.layers) == 4
    torch.testing.assert_close(base(input_ids=tokens, use_cache=False).last_hidden_state, whole)


def test_layers_that_look_back_a_few_tokens_are_cut_with_their_window(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    base = tiny(tmp_path, "qwen2", sliding_window=3, use_sliding_window=True, layer_types=kinds).network.model
    tokens = torch.randint(0, 32, (2, 12))
    whole = base(input_ids=tokens, use_cache=False).last_hidden_state
    torch.testing.assert_close(_apart(base, 1, tokens), whole, atol=1e-5, rtol=1e-5)


def test_some_upper_layers_only_and_the_copy_is_the_only_one_that_learns(tmp_path: Path) -> None:
    base = tiny(tmp_path).network.model
    before = {name: weight.clone() for name, weight in base.state_dict().items()}
    upper = upper_copy(base, 1, 2)
    assert len(upper.layers) == 2
    upper.requires_grad_(True)
    upper(inputs_embeds=torch.randn(1, 3, 16), use_cache=False).last_hidden_state.sum().backward()
    torch.optim.SGD(upper.parameters(), 1.0).step()
    assert all(torch.equal(weight, before[name]) for name, weight in base.state_dict().items())


def test_padding_of_either_side_is_told_by_lengths() -> None:
    assert padded([[5], [6, 7]], torch.device("cpu")).tolist() == [[5, 0], [6, 7]]
    assert padded([[5], [6, 7]], torch.device("cpu"), left=True).tolist() == [[0, 5], [6, 7]]


def test_prompts_bare_and_in_a_chat_template(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    bare, chat = tiny(tmp_path / "a"), tiny(tmp_path / "b", chat=True)
    assert bare.encode("w0 w1") == [4, 5]
    assert chat.encode("w0 w1") == [1, 4, 5, 2, 1]
    dialogue = Message("user", "w0"), Message("assistant", "w1"), Message("user", "w2")
    assert chat.encode(dialogue) == [1, 4, 2, 1, 5, 2, 1, 6, 2, 1]
    plain = load_language_model(tmp_path / "b", torch.device("cpu"), chat=False)
    assert plain.encode("w0 w1") == [4, 5]
    with pytest.raises(UserError, match="expected a chat template for a prompt of several messages, '… w2'"):
        plain.encode(dialogue)
    chat.tokenizer.chat_template = "{{ raise_exception('turns must alternate') }}"
    for prompt, mend in (
        ("w2", r"'w2' \(turns .*\); try --no-chat"),
        (dialogue, r"'… w2' \(.*\); leave it out"),
    ):
        with pytest.raises(UserError, match=f"its chat template fails on the prompt {mend}"):
            chat.encode(prompt)
    bare.tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", 1), ("<end>", 2)]
    )
    assert bare.encode("w0 w1") == [1, 4, 5]  # which the answer continues
    assert bare.encode_answer("w2 w3", finished=True) == [6, 7, 2]
    several = dataclasses.replace(
        bare, ends=frozenset((0, 2))
    )  # as models have that end a turn and a text apart
    assert several.encode_answer("w2 w3", finished=True) == [6, 7, 2]
    assert bare.decode([6, 7]) == "w2 w3"
    with pytest.raises(UserError, match="has no chat template"):
        load_language_model(tmp_path / "a", torch.device("cpu"), chat=True)


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('ran code of a folder')",))


def test_hostile_and_foreign_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    def refused(name: str, match: str) -> None:
        with pytest.raises(UserError, match=match) as said:
            load_language_model(tmp_path / name, torch.device("cpu"))
        assert "\n" not in str(said.value)

    for name in ("code", "code2", "family", "pickle", "torn", "quantised", "wrong", "tokenizer", "list"):
        save_tiny(tmp_path / name)
    _edit(tmp_path / "code" / "config.json", auto_map={"AutoModelForCausalLM": "evil.Evil"})
    _edit(tmp_path / "code2" / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    _edit(tmp_path / "family" / "config.json", model_type="gpt2")
    _edit(tmp_path / "quantised" / "config.json", quantization_config={"quant_method": "awq"})
    _edit(tmp_path / "wrong" / "config.json", hidden_size=24)
    (tmp_path / "list" / "config.json").write_text("[]")
    (tmp_path / "pickle" / "model.safetensors").unlink()
    (tmp_path / "pickle" / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb()))
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"\xff" * 100)
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    for name in ("code", "code2"):
        refused(name, "auto_map")
    refused("family", "families llama, .*gpt2")
    refused("quantised", "plain weights")
    refused("wrong", "cannot be read")
    refused("list", "JSON object")
    refused("pickle", "other formats are not read")
    refused("torn", "cannot be read")
    refused("tokenizer", "tokenizer.json")
    refused("nowhere", "make model")


def test_a_model_that_lacks_weights_is_refused_rather_than_completed_at_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = save_tiny(tmp_path / "model") / "model.safetensors"
    weights = load_file(path)
    for name in ("lm_head.weight", "model.layers.3.mlp.up_proj.weight"):
        save_file({key: weights[key] for key in weights if key != name}, path, {"format": "pt"})
        with pytest.raises(
            UserError, match=f"expected all weights of its config.json, but {name} is missing"
        ):
            load_language_model(tmp_path / "model", torch.device("cpu"))
    assert "lm_head.weight" not in load_file(
        save_tiny(tmp_path / "tied", tie_word_embeddings=True) / path.name
    )
    load_language_model(tmp_path / "tied", torch.device("cpu"))


def test_what_is_no_token_ends_no_answer(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    _edit(folder / "generation_config.json", eos_token_id=[3, "x", 10**20, {}, None])
    assert load_language_model(folder, torch.device("cpu")).ends == {2, 3}


def test_a_merged_model_has_the_vocabulary_that_reward_models_know(tmp_path: Path) -> None:
    written = save_tiny(tmp_path / "model") / "tokenizer.json"
    written.write_text(json.dumps(json.loads(written.read_text())))  # as another version of tokenizers would
    language = load_language_model(tmp_path / "model", torch.device("cpu"))
    save_policy(tmp_path / "policy", language, root_of(language, 2), {})
    merge(tmp_path / "policy", tmp_path / "whole")
    assert load_language_model(tmp_path / "whole", torch.device("cpu")).vocabulary == language.vocabulary


def test_a_merged_model_is_what_was_learned(tmp_path: Path) -> None:
    """In bf16, as its root is stored, the small changes of a short finetune would be rounded away."""
    language = load_language_model(save_tiny(tmp_path / "model"), torch.device("cpu"))
    save_whole(tmp_path / "half", language.network.bfloat16(), language.tokenizer)
    language = load_language_model(tmp_path / "half", torch.device("cpu"))
    language.network.model.layers[3].mlp.up_proj.weight.data *= 1 + 1e-4
    save_policy(tmp_path / "policy", language, root_of(language, 2), {})
    merge(tmp_path / "policy", tmp_path / "whole")
    whole = load_language_model(tmp_path / "whole", torch.device("cpu"))
    for name, weight in language.network.state_dict().items():
        assert torch.equal(whole.network.state_dict()[name], weight), name


def test_a_full_disk_is_an_error_in_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    language = tiny(tmp_path / "model")
    root = root_of(language, 2)
    save_policy(tmp_path / "policy", language, root, {"steps": 1})
    for network in (language.network, SimpleNamespace(save_pretrained=lambda folder: None)):
        with disk_full_after(1000), pytest.raises(OSError, match="File too large") as said:
            save_whole(tmp_path / "whole", network, language.tokenizer)
        assert said.value.strerror is not None
    with (
        disk_full_after(1000),
        pytest.raises(UserError, match=r"--merge .*could not be written: .*too large"),
    ):
        merge(tmp_path / "policy", tmp_path / "whole")
    with disk_full_after(1000), pytest.raises(OSError, match="File too large"):
        save_policy(tmp_path / "policy", language, root, {"steps": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "policy"]
    assert read_policy(tmp_path / "policy")["steps"] == 1


def test_what_a_large_evaluation_writes_can_be_read(tmp_path: Path) -> None:
    language = tiny(tmp_path / "model")
    evaluation = {f"measure {number}": [-0.12345678901234567] * 14_000 for number in range(7)}
    save_policy(tmp_path / "policy", language, root_of(language, 2), {"evaluation": evaluation})
    assert read_policy(tmp_path / "policy")["evaluation"] == evaluation
