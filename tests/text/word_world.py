"""A world of 40 words and answers of three: all 64,000 answers can be listed, and so can the best policy."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

if not importlib.util.find_spec("transformers"):
    pytest.skip("language models need requirements-text.txt", allow_module_level=True)

from lib.preferences.answers import Answer
from lib.text.language import LanguageModel
from lib.text.learner import EncodedPrompt
from lib.text.reward import Shape, States, TextMember, TextRewardModel, TextRewardNet

WORDS, LENGTH = 40, 3
PROMPT = EncodedPrompt("?", (0,))


def word_model(layers: int = 1, seed: int = 0) -> LanguageModel:
    """A llama with random weights, whose answers never end by themselves."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        **{"vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": layers},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16},
        **{"initializer_range": 0.25, "bos_token_id": 0, "eos_token_id": 0},
    }
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape))
    tokenizer = SimpleNamespace(decode=lambda tokens, skip_special_tokens: " ".join(f"w{t}" for t in tokens))
    never = frozenset({WORDS + 1})
    model = network.eval().requires_grad_(False)
    return LanguageModel(Path("words"), model, tokenizer, "weights", "vocabulary", never, chat=False)


class Table(TextRewardModel):
    """Pays what a table says. Its network is what a critic begins with.

    Attributes:
      table: float64 `[40, 40, 40]`, mean 0 and deviation 1.
    """

    def __init__(self, language: LanguageModel, seed: int = 0) -> None:
        network = TextRewardNet(language.network.model, Shape(0, 1))
        super().__init__(language, [TextMember(network.requires_grad_(False), 0.0, 1.0)])
        rng = np.random.default_rng(seed)
        each = rng.normal(size=(3, WORDS))
        table = each[0][:, None, None] + each[1][:, None] + each[2]
        self.table = (table - table.mean()) / table.std()

    def pay(self, answers: Sequence[Answer], states: Sequence[States]) -> np.ndarray:
        return self.table[tuple(np.array([answer.tokens for answer in answers]).T)]


@torch.no_grad()
def log_policy(network: Any) -> np.ndarray:
    """log π of every answer, float64 `[40, 40, 40]`."""
    words = torch.arange(WORDS)
    pairs = torch.cartesian_prod(words, words)
    rows = torch.cat([torch.zeros(len(pairs), 1, dtype=torch.int64), pairs], 1)
    logits = network(input_ids=rows, use_cache=False).logits
    log_p = F.log_softmax(logits.double(), -1).view(WORDS, WORDS, 3, WORDS)
    first, second, third = log_p[0, 0, 0], log_p[:, 0, 1], log_p[:, :, 2]
    return (first[:, None, None] + second[:, :, None] + third).numpy()


class Optimum:
    """The best policy, π* ∝ π_ref exp(r/β), and how near another one is."""

    def __init__(self, reference: np.ndarray, reward: np.ndarray, coef: float) -> None:
        self._reference, self._reward, self._coef = reference, reward, coef
        tilted = reference + reward / coef
        highest = tilted.max()
        log_sum = highest + np.log(np.exp(tilted - highest).sum())
        self.best, self._log = coef * log_sum, tilted - log_sum

    def objective(self, log_p: np.ndarray) -> float:
        """E[r] − β KL(π ‖ π_ref)."""
        return float((np.exp(log_p) * (self._reward - self._coef * (log_p - self._reference))).sum())

    def kl(self, log_p: np.ndarray) -> float:
        """KL(π ‖ π*)."""
        return float((np.exp(log_p) * (log_p - self._log)).sum())
