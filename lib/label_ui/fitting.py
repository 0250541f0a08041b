"""Fits a reward model to the page's labels, which the page then shows."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

from lib.cli import UserError
from lib.devices import half_of_the_cores
from lib.interrupt import ending_with_parent

FIRST_LOOK = 20
"""The page offers a fit from this many labels on."""

_SCRIPT = Path(__file__).parents[2] / "03_reward_train.py"


class Fitting:
    """Runs 03_reward_train.py on a DB, one fit at a time, in a process of its own. For the event loop's thread.

    Args:
      db: The DB's folder.
      out: Folder of the reward model; created if missing.
      show: Called in a thread with the checkpoint after each fit that worked.

    Attributes:
      running: Whether a fit is running.
      failed: Whether the last one ended with an error.
      lines: The last lines that it printed.
    """

    def __init__(self, db: Path, out: Path, show: Callable[[Path], None]) -> None:
        self._db, self._out, self._show = db, out, show
        self.running = self.failed = False
        self.lines: deque[str] = deque(maxlen=3)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts a fit unless one is running."""
        if not self.running:
            self.running = True
            self._task = asyncio.create_task(self._run())  # the loop itself keeps no reference

    async def _run(self) -> None:
        self.lines.clear()
        self.failed = True
        try:
            if await self._fit():
                await asyncio.to_thread(self._show, self._out / "reward-page.dat")
                self.failed = False
        except (UserError, OSError) as error:
            self.lines.append(str(error))
        finally:
            self.running = False

    async def _fit(self) -> bool:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            _SCRIPT,
            self._db,
            *("-n", "page", "-o", self._out, "--runs", self._out / "runs"),
            env={**half_of_the_cores(), **os.environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=ending_with_parent(),
        )
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())
        return await process.wait() == 0
