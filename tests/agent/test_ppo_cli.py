"""PPO and the KL penalty through the command line, on budgets of seconds."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.reward.models import save_unfitted
from tests.scripts import Done, call

pytestmark = pytest.mark.slow


def train(cwd: Path, *args: object, status: int = 0) -> Done:
    small = ("-e", "MovingDot-v0", "--num-envs", 4, "--eval-games", 1)
    return call(cwd, "01_a2c.py", *args, *small, status=status)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy that PPO trained for a moment, and a reward model."""
    root = tmp_path_factory.mktemp("ppo")
    train(root, "-n", "v0", "--algo", "ppo", "--steps", 300, "--rollout", 16, "--save", "v0")
    save_unfitted(root / "reward.dat", members=2)
    return root


def config(root: Path, name: str) -> dict[str, object]:
    (run,) = (root / "runs").glob(f"*-{name}")
    return json.loads((run / "config.json").read_text())["config"]


def test_ppo_trains_and_keeps_what_its_flags_came_to(trained: Path) -> None:
    content = torch.load(trained / "v0" / "latest.dat", weights_only=True)
    assert content["steps"] == 320
    said = config(trained, "ppo-v0")
    assert (said["algo"], said["rollout"], said["epochs"], said["clip_range"]) == ("ppo", 16, 4, 0.2)
    assert (said["lr"], said["gae_lambda"], said["normalise_advantages"]) == (2.5e-4, 0.95, True)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_a_finetune_with_a_kl_penalty(trained: Path, algo: str) -> None:
    done = train(
        trained,
        *("-n", f"v1-{algo}", "-m", "v0/best.dat", "-r", "reward.dat", "--finetune", "--algo", algo),
        *("--kl", 0.1, "--kl-target", 0.02, "--score-weight", 0.5, "--critic-warmup", 1),
        *("--teacher", "score", "--drift-patience", 2, "--stop-on-drift"),
        *("--steps", 300, "--rollout", 16, "--save", f"v1-{algo}"),
    )
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if " steps: score" in line]
    assert [line.split()[0] for line in lines] == ["0", "320"]
    for line in lines:
        assert re.search(
            r"  learned -?[\d.]+  disagreement [\d.]+  kl [\d.]+  agreement [\d.]+  preferred", line
        )
    links = {path.name for path in (trained / f"v1-{algo}").iterdir() if path.is_symlink()}
    assert links == {"best.dat", "best-learned.dat", "best-teacher.dat", "latest.dat"}
    before, after = (
        torch.load(trained / folder, weights_only=True)["state_dict"]
        for folder in ("v0/best.dat", f"v1-{algo}/latest.dat")
    )
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("conv."), name
    said = config(trained, f"{algo}-v1-{algo}")
    assert (said["kl"], said["score_weight"], said["freeze_convs"]) == (0.1, 0.5, True)


def test_mistakes_get_one_line(tmp_path: Path) -> None:
    done = train(tmp_path, "-n", "x", "--clip", 0.2, status=2)
    assert done.stderr.startswith("01_a2c.py: error: --clip-range expects an algorithm with several passes")
    assert done.stderr.count("\n") == 1


def test_a_policy_whose_heads_share_a_layer_is_trained_and_resumed(tmp_path: Path) -> None:
    train(tmp_path, "-n", "v0", "--network", "shared", "--steps", 40, "--save", "v0")
    (run,) = (tmp_path / "runs").iterdir()
    said = call(tmp_path, "01_a2c.py", "--resume", run, "--steps", 80).stdout
    assert "resuming after 40 steps" in said
    weights = torch.load(tmp_path / "v0" / "latest.dat", weights_only=True)["state_dict"]
    assert weights["conv.7.weight"].shape == (512, 3136)
    train(tmp_path, "-n", "v1", "-m", "v0/latest.dat", "--network", "shared", "--steps", 20)
    train(tmp_path, "-n", "s", "--steps", 20, "--save", "s")
    said = train(tmp_path, "-n", "x", "-m", "s/latest.dat", "--network", "shared", status=2).stderr
    assert "the policy of s/latest.dat has --network separate" in said
