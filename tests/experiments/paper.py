"""Experiments on paper: every command of theirs as its script reads it, and none run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import online
from experiments.measures import MeasureConfig
from experiments.stages import Resumable, Stages
from lib import cli
from lib.agent.config import TrainConfig
from lib.agent.play_config import PlayConfig
from lib.label_ui.config import LabelConfig
from lib.preferences.labels import Label, LabelLog
from lib.reward.config import FitConfig

CONFIGS: dict[str, Any] = {
    "01_a2c.py": TrainConfig,
    "02_label_ui.py": LabelConfig,
    "03_reward_train.py": FitConfig,
    "04_play.py": PlayConfig,
    "experiments.measures": MeasureConfig,
    "online.py": online.OnlineConfig,
}


class Paper(Stages):
    """Stages that are read as their scripts would read them, and noted."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self.read: dict[str, Any] = {}
        self.made: dict[str, Sequence[Path]] = {}

    def run(
        self,
        name: str,
        title: str,
        command: Sequence[object],
        makes: Sequence[Path] = (),
        again: Resumable | None = None,
    ) -> None:
        words = [str(word) for word in command]
        door, *flags = words[1:] if words[0] == "-m" else words
        config: Any = cli.parse(CONFIGS[door], flags)
        if name in self.read:  # done before, and asked for by somebody else
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
