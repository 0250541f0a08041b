"""Preferences on answers as JSON lines of prompt, chosen and rejected, which other trainers read and write."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib.cli import UserError
from lib.files import write_atomic
from lib.preferences.answers import Answer, holds_answers, load_answer, prompt_of
from lib.preferences.labels import Label, LabelLog, Pair, current, pair_of
from lib.preferences.prompts import MAX_TEXT, Prompt, as_prompt, is_text, last, messages_of
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.reporting import Progress
from lib.text.record import AnswerFolders, open_answers

_SPEAKER = re.compile(r"\n\n(Human|Assistant):")  # of HH-RLHF, whose dialogues are one text
_ROLES = {"Human": "user", "Assistant": "assistant"}


class _Row(NamedTuple):
    """A line: a preference or, with one answer, an answer without a label."""

    prompt: Prompt
    answers: tuple[str, ...]
    """The chosen one first; none if they answer different dialogues."""


def export_preferences(path: Path, file: Path, chat: bool) -> str:
    """Writes the labels of a DB that prefer an answer; ties are left out, as the format has no place for them.

    Args:
      path: the DB.
      file: where to.
      chat: write lists of messages, which trainers put into the model's chat template, rather than texts, which they
        join without a space.

    Returns:
      What was done, in a line.

    Raises:
      UserError: the DB holds no answers, or dialogues where texts are wanted, or the file cannot be written.
    """
    if file.exists() and not file.is_file():
        raise UserError(f"--export-jsonl {file}: expected a file to write, found a folder, device or pipe")
    db = SegmentDB(path)
    if not holds_answers(db):
        raise UserError(f"--export-jsonl {path}: expected a DB of answers, found none in it")
    if file.resolve().is_relative_to(path.resolve()):  # such as its labels.json
        raise UserError(f"--export-jsonl {file}: expected a file outside the DB; name another")
    lines, left_out = [], 0
    for label in current(LabelLog(path / "labels.json").read()):
        if label.label not in (1, 2) or prompt_of(label.sample1) != prompt_of(label.sample2):
            left_out += 1
            continue
        pair = (label.sample1, label.sample2) if label.label == 1 else (label.sample2, label.sample1)
        try:
            chosen, rejected = (load_answer(db, name) for name in pair)
        except SegmentError:
            left_out += 1
            continue
        prompt, texts = chosen.prompt, {"chosen": chosen.text, "rejected": rejected.text}
        if chat:
            answers = {key: [{"role": "assistant", "content": text}] for key, text in texts.items()}
            values: dict[str, Any] = {"prompt": messages_of(prompt), **answers}
        elif isinstance(prompt, str):
            values = {"prompt": prompt, **texts}
        else:
            raise UserError(
                f"--export-jsonl {path}: expected prompts that are texts, got one of several messages, "
                f"{last(prompt)[:60]!r}; leave --no-chat out"
            )
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    try:
        write_atomic(file.resolve(), "".join(lines).encode())
    except OSError as error:
        raise UserError(f"{file}: could not be written: {error.strerror}") from None
    return f"{file}: {len(lines)} preferences" + (
        f"; {left_out} ties or unreadable labels left out" if left_out else ""
    )


def import_preferences(file: Path, path: Path) -> str:
    """Adds the answers and the preferences of a file to a DB, which is created if missing.

    A line is a preference, or a prompt and a completion, which is an answer without a label.

    An answer that the DB has already is not added again. The file's name is the labeller, with a number where further
    lines are about the same pair: of one labeller the last word alone would count.

    Returns:
      What was done, in a line.

    Raises:
      UserError: a line has another form, or the DB holds clips or cannot be written.
    """
    read = list(_read(file))
    rows = [row for row in read if row.answers and len(row.answers) == len(set(row.answers))]
    db = open_answers(path)
    folders, log, rng = AnswerFolders(db), LabelLog(path / "labels.json"), np.random.default_rng(0)
    names: dict[tuple[Prompt, str], str] = {}
    for name in db.names:
        try:
            answer = load_answer(db, name)
        except SegmentError:
            continue
        names.setdefault((answer.prompt, answer.text), name)
    added, lines = 0, Counter[Pair]()
    with Progress() as progress:
        for number, (prompt, texts) in enumerate(rows, start=1):
            for text in texts:
                if (prompt, text) not in names:
                    names[prompt, text] = folders.add(
                        Answer(prompt, text, True, origin={"file": _spelt(file.name)[:1000]})
                    )
                    added += 1
            progress.update(f"{number} of {len(rows)} lines")
            if len(texts) == 1:
                continue
            first = bool(rng.integers(2))  # so that neither place means the better one
            pair = (names[prompt, texts[0]], names[prompt, texts[1]])
            lines[pair_of(*pair)] += 1
            count = lines[pair_of(*pair)]
            labeller = _spelt(file.stem)[:60] + (f" {count}" if count > 1 else "")
            try:
                log.append(Label(*(pair if first else pair[::-1]), 1 if first else 2, annotator=labeller))
            except OSError as error:
                raise UserError(
                    f"{log.path}: could not be written: {error.strerror}; make room and start again"
                ) from None
    apart = sum(not row.answers for row in read)
    equal = len(read) - len(rows) - apart
    left_out = [
        f"{count} {kind}"
        for count, kind in ((equal, "with equal answers"), (apart, "with answers to two dialogues"))
        if count
    ]
    return f"{path}: {added} answers and {lines.total()} labels of {file}" + (
        f"; {' and '.join(left_out)} left out" if left_out else ""
    )


def _spelt(name: str) -> str:
    """A file's name as UTF-8 can spell it, which Linux does not ask of names."""
    return name.encode(errors="replace").decode()


def _read(file: Path) -> Iterator[_Row]:
    """The lines of a file. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--import-jsonl {file}: expected a text file in UTF-8: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _row(json.loads(line))
        except (ValueError, LookupError, TypeError, RecursionError):
            raise UserError(
                f"{file} line {number}: expected prompt, chosen and rejected, or prompt and completion, each a text of at "
                f"most {MAX_TEXT} bytes or a list of messages; answers to one dialogue, of one message each; rewrite or "
                "leave out others"
            ) from None


def _row(line: dict[str, Any]) -> _Row:
    """A line's prompt and answers. Raises ValueError, LookupError or TypeError if it has another form."""
    answers = [line[key] for key in (("chosen", "rejected") if "chosen" in line else ("completion",))]
    prompt = line.get("prompt")
    if prompt is None and all(isinstance(answer, str) for answer in answers):
        answers = [_dialogue(answer) for answer in answers]
        if answers[0][:-1] != answers[-1][:-1]:  # as some of HH-RLHF's do
            return _Row("", ())
    if not isinstance(answers[0], list):
        asked = as_prompt(prompt)
    else:  # messages, the last of which is the answer; before them may stand the prompt
        answers = [_plain(answer) for answer in answers]
        before = _plain(prompt) if isinstance(prompt, list) else []
        dialogues = [one if one[: len(before)] == before else [*before, *one] for one in answers]
        if any(not answer or answer[-1]["role"] != "assistant" for answer in answers):
            raise ValueError("no answer")
        answers = [dialogue[-1]["content"] for dialogue in dialogues]
        [asked] = {as_prompt(dialogue[:-1]) for dialogue in dialogues}
    if not all(map(is_text, answers)):
        raise ValueError("no text")
    return _Row(asked, tuple(answers))


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without keys that do not count here, such as a weight."""
    return [{"role": one["role"], "content": one["content"]} for one in messages]


def _dialogue(text: str) -> list[dict[str, str]]:
    """The messages of a dialogue in the form of HH-RLHF: "\\n\\nHuman: …\\n\\nAssistant: …". Raises ValueError."""
    start, *pieces = _SPEAKER.split(f"\n\n{text.strip()}")
    if start:
        raise ValueError("words before the first speaker")
    return [
        {"role": _ROLES[who], "content": content.strip()}
        for who, content in zip(pieces[::2], pieces[1::2], strict=True)
    ]
