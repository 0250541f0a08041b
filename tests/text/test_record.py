"""01_text.py: answers into a DB, stopped and continued."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.agent.config import TrainConfig
from lib.cli import UserError
from lib.envs.make import make_world
from lib.interrupt import Interrupt
from lib.preferences.answers import MAX_TOKENS, Answer, holds_answers, load_answer, prompt_of
from lib.preferences.prompts import Message, Prompt
from lib.preferences.segment_db import SegmentDB
from lib.preferences.segments import save_segment
from lib.text.config import TextConfig
from lib.text.language import root_of, save_policy
from lib.text.layers import token_log_probs
from lib.text.record import AnswerFolders, open_answers, read_prompts, record
from lib.text.sampling import as_answer
from lib.training.recording import make_recorder
from tests.label_ui.dbs import segment
from tests.text.dbs import answer_db
from tests.text.tiny import save_tiny, tiny


@pytest.fixture
def config(tmp_path: Path) -> TextConfig:
    (tmp_path / "prompts.txt").write_text("w1 w2 w3\n\nw4\nw5 w6\nw4\n")
    return TextConfig(
        model=save_tiny(tmp_path / "model"),
        prompts=tmp_path / "prompts.txt",
        db_path=tmp_path / "db",
        answers=3,
        tokens=12,
        batch_size=4,
        bf16=False,
    )


def _texts(db_path: Path) -> dict[Prompt, list[str]]:
    db = SegmentDB(db_path)
    found: dict[Prompt, list[str]] = {}
    for name in db.names:
        answer = load_answer(db, name)
        found.setdefault(answer.prompt, []).append(answer.text)
    return found


def test_every_prompt_gets_its_answers_and_they_say_where_they_came_from(config: TextConfig) -> None:
    assert record(config) == (9, False)
    assert config.db_path is not None
    db = SegmentDB(config.db_path)
    assert holds_answers(db)
    assert db.names == [f"{prompt:02d}/{number:08d}.dat" for prompt in range(3) for number in range(3)]
    prompts = [load_answer(db, f"0{i}/00000000.dat").prompt for i in range(3)]
    assert prompts == ["w4", "w5 w6", "w1 w2 w3"]  # those of a length are sampled together
    model = tiny(config.model)
    for name in db.names:
        answer = load_answer(db, name)
        assert answer.policy == str(config.model)
        assert answer.origin["weights"] == model.weights
        assert answer.tokenizer == model.vocabulary
        expected = token_log_probs(model.network, answer.prompt_tokens, answer.tokens)  # type: ignore[arg-type]
        np.testing.assert_allclose(answer.log_probs, expected, atol=1e-4)
        assert answer.text == model.decode(answer.tokens[: -1 if answer.finished else None])


def test_answers_name_the_checkpoint_that_a_link_led_to(config: TextConfig) -> None:
    language, saves = tiny(config.model), config.model.parent / "saves"
    save_policy(saves / "one", language, root_of(language, 2), {})
    (saves / "best").symlink_to("one")
    record(dataclasses.replace(config, model=saves / "best"))
    assert config.db_path is not None
    db = SegmentDB(config.db_path)
    assert {load_answer(db, name).policy for name in db.names} == {str(saves / "one")}


def test_the_same_command_continues_and_comes_to_the_same_answers(
    config: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(config)
    assert config.db_path is not None
    whole = _texts(config.db_path)
    stopped = TextConfig(**{**vars(config), "db_path": tmp_path / "stopped"})
    assert stopped.db_path is not None
    asked = iter([False] * 20 + [True] * 100)
    with monkeypatch.context() as patched:
        patched.setattr(Interrupt, "asked", property(lambda _: next(asked), lambda *_: None), raising=False)
        written, was_stopped = record(stopped)
        assert 0 < written < 9
        assert was_stopped
    assert 0 < record(stopped).written < 9
    assert {prompt: sorted(texts) for prompt, texts in _texts(stopped.db_path).items()} == {
        prompt: sorted(texts) for prompt, texts in whole.items()
    }
    assert record(stopped) == (0, False)
    assert record(TextConfig(**{**vars(stopped), "answers": 4})).written == 3
    assert record(TextConfig(**{**vars(stopped), "seed": 1})).written == 9


def test_an_answer_too_long_for_a_db_is_left_out_alone(
    config: TextConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def long(model: Any, prompt: str, *rest: Any, **known: Any) -> Answer:
        answer = as_answer(model, prompt, *rest, **known)
        return dataclasses.replace(answer, text="-" * 70_000) if prompt == "w4" else answer

    monkeypatch.setattr("lib.text.record.as_answer", long)
    batches = dataclasses.replace(config, batch_size=3)  # the first is left out as a whole
    assert record(batches) == (6, False)
    assert capsys.readouterr().out.count("not saved: text must be a text of at most 65536 bytes") == 3
    assert record(batches) == (0, False)
    assert config.db_path is not None
    assert sorted(_texts(config.db_path)) == ["w1 w2 w3", "w5 w6"]


def test_two_that_write_into_one_db_share_folders_by_prompt(tmp_path: Path) -> None:
    db = open_answers(tmp_path / "db")
    one, other = AnswerFolders(db), AnswerFolders(db)
    names = [
        folders.add(Answer(prompt, text, True))
        for folders, prompt, text in (
            (one, "about cats", "a"),
            (other, "about dogs", "b"),
            (one, "about dogs", "c"),
            (other, "about cats", "d"),
            (other, "about birds", "e"),
        )
    ]
    assert [prompt_of(name) for name in names] == ["00", "01", "01", "00", "02"]
    assert _texts(db.root) == {"about cats": ["a", "d"], "about dogs": ["b", "c"], "about birds": ["e"]}


def test_prompts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "two\\nlines"}\n{"prompt": "x", "more": 1}\n')
    assert read_prompts(tmp_path / "p.jsonl") == ["two\nlines", "x"]
    (tmp_path / "q.jsonl").write_text(
        '{"prompt": [{"role": "user", "content": "x"}]}\n'
        '{"prompt": [{"role": "system", "content": ""}, {"role": "user", "content": "x"}]}\n{"prompt": "x"}\n'
    )
    assert read_prompts(tmp_path / "q.jsonl") == ["x", (Message("system", ""), Message("user", "x"))]
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfx\r\ny z\r\nx\r\n")
    assert read_prompts(tmp_path / "windows.txt") == ["x", "y z"]
    for name, content in (
        ("a.txt", b"\n \n"),
        ("b.txt", b"\xff"),
        ("c.jsonl", b"[1]"),
        ("d.jsonl", b"{"),
        ("e.jsonl", b'{"prompt": "\\ud800"}'),
        ("f.jsonl", b'{"prompt": " "}'),
        ("g.jsonl", b'{"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": " "}]}'),
        ("h.jsonl", b'{"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}'),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="expected"):
            read_prompts(tmp_path / name)


def test_a_prompt_of_too_many_tokens_is_named_before_anything_is_sampled(config: TextConfig) -> None:
    assert config.prompts is not None
    config.prompts.write_text("w1 w2\n" + "w1 " * (MAX_TOKENS + 1) + "\n")
    with pytest.raises(UserError, match="expected prompts of at most 8192 tokens, got one of"):
        record(config)
    assert config.db_path is not None
    assert not any(config.db_path.rglob("*.dat"))


def test_prompts_beyond_the_model_are_named_before_anything_is_sampled(config: TextConfig) -> None:
    assert config.prompts is not None
    config.prompts.write_text("w1\n" + "w1 " * 250 + "\n")
    with pytest.raises(
        UserError, match=r"prompt and answer of at most 256 tokens .*got 250 and --tokens 12: 'w1"
    ):
        record(config)
    assert record(dataclasses.replace(config, tokens=6)).written == 6
    small = save_tiny(config.model.parent / "small", vocab_size=20)
    config.prompts.write_text("w1\nw27\n")
    with pytest.raises(UserError, match="the prompt 'w27' has the token 31; the network knows 20"):
        record(dataclasses.replace(config, model=small))


def test_answers_do_not_go_among_clips(config: TextConfig) -> None:
    assert config.db_path is not None
    config.db_path.mkdir()
    save_segment(config.db_path / "00" / "00000000.dat", segment(0))
    with pytest.raises(UserError, match="holds clips"):
        record(config)


def test_clips_do_not_go_among_answers(tmp_path: Path) -> None:
    answer_db(tmp_path / "db", [["a", "b"]])
    config = TrainConfig(name="x", env="MovingDot-v0", db_path=tmp_path / "db")
    with pytest.raises(UserError, match="holds answers"):
        make_recorder(config, make_world("MovingDot-v0", num_envs=1), range(1))
