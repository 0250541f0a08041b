"""make demo-text on a tiny model."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("vaderSentiment", reason="language models need requirements-text.txt")

from experiments import demo_text
from experiments.pipeline import Pipeline, read_lines
from lib.cli import UserError
from lib.preferences import text_teachers
from tests.text.tiny import save_tiny


def write_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives teacher and judge the words of the tiny model."""
    words = {f"w{number}": number / 28 - 0.5 for number in range(28)}
    (tmp_path / "words.json").write_text(json.dumps({"positive": words, "critics": words}))
    monkeypatch.setattr(text_teachers, "WORDS", tmp_path / "words.json")
    monkeypatch.setattr(text_teachers, "_WORD", re.compile(r"\w+"))


def flags_of(tmp_path: Path) -> list[str]:
    """Small sizes, a tiny model, and a new folder."""
    sizes = {"topics": 6, "tokens": 8, "labels": 40, "updates": 2, "rollout": 8, "judged": 2, "best-of": 4}
    line = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    line += ["-m", str(save_tiny(tmp_path / "model")), "--out", str(tmp_path / "out")]
    return [*line, "--unfrozen", "2"]


@pytest.mark.slow
def test_the_stages_make_a_table_and_a_second_run_does_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_words(tmp_path, monkeypatch)
    line = [*flags_of(tmp_path), "--algos", "ppo", "dpo"]
    demo_text.main(line)
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "table-ppo-dpo.json").read_text())
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


def test_what_a_finetune_refuses_is_refused_before_the_first_stage(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="--rollout 6: expected a multiple of --answers, 4"):
        demo_text.main(["--out", str(out), "--algos", "ppo", "grpo", "--rollout", "6"])
    assert not out.exists()


def test_more_answers_are_not_judged_than_there_are() -> None:
    with pytest.raises(UserError, match="--judged 5: expected at most the 4 of --best-of"):
        demo_text.DemoConfig(judged=5, best_of=4)


def test_another_algorithm_does_not_go_on_with_answers_of_the_first_ones_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "run", lambda *_: pytest.fail("a stage began"))
    line = ["--out", str(tmp_path / "out"), "--rounds", "2", "--algos"]
    with pytest.raises(pytest.fail.Exception):
        demo_text.main([*line, "ppo"])
    (tmp_path / "out" / "stages.jsonl").write_text('{"stage": "answers", "how": "done"}\n')
    with pytest.raises(UserError, match=r"--algos: .* was begun with \['ppo'\], got \['rloo'\]"):
        demo_text.main([*line, "rloo"])


@pytest.mark.slow
def test_a_second_round_compares_answers_of_the_first_ones_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_words(tmp_path, monkeypatch)
    line = [*flags_of(tmp_path), "--rounds", "2"]
    demo_text.main(line)
    out = tmp_path / "out"
    rows = json.loads((out / "table-ppo.json").read_text())["rows"]
    assert list(rows)[2:] == ["ppo", "ppo-2"]
    commands = {line["stage"]: " ".join(line["command"]) for line in read_lines(out / "stages.jsonl")}
    first = ["answers", "labels", "fit", "ppo"]
    assert list(commands) == [*first, *(f"{name}-2" for name in first), "table ppo"]
    assert all("--count 20 " in commands[name] for name in ("labels", "labels-2"))
    assert all(str(out / "ppo" / "latest") in commands[name] for name in ("answers-2", "ppo-2"))
    with pytest.raises(UserError, match="--rounds expects a single one of --algos"):
        demo_text.main([*line, "--algos", "ppo", "rloo"])


def test_answers_to_one_prompt_are_one_unit() -> None:
    values = {column: [1.0, 1.0, 3.0, 3.0] for column in demo_text.COLUMNS} | {"distinct-2": [0.5]}
    row = demo_text.table({"m": values}, 2, "title").splitlines()[-1]
    # Means 1 and 3 of two prompts: half their difference times 12.7, Student's t for one degree of freedom.
    assert row.startswith("| m | 2.000 ± 12.706 | 2.00 ± 12.71 |")
    assert "| 0.50 |" in row
    one = {column: [1.0, 3.0] for column in demo_text.COLUMNS} | {"distinct-2": [0.9]}
    fewer = demo_text.table({"m": values, "best of 16": one}, 2, "title").splitlines()[-1]
    assert "0.90" not in fewer, "of half as many answers it does not compare"
