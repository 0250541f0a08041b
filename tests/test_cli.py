"""Command lines: what they accept, and that each refusal is one line that helps."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lib import cli
from lib.cli import UserError, flag

ROOT = Path(__file__).parents[1]


@dataclass
class Config:
    name: str = flag("-n", help="name of the run")
    dev: str = flag(default="cpu", help="cpu or cuda")
    num_envs: int = flag(default=16, min=1, max=512, help="environments, 100 % of them")
    steps: int = flag(default=80_000_000, min=0, help="steps")
    lr: float = flag(default=7e-4, min=0, help="learning rate")
    finetune: bool = flag(default=False, help="finetune")
    headless: bool = flag(default=True, help="no window")
    freeze: bool | None = flag(default=None, help="freeze the convolutions")
    db_path: Path | None = flag("--db", default=None, help="record here")
    teacher: str = flag(default="score", choices=["score", "oxygen"], help="who labels")
    seeds: list[int] = flag(default=[1], help="seeds")


@dataclass
class Fit:
    out: Path = flag("-o", help="folder")
    dbs: list[Path] = flag(positional=True, metavar="DB", help="databases")
    epochs: int = flag(default=10)


def read(*argv: str) -> Config:
    return cli.parse(Config, ["-n", "x", *argv], prog="prog")


def refusal(config: type, argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line a bad command line leaves on stderr, without the prefix."""
    with pytest.raises(SystemExit) as stop:
        cli.parse(config, argv, prog="prog")
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.startswith("prog: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.removeprefix("prog: error: ").rstrip("\n")


def test_defaults_and_types() -> None:
    assert read() == Config(name="x")
    got = read(
        "--dev", "cuda", "--num-envs", "4", "--lr", "1e-3", "--finetune", "--no-headless", "--db", "a/b"
    )
    assert got == Config(
        name="x", dev="cuda", num_envs=4, lr=1e-3, finetune=True, headless=False, db_path=Path("a/b")
    )
    assert read("--freeze").freeze is True
    assert read("--no-freeze").freeze is False
    assert read("--seeds", "1", "2", "--seeds", "3").seeds == [1, 2, 3]
    assert read("--dev=").dev == ""


def test_a_list_default_is_not_shared() -> None:
    read().seeds.append(5)
    assert read().seeds == [1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e6", 2_000_000),
        ("12_000_000", 12_000_000),
        ("12M", 12_000_000),
        ("500k", 500_000),
        ("1.5M", 1_500_000),
        ("1G", 10**9),
        ("+7", 7),
        ("0", 0),
    ],
)
def test_large_integers(text: str, value: int) -> None:
    steps = read("--steps", text).steps
    assert steps == value
    assert isinstance(steps, int)


@pytest.mark.parametrize(
    "text", ["", "x", "1.5", "1e-3", "12m", "1e999", "1e9999999999", "٣", "nan", "-1e6", "0x10"]
)
def test_refused_integers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(Config, ["-n", "x", f"--steps={text}"], capsys)
    assert line == f"--steps: expected a whole number of at least 0; got {text!r}"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "expected -n/--name, got none; see --help"),
        (["-n"], "-n/--name: expected a value, got none; write --name VALUE"),
        (
            ["-n", "x", "--steps", "-m"],  # up to Python 3.13 -1e6, too
            "--steps: expected a value, got '-m'; if that is the value, write --steps=-m",
        ),
        (["--num-env", "3"], "unknown flag '--num-env'; did you mean --num-envs?"),
        (["--nmu-envs=3"], "unknown flag '--nmu-envs'; did you mean --num-envs?"),
        (["--zzzzzz"], "unknown flag '--zzzzzz'; see --help for the flags there are"),
        (["-n", "x", "stray"], "expected a flag, got 'stray'; see --help"),
        (["--num-envs", "0"], "--num-envs: expected a whole number from 1 to 512; got '0'"),
        (["--num-envs", "-1"], "--num-envs: expected a whole number from 1 to 512; got '-1'"),
        (["--lr", "nan"], "--lr: expected a number of at least 0; got 'nan'"),
        (["--db", ""], "--db/--db-path: expected a path; got ''"),
        (["--finetune=yes"], "--finetune: expected no value, got 'yes'; give the flag alone"),
        (
            ["--teacher", "scores"],
            "--teacher: expected one of score, oxygen; got 'scores'; did you mean score?",
        ),
        (["--teacher", "a\nb\x1b[1m"], r"--teacher: expected one of score, oxygen; got 'a\nb\x1b[1m'"),
    ],
)
def test_refusals(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(Config, argv, capsys) == line


def test_positionals_mix_with_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.parse(Fit, ["a", "-o", "out", "b", "--epochs", "3"]) == Fit(
        out=Path("out"), dbs=[Path("a"), Path("b")], epochs=3
    )
    assert refusal(Fit, ["-o", "out"], capsys) == "expected DB, got none; see --help"
    assert refusal(Fit, [], capsys) == "expected -o/--out, DB, got none; see --help"
    assert "unknown flag '--epoch'" in refusal(Fit, ["--epoch", "3", "a"], capsys)


def test_a_user_error_of_the_dataclass_is_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass
    class Picky:
        low: int = flag(default=0)

        def __post_init__(self) -> None:
            if self.low:
                raise UserError("--low: expected 0")

    assert refusal(Picky, ["--low", "1"], capsys) == "--low: expected 0"


def test_help_shows_defaults(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        cli.parse(Config, ["--help"], description="Trains 100 %.", prog="prog")
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "Trains 100 %.",
        "-n, --name TEXT name of the run (required)",
        "environments, 100 % of them (default: 16)",
        "learning rate (default: 0.0007)",
        "--[no-]headless no window (default: on)",
        "--[no-]freeze freeze the convolutions",
        "--teacher {score,oxygen} who labels (default: score)",
        "--db, --db-path PATH record here",
    ):
        assert part in text


def test_help_is_in_groups_and_keeps_old_names_to_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Grouped:
        name: str = flag("-n", group="most used")
        steps: int = flag(default=12_000_000)
        clip_range: float = flag(group="algorithm", default=0.2, max=1, formerly="clip")

    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.parse(Grouped, ["--help"], prog="prog")
    usage, most_used, algorithm = capsys.readouterr().out.split("\n\n")
    assert usage == "usage: prog -n TEXT [flags]"
    assert most_used.splitlines()[0] == "most used:"
    assert "(default: 12M)" in most_used
    assert [line.split()[0] for line in algorithm.splitlines()] == ["algorithm:", "--clip-range", "-h,"]
    assert cli.parse(Grouped, ["-n", "x", "--clip", "0.1"]) == Grouped(name="x", clip_range=0.1)
    assert refusal(Grouped, ["-n", "x", "--clip", "2"], capsys).startswith(
        "--clip: expected a number of at most 1"
    )


@dataclass(frozen=True)
class Picture:
    captions: list[str] = flag(nargs=2, metavar="TEXT TEXT", help="two")
    masks: list[str] = flag(default=[], nargs=1, help="repeatable")


@dataclass
class Pipeline:
    train: dict[str, Any] = flag(default={"lr": 0.5}, of=Config, formerly="train_flags", help="of Config")


def test_fields_of_another_configuration_are_given_as_key_and_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [
        "--train",
        "num-envs=4",
        "freeze=no",
        "db_path=a b=c",
        "--train",
        "seeds=2",
        "seeds=3",
        "num_envs=8",
    ]
    found = {"num_envs": 8, "freeze": False, "db_path": Path("a b=c"), "seeds": [2, 3]}
    assert cli.parse(Pipeline, given) == Pipeline(train=found)
    assert cli.parse(Pipeline, []).train == {"lr": 0.5}
    for text, says in {
        "epochs=3": "--train: no flag is called 'epochs'; KEY is a flag without its dashes",
        "num_env=3": "--train: no flag is called 'num_env'; write --train num_envs=VALUE",
        "num_envs": "--train: expected KEY=VALUE, got 'num_envs'; write --train num_envs=VALUE",
        "num_envs=0": "--train: num_envs: expected a whole number from 1 to 512; got '0'",
        "freeze=1": "--train: freeze: expected yes or no, got '1'",
    }.items():
        assert refusal(Pipeline, ["--train", text], capsys) == says
    old = ["--train-flags", "--num-envs 3 --lr 1"]
    assert refusal(Pipeline, old, capsys).endswith("write --train num_envs=VALUE")


def test_the_command_line_of_a_configuration() -> None:
    config = read("--num-envs", "4", "--no-headless", "--no-freeze", "--db", "a b", "--seeds", "2", "3")
    line = ["-n", "x", "--num-envs", "4", "--no-headless", "--no-freeze", "--db", "a b"]
    assert cli.words(config) == [*line, "--seeds", "2", "--seeds", "3"]
    for it in (
        config,
        Fit(out=Path("-o"), dbs=[Path("a"), Path("b")]),
        Pipeline(train={"freeze": True, "seeds": [1, 2]}),
        Picture(captions=["v0", "v1, later"], masks=["a", "b"]),
    ):
        assert cli.parse(type(it), cli.words(it)) == it


def test_of_a_flag_that_takes_two_values_the_last_two_count() -> None:
    twice = ["--captions", "a", "b", "--captions", "c", "d"]
    assert cli.parse(Picture, twice).captions == ["c", "d"]
    assert cli.words(Picture(captions=["a", "b"])) == ["--captions", "a", "b"]


def run_script(tmp_path: Path, body: str, *, shell: str = "") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "door.py"
    root = Path(__file__).parent.parent
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(root)!r})\nfrom lib import cli\n"
        f"def main(argv=None):\n    {body}\ncli.run(main)\n"
    )
    command = f"'{sys.executable}' '{script}'"
    return subprocess.run(
        ["bash", "-c", f"{command} {shell}"], capture_output=True, text=True, timeout=600, check=False
    )


def test_run_turns_ends_into_statuses(tmp_path: Path) -> None:
    done = run_script(tmp_path, r"raise cli.UserError('a\nb\x1b')")
    assert (done.returncode, done.stderr) == (2, "door.py: error: a b\\x1b\n")
    done = run_script(tmp_path, "raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "door.py: interrupted\n")
    assert run_script(tmp_path, "return None").returncode == 0
    assert run_script(tmp_path, "return 3").returncode == 3
    done = run_script(tmp_path, "raise RuntimeError('a bug')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_run_is_quiet_when_its_reader_leaves(tmp_path: Path) -> None:
    body = "[print('x' * 100) for _ in range(10000)]"
    done = run_script(tmp_path, body, shell="| head -n 1; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (141, "")
    done = run_script(tmp_path, "raise BrokenPipeError('of another pipe')")
    assert "another pipe" in done.stderr


@pytest.mark.parametrize(
    "script", ["01_a2c.py -n x", "04_play.py -m x", "03_reward_train.py db -o x -n x", "online.py --out x"]
)
def test_outside_the_environment_a_script_says_what_to_type(tmp_path: Path, script: str) -> None:
    """-S hides every installed package, -I the environment's as well."""
    name, *words = script.split()
    root = Path(__file__).parent.parent
    code = f"import runpy, sys; sys.path.insert(0, {str(root)!r}); sys.argv[0] = {name!r}; "
    code += f"runpy.run_path({str(root / name)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(
        rf"{name}: error: expected a Python with the packages of requirements.txt, but \S+ has no \w+; type .+\n",
        done.stderr,
    )


@pytest.mark.parametrize("module", ["experiments.air", "benchmarks.quality", "lib.text.unpack"])
def test_outside_the_environment_a_module_says_it_too(module: str) -> None:
    done = subprocess.run([sys.executable, "-S", "-m", module], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    expected = (
        rf"{module}: error: expected a Python with the packages of \S+, but .+ has no \w+; "
        rf"type (?:make install in .+|.+ -m {module} …, .+)\n"
    )
    assert re.fullmatch(expected, done.stderr)


@pytest.mark.parametrize("script", sorted(path.name for path in ROOT.glob("*.py")))
def test_an_older_python_says_which_to_type(script: str) -> None:
    code = f"import runpy, sys; sys.path.insert(0, '.'); sys.argv = [{script!r}, '--help']; sys.version_info = (3, 8, 10); "
    code += f"runpy.run_path({script!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (
        2,
        f"{script}: error: expected Python 3.11 or later, but {sys.executable} is 3.8.10; "
        "type .venv/bin/python, which make install makes\n",
    )


@pytest.mark.parametrize(
    "path", [*sorted(ROOT.glob("*.py")), *(ROOT / "lib" / name for name in ("__init__.py", "cli.py"))]
)
def test_older_pythons_can_read_as_far_as_that(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_a_module_of_ours_that_is_missing_is_a_bug(tmp_path: Path) -> None:
    assert "Traceback" in run_script(tmp_path, "import lib.nothing").stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("01_a2c.py", "--dev"),
        ("02_label_ui.py", "--goal --ssl-cert --teacher --repeat-rate --reward disagreement+diversity"),
        ("03_reward_train.py", "--dev"),
        ("04_play.py", "--dev"),
    ],
)
def test_help_needs_neither_pytorch_nor_nicegui(script: str, words: str) -> None:
    code = (
        f"import runpy, sys\nsys.argv = [{script!r}, '--help']\n"
        f"try: runpy.run_path({str(ROOT / script)!r}, run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "slow = {'torch', 'gymnasium', 'numpy', 'cv2', 'tensorboard', 'nicegui', 'uvicorn', 'fastapi'}\n"
        "assert not slow & sys.modules.keys(), slow & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for word in words.split():
        assert word in done.stdout
