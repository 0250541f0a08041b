"""The four scripts through their command lines, one feeding the next, on budgets of seconds."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
import pytest
import torch

from lib.preferences.segment_db import SegmentDB
from lib.reward.checkpoints import load_reward_model
from tests.scripts import ENVIRONMENT, ROOT, Done, call, call_anew, command

pytestmark = pytest.mark.slow


def policy(path: Path) -> dict[str, torch.Tensor]:
    """Weights of a checkpoint, read as anyone would."""
    return torch.load(path, weights_only=True)["state_dict"]


class Round(NamedTuple):
    """One round in a folder, and what each stage said."""

    root: Path
    train: Done
    label: Done
    fit: Done
    finetune: Done
    play: Done


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> Round:
    root = tmp_path_factory.mktemp("round")
    small = ("--num-envs", 4, "--eval-games", 1, "--seed", 1, "--network", "small")
    record = ("--db-path", "db", "--record-prob", 0.06, "--db-max-mb", 10)
    train = call(
        root, "01_a2c.py", "-n", "v0", "--steps", 1000, "--eval-every", 500, "--save", "v0", *record, *small
    )
    label = call(root, "02_label_ui.py", "-d", "db", "--teacher", "midwater", "--count", 40)
    fit = call(
        root,
        *("03_reward_train.py", "-n", "r", "-o", "rewards", "db", "--epochs", 2, "--frame-stride", 10),
    )
    finetune = call(
        root,
        *("01_a2c.py", "-n", "v1", "-m", "v0/best.dat", "-r", "rewards/reward-r.dat", "--finetune"),
        *("--steps", 400, "--save", "v1", *small),
    )
    play = call_anew(
        root,
        *("04_play.py", "-m", "v1/latest.dat", "-n", 1, "--seed", 5, "-r", "videos"),
        *("--reward", "rewards/reward-r.dat"),
    )
    return Round(root, train, label, fit, finetune, play)


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, found
    return found[0]


def test_training_keeps_checkpoints(one_round: Round) -> None:
    folder = one_round.root / "v0"
    files = [path.name for path in folder.glob("model_*.dat")]
    assert 1 <= len(files) <= 2
    assert all(re.fullmatch(r"model_00\d{4}-rw=\d+-steps=\d+\.dat", name) for name in files)
    latest = torch.load(folder / "latest.dat", weights_only=True)
    assert (latest["kind"], latest["steps"], latest["num_actions"]) == ("policy", 1000, 18)
    assert latest["config"]["env"] == "SeaquestNoFrameskip-v4"
    assert latest["config"]["seed"] == 1
    measured = {"scores", "steps", "depth", "midwater", "surface", "refuels", "rescues"}
    assert set(latest["evaluation"]) >= measured
    assert latest["state_dict"]["policy.2.weight"].shape == (18, 256)
    best = torch.load(folder / "best.dat", weights_only=True)
    assert best["evaluation"]["scores"] >= latest["evaluation"]["scores"]


def test_training_says_how_it_goes(one_round: Round) -> None:
    said = one_round.train.stdout
    assert "SeaquestNoFrameskip-v4: 4 environments on cpu, curves in runs/" in said
    assert re.search(r"^500 steps: score \d+\.0 \(1 game\)  best \d+  steps \d+  depth", said, re.M)
    assert re.search(r"^1\.00k steps: score", said, re.M)
    assert re.search(r"^saved v0/model_001000-.*; the best is v0/best\.dat$", said, re.M)
    assert one_round.train.stderr == ""
    run = only(one_round.root / "runs", "*-a2c-v0")
    assert json.loads((run / "config.json").read_text())["config"]["steps"] == 1000
    assert only(run, "events.out.tfevents.*").stat().st_size > 100


def test_training_records_segments(one_round: Round) -> None:
    db = SegmentDB(one_round.root / "db")
    db.refresh()
    assert len(db.names) >= 8
    assert all(re.fullmatch(r"\d\d/\d{8}\.dat", name) for name in db.names)
    assert {name[:2] for name in db.names} <= {f"{env:02d}" for env in range(4)}
    for name in db.names:
        segment = db.load(name)
        assert segment.frames.shape == (50, 210, 160, 3)
        assert segment.frames.std() > 10
        assert segment.actions.shape == (50,)
        assert set(segment.actions) <= set(range(18))
        assert segment.sidecar is not None
        assert (segment.sidecar.env_id, segment.sidecar.num_actions) == ("SeaquestNoFrameskip-v4", 18)


def test_the_teacher_labels(one_round: Round) -> None:
    labels = [json.loads(line) for line in (one_round.root / "db" / "labels.json").read_text().splitlines()]
    assert len(labels) == 40
    assert {label["teacher"] for label in labels} == {"midwater"}
    assert {label["label"] for label in labels} <= {0, 1, 2}
    assert len({frozenset((label["sample1"], label["sample2"])) for label in labels}) == 40
    assert "40 labels by midwater" in one_round.label.stdout


def test_another_teacher_goes_on_in_the_same_file(one_round: Round, tmp_path: Path) -> None:
    copy = tmp_path / "db"
    subprocess.run(["cp", "-r", one_round.root / "db", copy], check=True)
    done = call(tmp_path, "02_label_ui.py", "-d", copy, "--teacher", "score", "--count", 5, "--seed", 2)
    assert "5 labels by score" in done.stdout
    labels = [json.loads(line) for line in (copy / "labels.json").read_text().splitlines()]
    assert [label["teacher"] for label in labels] == ["midwater"] * 40 + ["score"] * 5
    assert len({frozenset((label["sample1"], label["sample2"])) for label in labels}) == 45


def test_a_reward_model_is_fitted(one_round: Round) -> None:
    said = one_round.fit.stdout
    assert re.search(
        r"^40 labels on \d+ clips of SeaquestNoFrameskip-v4: \d+ to fit, \d+ held out", said, re.M
    )
    assert re.search(r"^epoch 2: loss \d+\.\d+, held out \d\.\d+, accuracy", said, re.M)
    assert re.search(r"^held-out accuracy .* saved rewards/reward-r\.dat$", said, re.M)
    model = load_reward_model(one_round.root / "rewards" / "reward-r.dat")
    assert (model.spec.frame_shape, model.spec.num_actions) == ((210, 160, 3), 18)
    assert only(one_round.root / "runs", "*-reward-r").is_dir()
    db = SegmentDB(one_round.root / "db")
    db.refresh()
    labelled = {
        label[key]
        for label in map(json.loads, (one_round.root / "db" / "labels.json").read_text().splitlines())
        for key in ("sample1", "sample2")
    }
    segments = [db.load(name) for name in sorted(labelled)]
    paid = np.concatenate([model.rewards(segment.frames, segment.actions) for segment in segments])
    # Standardised by every tenth of a few hundred steps, which leaves some chance.
    assert paid.mean() == pytest.approx(0, abs=0.25)
    assert paid.std() == pytest.approx(1, rel=0.25)


def test_finetuning_leaves_the_convolutions_and_changes_the_heads(one_round: Round) -> None:
    before, after = policy(one_round.root / "v0" / "best.dat"), policy(one_round.root / "v1" / "latest.dat")
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("conv."), name
    content = torch.load(one_round.root / "v1" / "latest.dat", weights_only=True)
    assert content["parents"]["policy"]["file"] == "v0/best.dat"
    assert content["parents"]["reward"]["file"] == "rewards/reward-r.dat"
    assert content["parents"]["reward"]["parents"]["labels"] == 40
    assert "400 steps: score" in one_round.finetune.stdout


def test_play_says_score_and_learned_return(one_round: Round) -> None:
    line, mean, where, page = one_round.play.stdout.splitlines()
    found = re.fullmatch(
        r"game 1: score (\d+) in (\d+) steps, learned return (-?\d+\.\d) \(([+-]\d+\.\d{3}) a step\)", line
    )
    assert found, line
    assert int(found[2]) > 100
    assert float(found[3]) / int(found[2]) == pytest.approx(float(found[4]), abs=1e-3)
    assert mean.startswith(f"SeaquestNoFrameskip-v4: score {found[1]}.0 (1 game), best {found[1]}")
    assert where == "videos in videos"
    assert page.endswith("videos/summary.html")


def test_play_records_a_video_with_the_learned_reward(one_round: Round) -> None:
    found = re.search(r"in (\d+) steps", one_round.play.stdout)
    assert found
    assert (one_round.root / "videos" / "summary.html").exists()
    video = only(one_round.root / "videos", "*.mp4")
    assert video.name == "game-01.mp4"
    with av.open(str(video)) as container:
        frames = list(container.decode(video=0))
    assert len(frames) == int(found[1])
    last = frames[-1].to_ndarray(format="rgb24")
    assert last.shape == (3 * (210 + 32), 3 * 160, 3)
    assert last[: 3 * 210].std() > 10
    strip = last[3 * 210 :, 3 * 60 :].astype(int)
    assert (np.abs(strip - strip.mean((0, 1))).max() > 50).all()  # bars on black


@pytest.fixture(scope="module")
def dot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the moving dot."""
    root = tmp_path_factory.mktemp("dot")
    done = call(
        root,
        *("01_a2c.py", "-n", "dot", "-e", "MovingDot-v0", "--steps", 600, "--num-envs", 4, "--eval-games", 2),
        *("--save", "v0", "--db-path", "db", "--record-prob", 0.05, "--db-max-mb", 0.005),
    )
    assert re.search(r"600 steps: score \d+\.\d .*\(95 %, 2 games\).*steps 100  distance", done.stdout)
    return root


def test_the_moving_dot_is_trained_and_played(dot: Path) -> None:
    # The environment is the one that the policy was trained in.
    done = call(dot, "04_play.py", "-m", "v0/best.dat", "-n", 2, "-r", "videos", "--seed", 3)
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"game [12]: score [\d.]+ in 100 steps", line) for line in lines[:2])
    assert re.fullmatch(r"MovingDot-v0: score [\d.]+ ± [\d.]+ \(95 %, 2 games\), best [\d.]+", lines[2])
    with av.open(str(dot / "videos" / "game-02.mp4")) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(pictures) == 100
    assert pictures[0].shape == (252, 252, 3)
    again = call(dot, "04_play.py", "-m", "v0/best.dat", "-n", 2, "--seed", 3)
    assert again.stdout.splitlines()[:3] == lines[:3]


def test_recording_stops_at_the_cap(dot: Path) -> None:
    sizes = [path.stat().st_size for path in (dot / "db").glob("*/*.dat")]
    assert sizes
    assert sum(sizes) >= 5_000  # reached
    assert sum(sizes) - max(sizes) < 5_000  # and passed by less than one segment


def test_ctrl_c_saves_and_says_where(tmp_path: Path) -> None:
    args = command(
        *("01_a2c.py", "-n", "long", "-e", "MovingDot-v0", "--steps", "10M", "--num-envs", 4, "--save", "v0")
    )
    process = subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=ENVIRONMENT
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "steps/s" in line:
                break
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    found = re.search(r"^stopped by request, saved (v0/model_\d{6}-rw=\d+-steps=\d+\.dat)$", said, re.M)
    assert found, said
    content = torch.load(tmp_path / found[1], weights_only=True)
    assert 0 < content["steps"] < 10_000_000
    assert (tmp_path / "v0" / "latest.dat").resolve().name == Path(found[1]).name
    assert errors == ""


def test_a_mistake_typed_at_a_shell(tmp_path: Path) -> None:
    done = call_anew(tmp_path, "01_a2c.py", "-n", "x", "--step", 5, status=2)
    assert re.fullmatch(r"01_a2c.py: error: .*did you mean --steps\?.*\n", done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize(
    "script",
    ["01_a2c.py", "02_label_ui.py", "03_reward_train.py", "04_play.py", "online.py", "demo.py"],
)
def test_scripts_are_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env python3\n")
