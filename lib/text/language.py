"""Language models from local folders: loading them without trusting them, prompts as tokens, saving.

A folder may come from a stranger: only safetensors are read, no code in it runs, and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lib.checkpoints import check_weights
from lib.cli import UserError, one_line
from lib.files import sync_folder, write_atomic
from lib.preferences.prompts import Prompt, last, messages_of
from lib.text.layers import above, branch, with_adapters
from lib.text.lora import adapters, fold

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
"""Families whose lower and upper layers compute separately what they compute together (tests/text/test_language.py)."""


POLICY = "policy.json"
"""The file that makes a folder a finetuned model: upper layers over the model of another folder."""
_MAX_POLICY = 1 << 26  # bytes; an evaluated answer takes some 160


@dataclass(frozen=True)
class Root:
    """The whole model that a finetuned one differs from in its upper layers, or by adapters."""

    folder: Path
    weights: str
    at: int
    """The number of its layers that the finetuned model shares."""
    rank: int = 0
    """Of the adapters on all layers; 0 for layers of its own."""


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

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens that an answer to a prompt continues: those of the chat template, or of the bare text.

        Raises:
          UserError: the template cannot be applied or a dialogue has none, or the prompt has no tokens or one that the
            network lacks.
        """
        if self.chat:
            try:
                tokens = self.tokenizer.apply_chat_template(
                    messages_of(prompt), add_generation_prompt=True, return_dict=False
                )
            except Exception as error:  # a template may fail in any way
                raise UserError(
                    f"{self.folder}: its chat template fails on the prompt {last(prompt)[:60]!r} "
                    f"({one_line(str(error))[:200]}); "
                    + ("try --no-chat" if isinstance(prompt, str) else "leave it out, or take another model")
                ) from None
        elif not isinstance(prompt, str):
            raise UserError(
                f"{self.folder}: expected a chat template for a prompt of several messages, {last(prompt)[:60]!r}; take a "
                "model that has one, without --no-chat"
            )
        else:
            tokens = self.tokenizer(prompt)["input_ids"]
            # Some tokenizers end every text, which an answer is to continue.
            if tokens[-1:] == [self.end] != self.encode_answer(prompt, finished=False)[-1:]:
                tokens = tokens[:-1]
            tokens = tokens or [self.tokenizer.bos_token_id]
        if not tokens or tokens[0] is None:
            raise UserError(f"{self.folder}: the prompt {last(prompt)[:60]!r} has no tokens")
        if max(tokens) >= (known := self.network.config.vocab_size):
            raise UserError(
                f"{self.folder}: the prompt {last(prompt)[:60]!r} has the token {max(tokens)}; the network knows {known}"
            )
        return list(tokens)

    def check_room(self, prompt: Sequence[int], longest: int) -> None:
        """Refuses what is longer than the texts that the model was made for: it would ramble without a word.

        Args:
          prompt: tokens of a prompt.
          longest: answer to it, in tokens.

        Raises:
          UserError: says what is too long.
        """
        most = self.network.config.max_position_embeddings
        if len(prompt) + longest > most:
            raise UserError(
                f"{self.folder}: expected prompt and answer of at most {most} tokens (max_position_embeddings), got "
                f"{len(prompt)} and --tokens {longest}: {self.decode(prompt[:100])[:60]!r}…"
            )

    def encode_answer(self, text: str, finished: bool) -> list[int]:
        """The tokens of an answer given as text."""
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*tokens, self.end] if finished else list(tokens)

    @property
    def end(self) -> int:
        """The token that ends an answer given as text: the tokenizer's own, if it is one of `ends`."""
        own = self.tokenizer.eos_token_id
        return own if own in self.ends else min(self.ends)

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
            network, found = AutoModelForCausalLM.from_pretrained(
                folder,
                use_safetensors=True,
                dtype=torch.bfloat16 if bf16 else torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
                **options,
            )
        except Exception as error:  # a damaged folder fails in any way
            raise UserError(
                f"{folder}: expected a language model, which cannot be read: "
                f"{type(error).__name__}: {one_line(str(error))[:200]}"
            ) from None
    if lacking := sorted(found["missing_keys"]):  # which would be drawn at random, anew each time
        raise UserError(
            f"{folder}: expected all weights of its config.json, but {lacking[0]} is missing; copy the model again"
        )
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


def root_of(model: LanguageModel, at: int, rank: int = 0) -> Root:
    """The whole model that finetunes of a model belong to: the model itself, or the one it was finetuned from.

    Args:
      model: what the finetune begins with.
      at: how many of its layers stay.
      rank: of the adapters, 0 for layers.

    Raises:
      UserError: the model was finetuned in the other way, or with another rank.
    """
    root = model.root
    if root is None:
        return Root(model.folder, model.weights, at, rank)
    if root.rank != rank:
        way = f"--lora {root.rank}" if root.rank else "--unfrozen"
        raise UserError(
            f"{model.folder}: was finetuned with {way}; continue with that, or from a whole model: --merge FOLDER"
        )
    return dataclasses.replace(root, at=min(root.at, at))


def save_policy(folder: Path, model: LanguageModel, root: Root, about: Mapping[str, Any]) -> None:
    """Writes a finetuned model as a small folder: upper layers or adapters, and what they belong to. It appears when whole.

    Args:
      folder: where to; an earlier one of that name is replaced.
      model: the finetuned model.
      root: the model that it shares all else with, of `root_of`.
      about: further facts, such as `config`, `parents` and `steps`.

    Raises:
      OSError: it cannot be written.
    """
    from safetensors.torch import save

    base = model.network.model
    changed = adapters(base) if root.rank else above(base, root.at).state_dict()
    kept = {name: value.detach().cpu().contiguous() for name, value in changed.items()}
    described = {**about, **dataclasses.asdict(root), "folder": str(root.folder)}
    with _part_of(folder) as part:
        write_atomic(part / _file_of(root), save(kept))
        write_atomic(part / POLICY, (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode())
        shutil.rmtree(folder, ignore_errors=True)
    sync_folder(folder.parent)


def _file_of(root: Root) -> str:
    """The name of a finetuned model's weights."""
    return "adapters.safetensors" if root.rank else "top.safetensors"


def read_policy(folder: Path) -> dict[str, Any]:
    """The facts that `save_policy` wrote beside the weights.

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
            and type(found.get("rank", 0)) is int
            and found.get("rank", 0) >= 0
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise UserError(f"{folder}: expected a finetuned model, whose {POLICY} cannot be read")
    return dict(found)


def _load_policy(folder: Path, device: torch.device, bf16: bool, chat: bool | None) -> LanguageModel:
    """Reads a folder of `save_policy`."""
    from safetensors.torch import load_file

    # Such as saves/best, which moves on: answers and reward models name what it led to.
    if folder.is_symlink():
        folder = folder.parent / folder.readlink()
    about = read_policy(folder)
    root = Root(Path(about["folder"]), about["weights"], about["at"], about.get("rank", 0))
    if (root.folder / POLICY).is_file():
        raise UserError(
            f"{folder}: expected upper layers of a whole model, but {root.folder} is itself finetuned"
        )
    model = load_language_model(root.folder, device, bf16, chat)
    if model.weights != root.weights:
        raise UserError(
            f"{folder}: was finetuned from a model of weights {root.weights[:16]}, {root.folder} has {model.weights}"
        )
    path = folder / _file_of(root)
    try:
        state = check_weights(load_file(path), str(path))
        if root.rank:
            if root.rank > model.network.config.hidden_size:
                raise ValueError(f"adapters of rank {root.rank}")
            network = with_adapters(model.network, root.rank).requires_grad_(False)
            if state.keys() != adapters(network.model).keys():
                raise ValueError("other weights than adapters of all layers")
            network.model.load_state_dict(state, strict=False)
        else:
            network = branch(model.network, root.at)
            above(network.model, root.at).load_state_dict(state)
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in any way
        raise UserError(
            f"{path}: expected {'adapters' if root.rank else f'layers {root.at + 1} and up'} of {root.folder}: "
            f"{one_line(str(error))[:200]}"
        ) from None
    digest = hashlib.sha256(f"{root.weights} {_fingerprint([path])}".encode()).hexdigest()[:16]
    return dataclasses.replace(model, folder=folder, network=network, weights=digest, root=root)


def merge(folder: Path, target: Path) -> None:
    """Writes a finetuned model as a whole Hugging Face folder, which other programs read, in float32.

    A root in bf16 has half the bytes, but its numbers are too far apart for the small changes of a short finetune.

    Raises:
      UserError: the model cannot be read, or the target not be written or is there already.
    """
    model = load_language_model(folder, torch.device("cpu"))
    if model.root is None:
        raise UserError(
            f"--merge: expected a checkpoint of --save as -m, but {folder} is already a whole model"
        )
    if target.exists():
        raise UserError(f"--merge {target}: already exists; name a new folder")
    fold(model.network)
    try:
        # Its tokenizer.json as it is: reward models know the vocabulary by the fingerprint of these bytes.
        save_whole(target, model.network, model.tokenizer, model.root.folder / "tokenizer.json")
    except OSError as error:
        raise UserError(f"--merge {target}: could not be written: {error.strerror}") from None


def save_whole(folder: Path, network: Any, tokenizer: Any, vocabulary: Path | None = None) -> None:
    """Writes a network and its tokenizer as a Hugging Face folder, which appears when it is whole.

    Args:
      folder: where to.
      network: a model of transformers.
      tokenizer: of transformers.
      vocabulary: the tokenizer.json to copy; None: the tokenizer's, in this version's format.

    Raises:
      OSError: it cannot be written.
    """
    with _part_of(folder) as part:
        try:
            network.save_pretrained(part)
            tokenizer.save_pretrained(part)
        except OSError:
            raise
        except Exception as error:  # safetensors and tokenizers have their own for a full disk
            raise OSError(errno.EIO, one_line(str(error))[:200]) from None
        if vocabulary is not None:
            shutil.copyfile(vocabulary, part / "tokenizer.json")
        for path in part.glob("*.safetensors"):  # made readable by their owner alone
            shutil.copymode(part / "config.json", path)


@contextlib.contextmanager
def _part_of(folder: Path) -> Iterator[Path]:
    """An empty folder to write to, which takes another's name at the end, or is gone if that fails."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


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
    """Keeps transformers from fetching anything, and quiet, while it is imported and reads a folder."""
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
    """All tokens that end a text, according to a folder's files, which may name anything else beside them."""
    sources = network.config, network.generation_config, tokenizer
    named = [getattr(source, "eos_token_id", None) for source in sources]
    every = [one for some in named for one in (some if isinstance(some, (list, tuple)) else [some])]
    return frozenset(token for token in every if type(token) is int and 0 <= token < 2**31)


def _fingerprint(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]
