"""Teachers of answers, and that only answers to one prompt are compared."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from lib.cli import UserError
from lib.preferences import text_teachers
from lib.preferences.answers import Answer, load_answer, prompt_of
from lib.preferences.labels import LabelLog, current
from lib.preferences.queries import RandomPairs
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import save_segment
from lib.preferences.strategies import make_strategy
from lib.preferences.teachers import SimulatedLabeller, label_with_teacher, make_text_teacher
from lib.preferences.text_teachers import JUDGES, log_odds, positivity, value_of
from tests.label_ui.dbs import segment
from tests.text.dbs import answer_db, random_texts


def value(name: str, text: str, keyword: str | None = None) -> float:
    return make_text_teacher(name, keyword=keyword).value(Answer("p", text, True))


def test_what_each_teacher_values() -> None:
    assert value("shorter", "one two\nthree") == -3
    assert value("keyword", "Sea, sea! Seal, the sea.", "sea") == 3
    assert value("keyword", "C++ is not c", "c++") == 1
    assert value("no-questions", "Why? لماذا؟ 为什么？ Because.") == -3


def test_log_odds_of_words_and_what_they_make_of_a_text() -> None:
    words = log_odds(["Good film.", "good, good!", "a film"], ["bad film", "bad"], least=2)
    # Of the good texts 2 of 3 have "good", 2 "film", none "bad"; of the bad ones none, 1 and 2 of 2.
    expected = {"good": (3 / 5) / (1 / 4), "film": (3 / 5) / (2 / 4), "bad": (1 / 5) / (3 / 4)}
    assert words == {word: pytest.approx(np.log(ratio), abs=5e-4) for word, ratio in expected.items()}
    assert positivity("GOOD good", words) == pytest.approx(2 * words["good"] / 12)
    assert positivity("good, it's", words) == pytest.approx(words["good"] / 12)
    assert positivity("", words) == 0


def test_positive_and_the_judges_know_praise_from_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vaderSentiment", reason="requirements-text.txt")
    monkeypatch.setattr(text_teachers, "WORDS", tmp_path / "words.json")
    with pytest.raises(UserError, match=r"words.json, made by make model"):
        value_of("critics")
    words = {"positive": {"moving": 1.0, "mess": -1.0}, "critics": {"dull": -1.0}}
    (tmp_path / "words.json").write_text(json.dumps(words))
    praise, blame = (Answer("p", text, True) for text in ("A wonderful, moving film!", "A dull, awful mess."))
    for name in ("positive", *JUDGES):
        assert value_of(name)(praise) > value_of(name)(blame)
    assert value_of("positive")(praise) == 1 / 14


@pytest.mark.parametrize(
    ("teacher", "keyword"), [("shorter", None), ("keyword", "w3"), ("no-questions", None)]
)
def test_the_preferred_answer_is_worth_more_and_answers_the_same_prompt(
    teacher: str, keyword: str | None, tmp_path: Path
) -> None:
    db = answer_db(tmp_path / "db", random_texts(12, 4))
    summary = label_with_teacher(db, teacher, 40, keyword=keyword)
    assert summary.written == 40
    labels = current(LabelLog(db / "labels.json").read())
    worth, answers = make_text_teacher(teacher, keyword=keyword).value, SegmentDB(db)
    for label in labels:
        assert prompt_of(label.sample1) == prompt_of(label.sample2)
        first, second = (worth(load_answer(answers, name)) for name in (label.sample1, label.sample2))
        assert label.label == (0 if first == second else 1 if first > second else 2)
        assert label.teacher == (f"{teacher}:w3" if keyword else teacher)
    assert len({label.pair for label in labels}) == 40


def test_all_pairs_within_prompts_and_no_others(tmp_path: Path) -> None:
    db = answer_db(tmp_path / "db", random_texts(5, 3))
    summary = label_with_teacher(db, "shorter", 100)
    assert (summary.written, summary.exhausted) == (15, True)
    assert RandomPairs(prompt_of).count(SegmentDB(db).names) == 15
    assert RandomPairs().count(SegmentDB(db).names) == 105


def test_errors_are_those_of_teachers_of_clips(tmp_path: Path) -> None:
    db = answer_db(tmp_path / "a", random_texts(60, 4))
    summary = label_with_teacher(db, "shorter", 300, error_rate=0.2)
    assert 35 < summary.wrong < 85  # binomial of 300 and 0.2: 60 ± 7
    noisy = label_with_teacher(answer_db(tmp_path / "b", random_texts(60, 4)), "shorter", 300, beta=0.5)
    assert 0 < noisy.wrong < 150
    assert noisy.ties == 0
    ties = label_with_teacher(answer_db(tmp_path / "c", random_texts(60, 4)), "shorter", 300, threshold=0.3)
    assert ties.ties > 30  # within 0.3 of a mean of 5 words: 1 word
    label = current(LabelLog(tmp_path / "a" / "labels.json").read())[0]
    assert label.parameters == {"error_rate": 0.2, "seed": 0}


def test_pairs_are_drawn_evenly_whatever_their_prompts_size() -> None:
    names = ["00/0.dat", "00/1.dat", *(f"01/{i}.dat" for i in range(4))]
    rng, counts = np.random.default_rng(0), dict[tuple[str, str], int]()
    for _ in range(7000):
        pair = RandomPairs(prompt_of).propose(names, set(), 1, rng)[0].pair
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 7
    assert all(abs(count - 1000) < 130 for count in counts.values())


class _Lengths:
    """Rates answers by what is in them, as two members that disagree."""

    def __init__(self, db: SegmentDB) -> None:
        self._db = db

    def returns(self, names: list[str]) -> np.ndarray:
        lengths = np.array([len(load_answer(self._db, name).text) for name in names], float)
        return np.stack([lengths, -lengths])


@pytest.mark.parametrize("strategy", ["random", "disagreement", "entropy", "recent"])
def test_every_strategy_for_texts_stays_within_prompts(strategy: str, tmp_path: Path) -> None:
    db = SegmentDB(answer_db(tmp_path / "db", random_texts(70, 2)))
    made = make_strategy(strategy, db, _Lengths(db), 0.2, answers=True)  # type: ignore[arg-type]
    taken: set[tuple[str, str]] = set()
    rng = np.random.default_rng(0)
    for _ in range(7):
        for query in made.propose(db.names, taken, 10, rng):
            assert prompt_of(query.sample1) == prompt_of(query.sample2)
            assert query.pair not in taken
            taken.add(query.pair)
    assert len(taken) == 70


def test_recent_answers_are_those_written_last(tmp_path: Path) -> None:
    db = SegmentDB(answer_db(tmp_path / "db", random_texts(6, 3)))
    for name in db.names:  # the last two prompts were answered later than all others, by fewer answers
        late = name >= "04"
        os.utime(tmp_path / "db" / name, (2e9, 2e9) if late else (1e9, 1e9))
    strategy = make_strategy("recent", db, random_share=0, answers=True)
    queries = strategy.propose(db.names, set(), 4, np.random.default_rng(0))
    assert {name[:2] for query in queries for name in query.pair} <= {"04", "05"}


def test_a_teacher_of_answers_may_be_there_before_they_are(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    early = SimulatedLabeller(tmp_path / "db", "shorter")
    answer_db(tmp_path / "db", random_texts(4, 3))
    assert early.count_segments() == 12
    assert early.give(3).written == 3


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    texts, clips = answer_db(tmp_path / "texts", random_texts(2, 2)), tmp_path / "clips"
    clips.mkdir(exist_ok=True)
    save_segment(clips / "00" / "00000000.dat", segment(0))
    for options, match in (
        ({"db_path": texts, "teacher": "oracle"}, "compares clips, .* holds answers; take one of shorter"),
        ({"db_path": clips, "teacher": "shorter"}, "compares answers, .* holds clips"),
        ({"db_path": texts, "teacher": "keyword"}, "--keyword WORD go together"),
        ({"db_path": texts, "teacher": "shorter", "keyword": "x"}, "--keyword WORD go together"),
        (
            {"db_path": texts, "teacher": "keyword", "keyword": "\udcff"},
            "--keyword: expected a word in UTF-8",
        ),
        ({"db_path": texts, "teacher": "shorter", "myopia": 0.5}, "--myopia belongs"),
        ({"db_path": texts, "teacher": "shorter", "strategy": "diversity"}, "compares frames"),
    ):
        with pytest.raises(UserError, match=match):
            SimulatedLabeller(**options)  # type: ignore[arg-type]
