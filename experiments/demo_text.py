"""The stages on text once, on a CPU: answers, comparisons, reward model, best of n, finetune, and a table of all.

A language model answers prompts about films. A simulated teacher, who likes praise and errs in a tenth of its
comparisons, takes a person's place. Two judges that no model here has learned from measure the result.
The same command continues after the last finished stage; delete the folder to start over.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.pipeline import Pipeline, settle
from lib import cli
from lib.cli import UserError, flag, one_line
from lib.preferences.prompts import whole
from lib.reward.config import FitConfig
from lib.text.config import ALGORITHMS, TextConfig

TEACHER = "positive"
TEMPLATES = (
    "Write one sentence of a review of a film about {}.",
    "You have just seen a film about {}. Tell a friend about it in one sentence.",
    "Continue this review of a film about {}: I went to see it last night and",
    "Describe the acting in a film about {} in one sentence.",
)
_FILMS = (
    "a lighthouse keeper, two sisters, a bank robbery, a lost dog, the end of a war, a chess player, a "
    "haunted hotel, a trip to Mars, a wedding, a country doctor, a train in the snow, a pop star, a spy "
    "who retires, a family farm, a boxer, the first day of school, a shipwreck, a robot, a cook in Paris, "
    "a detective, a circus, a flood, an old painter, a road trip, a violin, a dragon, a village choir, a "
    "newspaper, a prison break, a summer camp, a mountain rescue, a mayor, a time machine, a taxi driver, "
    "a queen, a football team, a desert island, a ghost writer, a strike, a hospital at night, a bear, a "
    "dance school, a lawsuit, a twin brother, a submarine, a bookshop, a storm, a con man"
)
TOPICS = _FILMS.split(", ")
COLUMNS = (TEACHER, "critics", "vader", "KL", "distinct-2", "words", "finished")


@dataclass(frozen=True)
class DemoConfig:
    """How much of everything."""

    out: Path = flag(default=Path("demo-text-out"), help="folder for everything the demo makes")
    model: Path = flag("-m", default=Path("models/smollm2"), metavar="FOLDER", help="language model")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of every stage")
    seed: int = flag(default=0, min=0, help="seed of every stage")
    topics: int = flag(
        default=48, min=3, max=len(TOPICS), help="films to ask about; a third of them is held out"
    )
    answers: int = flag(default=3, min=2, help="answers to each prompt to compare")
    tokens: int = flag(default=24, min=1, help="longest answer, in tokens")
    labels: int = flag(default=250, min=10, help="comparisons by the teacher")
    cut: int | None = flag(default=None, min=0, help="of 03_reward_train.py")
    upper: int = flag(default=0, min=0, help="of 03_reward_train.py; 0 fits the head alone, in seconds")
    algos: list[str] = flag(
        default=["ppo"],
        choices=ALGORITHMS,
        help="finetune with each of these, a row for each; dpo takes the labels, the others as many answers",
    )
    rounds: int = flag(
        default=1,
        min=1,
        help="spread labels and updates over N rounds; from the second on, answers of the newest model are compared, too",
    )
    updates: int = flag(default=20, min=1, help="updates of each finetune, all rounds together")
    rollout: int = flag(default=64, min=2, help="answers per update")
    kl: float = flag(default=0.05, min=0, help="KL penalty, per nat")
    lr: float = flag(default=1e-4, min=0, help="learning rate of each finetune but dpo's")
    unfrozen: str = flag(default="4", help="layers that a finetune trains")
    judged: int = flag(default=4, min=1, help="answers to each held-out prompt in the table")
    best_of: int = flag(default=16, min=4, help="answers from which the best is chosen")

    def __post_init__(self) -> None:
        if self.judged > self.best_of:  # the first of which are judged
            raise UserError(f"--judged {self.judged}: expected at most the {self.best_of} of --best-of")


def prompts_of(topics: Sequence[str]) -> list[str]:
    """Those about some films, one template after the other."""
    return [template.format(topic) for template in TEMPLATES for topic in topics]


def main(argv: Sequence[str] | None = None) -> None:
    config = cli.parse(DemoConfig, argv, description=__doc__)
    if config.rounds > 1 and len(config.algos) > 1:
        raise UserError("--rounds expects a single one of --algos: each round asks about its model's answers")
    out = config.out
    for algo in config.algos:  # what a finetune refuses need not wait for the stages before it
        tuning(config, algo, config.model, out, algo)
    # Later rounds ask about the answers of a single model.
    settle(config, *(["algos"] if config.rounds == 1 else []))
    held = round(config.topics / 3)
    for name, topics in (("held-out", TOPICS[:held]), ("train", TOPICS[held : config.topics])):
        (out / f"{name}.txt").write_text("".join(prompt + "\n" for prompt in prompts_of(topics)))
    pipeline, policy = Pipeline(out), config.model
    finetuned: dict[str, Path] = {}
    for number in range(1, config.rounds + 1):
        if number > 1:
            print(f"\n=== Round {number}", flush=True)
        reward = learn_reward(config, pipeline, policy, number)
        for algo in config.algos:
            name = in_round(algo, number)
            flags = tuning(config, algo, policy, reward, name)
            kind = "the comparisons" if algo == "dpo" else "the learned reward"
            title = f"4. {algo.upper()} finetunes the model on {kind}"
            pipeline.run(
                name, title, "01_text.py", flags, finetune(flags), [out / name, flags.runs], flags.runs
            )
            finetuned[name] = out / name / "latest"
        policy = finetuned[name]

    measured = out / f"table-{'-'.join(config.algos)}.json"

    def measure(_: Path | None) -> None:
        rows, shown = compare(config, reward, finetuned)
        measured.write_text(json.dumps({"rows": rows, "shown": shown}, indent=1) + "\n")

    title = f"5. {config.judged} answers to each held-out prompt, and the best of {config.best_of}"
    pipeline.run(f"table {' '.join(config.algos)}", title, "-m experiments.demo_text", config, measure)
    from lib.reporting import format_duration

    found = json.loads(measured.read_text())
    prompts = len(TEMPLATES) * held
    title = f"{prompts} held-out prompts × {config.judged} answers, mean ± 95 % over prompts"
    print(table(found["rows"], prompts, title))
    for prompt, before, after in found["shown"]:
        print(f"\n{one_line(prompt)}\n   before  {one_line(before)}\n   after   {one_line(after)}")
    print(
        f"\n{format_duration(pipeline.seconds)} in all; answers and labels in {out / 'db'}, reports in {out}"
    )


def in_round(name: str, number: int) -> str:
    """What is called so in the first round has the number of the round after it in later ones."""
    return name if number == 1 else f"{name}-{number}"


def learn_reward(config: DemoConfig, pipeline: Pipeline, policy: Path, number: int) -> Path:
    """A round up to its reward model: a model answers, the teacher compares, and a fit to all labels so far."""
    out, db = config.out, config.out / "db"
    asking = TextConfig(
        model=policy,
        prompts=out / "train.txt",
        tokens=config.tokens,
        dev=config.dev,
        seed=config.seed,
        db_path=db,
        answers=config.answers,
    )

    def answer(_: Path | None) -> bool:
        from lib.text.record import record  # heavy, as all that a stage imports

        return record(asking).stopped

    title = f"1. {policy} answers prompts about films"
    pipeline.run(in_round("answers", number), title, "01_text.py", asking, answer)
    pipeline.label(
        in_round("labels", number),
        "2. A simulated teacher compares answers: it likes praise, and errs in 10 % of its comparisons",
        db,
        TEACHER,
        config.labels * number // config.rounds,
        error_rate=0.1,
        seed=config.seed,
    )
    fitting = FitConfig(
        dbs=[db],
        name=in_round("demo", number),
        out=out / "rewards",
        runs=out / "runs" / in_round("fit", number),
        dev=config.dev,
        seed=config.seed,
        model=config.model,  # even where answers are from two
        cut=config.cut,
        upper=config.upper,
        pooling="mean",
        error_rate=0.2,
    )
    return pipeline.fit(in_round("fit", number), "3. A reward model is fitted to the comparisons", fitting)


def tuning(config: DemoConfig, algo: str, policy: Path, reward: Path, name: str) -> TextConfig:
    """The flags of a finetune."""
    out, updates = config.out, max(1, config.updates // config.rounds)
    labels: dict[str, Any] = {"db_path": out / "db", "kl": 0.1, "lr": 3e-4, "epochs": 3}  # of docs/text.md
    rewards: dict[str, Any] = {
        "prompts": out / "train.txt",
        "tokens": config.tokens,
        "eval_prompts": out / "held-out.txt",
        "eval_updates": updates,
        "eval_best_of": 1,  # which the table has
        "reward": reward,
        "updates": updates,
        "rollout": config.rollout,
        "kl": config.kl,
        "lr": config.lr,
    }
    return TextConfig(
        model=policy,
        dev=config.dev,
        seed=config.seed,
        algo=algo,
        name="latest" if algo == "dpo" else name,  # a fit is saved under its name, a run under latest
        save=out / name,
        runs=out / "runs" / name,
        unfrozen=config.unfrozen,
        **(labels if algo == "dpo" else rewards),
    )


def finetune(tuning: TextConfig) -> Callable[[Path | None], bool]:
    """The work of a finetune's stage."""

    def work(resume: Path | None) -> bool:
        from lib.text import dpo, train

        if tuning.algo == "dpo":
            return dpo.train_dpo(tuning).stopped
        return train.finetune(dataclasses.replace(tuning, resume=resume)).stopped

    return work


def compare(
    config: DemoConfig, reward: Path, finetuned: dict[str, Path]
) -> tuple[dict[str, dict[str, list[float]]], list[tuple[str, str, str]]]:
    """Answers to the held-out prompts, with random numbers that no other stage uses.

    Args:
      config: of the demo.
      reward: chooses the best of n.
      finetuned: the folder of each finetuned model, by the name of its row.

    Returns:
      By row and column, the values of all answers (the best of `best_of`: one for each prompt); six prompts with an answer
      before and one after, by the last finetuned model.
    """
    import torch

    from lib.devices import resolve_bf16, resolve_device
    from lib.preferences.answers import Answer, distinct_2, word_count
    from lib.preferences.text_teachers import JUDGES, value_of
    from lib.text.language import LanguageModel, load_language_model
    from lib.text.layers import token_log_probs
    from lib.text.record import read_prompts
    from lib.text.reward import load_text_reward
    from lib.text.sampling import answer

    device = resolve_device(config.dev)
    bf16 = resolve_bf16(None, device)
    before = load_language_model(config.model, device, bf16)
    model = load_text_reward(reward, device, bf16, loaded=before)
    prompts = read_prompts(config.out / "held-out.txt")
    judges = {name: value_of(name) for name in (TEACHER, *JUDGES)}

    def answers(language: LanguageModel, count: int) -> list[list[Answer]]:
        """`count` answers to each prompt; the same random numbers for each model."""
        asked = [(prompt, language.encode(prompt)) for prompt in prompts for _ in range(count)]
        rngs = (np.random.default_rng([config.seed, 99, number]) for number in range(len(prompts)))
        drawn = (
            answer(language, asked, np.concatenate([rng.random((count, config.tokens)) for rng in rngs]))
            or []
        )
        return [drawn[at : at + count] for at in range(0, len(drawn), count)]

    @torch.no_grad()
    def kl(answer: Answer) -> float:
        """log π/π_ref of an answer of π, whose mean is the KL divergence."""
        told = token_log_probs(before.network, answer.prompt_tokens.tolist(), answer.tokens.tolist())
        return float(answer.log_probs.sum() - told.sum())

    def row(chosen: list[Answer], nats: Callable[[Answer], float]) -> dict[str, list[float]]:
        return {
            **{name: [value(answer) for answer in chosen] for name, value in judges.items()},
            "KL": [nats(answer) for answer in chosen],
            "distinct-2": [distinct_2(answer.text for answer in chosen)],
            "words": [float(word_count(answer.text)) for answer in chosen],
            "finished": [float(answer.finished) for answer in chosen],
        }

    many = answers(before, config.best_of)
    paid = [model.rate(column) for column in many]
    first = [answer for column in many for answer in column[: config.judged]]
    rows = {str(config.model): row(first, lambda _: 0.0)}
    for n in (4, config.best_of):
        best = [
            column[at + int(rated[at : at + n].argmax())]
            for column, rated in zip(many, paid, strict=True)
            for at in range(0, min(n * config.judged, len(column) - n + 1), n)
        ]
        rows[f"best of {n}"] = row(best, lambda _, n=n: float(np.log(n) - (n - 1) / n))  # type: ignore[misc]
    after = {
        name: answers(load_language_model(folder, device, bf16), config.judged)
        for name, folder in finetuned.items()
    }
    rows |= {name: row([one for column in columns for one in column], kl) for name, columns in after.items()}
    last = list(after.values())[-1]
    shown = [
        (whole(prompt), column[0].text, other[0].text)
        for prompt, column, other in list(zip(prompts, many, last, strict=True))[:: max(1, len(prompts) // 6)]
    ]
    return rows, shown[:6]


def table(rows: dict[str, dict[str, list[float]]], prompts: int, title: str) -> str:
    """The rows of `compare`, answers prompt by prompt, in Markdown. The KL of a best of n is an upper bound."""
    import numpy as np

    from lib.reporting import format_mean

    def mean(values: list[float], digits: int) -> str:
        # Answers to one prompt are alike, so prompts are the units.
        return format_mean(np.reshape(values, (prompts, -1)).mean(1) if len(values) > 1 else values, digits)

    most = max(len(row["words"]) for row in rows.values())

    def cell(name: str, row: dict[str, list[float]], column: str) -> str:
        if column == "KL" and name.startswith("best"):
            return f"≤ {row[column][0]:.2f}"
        if column == "distinct-2" and len(row["words"]) < most:
            return "–"  # of fewer answers it is higher
        return mean(row[column], 1 if column == "words" else 3 if column == TEACHER else 2)

    lines = [f"\n{title}", "", f"| | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(cell(name, row, column) for column in COLUMNS)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
