"""Preferences on answers as JSON lines of prompt, chosen and rejected, which other trainers read and write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lib.cli import UserError
from lib.files import write_atomic
from lib.preferences.answers import MAX_TEXT, Answer, holds_answers, load_answer, prompt_of
from lib.preferences.labels import Label, LabelLog, Pair, current, pair_of
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import SegmentError
from lib.reporting import Progress
from lib.text.record import AnswerFolders, open_answers

_KEYS = ("prompt", "chosen", "rejected")


def export_preferences(path: Path, file: Path, chat: bool) -> str:
    """Writes the labels of a DB that prefer an answer; ties are left out, as the format has no place for them.

    Args:
      path: the DB.
      file: where to.
      chat: write lists of one message, which trainers put into the model's chat template, rather than texts, which they
        join without a space.

    Returns:
      What was done, in a line.

    Raises:
      UserError: the DB holds no answers, or the file cannot be written.
    """
    db = SegmentDB(path)
    if not holds_answers(db):
        raise UserError(f"--export-jsonl {path}: expected a DB of answers, found none in it")
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
        values: dict[str, Any] = dict(zip(_KEYS, (chosen.prompt, chosen.text, rejected.text), strict=True))
        if chat:
            for key, text in values.items():
                values[key] = [{"role": "user" if key == "prompt" else "assistant", "content": text}]
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    try:
        write_atomic(file, "".join(lines).encode())
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
    rows = [row for row in read if len(row) == 2 or row[1] != row[2]]
    db = open_answers(path)
    folders, log, rng = AnswerFolders(db), LabelLog(path / "labels.json"), np.random.default_rng(0)
    names: dict[tuple[str, str], str] = {}
    for name in db.names:
        try:
            answer = load_answer(db, name)
        except SegmentError:
            continue
        names.setdefault((answer.prompt, answer.text), name)
    added, lines = 0, Counter[Pair]()
    with Progress() as progress:
        for number, (prompt, *texts) in enumerate(rows, start=1):
            for text in texts:
                if (prompt, text) not in names:
                    names[prompt, text] = folders.add(
                        Answer(prompt, text, True, origin={"file": file.name[:1000]})
                    )
                    added += 1
            progress.update(f"{number} of {len(rows)} lines")
            if len(texts) == 1:
                continue
            first = bool(rng.integers(2))  # so that neither place means the better one
            pair = (names[prompt, texts[0]], names[prompt, texts[1]])
            lines[pair_of(*pair)] += 1
            count = lines[pair_of(*pair)]
            labeller = file.stem[:60] + (f" {count}" if count > 1 else "")
            try:
                log.append(Label(*(pair if first else pair[::-1]), 1 if first else 2, annotator=labeller))
            except OSError as error:
                raise UserError(
                    f"{log.path}: could not be written: {error.strerror}; make room and start again"
                ) from None
    left_out = len(read) - len(rows)
    return f"{path}: {added} answers and {lines.total()} labels of {file}" + (
        f"; {left_out} with equal answers left out" if left_out else ""
    )


def _read(file: Path) -> Iterator[list[str]]:
    """Prompt, chosen and rejected of each line, or prompt and completion. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--import-jsonl {file}: expected a text file in UTF-8: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = _texts(json.loads(line))
            right = all(isinstance(value, str) and len(value.encode()) <= MAX_TEXT for value in values)
        except (ValueError, LookupError, TypeError, RecursionError):
            right = False
        if not right:
            raise UserError(
                f"{file} line {number}: expected prompt, chosen and rejected, or prompt and completion, each a text of "
                f"at most {MAX_TEXT} bytes or a list of one message; rewrite or leave out others, such as longer dialogues"
            )
        yield values


def _texts(row: dict[str, Any]) -> list[Any]:
    """Those of a line. In place of texts it may have lists of messages; the answers' may begin with the prompt."""
    answers = [row[key] for key in (_KEYS[1:] if "chosen" in row else ["completion"])]
    if not isinstance(answers[0], list):
        return [row["prompt"], *answers]
    before = row.get("prompt")
    before = before if isinstance(before, list) else []
    asked, texts = zip(*[[one["content"] for one in (*before, *answer)] for answer in answers], strict=True)
    [prompt] = set(asked)
    return [prompt, *texts]
