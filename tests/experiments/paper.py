"""Pipelines on paper: every stage as its script would read its command, and none run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import online
from experiments.air import COLUMNS
from experiments.measure_config import MeasureConfig
from experiments.pipeline import Pipeline
from lib import cli
from lib.agent.config import TrainConfig
from lib.agent.play_config import PlayConfig
from lib.label_ui.config import LabelConfig
from lib.preferences.labels import Label, LabelLog
from lib.reward.config import FitConfig
from lib.text.config import TextConfig

CONFIGS: dict[str, Any] = {
    "01_text.py": TextConfig,
    "01_a2c.py": TrainConfig,
    "02_label_ui.py": LabelConfig,
    "03_reward_train.py": FitConfig,
    "04_play.py": PlayConfig,
    "-m experiments.measures": MeasureConfig,
    "-m experiments.original_reward": TrainConfig,
    "online.py": online.OnlineConfig,
}


class Paper(Pipeline):
    """A pipeline whose stages are noted."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self.read: dict[str, Any] = {}
        self.made: dict[str, Sequence[Path]] = {}

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
        assert cli.parse(CONFIGS[script], cli.words(config)) == config
        if name in self.read:  # done before, and asked for by another part of the experiment
            assert config == self.read[name]
            return
        self.read[name], self.made[name] = config, makes
        if isinstance(config, TrainConfig) and config.db_path is not None:
            config.db_path.mkdir(parents=True)
        elif isinstance(config, LabelConfig):
            assert config.count is not None
            log = LabelLog(config.db_path / "labels.json")
            have = len(log.read())
            for pair in range(have, have + config.count):
                log.append(Label(f"{pair}/a.dat", f"{pair}/b.dat", 1))


class Measured(Paper):
    """The same, where each policy plays two games, whose every measure is 1 and 3."""

    def run(self, name: str, title: str, script: str, config: Any, *rest: Any, **more: Any) -> None:
        super().run(name, title, script, config, *rest, **more)
        if isinstance(config, MeasureConfig):
            config.out.write_text(json.dumps({"games": {column: [1.0, 3.0] for column in COLUMNS}}))
