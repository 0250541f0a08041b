"""01_text.py: answers of a language model to a file of prompts, into a DB."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.cli import UserError
from lib.devices import resolve_bf16, resolve_device
from lib.interrupt import Interrupt
from lib.preferences.answers import (
    MAX_TOKENS,
    Answer,
    holds_answers,
    load_answer,
    prompt_of,
    save_answer,
)
from lib.preferences.prompts import FORM, Prompt, as_prompt, last, messages_of, prompt_key
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.provenance import git_commit
from lib.reporting import Progress, format_count, format_duration
from lib.text.config import TextConfig
from lib.text.language import LanguageModel, load_language_model
from lib.text.sampling import as_answer, sample


def read_prompts(path: Path, flag: str = "--prompts") -> list[Prompt]:
    """Prompts of a file: its lines, or the "prompt" of each line of .jsonl, without empty lines and repetitions.

    Args:
      path: the file.
      flag: by which it was named.

    Raises:
      UserError: the file cannot be read, or has no prompts.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # Windows may write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{flag} {path}: expected a text file in UTF-8: {error}") from None
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = as_prompt(json.loads(line)["prompt"] if path.suffix == ".jsonl" else line.rstrip("\r"))
            blank = not messages_of(prompt)[-1]["content"].strip()
        except (ValueError, LookupError, TypeError, RecursionError):
            blank = True
        if blank:
            raise UserError(f'{path} line {number}: expected a prompt, in .jsonl as {{"prompt": …}}: {FORM}')
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{flag} {path}: expected a prompt a line, found none")
    return list(dict.fromkeys(prompts))


def open_answers(path: Path) -> SegmentDB:
    """The DB of a folder, which is created if missing.

    Raises:
      UserError: it cannot be made, or holds clips.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--db-path {path}: expected a folder: {error.strerror}") from None
    db = SegmentDB(path)
    if db.names and not holds_answers(db):
        raise UserError(f"--db-path {path}: holds clips; take another folder for answers")
    return db


class Recorded(NamedTuple):
    """What `record` did."""

    written: int
    """Answers."""
    stopped: bool
    """Whether the user stopped it before all were written."""


class AnswerFolders:
    """The folder of each prompt in a DB, and the answers in it. Other processes may write there, too.

    Args:
      db: the DB; its answers are read once.
    """

    def __init__(self, db: SegmentDB) -> None:
        self._db = db
        self._folders: dict[Prompt, str] = {}
        self._highest: dict[str, int] = {}
        self._made: dict[str, set[str]] = {}
        for name in db.names:
            folder, number = prompt_of(name), int(Path(name).stem)
            self._highest[folder] = max(number, self._highest.get(folder, -1))
            try:
                answer = load_answer(db, name)
            except SegmentError:
                continue
            self._folders.setdefault(answer.prompt, folder)
            self._made.setdefault(folder, set()).add(answer.origin.get("draw", ""))

    def has(self, prompt: Prompt, draw: str) -> bool:
        """Whether the DB has this draw's answer to a prompt; see `Draw.key`."""
        return draw in self._made.get(self._folders.get(prompt, ""), ())

    def add(self, answer: Answer) -> str:
        """Writes an answer under the next free name of its prompt's folder, which it returns.

        Raises:
          SegmentError: it is too large for a DB, or damaged.
          UserError: the DB cannot be written to.
        """
        try:
            while True:
                folder = self._folder(answer.prompt)
                self._highest[folder] = number = self._highest[folder] + 1
                name = f"{folder}/{number:08d}.dat"
                with contextlib.suppress(FileExistsError):  # another process's
                    save_answer(self._db.root / name, answer)
                    return name
        except OSError as error:
            raise UserError(
                f"{self._db.root}: an answer could not be written: {error.strerror}; make room and start again"
            ) from None

    def _folder(self, prompt: Prompt) -> str:
        """The folder of a prompt's answers, or the next that no process has."""
        while prompt not in self._folders:
            folder = f"{max(map(int, self._highest), default=-1) + 1:02d}"
            self._highest[folder] = -1
            try:
                (self._db.root / folder).mkdir()
            except FileExistsError:
                for path in sorted((self._db.root / folder).glob("*.dat"))[:1]:
                    with contextlib.suppress(SegmentError):
                        theirs = load_answer(self._db, f"{folder}/{path.name}").prompt
                        self._folders.setdefault(theirs, folder)
            else:
                self._folders[prompt] = folder
        return self._folders[prompt]


@dataclass(frozen=True)
class Draw:
    """An answer to be drawn."""

    prompt: Prompt
    tokens: list[int]
    key: str
    """Names it among all answers to the prompt: same model, settings and number, same answer."""
    number: int


def record(config: TextConfig) -> Recorded:
    """Samples the answers that the DB lacks of `--answers` to each prompt, one prompt after the other.

    Raises:
      UserError: the flags, the model or the DB are wrong; says what to do.
    """
    assert config.db_path is not None
    device = resolve_device(config.dev)
    prompts = read_prompts(config.prompts)
    db = open_answers(config.db_path)
    model = load_language_model(config.model, device, resolve_bf16(config.bf16, device), config.chat)
    folders = AnswerFolders(db)
    settings = f"{model.weights} {config.temperature:g} {config.tokens} {config.seed} {int(model.chat)}"
    lacking = [
        Draw(prompt, tokens, key, number)
        for prompt in prompts
        for tokens in [_encoded(model, prompt, config.tokens)]
        for number in range(config.answers)
        if not folders.has(prompt, key := f"{settings} {number}")
    ]
    wanted, written, count = len(prompts) * config.answers, 0, 0
    began = time.monotonic()
    with Interrupt() as interrupt, Progress() as progress:
        progress.line(
            f"{len(prompts)} prompts, {config.answers} answers each by {config.model}"
            + (f"; {wanted - len(lacking)} of {wanted} exist" if len(lacking) < wanted else "")
        )
        # Prompts of a similar length are sampled together; padding costs time.
        lacking.sort(key=lambda draw: len(draw.tokens))
        for at in range(0, len(lacking), config.batch_size):
            batch = lacking[at : at + config.batch_size]
            for answer in _sampled(model, batch, config, lambda: interrupt.asked):
                try:
                    folders.add(answer)
                except SegmentError as error:
                    progress.line(str(error))
                    continue
                written += 1
                count += len(answer.tokens)
            seconds = time.monotonic() - began
            if interrupt.asked:
                break
            done = at + len(batch)
            progress.update(
                f"{wanted - len(lacking) + written} of {wanted} answers, {format_count(count / seconds)} tokens/s, "
                f"{format_duration(seconds / done * (len(lacking) - done))} to go"
            )
        seconds = time.monotonic() - began
        progress.line(
            f"{config.db_path}: {written} answers of {count} tokens in {format_duration(seconds)}"
            + (f", {format_count(count / seconds)} tokens/s" if written else "")
        )
        if interrupt.asked:
            progress.line("stopped by request; the same command continues")
    return Recorded(written, interrupt.asked)


def _encoded(model: LanguageModel, prompt: Prompt, longest: int) -> list[int]:
    tokens = model.encode(prompt)
    if len(tokens) > MAX_TOKENS:
        raise UserError(
            f"--prompts: expected prompts of at most {MAX_TOKENS} tokens, got one of {len(tokens)}: {last(prompt)[:60]!r}…"
        )
    model.check_room(tokens, longest)
    return tokens


def _sampled(
    model: LanguageModel, batch: list[Draw], config: TextConfig, should_stop: Callable[[], bool]
) -> Iterator[Answer]:
    """Answers to a batch of prompts; none if stopped."""
    chances = np.stack([_chances(draw, config) for draw in batch])
    drawn = sample(model, [draw.tokens for draw in batch], chances, config.temperature, should_stop)
    if drawn is None:
        return
    origin = {
        "weights": model.weights,
        "temperature": f"{config.temperature:g}",
        "seed": str(config.seed),
        "commit": git_commit(),
    }
    for draw, found in zip(batch, drawn, strict=True):
        known = {"policy": str(model.folder), "origin": origin | {"draw": draw.key}}
        yield as_answer(model, draw.prompt, draw.tokens, found, **known)


def _chances(draw: Draw, config: TextConfig) -> np.ndarray:
    """The random numbers of one answer, float64 `[N]`, the same whatever else is sampled."""
    seed = [config.seed, draw.number, *prompt_key(draw.prompt).encode()]
    return np.random.default_rng(seed).random(config.tokens)
