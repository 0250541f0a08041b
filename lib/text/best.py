"""04_play.py --prompts: of n answers to each prompt, the one that a reward model likes best, beside one at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.agent.play_config import PlayConfig
from lib.cli import one_line
from lib.devices import resolve_bf16, resolve_device
from lib.files import make_folder
from lib.preferences.answers import Answer, word_count
from lib.preferences.prompts import Prompt, last, whole
from lib.provenance import now
from lib.reporting import format_mean
from lib.reward.report.page import signed, write_page
from lib.text.language import load_language_model
from lib.text.record import read_prompts
from lib.text.reward import load_text_reward
from lib.text.sampling import answer

_SHOWN = 160  # characters of an answer on the terminal


@dataclass(frozen=True)
class Choice:
    """The answers to one prompt."""

    prompt: Prompt
    answers: list[Answer]
    paid: np.ndarray
    """float64 `[n]`, of each."""

    @property
    def best(self) -> int:
        """Index of the highest reward."""
        return int(self.paid.argmax())


def best_of(config: PlayConfig) -> list[Choice]:
    """Samples, rates and prints the answers; writes a page of them to `-r`.

    The first answer shows the model without the reward model. The KL divergence of the best of n from it
    is at most log n − (n − 1)/n nats (Beirami et al. 2024, arXiv 2401.01879).

    Raises:
      UserError: the flags or the files are wrong; says what to do.
    """
    assert config.model is not None
    assert config.prompts is not None
    assert config.reward is not None
    device = resolve_device(config.dev)
    bf16, count = resolve_bf16(None, device), config.best_of
    prompts = read_prompts(config.prompts)
    model = load_language_model(config.model, device, bf16, config.chat)
    encoded = {prompt: model.encode(prompt) for prompt in prompts}
    for tokens in encoded.values():
        model.check_room(tokens, config.tokens)
    reward = load_text_reward(config.reward, device, bf16, loaded=model)
    if config.record is not None:
        make_folder(config.record, "-r")
    rng = np.random.default_rng(config.seed)
    choices = []
    for number, (prompt, tokens) in enumerate(encoded.items(), start=1):
        answers = answer(model, [(prompt, tokens)] * count, rng.random((count, config.tokens))) or []
        choice = Choice(prompt, answers, reward.rate(answers))
        choices.append(choice)
        print(f"{number}. {one_line(last(prompt))[:_SHOWN]}")
        for name, at in (("first", 0), ("best", choice.best)):
            print(f"   {name:5} {signed(choice.paid[at])}  {one_line(answers[at].text)[:_SHOWN]}", flush=True)
    first, best = [choice.paid[0] for choice in choices], [choice.paid.max() for choice in choices]
    words = np.mean([[word_count(c.answers[at].text) for at in (0, c.best)] for c in choices], 0)
    print(
        f"learned reward of the first answer {format_mean(first, 2)}, of the best of {count} {format_mean(best, 2)} (95 %, "
        f"{len(choices)} prompts); words {words[0]:.0f} and {words[1]:.0f}; "
        f"KL at most {np.log(count) - (count - 1) / count:.2f}"
    )
    if config.record is not None:
        path = config.record / f"best-of-{count}.html"
        write_page(
            "best.html",
            path,
            title=f"Best of {count}",
            subtitle=f"{config.model} · {config.reward} · {now()}",
            choices=[
                {
                    "prompt": whole(choice.prompt),
                    "answers": [
                        {"name": name, "paid": signed(choice.paid[at]), "text": choice.answers[at].text}
                        for name, at in (
                            ("First", 0),
                            ("Best", choice.best),
                            ("Worst", int(choice.paid.argmin())),
                        )
                    ],
                }
                for choice in choices
            ],
        )
        print(f"page in {path}")
    return choices
