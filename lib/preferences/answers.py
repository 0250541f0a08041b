"""Answers of a language model on disk: `<db>/<prompt>/<number>.dat`, in the places that clips have in other DBs.

The folder is the prompt, so names alone say which answers may be compared. A file is a magic line and JSON in a
zstandard frame, which needs no unpickler. It may come from a stranger: its size is checked before it is unpacked, and
every field before it is used.
"""

import contextlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from lib.cli import UserError
from lib.preferences.closed_pickle import Refused, printable
from lib.preferences.prompts import MAX_TEXT, Prompt, as_json, as_prompt, is_text
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import MAX_ORIGIN, SegmentError, is_origin, read_regular, write_new

MAX_TOKENS = 8192
_MAX_TOKEN = 2**31 - 1
_MAX_FILE = 2**20  # bytes
_MAX_PLAIN = 2**22  # bytes of JSON; 8,192 tokens and log-probabilities take some 250 KB
_MAGIC = b"answer 1\n"
_CLIPS = (b"\x28\xb5\x2f\xfd", b"\x80", b"(")  # zstandard's magic, and how pickles of the original begin


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a prompt.

    Tokens are those that the model saw and drew. An answer imported as text has none.
    """

    prompt: Prompt
    text: str
    finished: bool
    """Whether the model ended it, rather than the limit on its length."""
    prompt_tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 `[P]`, chat template included."""
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 `[N]`, of a finished answer including the token that ended it."""
    log_probs: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    """float32 `[N]`, of each token under the distribution that it was drawn from."""
    tokenizer: str = ""
    """Fingerprint of the vocabulary that the tokens belong to."""
    policy: str = ""
    """The language model's folder; "" when it has none."""
    origin: dict[str, str] = field(default_factory=dict)
    """Further facts: weights, temperature, seed, commit, …"""


def save_answer(path: Path, answer: Answer) -> None:
    """Writes an answer; a reader sees the whole file or none, and an existing file is never overwritten.

    Args:
      path: where to; its folder is made when missing, the DB around that folder must exist.
      answer: what to write.

    Raises:
      FileExistsError: path exists.
      SegmentError: a field has a wrong type or size.
      OSError: the file could not be written; nothing is left behind.
    """
    plain = {
        "prompt": as_json(answer.prompt),
        "text": answer.text,
        "finished": answer.finished,
        "prompt_tokens": answer.prompt_tokens.tolist(),
        "tokens": answer.tokens.tolist(),
        "log_probs": [round(number, 6) for number in answer.log_probs.tolist()],
        "tokenizer": answer.tokenizer,
        "policy": answer.policy,
        "origin": answer.origin,
    }
    try:
        _from_plain(plain)
    except Refused as bad:
        raise SegmentError(f"{printable(str(path))}: not saved: {bad}") from None
    raw = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    data = _MAGIC + zstandard.ZstdCompressor(level=3, write_checksum=True).compress(raw)
    path.parent.mkdir(exist_ok=True)
    write_new(path, data)


def load_answer(db: SegmentDB, name: str) -> Answer:
    """Reads an answer by its name, such as "00/00000001.dat".

    Raises:
      SegmentError: it is missing, damaged, foreign or too large; the message names it.
    """
    return read_answer(db.path(name), f"{db.root.name}/{name}")


def is_answer(start: bytes) -> bool:
    """Whether a file that starts so, with nine bytes at least, is an answer."""
    return start.startswith(_MAGIC)


def read_answer(path: Path, name: str) -> Answer:
    """Reads an answer's file, with the caller's name for it in errors. Raises as `load_answer`."""
    try:
        return _from_plain(_unpack(read_regular(path, _MAX_FILE)))
    except Refused as bad:
        reason = str(bad)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except (ValueError, RecursionError, zstandard.ZstdError, MemoryError) as error:
        reason = f"damaged or not an answer ({type(error).__name__}: {printable(str(error), 100)})"
    raise SegmentError(f"{printable(name)}: {reason}")


def _unpack(data: bytes) -> object:
    if data.startswith(_CLIPS):
        raise Refused("a clip among answers of a language model")
    if not data.startswith(_MAGIC):
        raise Refused("not an answer of this project")
    packed = data[len(_MAGIC) :]
    size = zstandard.get_frame_parameters(packed).content_size
    if not 0 < size <= _MAX_PLAIN:  # unknown sizes are huge numbers
        raise Refused(f"would unpack to {size} bytes; an answer has at most {_MAX_PLAIN}")
    return json.loads(zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False).decode())


def _from_plain(plain: object) -> Answer:
    if not isinstance(plain, dict):
        raise Refused(f"expected an object, found {type(plain).__name__}")
    finished, origin = plain.get("finished"), plain.get("origin")
    if type(finished) is not bool:
        raise Refused("finished must be true or false")
    if not isinstance(origin, dict) or not is_origin(origin):
        raise Refused(f"origin must be at most {MAX_ORIGIN} short texts by name")
    try:
        prompt = as_prompt(plain.get("prompt"))
    except ValueError as error:
        raise Refused(f"prompt: {error}") from None
    tokens = _tokens(plain, "tokens")
    return Answer(
        prompt=prompt,
        text=_text(plain, "text"),
        finished=finished,
        prompt_tokens=_tokens(plain, "prompt_tokens"),
        tokens=tokens,
        log_probs=_log_probs(plain, len(tokens)),
        tokenizer=_text(plain, "tokenizer", 100),
        policy=_text(plain, "policy", 1000),
        origin=origin,
    )


def _text(plain: dict[str, Any], key: str, limit: int = MAX_TEXT) -> str:
    text = plain.get(key)
    if not is_text(text, limit):
        raise Refused(f"{key} must be a text of at most {limit} bytes")
    return text


def _tokens(plain: dict[str, Any], key: str) -> np.ndarray:
    numbers = plain.get(key)
    if type(numbers) is not list or len(numbers) > MAX_TOKENS:
        raise Refused(f"{key} must be a list of at most {MAX_TOKENS} numbers")
    if any(type(number) is not int or not 0 <= number <= _MAX_TOKEN for number in numbers):
        raise Refused(f"{key} must be whole numbers from 0 to {_MAX_TOKEN}")
    return np.array(numbers, np.int64)


def _log_probs(plain: dict[str, Any], count: int) -> np.ndarray:
    numbers = plain.get("log_probs")
    if type(numbers) is not list or len(numbers) != count:
        raise Refused(f"log_probs must be a list of {count} numbers")
    if any(type(number) not in (int, float) or not -1e6 < number <= 1e-3 for number in numbers):
        raise Refused("log_probs must be logarithms of probabilities")
    return np.array(numbers, np.float32)


def prompt_of(name: str) -> str:
    """The folder of an answer, which stands for its prompt."""
    return name.rpartition("/")[0]


def holds_answers(db: SegmentDB) -> bool:
    """Whether a DB holds answers rather than clips, by the first bytes of its files. False for an empty one.

    Raises:
      UserError: it holds both.
    """
    found: dict[bool, str] = {}
    for name in db.names:
        # Names of a listing lead nowhere else, and a large DB has many: `db.path` would take five times as long.
        with contextlib.suppress(OSError), open(f"{db.root}/{name}", "rb", buffering=0) as file:
            head = file.read(len(_MAGIC))
            if head == _MAGIC or head.startswith(_CLIPS):
                found.setdefault(head == _MAGIC, name)
        if len(found) == 2:
            raise UserError(
                f"{db.root}: expected clips or answers, found both ({found[False]} is a clip, {found[True]} an answer); "
                f"move one kind to a DB of its own"
            )
    return True in found


def hold_answers(paths: Iterable[Path]) -> bool:
    """Whether these DBs, as far as they are there, hold answers rather than clips.

    Raises:
      UserError: some hold answers and others clips, or one holds both.
    """
    kinds = {path: holds_answers(SegmentDB(path)) for path in paths if path.is_dir()}
    if len(set(kinds.values())) == 2:
        texts, clips = (next(path for path in kinds if kinds[path] is kind) for kind in (True, False))
        raise UserError(f"expected DBs of one kind, got answers in {texts} and clips in {clips}")
    return any(kinds.values())


_WORD = re.compile(r"\S+")


def word_count(text: str) -> int:
    """The words of a text: runs of anything but white space."""
    return len(_WORD.findall(text))


def distinct_2(texts: Iterable[str]) -> float:
    """Distinct pairs of neighbouring words among all such pairs of some texts, 0 … 1; 1 where there are none.

    Source: Li et al. 2016, arXiv 1510.03055. It falls with the number of texts: compare equally many of each model.
    """
    pairs = [pair for text in texts for pair in pairwise(_WORD.findall(text))]
    return len(set(pairs)) / len(pairs) if pairs else 1.0
