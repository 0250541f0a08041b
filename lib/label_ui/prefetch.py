"""Pairs chosen ahead of time, by strategies too slow for a labeller to wait for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Sequence

import numpy as np

from lib.preferences.labels import Pair
from lib.preferences.queries import Query, Strategy

READY = 20
"""Pairs that are kept ready, two screens' worth."""

_FRESH_SECONDS = 120.0
"""How long a pair is kept ready. There may be newer clips by then, and other answers."""

_AT_ONCE = 5
"""Most pairs chosen at once. While few are ready it chooses fewer, because the time grows with their number."""


class QueryPrefetcher:
    """Keeps the next pairs of one strategy ready, chosen in its own thread. Thread-safe.

    The thread starts with the first :meth:`wake` and rests while enough pairs are ready or none can be found.

    Args:
      strategy: Proposes the pairs; only this thread calls it.
      look: The segments to choose from, sorted, and the pairs that are taken, as of now. Called in the thread.
      rng: The strategy's source of chance.
    """

    def __init__(
        self,
        strategy: Strategy,
        look: Callable[[], tuple[Sequence[str], Collection[Pair]]],
        rng: np.random.Generator,
    ) -> None:
        self.problem = ""
        """Why nothing could be chosen the last time, one line; empty after a success."""
        self._strategy = strategy
        self._look = look
        self._rng = rng
        self._ready: deque[tuple[float, Query]] = deque()  # with the times at which they were chosen
        self._wanted = False
        self._started = False
        self._changed = threading.Condition()

    def wake(self) -> None:
        """Starts choosing pairs until enough are ready; returns at once."""
        with self._changed:
            self._wanted = True
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="choose pairs", daemon=True).start()
            self._changed.notify_all()

    def take(self, count: int, playable: Container[str], taken: Container[Pair]) -> list[Query]:
        """Up to `count` of the pairs that are ready, best first, without waiting; more get chosen.

        Args:
          count: How many at most. Those that were chosen more than two minutes ago are thrown away.
          playable: Segments that can be shown; pairs of others are thrown away.
          taken: Pairs that were answered or handed out since; they are thrown away as well.
        """
        found: list[Query] = []
        with self._changed:
            while self._ready and len(found) < count:
                chosen, query = self._ready.popleft()
                stale = time.monotonic() - chosen > _FRESH_SECONDS
                if (
                    not stale
                    and query.pair not in taken
                    and query.sample1 in playable
                    and query.sample2 in playable
                ):
                    found.append(query)
        self.wake()
        return found

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted and len(self._ready) < READY)
                count = min(_AT_ONCE, len(self._ready) + 1, READY - len(self._ready))
                queued = {query.pair for _, query in self._ready}
            found: list[Query] = []
            try:
                names, taken = self._look()
                taken = queued.union(taken)
                asked = {name for pair in taken for name in pair}
                found = self._strategy.propose(names, taken, count, self._rng, asked)
                self.problem = ""
            # Whatever went wrong (a GPU without memory), labelling continues with random pairs, and so does this thread.
            except Exception as error:
                told = str(error).partition("\n")[0] or type(error).__name__
                self.problem = f"Pairs are drawn at random because choosing them failed: {told}"
            with self._changed:
                self._ready.extend((time.monotonic(), query) for query in found)
                if not found:
                    self._wanted = False  # until the next request: there may be new segments by then
