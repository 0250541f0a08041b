"""Everything at once through the real command lines, on the moving dot: begun, cut, killed, gone on with."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import online
from lib import cli
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from lib.preferences.labels import LabelLog
from lib.runs import save_state, write_config
from tests.scripts import Forked, wait_until

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
SMALL = [
    *("--steps", "600", "--labels", "40"),
    *("--opening-labels", "20", "--refit-every", "10", "--segments", "30"),
    *("--eval-every", "600", "--eval-games", "2", "--no-check"),
    *("--train", "num_envs=4", "wait_for_labels=4", "network=small"),
    *("--fit", "epochs=2", "refit_epochs=1", "frame_stride=10"),
]


@contextlib.contextmanager
def started(root: Path, script: str, *args: str) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=root,
        env=ENVIRONMENT,
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def read_until(process: "subprocess.Popen[str] | Forked", pattern: str) -> list[str]:
    """Its lines up to the first that matches."""
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError("".join(lines))


def alive(folder: Path) -> list[str]:
    """Command lines of processes that have something to do with a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(path / "cwd") and os.readlink(path / "cwd") == str(folder):
                found.append((path / "cmdline").read_text())
    return found


@pytest.mark.slow(35)
def test_all_at_once_is_cut_and_goes_on_to_its_end(tmp_path: Path) -> None:
    with started(tmp_path, "online.py", "--out", "o", *SMALL) as process:
        said = read_until(process, r"agent \| 0 steps: loaded reward model 1")
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=600)[0]
    assert process.returncode == 130, "".join(said) + rest
    assert "stopped; the same command continues from here" in rest
    assert "Traceback" not in rest
    assert alive(tmp_path) == []
    done = subprocess.run(
        [sys.executable, str(ROOT / "online.py"), "--out", "o", *SMALL],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--resume o/runs/agent/" in done.stdout
    assert "starting from version" in done.stdout
    progress = json.loads((tmp_path / "o" / "db" / "progress.json").read_text())
    assert (progress["steps"], progress["phase"], progress["due"]) == (600, "over", 40)
    labels = LabelLog(tmp_path / "o" / "db" / "labels.json").read()
    assert 36 <= len(labels) <= 40  # the last may be due when all is over
    assert {label.teacher for label in labels} == {"score"}
    assert {label.strategy for label in labels} == {"recent", "random"}
    reward = torch.load(tmp_path / "o" / "rewards" / "reward-online.dat", weights_only=True)
    assert reward["version"] >= 1  # a refit that is not done when the agent is over is dropped
    policy = torch.load(tmp_path / "o" / "policy" / "latest.dat", weights_only=True)
    assert (policy["steps"], policy["parents"]["reward"]["file"]) == (600, "o/rewards/reward-online.dat")
    # Once more, and there is nothing left to do.
    again = subprocess.run(
        [sys.executable, str(ROOT / "online.py"), "--out", "o", *SMALL],
        capture_output=True,
        cwd=tmp_path,
        timeout=600,
    )
    assert (again.returncode, b"agent" in again.stdout) == (0, False)


def test_killed_it_takes_its_stages_along(tmp_path: Path) -> None:
    stage = tmp_path / "stage.py"
    stage.write_text("import time; time.sleep(600)")
    code = f"import online; online.together(dict.fromkeys('ab', [{str(stage)!r}]))"
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment) as process:
        wait_until(lambda: sum(line.endswith("stage.py\0") for line in alive(tmp_path)) == 2)
        process.kill()
    wait_until(lambda: not alive(tmp_path))


@pytest.mark.slow(20)
def test_any_order_and_any_death(tmp_path: Path) -> None:
    """Reward trainer first, then the teacher, the agent last; reward trainer and agent are killed and started again."""
    fit = [
        *("db", "-n", "x", "-o", "rewards", "--watch", "--refit-every", "10", "--epochs", "2"),
        *("--refit-epochs", "1", "--frame-stride", "10"),
    ]
    train = [
        *("-n", "x", "-e", "MovingDot-v0", "-r", "rewards/reward-x.dat", "--watch-reward", "--db-path", "db"),
        *("--num-envs", "4", "--steps", "600", "--labels", "60", "--opening-labels", "20"),
        *("--wait-for-labels", "4", "--eval-games", "1", "--save", "policy", "--checkpoint-minutes", "0.001"),
    ]
    with contextlib.ExitStack() as stack:

        def start(script: str, *args: str) -> Forked:
            forked = Forked([str(ROOT / script), *args], {}, tmp_path)
            stack.callback(forked.send_signal, signal.SIGKILL)
            return forked

        first = start("03_reward_train.py", *fit)
        read_until(first, "watching the labels of db")
        teacher = start("02_label_ui.py", "-d", "db", "--watch", "--teacher", "score")
        read_until(teacher, "score labels db as labels fall due")
        agent = start("01_a2c.py", *train)
        read_until(agent, "0 steps: loaded reward model 1")
        first.send_signal(signal.SIGKILL)
        (run,) = (tmp_path / "runs").glob("*-a2c-x")
        wait_until((run / "state.dat").exists)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        second = start("03_reward_train.py", *fit)
        read_until(second, "starting from version [1-9]")
        agent = start("01_a2c.py", "--resume", str(run))
        said = "".join(read_until(agent, "^saved policy/"))
        assert re.search(r"loaded reward model [1-9]", said)
        assert agent.wait() == 0
        wait_until(lambda: len(LabelLog(tmp_path / "db" / "labels.json").read()) >= 60)
        reward = tmp_path / "rewards" / "reward-x.dat"
        wait_until(
            lambda: torch.load(reward, weights_only=True)["version"] >= 2
        )  # refitted to the later labels
        for process, last in ((teacher, "stopped by request"), (second, "is in rewards/reward-x.dat")):
            process.send_signal(signal.SIGINT)
            assert last in process.communicate(timeout=600)[0]
            assert process.wait() == 0
    assert len(LabelLog(tmp_path / "db" / "labels.json").read()) == 60


def test_a_stop_after_the_last_evaluation_leaves_nothing_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the agent from saying that all is over, which a state then tells."""
    monkeypatch.setattr(online, "together", lambda stages: 2)
    run, config = (
        tmp_path / "runs" / "agent" / "20260101-ppo-online",
        online.OnlineConfig(out=tmp_path, steps=600),
    )
    assert online.learn(config) == 2
    save_state(run, "01_a2c.py", {"steps": 600, "examined": 300}, {}, {})
    write_config(run, {"env": config.env})
    assert online.learn(config) == 2
    save_state(run, "01_a2c.py", {"steps": 600, "examined": 600}, {}, {})
    assert online.learn(config) is None
    assert online.learn(dataclasses.replace(config, steps=700)) == 2


def test_only_the_dot_has_its_own_recipe(tmp_path: Path) -> None:
    own = {"gamma": 0.9, "entropy": 0.06, "lr_decay_steps": 1_100_000, "num_envs": 32}
    some = online.OnlineConfig(out=tmp_path, steps=1_000_000)
    assert own.items() <= online.train_flags(some).items()
    other = dataclasses.replace(some, env="PongNoFrameskip-v4")
    assert not own.keys() & online.train_flags(other).keys()
    assert "--gamma" not in online.commands(other)["agent"]
    assert online.train_flags(dataclasses.replace(some, train={"algo": "a2c"})) == {"algo": "a2c"}


def test_more_flags_reach_their_stage(tmp_path: Path) -> None:
    flags = ["--train", "num_envs=4", "--label", "keyword=red", "--fit", "epochs=2"]
    config = cli.parse(online.OnlineConfig, [*flags, "--out", str(tmp_path)])
    commands = {name: shlex.join(words) for name, words in online.commands(config).items()}
    assert "--num-envs 4" in commands["agent"]
    assert "--keyword red" in commands["labels"]
    assert "--epochs 2" in commands["reward"]


@pytest.mark.parametrize(
    "given", [{"train": {"save": Path("x")}}, {"fit": {"name": "x"}}, {"label": {"db_path": Path()}}]
)
def test_what_ties_the_stages_together_stays(given: dict[str, Any]) -> None:
    ((stage, flags),) = given.items()
    with pytest.raises(
        UserError, match=f"--{stage} {next(iter(flags))}: online.py sets it, to .*; leave it out"
    ):
        online.commands(online.OnlineConfig(**given))
    online.commands(online.OnlineConfig(label={"name": "ada"}, people=True))


def test_more_steps_learn_at_a_rate_that_falls_over_all_of_them(tmp_path: Path) -> None:
    save_state(tmp_path / "runs" / "agent" / "20260101-ppo-online", "01_a2c.py", {"steps": 600}, {}, {})
    resumed = online.commands(online.OnlineConfig(out=tmp_path, steps=1_000_000))["agent"]
    assert "--lr-decay-steps 1100000" in shlex.join(resumed)
    config = online.OnlineConfig(out=tmp_path, env="PongNoFrameskip-v4")
    assert "--lr-decay-steps" not in online.commands(config)["agent"]


def test_a_folder_is_for_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another teacher's labels would be mixed with those of the first, or the old result shown as the new one."""
    monkeypatch.setattr(online, "learn", lambda _: None)
    monkeypatch.setattr(online, "over", lambda _: False)
    begin = ["--out", str(tmp_path / "o"), "--no-check"]
    online.main([*begin, "--teacher", "noisy"])
    online.main([*begin, "--steps", "600"])  # nothing was learned yet
    run = tmp_path / "o" / "runs" / "agent" / "20260101-ppo-online"
    save_state(run, "01_a2c.py", {"steps": 600}, {}, {})
    online.main([*begin, "--steps", "900", "--labels", "500", "--fit", "epochs=2", "--people"])
    for flags, said in (
        (["--env", "CartPole-v1"], "--env: .* was begun with 'MovingDot-v0', got 'CartPole-v1'"),
        (["--seed", "7"], "--seed: .* was begun with 0, got 7"),
        (["--teacher", "equal"], "--teacher: .* was begun with 'score', got 'equal'"),
        (["--train", "algo=a2c"], "--train: .* repeat its flags"),
    ):
        with pytest.raises(UserError, match=said):
            online.main([*begin, *flags])


def test_a_module_of_ones_own_stands_in_the_command_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(online, "learn", lambda _: None)
    for env, said in (
        ("mine:Track-v0", "./04_play.py -e mine:Track-v0 -m "),
        ("CartPole-v1", "./04_play.py -m "),
    ):
        assert online.main(["--out", str(tmp_path), "--env", env]) == 0
        assert said in capsys.readouterr().out


def test_it_ends_in_order_when_its_reader_leaves(tmp_path: Path) -> None:
    """The stages have more to say than a pipe holds, and save what they have."""
    stage = tmp_path / "stage.py"
    stage.write_text(
        "import pathlib, signal, sys, time\n"
        "asked, both = [], [pathlib.Path(name) for name in 'ab']\n"
        "signal.signal(signal.SIGINT, lambda *_: asked.append(1))\n"
        "own = pathlib.Path(sys.argv[1])\n"
        "own.touch()\n"
        "while not all(path.exists() for path in both): time.sleep(0.01)\n"
        "while not asked: print('x' * 2000)\n"
        "print('x' * 200_000)\n"
        "own.write_text('saved')\n"
    )
    stages = {name: [str(stage), name] for name in "ab"}
    code = f"import sys, online; sys.exit(online.together({stages!r}))"
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" | head -3; exit ${PIPESTATUS[0]}', sys.executable, code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        timeout=50,  # after 60 seconds it would kill them
    )
    assert (done.returncode, done.stderr) == (online.STOPPED, "")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["saved", "saved"]


def test_a_reader_that_leaves_by_the_same_ctrl_c_costs_nothing(tmp_path: Path) -> None:
    """As tee does. The stages say a line before they save, which takes a while."""
    stage = tmp_path / "stage.py"
    stage.write_text(
        "import pathlib, signal, sys, time\n"
        "asked, own = [], pathlib.Path(sys.argv[1])\n"
        "signal.signal(signal.SIGINT, lambda *_: asked.append(1))\n"
        "own.touch()\n"
        "while not asked: time.sleep(0.01)\n"
        "print('stopping', flush=True)\n"
        "time.sleep(1)\n"
        "own.write_text('saved')\n"
    )
    stages = {name: [str(stage), name] for name in "ab"}
    code = f"import sys, online; sys.exit(online.together({stages!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
    )
    wait_until(lambda: all((tmp_path / name).exists() for name in "ab"))
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    process.wait(50)  # after 60 seconds it would kill them
    assert [(tmp_path / name).read_text() for name in "ab"] == ["saved", "saved"]


def test_a_stage_that_fails_ends_all_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits, fails = tmp_path / "waits.py", tmp_path / "fails.py"
    waits.write_text("import time; time.sleep(600)")
    fails.write_text("import sys; sys.exit(print('no such teacher', file=sys.stderr) or 2)")
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        assert online.together({"agent": [str(waits)], "labels": [str(fails)]}) == 2
    said = capsys.readouterr()
    assert "labels | no such teacher\n" in said.out
    assert said.err == "labels ended with status 2\n"
    assert alive(tmp_path) == []


@pytest.mark.parametrize(("score", "status"), [(97.0, 0), (94.0, 0), (60.0, 1)])
def test_what_was_learnt_is_held_against_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], score: float, status: int
) -> None:
    """The best is 97.35 and chance 50; nine tenths of the way are asked for."""
    latest = tmp_path / "latest.dat"
    evaluation = {"scores": [score - 0.5, score + 0.5]}
    save_checkpoint(latest, "policy", {"state_dict": {}, "evaluation": evaluation}, {}, {})
    assert online._check_dot(online.OnlineConfig(out=tmp_path), latest, " 2m.") == status
    said = capsys.readouterr()
    assert f"{(score - 50) / 47.35:.0%} of the way from chance (50) to the best" in said.out
    assert ("expected at least 90%" in said.err) == bool(status)
