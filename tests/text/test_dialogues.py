"""Prompts of several messages through all stages: sampled, compared, fitted to, played and finetuned on."""

import json
from pathlib import Path
from typing import Any

import pytest

from lib.agent.play_config import PlayConfig
from lib.learner import ALONE
from lib.preferences.answers import load_answer
from lib.preferences.prompts import Message, messages_of
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.reporting import Charts
from lib.reward.config import FitConfig
from lib.reward.fit import fit
from lib.text.best import best_of
from lib.text.config import TextConfig
from lib.text.fit import Answers
from lib.text.record import record
from lib.text.report import write_text_report
from lib.text.train import finetune
from tests.text.tiny import save_tiny, tiny

PROMPTS = [
    (Message("user", f"w{i} w{j}"), Message("assistant", f"w{j}"), Message("user", "w9 w9"))
    for i in range(5)
    for j in range(4)
]
"""All end with the same message."""


@pytest.mark.slow
def test_a_dialogue_stays_whole_from_sampling_to_a_finetune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, prompts, db = save_tiny(tmp_path / "model", chat=True), tmp_path / "p.jsonl", tmp_path / "db"
    prompts.write_text("\n".join(json.dumps({"prompt": messages_of(prompt)}) for prompt in PROMPTS))
    common: dict[str, Any] = {
        "model": model,
        "prompts": prompts,
        "tokens": 8,
        "bf16": False,
    }
    assert record(TextConfig(**common, answers=3, db_path=db)).written == 60
    assert record(TextConfig(**common, answers=3, db_path=db)).written == 0
    language, answers = (
        tiny(model, chat=True),
        [load_answer(SegmentDB(db), name) for name in SegmentDB(db).names],
    )
    assert {answer.prompt for answer in answers} == set(PROMPTS)
    for answer in answers:
        assert answer.prompt_tokens.tolist() == language.encode(answer.prompt)
        assert answer.prompt_tokens.tolist()[-5:] == [1, 13, 13, 2, 1]
    assert len({answer.text for answer in answers}) > 50  # each has random numbers of its own

    assert label_with_teacher(db, "shorter", 50).written == 50
    fitted = fit(
        FitConfig(dbs=[db], name="t", out=tmp_path / "out", runs=tmp_path / "runs", epochs=1, bf16=False),
        ALONE,
        Answers,
    )
    sides = [
        {fitted.data.store.answers[i].prompt for i in fitted.data.pairs.first[of]}
        for of in (fitted.train, fitted.test)
    ]
    assert sides[1]
    assert not sides[0] & sides[1]
    write_text_report(fitted, Charts(None))
    shown = "User: w{0} w{1}\nAssistant: w{1}\nUser: w9 w9"
    page = fitted.path.with_suffix(".report.html").read_text()
    assert sum(shown.format(i, j) in page for i in range(5) for j in range(4)) > 5

    best_of(
        PlayConfig(model=model, prompts=prompts, reward=fitted.path, best_of=2, tokens=2, record=tmp_path)
    )
    assert all(
        shown.format(i, j) in (tmp_path / "best-of-2.html").read_text() for i in range(5) for j in range(4)
    )
    assert "1. … w9 w9\n" in capsys.readouterr().out
    algo: dict[str, Any] = {
        "runs": tmp_path / "runs",
        "algo": "rloo",
        "name": "f",
        "reward": fitted.path,
        "updates": 1,
        "rollout": 4,
        "answers": 2,
    }
    done = finetune(TextConfig(**common, **algo, unfrozen="1", save=tmp_path / "saves"))
    assert shown.format(4, 3) in (done.run_dir / "before-after.html").read_text()
    assert "… w9 w9\nbefore" in capsys.readouterr().out
