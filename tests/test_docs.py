"""Commands and programs in README.md and docs/."""

import importlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

import demo
import online
from lib import cli
from lib.envs.atari import atari_settings
from tests.experiments.paper import CONFIGS
from tests.label_ui.dbs import make_db

ROOT = Path(__file__).parents[1]
SCRIPTS = CONFIGS | {"demo.py": demo.DemoConfig}


def commands() -> list[list[str]]:
    """Command lines of scripts and modules in all fenced blocks, word by word."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
            if kind not in ("", "sh", "bash"):
                continue
            for line in re.sub(r"\\\n", " ", block).splitlines():
                line = re.sub(r"^(\.venv/bin/python -m |torchrun --nproc-per-node \d+ )", "./", line)
                script = line.split(" ")[0].removeprefix("./")
                if line.startswith("./") and config_of(script) is not None:
                    words = shlex.split(
                        re.sub(r"[][…]", "", line), comments=True
                    )  # "[--games 12]": may be left out
                    found.append([script, *words[1:]])
    return found


def config_of(script: str) -> type[Any] | None:
    """What reads the flags of a script, or of a module by its dotted name."""
    if not script.startswith(("experiments.", "benchmarks.")):
        return SCRIPTS.get(script)
    module = importlib.import_module(script)
    read = re.search(r"cli\.parse\((\w+)", Path(str(module.__file__)).read_text())
    return vars(module)[read[1]] if read else None


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_can_be_read_by_its_script(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, *flags = words
    if script == "02_label_ui.py":  # it wants its DB to be there
        (tmp_path / flags[flags.index("-d") + 1]).mkdir(parents=True)
    config_class = config_of(script)
    assert config_class is not None
    config = cli.parse(config_class, flags)
    env = getattr(config, "env", None)
    if env is not None and ("NoFrameskip" in env or env.startswith("ALE/")):
        assert atari_settings(env)
    if isinstance(config, online.OnlineConfig):
        (tmp_path / config.out / "db").mkdir(parents=True)
        for door, *given in online.commands(config).values():
            cli.parse(CONFIGS[door], given)


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = re.findall(r"(?:^|`)make ([a-z-]+)", "".join(path.read_text() for path in pages), re.MULTILINE)
    assert len(named) > 20
    assert set(named) <= targets


def test_the_files_to_touch_are_there() -> None:
    named = re.findall(r"`((?:lib|tests|docs)/[^` ]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 20
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


def test_what_is_said_to_be_there_is_there() -> None:
    at_once = [set(words) for words in commands() if words[0] == "online.py"]
    assert any({"--people", "SeaquestNoFrameskip-v4"} <= words for words in at_once)
    assert any({"cuda", "PongNoFrameskip-v4"} <= words for words in at_once)


def installed_elsewhere(folder: Path) -> Path:
    """The Python of a fresh environment that the package is installed into; what it depends on is that of the tests."""
    python = folder / "environment" / "bin" / "python"
    venv.create(folder / "environment")
    (site,) = (folder / "environment").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    # A build leaves files beside what it builds.
    shutil.copytree(ROOT / "lib", folder / "copy" / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ("pyproject.toml", "README.md", *(path.name for path in ROOT.glob("requirements*.txt"))):
        shutil.copy(ROOT / path, folder / "copy" / path)
    install = ("install", "--quiet", "--no-deps", "--no-build-isolation", folder / "copy")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    shutil.rmtree(folder / "copy")
    return python


@pytest.mark.slow(35)
def test_the_wrappers_page_is_a_program_that_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/wrapper.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    sizes = "LABELS, STEPS = 200, 20_000"
    assert sizes in blocks[0]
    # Fewer labels, steps and epochs, and no wait for the threads of other processes.
    program = "import torch\ntorch.set_num_threads(1)\n" + "\n".join(blocks)
    program = program.replace(sizes, "LABELS, STEPS = 20, 600").replace(
        "frame_stride=5", "frame_stride=5, epochs=3"
    )
    done = subprocess.run(
        [installed_elsewhere(tmp_path), "-c", program],
        cwd=tmp_path,
        env={"OMP_NUM_THREADS": "1", "PATH": "", "SB3_LOGDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "True [" in done.stdout
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages/lib")
    for data in ("label_ui/static/label.html", "reward/report/templates/report.html"):
        assert (site / data).read_text() == (ROOT / "lib" / data).read_text()
    for made in ("db/dot", "db/chance", "preferences/dot"):
        assert list((tmp_path / made).glob("*/*.dat"))
        assert (tmp_path / made / "labels.json").exists()


def test_the_teachers_of_the_labelling_page_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "labelling.md").read_text()
    (block,) = re.findall(
        r"^```python\n(.*?)^```", page.partition("## A teacher of your own")[2], re.M | re.S
    )
    (tmp_path / "mine.py").write_text(block)
    make_db(tmp_path / "db", 4)
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(ROOT / "02_label_ui.py"))["main"]
    for function in re.findall(r"--teacher (mine:\w+)", page):
        main(["-d", "db", "--teacher", function, "--count", "2"])
        assert f"2 labels by {function}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_no_other_machine(tmp_path: Path) -> None:
    build = ("-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html", "-d", tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, *build, ROOT / "docs", tmp_path / "site"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for page in ("index", "flags", "tutorial", "results"):
        text = (tmp_path / "site" / f"{page}.html").read_text()
        assert not re.search(
            r"<(?:script|img|iframe)[^>]* src=.(?:https?:)?//|<link[^>]* href=.(?:https?:)?//", text
        )
    assert "<code" in (tmp_path / "site" / "flags.html").read_text()
    assert "--critic-warmup" in (tmp_path / "site" / "flags.html").read_text()
