"""Language models from local folders: loading them without trusting them, prompts as tokens, log-probabilities.

A folder may come from a stranger: only safetensors are read, no code in it runs, and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lib.checkpoints import check_weights
from lib.cli import UserError, one_line
from lib.files import sync_folder, write_atomic

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
"""Those whose lower and upper layers compute apart what they compute together (tests/text/test_language.py)."""


POLICY = "policy.json"
"""The file that makes a folder a finetuned model: upper layers over the model of another folder."""
_MAX_POLICY = 1 << 21  # bytes


@dataclass(frozen=True)
class Root:
    """The whole model that a finetuned one differs from in its upper layers."""

    folder: Path
    weights: str
    at: int
    """How many of its layers the finetuned model has too."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model and its tokenizer.

    Attributes:
      folder: where it came from.
      network: the model, in evaluation mode and without gradients.
      weights: fingerprint of its weights, 16 hexadecimal digits.
      vocabulary: fingerprint of its tokenizer, 16 hexadecimal digits.
      ends: tokens that end an answer.
      chat: whether prompts go into the chat template.
      root: of a finetuned model, the one whose lower layers it has.
    """

    folder: Path
    network: Any
    tokenizer: Any
    weights: str
    vocabulary: str
    ends: frozenset[int]
    chat: bool
    root: Root | None = None

    @property
    def device(self) -> torch.device:
        device: torch.device = self.network.device
        return device

    def encode(self, prompt: str) -> list[int]:
        """The tokens that an answer to a prompt continues: those of the chat template, or of the bare text.

        Raises:
          UserError: the template cannot be applied, or the prompt has no tokens.
        """
        if self.chat:
            try:
                tokens = self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
                )
            except Exception as error:  # a template may fail in any way
                raise UserError(
                    f"{self.folder}: its chat template fails ({one_line(str(error))[:200]}); try --no-chat"
                ) from None
        else:
            tokens = self.tokenizer(prompt)["input_ids"] or [self.tokenizer.bos_token_id]
        if not tokens or tokens[0] is None:
            raise UserError(f"{self.folder}: the prompt {prompt[:60]!r} has no tokens")
        return list(tokens)

    def encode_answer(self, text: str, finished: bool) -> list[int]:
        """The tokens of an answer that came as text."""
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*tokens, min(self.ends)] if finished else list(tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of an answer, without the token that ended it and other special ones."""
        text: str = self.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True)
        return text


def load_language_model(
    folder: Path, device: torch.device, bf16: bool = False, chat: bool | None = None
) -> LanguageModel:
    """Reads a language model.

    Args:
      folder: a local Hugging Face folder: config.json, *.safetensors, a tokenizer; or one of `save_policy`.
      device: where it will compute.
      bf16: whether in bf16, else in float32.
      chat: whether prompts go into the chat template; None: where there is one.

    Raises:
      UserError: the extra is not installed, or the folder is no such model.
    """
    if (folder / POLICY).is_file():
        return _load_policy(folder, device, bf16, chat)
    _check(folder)
    with _offline():
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError:
            raise UserError(
                "language models need packages that are not installed; make install-text"
            ) from None
        disable_progress_bar()
        options = {"local_files_only": True, "trust_remote_code": False}
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
            network = AutoModelForCausalLM.from_pretrained(
                folder,
                use_safetensors=True,
                dtype=torch.bfloat16 if bf16 else torch.float32,
                attn_implementation="sdpa",
                **options,
            )
        except Exception as error:  # a damaged folder fails in any way
            raise UserError(
                f"{folder}: expected a language model, which cannot be read: "
                f"{type(error).__name__}: {one_line(str(error))[:200]}"
            ) from None
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if chat and not has_template:
        raise UserError(f"--chat: {folder} has no chat template; leave the flag out")
    ends = _ends(network, tokenizer)
    if not ends:
        raise UserError(
            f"{folder}: neither its configuration nor its tokenizer names a token that ends an answer"
        )
    return LanguageModel(
        folder,
        network.to(device).eval().requires_grad_(False),
        tokenizer,
        _fingerprint(sorted(folder.glob("*.safetensors"))),
        _fingerprint([folder / "tokenizer.json"]),
        ends,
        has_template if chat is None else chat,
    )


def save_policy(folder: Path, model: LanguageModel, root: Root, about: Mapping[str, Any]) -> None:
    """Writes a finetuned model as a small folder: the upper layers, and what they belong to. It appears when whole.

    Args:
      folder: where to; an earlier one of that name is replaced.
      model: the finetuned model.
      root: the model that it shares lower layers, embedding and head with.
      about: what else is known, such as `config`, `parents` and `steps`.

    Raises:
      OSError: it cannot be written.
    """
    from safetensors.torch import save

    kept = {
        name: value.detach().cpu().contiguous()
        for name, value in above(model.network.model, root.at).state_dict().items()
    }
    described = {**about, "folder": str(root.folder), "weights": root.weights, "at": root.at}
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write_atomic(part / "top.safetensors", save(kept))
    write_atomic(part / POLICY, (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode())
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    sync_folder(folder.parent)


def read_policy(folder: Path) -> dict[str, Any]:
    """What `save_policy` wrote beside the weights.

    Raises:
      UserError: it cannot be read, or says nothing of the model that it belongs to.
    """
    try:
        with open(folder / POLICY, "rb") as file:
            found = json.loads(file.read(_MAX_POLICY))
        right = (
            type(found["folder"]) is str
            and type(found["weights"]) is str
            and type(found["at"]) is int
            and found["at"] >= 0
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise UserError(f"{folder}: expected a finetuned model, whose {POLICY} cannot be read")
    return dict(found)


def _load_policy(folder: Path, device: torch.device, bf16: bool, chat: bool | None) -> LanguageModel:
    """Reads a folder of `save_policy`."""
    from safetensors.torch import load_file

    about = read_policy(folder)
    root = Root(Path(about["folder"]), about["weights"], about["at"])
    if (root.folder / POLICY).is_file():
        raise UserError(
            f"{folder}: expected upper layers of a whole model, but {root.folder} is a finetuned one"
        )
    model = load_language_model(root.folder, device, bf16, chat)
    if model.weights != root.weights:
        raise UserError(
            f"{folder}: was finetuned from a model of weights {root.weights[:16]}, {root.folder} has {model.weights}"
        )
    path = folder / "top.safetensors"
    try:
        state = load_file(path)
        network = branch(model.network, root.at)
        above(network.model, root.at).load_state_dict(check_weights(state, str(path)))
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in any way
        raise UserError(
            f"{path}: expected layers {root.at + 1} and up of {root.folder}: {one_line(str(error))[:200]}"
        ) from None
    digest = hashlib.sha256(f"{root.weights} {_fingerprint([path])}".encode()).hexdigest()[:16]
    return dataclasses.replace(model, folder=folder, network=network, weights=digest, root=root)


def merge(folder: Path, target: Path) -> None:
    """Writes a finetuned model as a whole Hugging Face folder, in the arithmetic of its root, which other programs read.

    Raises:
      UserError: the model cannot be read, or the target not be written or is there already.
    """
    model = load_language_model(folder, torch.device("cpu"))
    if model.root is None:
        raise UserError(
            f"--merge: expected a checkpoint of --save as -m, and {folder} is a whole model already"
        )
    if target.exists():
        raise UserError(f"--merge {target}: is there already; name a new folder")
    stored = json.loads((model.root.folder / "config.json").read_text())
    dtype = getattr(torch, str(stored.get("dtype", stored.get("torch_dtype"))), torch.float32)
    try:
        save_whole(target, model.network.to(dtype), model.tokenizer)
    except OSError as error:
        raise UserError(f"--merge {target}: could not be written: {error.strerror}") from None


def save_whole(folder: Path, network: Any, tokenizer: Any) -> None:
    """Writes a network and its tokenizer as a Hugging Face folder, which appears when it is whole.

    Raises:
      OSError: it cannot be written.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    network.save_pretrained(part)
    tokenizer.save_pretrained(part)
    for path in part.glob("*.safetensors"):  # made readable by their owner alone
        shutil.copymode(part / "config.json", path)
    part.rename(folder)


def _check(folder: Path) -> None:
    """Refuses a folder that holds anything but plain weights of a known family.

    Raises:
      UserError: says what else it holds, or lacks.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: expected the folder of a language model; make model unpacks one")
    found: dict[str, Any] = {}
    for name in ("config.json", "tokenizer_config.json"):
        try:
            content = json.loads((folder / name).read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{folder}: expected a language model with a {name}, which cannot be read "
                f"({type(error).__name__}); make model unpacks one"
            ) from None
        if not isinstance(content, dict):
            raise UserError(f"{folder / name}: expected a JSON object, got {type(content).__name__}")
        if "auto_map" in content:
            raise UserError(f"{folder / name}: wants to run code of its own (auto_map), which is refused")
        found[name] = content
    config = found["config.json"]
    if config.get("model_type") not in FAMILIES:
        raise UserError(
            f"{folder}: expected a model of the families {', '.join(FAMILIES)}, "
            f"got {str(config.get('model_type'))[:60]!r}"
        )
    if "quantization_config" in config:
        raise UserError(f"{folder}: expected plain weights, got quantised ones; take the original model")
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder}: expected weights as *.safetensors, found none; other formats are not read"
        )
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder}: expected a tokenizer.json, found none")


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Has transformers fetch nothing, and say little, while it is imported and reads a folder."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _ends(network: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that a folder's files call the end of a text."""
    found: set[int] = set()
    for source in (network.config, network.generation_config, tokenizer):
        named = getattr(source, "eos_token_id", None)
        found.update(named if isinstance(named, (list, tuple)) else [named] if named is not None else [])
    return frozenset(found)


def _fingerprint(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


# --- Tokens of several answers as one tensor --------------------------------------------------------------------


def padded(rows: Sequence[Sequence[int]], device: torch.device, left: bool = False) -> torch.Tensor:
    """Rows of tokens as int64 `[B, T]`, zeros beyond their lengths (in front of them where `left`).

    Padding is told by lengths, never by its token, which may well be one that ends answers.
    """
    width = max(map(len, rows))
    filled = [
        [0] * (width - len(row)) + list(row) if left else list(row) + [0] * (width - len(row)) for row in rows
    ]
    return torch.tensor(filled, dtype=torch.int64, device=device)


def token_log_probs(
    network: Any, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probability of each token of an answer, as the distribution has it that `sample` draws from.

    Returns:
      float32 `[N]`.
    """
    whole = torch.tensor([[*prompt, *tokens]], device=network.device)
    logits = network(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
    log_probs = F.log_softmax(logits.float() / temperature, -1)
    return log_probs.gather(1, whole[0, len(prompt) :, None])[:, 0]


_AT_ONCE = 512  # tokens whose logits are in memory together: 100 MB for each 50,000 words of a vocabulary


def log_softmax_of(head: Any, states: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary, float32 `[N, V]`, of states `[N, D]` after the last norm."""
    logits: torch.Tensor = head(states.to(head.weight.dtype))
    return F.log_softmax(logits.float() / temperature, -1)


def log_probs_of(
    head: Any, states: torch.Tensor, tokens: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of tokens, by chunks: logits of all tokens are never in memory, in the backward pass neither.

    Args:
      head: makes logits of states.
      states: float `[N, D]`, after the last norm, at the places before the tokens.
      tokens: int64 `[N]`.
      temperature: divides the logits.

    Returns:
      float32 `[N]`.
    """

    def chunk(states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return log_softmax_of(head, states, temperature).gather(1, tokens[:, None])[:, 0]

    parts = zip(states.split(_AT_ONCE), tokens.split(_AT_ONCE), strict=True)
    return torch.cat([checkpoint(chunk, *part, use_reentrant=False) for part in parts])


# --- The lower and the upper layers -----------------------------------------------------------------------------


def cut(base: Any, at: int, upper: int | None = None) -> tuple[Any, Any]:
    """The first layers of a model without its head, and the layers after them.

    `upper(inputs_embeds=lower(tokens))` is what the whole computes, where the upper layers are all the others.

    Args:
      base: the network of a `LanguageModel`'s `model` attribute.
      at: how many layers are below the cut.
      upper: how many layers above it; None for all.

    Returns:
      The lower part, which shares its weights with the model and ends without a norm; the upper part, a copy with the
      model's last norm, which takes `inputs_embeds`.
    """
    stop = len(base.layers) if upper is None else at + upper
    lower = _part(base, base.layers, 0, at, nn.Identity())
    layers: Any = copy.deepcopy(base.layers[at:stop])
    for number, layer in enumerate(layers):
        layer.self_attn.layer_idx = number
    above = _part(base, layers, at, stop, copy.deepcopy(base.norm))
    del above._modules["embed_tokens"]
    return lower, above


def branch(network: Any, at: int) -> Any:
    """A causal language model whose layers from `at` on, and last norm, are copies; all else it shares with the other.

    It samples with a cache as any whole model does. `cut(branched.model, at)` shares nothing with it; `above` does.
    """
    fresh = copy.copy(network)
    fresh._modules = dict(network._modules)
    base = network.model
    layers = [*base.layers[:at], *copy.deepcopy(base.layers[at:])]
    fresh.model = _part(base, layers, 0, len(layers), copy.deepcopy(base.norm))
    return fresh


def between(base: Any, start: int, stop: int) -> Any:
    """Some layers of a model, shared with it, without a norm. They take `inputs_embeds`, and no cache."""
    return _between(base, start, stop, nn.Identity())


def above(base: Any, at: int) -> Any:
    """The layers from `at` on and the last norm, shared with the model. They take `inputs_embeds`, and no cache."""
    return _between(base, at, len(base.layers), base.norm)


def _between(base: Any, start: int, stop: int, norm: nn.Module) -> Any:
    part = _part(base, base.layers[start:stop], start, stop, norm)
    del part._modules["embed_tokens"]
    return part


def _part(base: Any, layers: Any, start: int, stop: int, norm: nn.Module) -> Any:
    """A model like another one with other layers: those of its configuration from `start` to `stop`."""
    part = copy.copy(base)
    part._modules = dict(base._modules)
    part.layers, part.norm = nn.ModuleList(list(layers)[: stop - start]), norm
    part.config = copy.deepcopy(base.config)
    if getattr(base.config, "layer_types", None) is not None:
        part.config.layer_types = base.config.layer_types[start:stop]
    part.config.num_hidden_layers = stop - start
    return part
