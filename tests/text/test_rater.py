"""Strategies that ask a reward model for text, and where its file came from."""

from pathlib import Path

import numpy as np
import pytest

from lib.cli import UserError
from lib.label_ui.ratings import StepRater, load_rater
from lib.preferences.answers import Answer, load_answer, save_answer
from lib.preferences.labels import LabelLog, current
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.text.reward import Shape, TextMember, TextRewardModel, TextRewardNet, save_text_reward
from lib.tools.lineage import lineage_text
from tests.text.dbs import answer_db, random_texts
from tests.text.tiny import tiny


def _reward(folder: Path, members: int = 2) -> tuple[Path, TextRewardModel]:
    language = tiny(folder / "model")
    made = []
    for _ in range(members):
        network = TextRewardNet(language.network.model, Shape(2, 1))
        made.append(TextMember(network, 0.5, 2.0))
        network.head.weight.data.normal_()
    model = TextRewardModel(language, made)
    parents = {"dbs": [{"db": "db", "labels": 3}], "labels": 3, "language": str(language.folder)}
    save_text_reward(folder / "reward.dat", model, {}, parents, {})
    return folder / "reward.dat", model


def test_a_teacher_asks_about_what_the_members_disagree_on(tmp_path: Path) -> None:
    path, model = _reward(tmp_path)
    db = answer_db(tmp_path / "db", random_texts(60, 2))
    (db / "00" / "00000009.dat").write_bytes(b"answer 1\nbroken")
    rater = load_rater(path, db, "cpu")
    assert not isinstance(rater, StepRater)
    names = SegmentDB(db).names
    rated = rater.returns(names)
    assert rated.shape == (2, 121)
    assert np.isnan(rated[:, names.index("00/00000009.dat")]).all()
    answer = load_answer(SegmentDB(db), "03/00000001.dat")
    expected = model.rate([answer]) * 2 + 0.5
    assert rated[:, names.index("03/00000001.dat")].mean() == pytest.approx(expected[0], abs=1e-5)
    label_with_teacher(db, "shorter", 20, strategy="disagreement", rater=rater, random_share=0.0)
    labels = current(LabelLog(db / "labels.json").read())
    assert {label.strategy for label in labels} == {"disagreement"}

    def apart(name1: str, name2: str) -> float:
        one, two = rated[:, names.index(name1)], rated[:, names.index(name2)]
        return float(np.var(1 / (1 + np.exp(two - one))))

    asked = [apart(label.sample1, label.sample2) for label in labels]
    every = [apart(f"{i:02d}/00000000.dat", f"{i:02d}/00000001.dat") for i in range(1, 60)]
    assert np.mean(asked) > np.mean(every)


def test_info_tells_where_answers_and_reward_models_of_text_came_from(tmp_path: Path) -> None:
    path, _ = _reward(tmp_path)
    db = answer_db(tmp_path / "db", random_texts(3, 2), policy="models/x\x1b[2J")
    text = lineage_text(db)
    assert "6 answers to 3 prompts" in text
    assert r"by models/x\x1b[2J" in text
    save_answer(db / "07" / "00000000.dat", Answer("Why?", "so it is", False, origin={"seed": "3"}))
    text = lineage_text(db / "07" / "00000000.dat")
    assert "3 words, 0 tokens, cut off" in text
    assert "to 'Why?'" in text
    assert "seed 3" in text
    assert f"layers of: the language model {tmp_path / 'model'}" in lineage_text(path)
    (db / "07" / "00000000.dat").write_bytes(b"answer 1\nx")
    with pytest.raises(UserError, match="damaged"):
        lineage_text(db / "07" / "00000000.dat")
