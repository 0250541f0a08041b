"""Whoever is asked to end knows."""

from __future__ import annotations

import signal
import threading

import pytest

from lib.interrupt import Interrupt


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_asked_to_end_knows(sig: signal.Signals) -> None:
    before = signal.signal(sig, signal.SIG_DFL)  # whatever the tests themselves were started under
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(sig)
            assert interrupt.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(sig)
    finally:
        signal.signal(sig, before)


def test_in_another_thread_nobody_asks() -> None:
    """Signals come to the main one, where whoever began the thread has handlers of their own."""
    asked: list[bool] = []

    def work() -> None:
        with Interrupt() as interrupt:
            asked.append(interrupt.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [False]


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
