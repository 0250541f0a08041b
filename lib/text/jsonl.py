"""Preferences on answers as JSON lines of prompt, chosen and rejected, which other trainers read and write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

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


def export_preferences(path: Path, file: Path) -> str:
    """Writes the labels of a DB that prefer an answer; ties are left out, as the format has no place for them.

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
        values = dict(zip(_KEYS, (chosen.prompt, chosen.text, rejected.text), strict=True))
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

    An answer that the DB has already is not added again. The file's name is the labeller, with a number where further
    lines are about the same pair: of one labeller the last word alone would count.

    Returns:
      What was done, in a line.

    Raises:
      UserError: a line has another format, or the DB holds clips or cannot be written.
    """
    read = list(_read(file))
    preferences = [row for row in read if row[1] != row[2]]
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
        for number, (prompt, chosen, rejected) in enumerate(preferences, start=1):
            for text in (chosen, rejected):
                if (prompt, text) not in names:
                    names[prompt, text] = folders.add(
                        Answer(prompt, text, True, origin={"file": file.name[:1000]})
                    )
                    added += 1
            first = bool(rng.integers(2))  # so that neither place means the better one
            pair = (names[prompt, chosen], names[prompt, rejected])
            lines[pair_of(*pair)] += 1
            count = lines[pair_of(*pair)]
            labeller = file.stem[:60] + (f" {count}" if count > 1 else "")
            try:
                log.append(Label(*(pair if first else pair[::-1]), 1 if first else 2, annotator=labeller))
            except OSError as error:
                raise UserError(
                    f"{log.path}: could not be written: {error.strerror}; make room and start again"
                ) from None
            progress.update(f"{number} of {len(preferences)} preferences")
    left_out = len(read) - len(preferences)
    return f"{path}: {added} answers and {len(preferences)} labels of {file}" + (
        f"; {left_out} with equal answers left out" if left_out else ""
    )


def _read(file: Path) -> Iterator[tuple[str, str, str]]:
    """Prompt, chosen and rejected of each line. Raises UserError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--import-jsonl {file}: expected a text file in UTF-8: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            values = [content[key] for key in _KEYS]
            right = all(isinstance(value, str) and len(value.encode()) <= MAX_TEXT for value in values)
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right:
            raise UserError(
                f"{file} line {number}: expected prompt, chosen and rejected, each a text of at most {MAX_TEXT} bytes, "
                "not a list of messages"
            )
        yield values[0], values[1], values[2]
