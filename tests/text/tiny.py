"""Tiny language models with random weights, made on the spot."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

if not importlib.util.find_spec("transformers"):  # whose import takes seconds, in each worker of pytest-xdist
    pytest.skip("language models need requirements-text.txt", allow_module_level=True)

from lib.learner import ALONE, Alone
from lib.text.config import TextConfig
from lib.text.language import LanguageModel, load_language_model
from lib.text.learner import EncodedPrompt, LearnerSettings, TextLearner
from lib.text.reward import Shape, TextMember, TextRewardModel, TextRewardNet, save_text_reward

FAMILIES = ("llama", "qwen2", "mistral")
WORDS = ["<unk>", "<begin>", "<end>", "?", *(f"w{i}" for i in range(28))]
TEMPLATE = "{% for m in messages %}<begin> {{ m.content }} <end> {% endfor %}<begin>"


def save_tiny(
    folder: Path, family: str = "llama", layers: int = 4, chat: bool = False, **config: Any
) -> Path:
    """A folder as Hugging Face has it: 32 words, 16 numbers wide. As in SmolLM2, the end of a text is the padding."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<begin>", eos_token="<end>", pad_token="<end>", unk_token="<unk>"
    )
    if chat:
        tokenizer.chat_template = TEMPLATE
    shape = {
        **{"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": layers},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "initializer_range": 0.5},
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape | config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny(folder: Path, family: str = "llama", **options: Any) -> LanguageModel:
    return load_language_model(save_tiny(folder, family, **options), torch.device("cpu"))


def tiny_finetune(root: Path) -> TextConfig:
    """A model, a reward model on some of its layers, and 20 prompts, of which two are held out."""
    language = tiny(root / "model")
    torch.manual_seed(1)
    network = TextRewardNet(language.network.model, Shape(1, 2))
    torch.nn.init.normal_(network.head.weight)
    model = TextRewardModel(language, [TextMember(network, 0.0, 3.0)])
    save_text_reward(root / "reward.dat", model, {}, {}, {})
    (root / "prompts.txt").write_text("".join(f"w{i} w{i + 1}\n" for i in range(20)))
    return TextConfig(
        model=root / "model",
        prompts=root / "prompts.txt",
        reward=root / "reward.dat",
        name="t",
        algo="ppo",
        updates=4,
        rollout=8,
        tokens=8,
        unfrozen="2",
        lr=1e-2,
        eval_updates=2,
        judge=["shorter"],
        save=root / "saves",
        runs=root / "runs",
        bf16=False,
    )


def tiny_learner(
    folder: Path,
    family: str = "llama",
    at: int = 2,
    bf16: bool = False,
    ranks: Alone = ALONE,
    rank: int = 0,
    **settings: Any,
) -> TextLearner:
    """On prompts of different lengths, with the token that ends an answer among theirs."""
    made = (folder / "config.json").exists()
    language = load_language_model(folder if made else save_tiny(folder, family), torch.device("cpu"), bf16)
    torch.manual_seed(0)
    network = TextRewardNet(language.network.model, Shape(1, 2))
    torch.nn.init.normal_(network.head.weight)
    reward = TextRewardModel(language, [TextMember(network.requires_grad_(False), 0.5, 2.0)])
    prompts = [EncodedPrompt(f"p{i}", tokens) for i, tokens in enumerate([(4, 5, 6), (2, 2, 9, 9, 2), (7,)])]
    usual = {"rollout": 12, "tokens": 8, "lr": 1e-2, "micro_batch": 4}
    parts = language, 0 if rank else at, reward, prompts, LearnerSettings(**usual | settings), bf16
    return TextLearner(*parts, ranks=ranks, rank=rank)
