"""Small DBs of answers, without a language model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lib.preferences.answers import Answer, save_answer
from lib.preferences.prompts import Prompt


def answer_db(root: Path, texts: Sequence[Sequence[str]], policy: str = "m") -> Path:
    """A DB with a prompt for each row of texts, and its answers."""
    for prompt, row in enumerate(texts):
        answers_to(root, f"prompt {prompt}", *row, folder=f"{prompt:02d}", policy=policy)
    return root


def answers_to(db: Path, prompt: Prompt, *texts: str, folder: str = "00", policy: str = "") -> Path:
    """A DB, made where there is none, with answers to one prompt."""
    db.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        answer = Answer(prompt, text, finished=True, policy=policy)
        save_answer(db / folder / f"{number:08d}.dat", answer)
    return db


def random_texts(prompts: int, answers: int, seed: int = 0) -> list[list[str]]:
    """Answers of 1 to 9 words among w0 … w9 and "?", no two of one prompt equally long for up to 9 answers."""
    rng = np.random.default_rng(seed)
    return [
        [" ".join(f"w{i}" for i in rng.integers(0, 10, n)) for n in rng.permutation(9)[:answers] + 1]
        for _ in range(prompts)
    ]
