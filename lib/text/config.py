"""The flags of 01_text.py. Imports nothing heavy, so that --help is instant."""

from dataclasses import dataclass
from pathlib import Path

from lib.cli import flag


@dataclass(frozen=True)
class SampleConfig:
    """Answers of a language model to prompts, into a DB."""

    model: Path = flag(
        "-m", group="most used", metavar="FOLDER", help="language model, such as models/smollm2 of make model"
    )
    prompts: Path = flag(metavar="FILE", help='one prompt a line, or .jsonl with a "prompt" in each line')
    db_path: Path = flag(metavar="DB", help="folder for the answers; made when missing")
    answers: int = flag(
        default=2, min=1, help="answers to each prompt; those that the DB has of this model and seed count"
    )
    tokens: int = flag(default=64, min=1, max=8192, help="longest answer, in tokens")
    dev: str = flag(default="cpu", metavar="DEVICE", help="device of the model: cpu, cuda, cuda:1")

    temperature: float = flag(
        group="sampling", default=1.0, min=0.01, max=100, help="divides the logits; below 1 is tamer"
    )
    chat: bool | None = flag(
        default=None, help="put prompts into the model's chat template (default: where it has one)"
    )
    batch_size: int = flag(default=32, min=1, help="answers sampled at once")
    seed: int = flag(default=0, min=0, help="seed of the answers; another one samples others")
    bf16: bool | None = flag(default=None, help="compute in bf16 (default: where the device is fast at it)")
