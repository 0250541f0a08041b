"""The four stages on environments without pictures to learn from, through their command lines, on budgets of seconds."""

import re
import shlex
from pathlib import Path

import av
import pytest

from lib.preferences.segment_db import SegmentDB
from tests import scripts

REACH = "tests.envs.reach:Reach-v0"


def call(cwd: Path, script: str, *args: object, status: int = 0) -> str:
    done = scripts.call(cwd, script, *args, status=status)
    return done.stdout + done.stderr


@pytest.mark.slow(9)
def test_dicts_and_bounds(tmp_path: Path) -> None:
    small = ("-e", REACH, "--num-envs", 8, "--eval-games", 2, "--seed", 1)
    call(
        tmp_path,
        *("01_a2c.py", "-n", "v0", "--algo", "ppo", "--steps", 1500, *small, "--save", "v0"),
        *("--db-path", "db", "--record-prob", 0.04),
    )
    said = call(tmp_path, "02_label_ui.py", "-d", "db", "--teacher", "score", "--count", 20)
    assert "20 labels by score" in said
    said = call(
        tmp_path,
        *("03_reward_train.py", "-n", "r", "-o", ".", "db", "--ensemble", 2, "--epochs", 1),
        *("--audit", "v0/best.dat", "--audit-games", 1, "--audit-env", REACH),
    )
    assert "saved reward-r.dat" in said
    assert (tmp_path / "reward-r.report.html").exists()
    assert (tmp_path / "reward-r.audit.html").exists()
    said = call(
        tmp_path,
        *("01_a2c.py", "-n", "v1", "--steps", 400, *small, "-m", "v0/best.dat", "-r", "reward-r.dat"),
        *("--finetune", "--kl", 0.1, "--teacher", "score", "--save", "v1", "--critic-warmup", 1),
    )
    assert re.search(r"0 steps: score .* learned .* kl 0\.00", said)
    said = call(
        tmp_path,
        *("04_play.py", "-m", "v1/latest.dat", "-e", REACH, "-n", 1, "-r", "videos"),
        *("--reward", "reward-r.dat"),
    )
    assert "in 60 steps, learned return" in said
    with av.open(str(tmp_path / "videos" / "game-01.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 60
    segment = SegmentDB(tmp_path / "db").load(SegmentDB(tmp_path / "db").names[0])
    assert segment.actions.shape == (50, 2)
    assert segment.observations is not None
    assert f"of {REACH} with actions of 2 numbers" in call(tmp_path, "04_play.py", "--info", "db")
    # What was learned there means nothing elsewhere.
    said = call(tmp_path, "04_play.py", "-m", "v0/best.dat", "-e", "MovingDot-v0", status=2)
    assert "a policy for actions of 2 numbers, but MovingDot-v0 has 5 actions" in said
    call(tmp_path, "03_reward_train.py", "-n", "f", "-o", ".", "db", "--epochs", 1, "--input", "frame")
    said = call(tmp_path, "04_play.py", "-m", "v0/best.dat", "-e", REACH, "-n", 1, "--reward", "reward-f.dat")
    assert "learned return" in said


@pytest.mark.slow(25)
def test_enduro_in_fair_weather_with_the_speedometer_hidden(tmp_path: Path) -> None:
    small = (
        *("-e", "EnduroFairWeatherNoFrameskip-v4", "--network", "small"),
        *("--num-envs", 4, "--env-threads", 1, "--eval-games", 1),
    )
    call(
        tmp_path,
        *("01_a2c.py", "-n", "v0", "--steps", 800, *small, "--save", "v0"),
        *("--db-path", "db", "--record-prob", 0.2),
    )
    said = call(tmp_path, "02_label_ui.py", "-d", "db", "--teacher", "score", "--count", 12)
    assert "12 labels by score" in said
    fit = ("--epochs", 1, "--frame-stride", 25, "--mask", "enduro-speed")
    assert "saved reward-r.dat" in call(tmp_path, "03_reward_train.py", "-n", "r", "-o", ".", "db", *fit)
    said = call(
        tmp_path,
        *("01_a2c.py", "-n", "v1", "--steps", 20, *small, "-m", "v0/latest.dat", "-r", "reward-r.dat"),
        *("--finetune", "--save", "v1"),
    )
    assert re.search(r"0 steps: score .* learned .* kl 0\.00", said)
    said = call(tmp_path, "04_play.py", "-m", "v1/latest.dat", "-n", 1, "--reward", "reward-r.dat")
    assert "learned return" in said


@pytest.mark.slow(7)
def test_the_pole_that_many_know(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    call(
        tmp_path,
        *("01_a2c.py", "-n", "v0", "-e", "CartPole-v1", "--algo", "ppo", "--steps", 6000, "--num-envs", 8),
        *("--eval-games", 2, "--db-path", "db", "--record-prob", 0.02, "--db-max-mb", 0.2, "--save", "v0"),
    )
    said = call(tmp_path, "02_label_ui.py", "-d", "db", "--teacher", "left", "--count", 12)
    assert "12 labels by left" in said
    call(tmp_path, "03_reward_train.py", "-n", "r", "-o", ".", "db", "--epochs", 1)
    said = call(
        tmp_path,
        *("01_a2c.py", "-n", "v1", "-e", "CartPole-v1", "--algo", "ppo", "--steps", 1024, "--num-envs", 8),
        *("--eval-games", 2, "-m", "v0/latest.dat", "-r", "reward-r.dat", "--finetune", "--score-weight", 2),
    )
    assert re.search(r"1\.02k steps: score .* position -?\d.* learned -?\d.* kl \d", said)


@pytest.mark.slow(15)
def test_the_environment_of_the_page_passes_through_the_four_stages(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "environments.md").read_text()
    section = page.partition("## An environment of your own")[2]
    program, commands = re.findall(r"^```(?:python)?\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[:2]
    (tmp_path / "mine.py").write_text(program)
    fewer = {"100k": "3000", "0.005": "0.05", "100": "10"}
    for line in commands.splitlines():
        script, *flags = (fewer.get(word, word) for word in shlex.split(line, comments=True))
        epochs = ("--epochs", 1) if script == "./03_reward_train.py" else ()
        said = call(tmp_path, script, *flags, *epochs)
    assert "in 200 steps, learned return" in said
    assert (tmp_path / "videos" / "game-01.mp4").exists()
