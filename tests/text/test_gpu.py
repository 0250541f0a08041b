"""Language models on a GPU: every stage runs there, and what it leaves serves where there is none."""

from pathlib import Path

import pytest
import torch

from lib.text.language import load_language_model
from lib.text.layers import token_log_probs
from tests.scripts import call_anew
from tests.text.tiny import save_tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

SAMPLE = "01_text.py -m model --prompts prompts.txt --tokens 8 --dev cuda"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, answers, labels and a reward model, all but the first made by scripts."""
    folder = tmp_path_factory.mktemp("texts")
    save_tiny(folder / "model")
    (folder / "prompts.txt").write_text("".join(f"w{i} w{i + 1}\n" for i in range(20)))
    call(folder, f"{SAMPLE} --answers 4 --db-path db")
    call(folder, "02_label_ui.py -d db --teacher shorter --count 60")
    call(folder, "03_reward_train.py -n r -o . db -m model --epochs 4 --upper 1 --ensemble 2 --dev cuda")
    return folder


def call(folder: Path, command: str) -> str:
    return call_anew(folder, *command.split()).stdout


@pytest.mark.parametrize(("bf16", "within"), [(False, 1e-3), (True, 0.1)])
def test_a_model_says_the_same_as_on_a_cpu(bf16: bool, within: float, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    ours, theirs = (
        token_log_probs(load_language_model(tmp_path, torch.device(dev), bf16).network, [4, 5, 6], [7, 8, 9])
        for dev in ("cpu", "cuda")
    )
    torch.testing.assert_close(theirs.cpu().float(), ours.float(), rtol=within, atol=within)


@pytest.mark.parametrize("flags", ["ppo --kl-target 6 --critic-warmup 1", "grpo --lora 2"])
def test_a_finetune_is_resumed_and_its_policy_answers_on_a_cpu(flags: str, folder: Path) -> None:
    name = flags.split()[0]
    run = f"{SAMPLE} --algo {flags} -r reward-r.dat -n {name} --rollout 16 --eval-updates 1 --updates 2"
    call(folder, f"{run} --save {name} --runs runs/{name}")
    (begun,) = (folder / "runs" / name).iterdir()
    assert f"{name}/model_000064" in call(folder, f"01_text.py --resume {begun} --updates 4")
    best = (
        f"04_play.py -m {name}/latest --prompts prompts.txt --best-of 2 --reward reward-r.dat -r pages-{name}"
    )
    call(folder, f"{best} --dev cpu")


def test_a_model_is_fitted_to_labels(folder: Path) -> None:
    call(folder, "01_text.py -m model --algo dpo --db-path db -n dpo --save dpo --dev cuda")
    call(folder, "01_text.py -m dpo/latest --prompts prompts.txt --db-path db-dpo --dev cpu")
