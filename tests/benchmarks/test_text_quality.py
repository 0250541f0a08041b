"""What benchmarks.text_quality refuses before it fits anything."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vaderSentiment", reason="language models need requirements-text.txt")

from benchmarks import text_quality
from benchmarks.text_quality import TextQualityConfig, measure
from lib.cli import UserError
from lib.preferences import text_teachers
from lib.preferences.answers import Answer, save_answer


def answers(db: Path, prompts: int, each: int) -> Path:
    """So many answers to each prompt, the later the better."""
    db.mkdir()
    for prompt in range(prompts):
        for number in range(each):
            answer = Answer(f"{prompt}?", "good " * (1 + number), finished=True)
            save_answer(db / f"{prompt:02d}" / f"{number:08d}.dat", answer)
    return db


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Eight prompts with two answers each, six of them to label."""
    (tmp_path / "words.json").write_text(json.dumps({"positive": {"good": 1.0}, "critics": {"good": 1.0}}))
    (tmp_path / "reviews.json").write_text(json.dumps({"liked": ["good"], "disliked": ["bad"]}))
    monkeypatch.setattr(text_teachers, "WORDS", tmp_path / "words.json")
    monkeypatch.setattr(text_quality, "REVIEWS", tmp_path / "reviews.json")
    return {"db": answers(tmp_path / "db", 8, 2), "labels": [7], "seeds": [0], "out": tmp_path / "out"}


def test_fewer_pairs_than_labels_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected 7 pairs that the teacher can tell, found 6; sample more"):
        measure(TextQualityConfig(**config))


def test_the_best_of_16_is_chosen_among_answers_to_one_prompt(config: dict[str, Any], tmp_path: Path) -> None:
    best = answers(tmp_path / "best", 2, 8)
    with pytest.raises(UserError, match="expected 16 answers to each prompt, found 8 in 00"):
        measure(TextQualityConfig(**config, best_db=best))


def test_the_best_of_n_is_averaged_over_fits_of_one_kind() -> None:
    kind = {"labels": 250, "upper": 0, "pooling": "mean"}
    rows = [
        {**kind, "cut": cut, "seed": seed, "best": {"critics": [paid, paid, paid]}}
        for cut, paid in ((10, 0.0), (20, 0.2))
        for seed in (0, 1)
    ]
    lines = text_quality.table(rows).splitlines()
    assert (
        "| cut 10, 0 layers, mean | 250 (2 fits) | critics | 0.000 ± 0.000 | 0.000 ± 0.000 | 0.000 ± 0.000 |"
        in lines
    )
    assert (
        "| cut 20, 0 layers, mean | 250 (2 fits) | critics | 0.200 ± 0.000 | 0.200 ± 0.000 | 0.200 ± 0.000 |"
        in lines
    )
