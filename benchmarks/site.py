"""Starts 02_label_ui.py as a user does, for benchmarks and tests."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.preferences.segment_db import SegmentDB

SCRIPT = Path(__file__).parents[1] / "02_label_ui.py"


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def large_db(some: Path, db: Path, count: int) -> Path:
    """A DB of `count` names, spread over 64 environments, that link to the few segments of another."""
    paths = [some / name for name in SegmentDB(some).names]
    for at in range(count):
        target = db / f"{at % 64:02d}" / f"{at:08d}.dat"
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(paths[at % len(paths)], target)
    return db


class Site:
    """The script, serving one DB on one port; can be stopped and restarted."""

    def __init__(self, db: Path, state: Path, *flags: str) -> None:
        self.db = db
        self.flags = flags
        self.port = free_port()
        self.base = f"http://localhost:{self.port}"
        self.environment = os.environ | {"XDG_STATE_HOME": str(state)}
        self.link = ""
        self.name = ""  # whose labels count, when the site is shared by tests
        self.cookies: Any = None
        self.process: Any = None

    def launch(self, words: list[str], before: Callable[[], None] | None) -> Any:
        """Starts the script with this command line, after `before` was called in its process; a `subprocess.Popen`."""
        return subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            preexec_fn=before,
        )

    def start(self, before: Callable[[], None] | None = None) -> "Site":
        words = [str(SCRIPT), "-d", str(self.db), "--port", str(self.port), *self.flags]
        self.process = self.launch(words, before)
        for line in self.process.stdout:
            found = re.search(r"https?://\S+token=\S+", line)
            if found:
                self.link = found[0]
                return self
        raise AssertionError("the script ended without printing its link")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> str:
        """What it has printed since its link."""
        if self.process is None:
            return ""
        self.process.send_signal(how)
        said, _ = self.process.communicate(timeout=600)
        self.process = None
        return str(said)

    def labels(self) -> list[dict[str, Any]]:
        path = self.db / "labels.json"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if self.name in ("", line.get("annotator"))]

    def standing(self) -> dict[tuple[str, ...], Any]:
        """The label that holds on each pair, by (sample, sample, annotator)."""
        held: dict[tuple[str, ...], Any] = {}
        for line in self.labels():
            key = (*sorted((line["sample1"], line["sample2"])), str(line.get("annotator")))
            held.pop(key, None)
            if not line.get("cancelled"):
                held[key] = line["label"]
        return held
