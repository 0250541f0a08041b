"""Prompts of a language model: a text, or a dialogue of messages that ends with the user's, as other trainers write them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeGuard

MAX_TEXT = 65_536
"""Bytes of a prompt, all its messages together, or of an answer, in UTF-8."""


MAX_MESSAGES = 1000


class Message(NamedTuple):
    """What one side said."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


Prompt = str | tuple[Message, ...]
"""A text is what a user says at first: a dialogue of that one message is never written otherwise."""

FORM = (
    f'a text, or a list of messages {{"role": "user", "content": "…"}} by user and assistant, which may begin with '
    f"one by system and end with the user's; at most {MAX_MESSAGES} messages and {MAX_TEXT} bytes in all"
)


def as_prompt(value: Any) -> Prompt:
    """A prompt as JSON has it: a text, or a list of objects, of which only `role` and `content` count.

    Raises:
      ValueError: it has another form, which says what was expected.
    """
    said = value if isinstance(value, list) else [{"role": "user", "content": value}]
    try:
        messages = tuple(Message(one["role"], one["content"]) for one in said)
    except (LookupError, TypeError):  # of something that is no object, or lacks a key
        messages = ()
    spoken = messages[1:] if messages and messages[0].role == "system" else messages
    if not (
        spoken
        and len(messages) <= MAX_MESSAGES
        and spoken[-1].role == "user"
        and all(role in ("user", "assistant") for role, _ in spoken)
        and all(is_text(content) for _, content in messages)
        and sum(len(content.encode()) for _, content in messages) <= MAX_TEXT
    ):
        raise ValueError(f"expected {FORM}")
    return spoken[0].content if len(messages) == 1 else messages


def is_text(value: object, limit: int = MAX_TEXT) -> TypeGuard[str]:
    """Whether a value is a text that UTF-8 can spell in so many bytes; JSON can also spell half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        return len(value.encode()) <= limit
    except UnicodeEncodeError:
        return False


def messages_of(prompt: Prompt) -> list[dict[str, str]]:
    """A prompt as the dialogue that it is, in the form of chat templates: `role` and `content` of each message."""
    dialogue = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    return [message._asdict() for message in dialogue]


def as_json(prompt: Prompt) -> str | list[dict[str, str]]:
    """A prompt for JSON, the opposite of `as_prompt`."""
    return prompt if isinstance(prompt, str) else messages_of(prompt)


def whole(prompt: Prompt) -> str:
    """All of a prompt as one text, with who says what, for reports."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{role.capitalize()}: {content}" for role, content in prompt)


def prompt_key(prompt: Prompt) -> str:
    """What tells a prompt from others: the text, or the messages in JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(messages_of(prompt))


def last(prompt: Prompt) -> str:
    """What a prompt says last, for a line on the terminal; "… " stands for messages before."""
    return prompt if isinstance(prompt, str) else f"… {prompt[-1].content}"
