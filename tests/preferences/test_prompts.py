"""Prompts: texts and dialogues, as JSON has them and as people read them."""

import pytest

from lib.preferences.prompts import (
    MAX_MESSAGES,
    MAX_TEXT,
    as_json,
    as_prompt,
    is_text,
    last,
    messages_of,
    prompt_key,
    whole,
)

SYSTEM, ASKED, SAID = (
    {"role": role, "content": content}
    for role, content in (("system", "Be brief."), ("user", "What is tea?"), ("assistant", "A drink."))
)
AGAIN = {"role": "user", "content": "Hot?"}


def test_a_dialogue_comes_back_as_it_was() -> None:
    for value in ([SYSTEM, ASKED], [ASKED, SAID, AGAIN], [SYSTEM, ASKED, SAID, AGAIN], [ASKED, AGAIN]):
        prompt = as_prompt([{**message, "name": None} for message in value])
        assert as_json(prompt) == value
        assert as_prompt(as_json(prompt)) == prompt
        assert messages_of(prompt) == value
        assert hash(prompt) == hash(as_prompt(value))


def test_one_message_of_the_user_is_a_text() -> None:
    assert as_prompt([ASKED]) == as_prompt("What is tea?") == "What is tea?"
    assert messages_of("What is tea?") == [ASKED]
    assert as_json("") == as_prompt("") == ""


def test_what_people_read() -> None:
    prompt = as_prompt([SYSTEM, ASKED, SAID, AGAIN])
    assert whole(prompt) == "System: Be brief.\nUser: What is tea?\nAssistant: A drink.\nUser: Hot?"
    assert last(prompt) == "… Hot?"
    assert whole("Hot?") == last("Hot?") == prompt_key("Hot?") == "Hot?"
    alike = as_prompt(
        [SYSTEM, {"role": "user", "content": whole(as_prompt([ASKED, SAID, AGAIN]))}]
    )  # which people read as the same
    assert len({prompt_key(one) for one in ("Hot?", prompt, as_prompt([ASKED, SAID, AGAIN]), alike)}) == 4


@pytest.mark.parametrize(
    "value",
    [
        [],
        [SYSTEM],
        [ASKED, SAID],
        [ASKED, SYSTEM, AGAIN],
        [SYSTEM, SYSTEM, ASKED],
        [ASKED, {"role": "tool", "content": "4"}, AGAIN],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": None}],
        [ASKED, SAID | {"content": "\ud800"}, AGAIN],
        ["What is tea?"],
        [ASKED, None, AGAIN],
        {"role": "user", "content": "x"},
        None,
        3,
        "\ud800",
        "x" * (MAX_TEXT + 1),
        [ASKED, SAID | {"content": "é" * (MAX_TEXT // 2)}, AGAIN],
        [{"role": "user", "content": ""}] * (MAX_MESSAGES + 1),
    ],
)
def test_other_forms_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a text, or a list of messages"):
        as_prompt(value)


def test_texts_are_measured_in_bytes() -> None:
    assert is_text("é" * 5, 10)
    assert not is_text("é" * 5, 9)
    assert not is_text(b"x", 9)
