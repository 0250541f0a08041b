"""What the demo runs, and that it continues where it was stopped."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import demo
from experiments.pipeline import Pipeline
from lib.agent.config import TrainConfig
from lib.checkpoints import save_checkpoint
from lib.cli import UserError
from tests.experiments.paper import Paper


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts whose work stages do; all make what a report needs, unless they are stopped."""
    found: list[str] = []

    class Quick(Pipeline):
        def run(
            self,
            name: str,
            title: str,
            script: str,
            config: Any,
            work: Callable[[Path | None], bool | None],
            makes: Sequence[Path] = (),
            runs: Path | None = None,
        ) -> None:
            def quick(_: Path | None) -> bool:
                found.append(script)
                if "stop here" in found:
                    return True
                if isinstance(config, TrainConfig):
                    assert config.save is not None
                    config.save.mkdir(parents=True)
                    if config.db_path is not None:
                        config.db_path.mkdir()
                    evaluation = {name: [1.0, 2.0] for name in ("scores", demo.TEACHER, "steps")}
                    payload = {"state_dict": {}, "evaluation": evaluation}
                    save_checkpoint(config.save / "latest.dat", "policy", payload, {}, {})
                return False

            super().run(name, title, script, config, quick, makes, runs)

    monkeypatch.setattr(demo, "Pipeline", Quick)
    return found


def test_every_command_is_read_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Paper] = []

    class Read(Paper):
        def __init__(self, out: Path) -> None:
            super().__init__(out)
            read.append(self)

    monkeypatch.setattr(demo, "Pipeline", Read)
    monkeypatch.setattr(demo, "_report", lambda *args: None)
    demo.main(["--out", str(tmp_path / "out"), "--seed", "3"])
    (paper,) = read
    assert list(paper.read) == ["v0", "labels", "fit", "v1", "videos of v0", "videos of v1"]
    v0, v1, fit, labels = (paper.read[name] for name in ("v0", "v1", "fit", "labels"))
    assert (v0.seed, v0.steps, v0.reward, v0.finetune) == (3, 200_000, None, False)
    assert (labels.count, labels.db_path, fit.dbs) == (250, v0.db_path, [v0.db_path])
    assert (v1.model, v1.reward) == (v0.save / "latest.dat", fit.out / "reward-demo.dat")
    assert (v1.finetune, v1.steps, v1.seed) == (True, 120_000, 3)
    assert v1.critic_warmup  # without it the policy collapsed on some machines
    assert paper.read["videos of v1"].model == v1.save / "latest.dat"


def test_a_stage_that_was_stopped_is_not_taken_for_done(
    tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A training that is asked to stop leaves a checkpoint as well."""
    flags = ["--out", str(tmp_path / "out"), "--games", "2"]
    runs.append("stop here")
    with pytest.raises(KeyboardInterrupt):
        demo.main(flags)
    (tmp_path / "out" / "v0").mkdir()
    (tmp_path / "out" / "v0" / "latest.dat").write_bytes(b"of few steps")
    runs.clear()
    demo.main(flags)
    assert runs == [
        *("01_a2c.py", "02_label_ui.py", "03_reward_train.py", "01_a2c.py", "04_play.py", "04_play.py")
    ]
    assert "v1 (learned reward)" in capsys.readouterr().out
    runs.clear()
    demo.main(flags)
    assert runs == []
    with pytest.raises(UserError, match=r"--seed: .* was begun with 0, got 1"):
        demo.main([*flags, "--seed", "1"])


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, runs: list[str]) -> None:
    (tmp_path / "db").mkdir()
    with pytest.raises(
        UserError, match="expected a new folder or one that this command made, but it holds db"
    ):
        demo.main(["--out", str(tmp_path)])
    assert (tmp_path / "db").is_dir()
