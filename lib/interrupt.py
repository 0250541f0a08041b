"""Requests to stop: Ctrl-C, SIGTERM, a closed terminal, the death of the parent process."""

import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable
from typing import Self

_PR_SET_PDEATHSIG = 1  # as in linux/prctl.h


class Stopped(Exception):
    """Work was interrupted; its partial result is useless."""


class Interrupt:
    """Turns Ctrl-C, SIGTERM and a closed terminal into a flag, so that work can end between two of its steps.

    A second request raises KeyboardInterrupt at once. Under nohup, a closed terminal stops nothing. Only the main thread
    gets signals; elsewhere `asked` stays False.

    Attributes:
      asked: Whether a stop was requested.
    """

    def __enter__(self) -> Self:
        self.asked = False
        asking = [signal.SIGINT, signal.SIGTERM]
        if threading.current_thread() is not threading.main_thread():
            asking = []
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            asking.append(signal.SIGHUP)
        self._handlers = {sig: signal.signal(sig, self._ask) for sig in asking}
        return self

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for sig, handler in self._handlers.items():
            signal.signal(sig, handler)


def ask_to_stop() -> None:
    """Asks this process to stop as SIGTERM does, but never twice: from any thread, and though Ctrl-C has asked before."""
    asks = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(asks, Interrupt):
        asks.asked = True
    else:
        signal.raise_signal(signal.SIGTERM)


def ending_with_parent() -> Callable[[], object] | None:
    """A `preexec_fn` that sends a child SIGTERM when the thread that started it dies, even by kill -9; None but on Linux.

    Without it, the stages of a killed `online.py` would wait for each other for ever.
    """
    if sys.platform != "linux":
        return None
    return functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)
