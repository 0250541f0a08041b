"""Simulated teachers of answers: tastes that a program can have, for demonstrations and experiments.

=============  ================================================================================
shorter        fewer words
keyword        the word of `--keyword` more often, as a whole word in any case
no-questions   fewer question marks, in any script
=============  ================================================================================

Any of them errs as the teachers of clips do (`lib.preferences.teachers`): `--error-rate` as `mistake`, `--beta` as
`noisy`, `--threshold` as `equal`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lib.preferences.answers import Answer, word_count

_QUESTION_MARKS = re.compile("[?\uff1f\u061f\u037e\u055e\u1367\u2047\u2048\u2049]")


def value_of(name: str, keyword: str = "") -> Callable[[Answer], float]:
    """What an answer is worth to the teacher of that name."""
    word = re.compile(rf"(?<!\w){re.escape(keyword)}(?!\w)", re.IGNORECASE)
    tastes: dict[str, Callable[[Answer], float]] = {
        "shorter": lambda answer: -float(word_count(answer.text)),
        "keyword": lambda answer: float(len(word.findall(answer.text))),
        "no-questions": lambda answer: -float(len(_QUESTION_MARKS.findall(answer.text))),
    }
    return tastes[name]
