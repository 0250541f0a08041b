"""make demo-text on a tiny model."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("vaderSentiment", reason="language models need requirements-text.txt")

from experiments import demo_text
from lib.preferences import text_teachers
from tests.text.tiny import save_tiny


@pytest.mark.slow
def test_the_stages_make_a_table_and_a_second_run_does_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {f"w{number}": number / 28 - 0.5 for number in range(28)}
    (tmp_path / "words.json").write_text(json.dumps({"positive": words, "critics": words}))
    monkeypatch.setattr(text_teachers, "WORDS", tmp_path / "words.json")
    monkeypatch.setattr(text_teachers, "_WORD", re.compile(r"\w+"))
    sizes = {"topics": 6, "tokens": 8, "labels": 40, "updates": 2, "rollout": 8, "judged": 2, "best-of": 4}
    line = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    line += ["-m", str(save_tiny(tmp_path / "model")), "--out", str(tmp_path / "out"), "--unfrozen", "2"]
    line += ["--algos", "ppo", "dpo"]
    demo_text.main(line)
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "table.json").read_text())
    rows = found["rows"]
    assert list(rows) == [str(tmp_path / "model"), "best of 4", "ppo", "dpo"]
    assert [len(row["positive"]) for row in rows.values()] == [16, 8, 16, 16]  # 8 prompts
    assert [len(shown) for shown in found["shown"]] == [3] * 6
    assert rows["ppo"]["KL"] != rows["dpo"]["KL"] != rows["best of 4"]["KL"]
    for name in (*rows, *demo_text.COLUMNS):
        assert f"| {name} |" in said
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.dat")}
    demo_text.main(line)
    assert said[said.index("| best of 4") :].splitlines()[0] in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.dat")}
