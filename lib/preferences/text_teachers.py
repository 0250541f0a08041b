"""Simulated teachers and judges of answers, for demonstrations and experiments.

=============  ================================================================================
shorter        fewer words
keyword        the word of `--keyword` more often, as a whole word in any case
no-questions   fewer question marks, in any script
positive       words that viewers use when they like a film (`positivity`, of 12,500 IMDB reviews)
=============  ================================================================================

Any of them errs as the teachers of clips do (`lib.preferences.teachers`): `--error-rate` as `mistake`, `--beta` as
`noisy`, `--threshold` as `equal`.

Two judges measure what `positive` does by other means, for evaluations that no reward model has learned from:

=============  ================================================================================
critics        words that critics use when they like a film (of 8,530 sentences from Rotten Tomatoes)
vader          VADER's compound score, −1 … 1: a lexicon rated by hand, and rules for negation, emphasis and contrast
               (Hutto & Gilbert 2014)
=============  ================================================================================
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from lib.cli import UserError
from lib.preferences.answers import Answer, word_count

JUDGES = ("critics", "vader")
WORDS = Path("models/words.json")
"""Log-odds of words for `positive` and `critics`, made by `make model`."""
_QUESTION_MARKS = re.compile("[?\uff1f\u061f\u037e\u055e\u1367\u2047\u2048\u2049]")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_NEUTRAL = 10


def value_of(name: str, keyword: str = "") -> Callable[[Answer], float]:
    """An answer's value to the teacher or judge of that name.

    Raises:
      UserError: it needs words or a package that `make model` would have fetched.
    """
    if name in ("positive", "critics"):
        words = _read_words(WORDS)[name]
        return lambda answer: positivity(answer.text, words)
    if name == "vader":
        return _vader()
    word = re.compile(rf"(?<!\w){re.escape(keyword)}(?!\w)", re.IGNORECASE)
    tastes: dict[str, Callable[[Answer], float]] = {
        "shorter": lambda answer: -float(word_count(answer.text)),
        "keyword": lambda answer: float(len(word.findall(answer.text))),
        "no-questions": lambda answer: -float(len(_QUESTION_MARKS.findall(answer.text))),
    }
    return tastes[name]


def positivity(text: str, words: Mapping[str, float]) -> float:
    """Σ log-odds of the words of a text ÷ (their number + 10), so that neither repetition nor brevity alone pays.

    Args:
      text: any.
      words: log-odds of words in lower case; others count 0.
    """
    said = _WORD.findall(text.lower())
    return sum(words.get(word, 0.0) for word in said) / (len(said) + _NEUTRAL)


def log_odds(good: Collection[str], bad: Collection[str], least: int) -> dict[str, float]:
    """log P(word | good text) − log P(word | bad text) of each word that `least` texts or more contain.

    P is the share of texts that contain the word, with one more text on either side that does and one that does not.
    """
    counts = [
        Counter(word for text in texts for word in set(_WORD.findall(text.lower()))) for texts in (good, bad)
    ]
    return {
        word: round(
            math.log((counts[0][word] + 1) / (len(good) + 2))
            - math.log((counts[1][word] + 1) / (len(bad) + 2)),
            3,
        )
        for word in sorted(counts[0] | counts[1])
        if counts[0][word] + counts[1][word] >= least
    }


@functools.cache
def _read_words(path: Path) -> dict[str, dict[str, float]]:
    try:
        words: dict[str, dict[str, float]] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"expected words and their log-odds in {path}, made by make model: {error}") from None
    return words


def _vader() -> Callable[[Answer], float]:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise UserError("the judge vader needs a package that is not installed; make install-text") from None
    analyzer = SentimentIntensityAnalyzer()
    return lambda answer: float(analyzer.polarity_scores(answer.text)["compound"])
