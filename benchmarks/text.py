"""Finetuning a language model: roles on one frozen trunk against four whole models, and sampling against `generate`."""

import multiprocessing
import re
from pathlib import Path

import numpy as np
import torch

from benchmarks.compare import alternate
from benchmarks.report import Row, compared
from benchmarks.setup import Setup
from lib.devices import resolve_bf16, resolve_device
from lib.preferences.answers import Answer
from lib.text.language import LanguageModel, load_language_model
from lib.text.learner import EncodedPrompt, LearnerSettings, TextLearner
from lib.text.reward import Shape, TextMember, TextRewardModel, TextRewardNet
from lib.text.sampling import sample

MODEL = Path("models/smollm2")
_ANSWERS, _PROMPT, _TOKENS = 8, 16, 24
_PROMPTS = [tuple(range(5 + place, 5 + place + _PROMPT)) for place in range(_ANSWERS)]
_UNFROZEN, _UPPER = 4, 0  # the defaults of 01_text.py and 03_reward_train.py


class Update:
    """One update of PPO on given answers: experience of all roles, and two passes.

    Args:
      folder: of the language model.
      dev: the device.
      whole: all layers of actor and critic learn, and reference and reward model have all of theirs to themselves, as in
        DeepSpeed-Chat; otherwise the actor's last four learn and the critic's head, above layers that all roles share.
    """

    def __init__(self, folder: Path, dev: str, whole: bool) -> None:
        device = resolve_device(dev)
        bf16 = resolve_bf16(None, device)
        language = load_language_model(folder, device, bf16)
        layers = len(language.network.model.layers)
        at, shape = (0, Shape(0, layers)) if whole else (layers - _UNFROZEN, Shape(2 * layers // 3, _UPPER))
        of_reward = load_language_model(folder, device, bf16) if whole else language
        network = TextRewardNet(of_reward.network.model, shape).to(device).requires_grad_(False)
        reward = TextRewardModel(of_reward, [TextMember(network, 0.0, 1.0)])
        prompts = [EncodedPrompt("", tokens) for tokens in _PROMPTS]
        settings = LearnerSettings(rollout=_ANSWERS, tokens=_TOKENS, lr=0.0)
        self._learner = TextLearner(language, at, reward, prompts, settings, bf16)
        tokens = np.random.default_rng(0).integers(
            language.network.config.vocab_size, size=(_ANSWERS, _TOKENS)
        )
        self._answers = [
            Answer("", "", False, np.array(prompt.tokens), drawn, np.zeros(_TOKENS, np.float32))
            for prompt, drawn in zip(prompts, tokens, strict=True)
        ]

    def __call__(self) -> int:
        scalars = self._learner.learn(self._learner.roles.experience(self._answers))
        torch.as_tensor(scalars["loss_total"]).item()  # so that a GPU has done it
        return _ANSWERS * _TOKENS


class Sampling:
    """Answers to prompts, by our loop or by Transformers' `generate`; counts tokens up to the end of each answer."""

    def __init__(self, language: LanguageModel, ours: bool) -> None:
        self._language, self._ours, self._calls = language, ours, 0

    def __call__(self) -> int:
        self._calls += 1
        if self._ours:
            chances = np.random.default_rng(self._calls).random((_ANSWERS, _TOKENS))
            return sum(len(drawn.tokens) for drawn in sample(self._language, _PROMPTS, chances) or ())
        prompts = torch.tensor(_PROMPTS, device=self._language.device)
        torch.manual_seed(self._calls)
        drawn = self._language.network.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            **{"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "max_new_tokens": _TOKENS},
        )[:, _PROMPT:]
        ends = torch.isin(drawn, torch.tensor(sorted(self._language.ends), device=drawn.device))
        return int((ends.cumsum(1) - ends.int() == 0).sum())


def against_whole_models(setup: Setup, folder: Path = MODEL) -> list[Row]:
    """Tokens a second, sampled and learned from, and the peak of memory; with SmolLM2 of `make model`."""
    if not folder.is_dir():
        title = "Sampling, learning from answers and their memory, with SmolLM2"
        return [Row("text-sample", title, "tokens/s", note=f"not measured: make model makes {folder}")]
    device = resolve_device(setup.dev)
    language = load_language_model(folder, device, resolve_bf16(None, device))
    sampled = alternate(Sampling(language, True), Sampling(language, False), setup.repeats, setup.seconds)
    trunk, alone = (Update(folder, setup.dev, whole) for whole in (False, True))
    learned = alternate(trunk, alone, setup.repeats, setup.seconds)
    ours, theirs = (_peak_of(folder, setup.dev, whole) for whole in (False, True))
    sizes = f"{_ANSWERS} answers of {_TOKENS} tokens"
    return [
        compared("text-sample", f"Sampling {sizes}, against generate()", "tokens/s", sampled),
        compared("text-learn", f"PPO on {sizes}, against four whole models", "tokens/s", learned),
        Row("text-memory", "Peak memory of that", "GB", ours, theirs, theirs / ours),
    ]


def _peak_of(folder: Path, dev: str, whole: bool) -> float:
    """GB, of a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (folder, dev, whole))


def _peak(folder: Path, dev: str, whole: bool) -> float:
    Update(folder, dev, whole)()
    if resolve_device(dev).type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    # Not getrusage, whose peak is that of the process before it was replaced by this one.
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(peak) / 1e6
