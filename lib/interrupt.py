"""Being asked to end: Ctrl-C, SIGTERM, a closed terminal, the death of whoever began the process."""

import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable
from typing import Self

_PR_SET_PDEATHSIG = 1  # as in linux/prctl.h


class Stopped(Exception):
    """Work was asked to end before it was done; what there is of it is nothing to go by."""


class Interrupt:
    """Turns Ctrl-C, SIGTERM and a closed terminal into a flag, so that work in progress ends between two of its steps.

    Asked a second time, it raises KeyboardInterrupt at once. Under nohup a closed terminal stops nothing. Signals come to
    the main thread; in another one nothing asks.

    Attributes:
      asked: Whether the end was asked for.
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


def ending_with_parent() -> Callable[[], object] | None:
    """For `preexec_fn` of a child: it gets SIGTERM when the thread that began it dies, be it by kill -9.

    Returns:
      None where the system knows no such thing: it is Linux's own.
    """
    if sys.platform != "linux":
        return None
    return functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)
