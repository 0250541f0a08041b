"""Best of n, and preferences that go out to other trainers and come back."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lib.agent.play_config import PlayConfig
from lib.cli import UserError
from lib.devices import has_fast_bf16
from lib.preferences.answers import Answer, load_answer
from lib.preferences.labels import LabelLog, current
from lib.preferences.prompts import Message
from lib.preferences.segment_db import SegmentDB
from lib.preferences.teachers import label_with_teacher
from lib.text.best import best_of
from lib.text.export import export_reward
from lib.text.jsonl import export_preferences, import_preferences
from lib.text.reward import (
    Shape,
    TextMember,
    TextRewardModel,
    TextRewardNet,
    load_text_reward,
    save_text_reward,
)
from tests.disk import disk_full_after
from tests.text.dbs import answer_db, random_texts
from tests.text.tiny import tiny

CPU = torch.device("cpu")
ROLES = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}


def test_the_best_of_n_is_the_one_that_is_paid_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    language = tiny(tmp_path / "model")
    network = TextRewardNet(language.network.model, Shape(2, 1))
    network.head.weight.data.normal_()
    model = TextRewardModel(language, [TextMember(network, 0.0, 1.0)])
    save_text_reward(tmp_path / "reward.dat", model, {}, {}, {})
    (tmp_path / "prompts.txt").write_text("w1 w2\nw3\n")
    config = PlayConfig(
        model=tmp_path / "model",
        prompts=tmp_path / "prompts.txt",
        reward=tmp_path / "reward.dat",
        best_of=5,
        tokens=6,
        record=tmp_path / "pages",
    )
    choices = best_of(config)
    model = load_text_reward(tmp_path / "reward.dat", CPU, has_fast_bf16(CPU))
    assert [choice.prompt for choice in choices] == ["w1 w2", "w3"]
    for choice in choices:
        np.testing.assert_allclose(model.rate(choice.answers), choice.paid, atol=1e-5)
        assert choice.paid[choice.best] == choice.paid.max()
        assert len(choice.answers) == 5
    said = capsys.readouterr().out
    mean = np.mean([choice.paid.max() for choice in choices])
    assert f"of the best of 5 {mean:.2f}" in said
    assert choices[0].answers[choices[0].best].text in (tmp_path / "pages" / "best-of-5.html").read_text()
    with pytest.raises(UserError, match="--prompts expects --reward"):
        PlayConfig(model=tmp_path / "model", prompts=tmp_path / "prompts.txt")
    with pytest.raises(UserError, match="--info asks no model; leave out --prompts"):
        PlayConfig(info=tmp_path, prompts=tmp_path / "prompts.txt")
    with pytest.raises(UserError, match="--info and --export-jsonl: expected one of them"):
        PlayConfig(info=tmp_path, export_jsonl=[tmp_path, tmp_path / "x"])
    some: dict[str, Any] = {"model": tmp_path / "model"}
    asked = some | {"prompts": tmp_path / "prompts.txt", "reward": tmp_path / "reward.dat"}
    for given, said in (
        (asked | {"games": 3}, "--games has no effect with --prompts"),
        (some | {"best_of": 3}, "--best-of has no effect without --prompts"),
        ({"info": tmp_path, "env": "Pong-v5"}, "--env has no effect with --info"),
    ):
        with pytest.raises(UserError, match=said):
            PlayConfig(**given)


def test_the_best_of_n_answers_bare_prompts_where_asked(tmp_path: Path) -> None:
    language = tiny(tmp_path / "model", chat=True)
    (tmp_path / "prompts.txt").write_text("w1 w2\n")
    for chat, expected in ((None, [1, 5, 6, 2, 1]), (False, [5, 6])):
        asked = dataclasses.replace(language, chat=chat is None)
        member = TextMember(TextRewardNet(language.network.model, Shape(2, 0)), 0.0, 1.0)
        save_text_reward(tmp_path / "reward.dat", TextRewardModel(asked, [member]), {}, {}, {})
        [choice] = best_of(
            PlayConfig(
                model=tmp_path / "model",
                prompts=tmp_path / "prompts.txt",
                reward=tmp_path / "reward.dat",
                best_of=1,
                tokens=2,
                chat=chat,
            )
        )
        assert choice.answers[0].prompt_tokens.tolist() == expected


def test_a_reward_model_goes_out_as_a_sequence_classifier(tmp_path: Path) -> None:
    language = tiny(tmp_path / "model")
    network = TextRewardNet(language.network.model, Shape(2, 1))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    member = TextMember(network, 0.5, 2.0)
    path = tmp_path / "reward.dat"
    save_text_reward(path, TextRewardModel(language, [member]), {}, {}, {})
    with (
        disk_full_after(1000),
        pytest.raises(UserError, match=r"--export-reward .*could not be written: .*too large"),
    ):
        export_reward(path, tmp_path / "out")
    export_reward(path, tmp_path / "out")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    answers = [Answer("w1 w2", "w3", True), Answer("w4", "w5 w6 w7 w8", True), Answer("w9", "w1", False)]
    texts = [f"{a.prompt} {a.text}" + " <end>" * a.finished for a in answers]
    with torch.no_grad():
        scores = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0].numpy()
    rated = TextRewardModel(language, [member]).rate(answers)
    np.testing.assert_allclose(scores - scores[0], rated - rated[0], atol=1e-5)
    assert np.ptp(rated) > 0.01
    with pytest.raises(UserError, match="already exists"):
        export_reward(path, tmp_path / "out")
    save_text_reward(path, TextRewardModel(language, [member] * 2), {}, {}, {})
    with pytest.raises(UserError, match="expected one member"):
        export_reward(path, tmp_path / "another")


@pytest.mark.parametrize("chat", [True, False])
def test_preferences_go_out_and_come_back(chat: bool, tmp_path: Path) -> None:
    db = answer_db(tmp_path / "db", random_texts(20, 3))
    label_with_teacher(db, "shorter", 30)
    label_with_teacher(db, "no-questions", 5)  # ties, as there are no questions
    file = tmp_path / "preferences.jsonl"
    given = (db / "labels.json").read_bytes()
    with pytest.raises(UserError, match="expected a file outside the DB"):
        export_preferences(db, db / "labels.json", chat)
    assert (db / "labels.json").read_bytes() == given
    assert "30 preferences; 5 ties" in export_preferences(db, file, chat)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    if chat:
        for line in lines:
            for key, role in ROLES.items():
                [message] = line[key]
                assert message["role"] == role
                line[key] = message["content"]
    assert all(len(line["chosen"].split()) < len(line["rejected"].split()) for line in lines)
    back = tmp_path / "back"
    for _ in range(2):  # a second time changes nothing that holds
        import_preferences(file, back)
        answers, labels = SegmentDB(back), current(LabelLog(back / "labels.json").read())
        said = []
        for label in labels:
            first, second = (load_answer(answers, name) for name in (label.sample1, label.sample2))
            assert first.prompt == second.prompt
            better, worse = (first, second) if label.label == 1 else (second, first)
            said.append({"prompt": first.prompt, "chosen": better.text, "rejected": worse.text})
        assert sorted(said, key=str) == sorted(lines, key=str)
        assert {label.label for label in labels} == {1, 2}
        assert {label.annotator for label in labels} == {"preferences"}


def test_every_line_of_a_file_counts_and_none_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a", "b"), ("b", "a"), ("a", "b"), ("a", "c"), ("a", "a")]  # of people who disagree
    lines = [json.dumps({"prompt": "p", "chosen": chosen, "rejected": rejected}) for chosen, rejected in rows]
    (tmp_path / "x.jsonl").write_text("\ufeff" + "\n".join(lines))  # as Windows may write it
    with disk_full_after(250), pytest.raises(UserError, match=r"labels\.json: could not be written: "):
        import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
    for _ in range(2):
        said = import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
        assert "4 labels of " in said
        assert said.endswith("; 1 with equal answers left out")
        labels = current(LabelLog(tmp_path / "db" / "labels.json").read())
        answers = SegmentDB(tmp_path / "db")
        won = [load_answer(answers, label.winner or "").text for label in labels]
        assert sorted(won) == ["a", "a", "a", "b"]
        assert [label.annotator for label in labels] == ["x", "x 2", "x 3", "x"]
    assert "4 of 4 lines" in capsys.readouterr().out  # of 60,000 it takes many minutes


def test_messages_are_read_as_the_texts_in_them(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "p"}
    good, bad = ({"role": "assistant", "content": text} for text in ("a", "b"))
    rows = [
        {"prompt": [asked], "chosen": [good], "rejected": [bad]},
        {"chosen": [asked, good], "rejected": [asked, bad]},
        {"prompt": "p", "chosen": [asked, good], "rejected": [asked, bad], "score_chosen": 8.5},
        {
            "prompt": [asked],
            "chosen": [asked | {"weight": 0}, good],
            "rejected": [asked, bad | {"weight": 1}],
        },
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert "2 answers and 4 labels of " in import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
    answers = SegmentDB(tmp_path / "db")
    for label in LabelLog(tmp_path / "db" / "labels.json").read():
        won = load_answer(answers, label.winner or "")
        assert (won.prompt, won.text) == ("p", "a")


def test_dialogues_come_in_and_go_out(tmp_path: Path) -> None:
    before = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "p"},
        {"role": "assistant", "content": "q"},
        {"role": "user", "content": "r"},
    ]
    good, bad = ({"role": "assistant", "content": text} for text in ("a", "b"))
    rows = [
        {"prompt": before, "chosen": [good], "rejected": [bad]},
        {"prompt": "p", "chosen": [*before, good], "rejected": [*before, bad]},
        {"prompt": before, "chosen": [*before, good], "rejected": [*before, bad]},
        {"prompt": before[1:], "completion": [bad]},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert "3 answers and 3 labels of " in import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
    assert "3 preferences" in export_preferences(tmp_path / "db", tmp_path / "y.jsonl", chat=True)
    assert [json.loads(line) for line in (tmp_path / "y.jsonl").read_text().splitlines()] == rows[:1] * 3
    with pytest.raises(UserError, match="got one of several messages, '… r'; leave --no-chat out"):
        export_preferences(tmp_path / "db", tmp_path / "z.jsonl", chat=False)
    assert not (tmp_path / "z.jsonl").exists()


def test_dialogues_of_hh_rlhf_come_in(tmp_path: Path) -> None:
    asked = "\n\nHuman: Is tea\n\nhealthy?\n\nAssistant: Yes.\n\nHuman: Why?\n\nAssistant:"
    apart = {"chosen": f"{asked} Because.\n\nHuman: Ah.\n\nAssistant: Yes.", "rejected": f"{asked} No."}
    rows = [
        {"chosen": f"{asked} Because: it is.", "rejected": f"{asked.strip()} No."},
        apart,
        {"chosen": asked, "rejected": f"{asked} "},
        apart,
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello.", "rejected": "\n\nHuman: Hi\n\nAssistant:"},
    ]
    (tmp_path / "hh.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = import_preferences(tmp_path / "hh.jsonl", tmp_path / "db")
    assert "4 answers and 2 labels of " in said
    assert said.endswith("; 1 with equal answers and 2 with answers to two dialogues left out")
    answers = SegmentDB(tmp_path / "db")
    won = [load_answer(answers, label.winner or "") for label in LabelLog(tmp_path / "db/labels.json").read()]
    assert [answer.text for answer in won] == ["Because: it is.", "Hello."]
    dialogue = Message("user", "Is tea\n\nhealthy?"), Message("assistant", "Yes."), Message("user", "Why?")
    assert [answer.prompt for answer in won] == [dialogue, "Hi"]


def test_answers_come_in_without_labels(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "completion": "a"},
        {"prompt": "p", "completion": "b"},
        {"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]},
        {"prompt": "p", "completion": "a"},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert "3 answers and 0 labels of " in import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
    answers = SegmentDB(tmp_path / "db")
    assert sorted(load_answer(answers, name).text for name in answers.names) == ["a", "b", "c"]
    assert label_with_teacher(tmp_path / "db", "shorter", 3)


def test_an_export_replaces_files_alone(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"}))
    import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(UserError, match="expected a file to write, found a folder, device or pipe"):
            export_preferences(tmp_path / "db", path, chat=True)
    (tmp_path / "link").symlink_to("there.jsonl")
    export_preferences(tmp_path / "db", tmp_path / "link", chat=True)
    assert (tmp_path / "link").is_symlink()
    assert "chosen" in (tmp_path / "there.jsonl").read_text()


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"r\xe9ponses.jsonl")  # Latin-1
    file.write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"}))
    assert "2 answers and 1 labels of " in import_preferences(file, tmp_path / "db")
    assert "0 answers and 1 labels of " in import_preferences(file, tmp_path / "db")
    assert {label.annotator for label in LabelLog(tmp_path / "db/labels.json").read()} == {"r?ponses"}


def test_files_of_another_form_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"})
    asked, asks = ({"role": "user", "content": text} for text in ("1", "2"))
    one, other = ({"role": "assistant", "content": text} for text in ("1", "2"))
    lists = (
        {"prompt": ["m"], "chosen": "a", "rejected": "b"},
        {
            "chosen": [asked, one, asked, one],
            "rejected": [asked, other, asked, one],
        },  # to different dialogues
        {"chosen": [asked, one], "rejected": [asks, one]},
        {"prompt": "p", "chosen": [one], "rejected": [other]},
        {"prompt": [asked], "chosen": [], "rejected": []},
        {"prompt": [asked], "completion": [one, other]},
        {"prompt": [asked], "completion": [asks]},
        {"prompt": [asked, one], "completion": []},
        {"prompt": [asked], "completion": [{"role": "assistant", "content": None}]},
        {"prompt": "p", "chosen": "a", "rejected": None},
        {"prompt": "p", "chosen": "a", "rejected": "\ud800"},
        {"chosen": "a", "rejected": "b"},
        {"chosen": "Hi\n\nHuman: p\n\nAssistant: a", "rejected": "Hi\n\nHuman: p\n\nAssistant: b"},
        {"chosen": "\n\nHuman: p", "rejected": "\n\nHuman: p"},
    )
    for bad in ("{", "[]", '{"prompt": "p"}', *map(json.dumps, lists)):
        (tmp_path / "x.jsonl").write_text(f"{good}\n{bad}\n")
        with pytest.raises(
            UserError, match="line 2: expected prompt, chosen and rejected, or prompt and compl"
        ):
            import_preferences(tmp_path / "x.jsonl", tmp_path / "db")
    assert not (tmp_path / "db").exists()
    with pytest.raises(UserError, match="expected a DB of answers"):
        export_preferences(tmp_path, tmp_path / "y.jsonl", True)
