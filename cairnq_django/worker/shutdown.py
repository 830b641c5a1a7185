"""The signals that ask a worker's process to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop()`, which must be safe in a signal handler, at the first SIGINT or SIGTERM; let a second one kill.

    The handlers that were there before are back when the context ends. For the main thread only.
    """

    def stand_down(number: int, frame: FrameType | None) -> None:
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, signal.SIG_DFL)
        stop()

    with stop_signals_handled(stand_down):
        yield


@contextmanager
def stop_signals_handled(handler: Handler) -> Iterator[None]:
    """Have `handler` handle them until the context ends. For the main thread only."""
    before = handle_stop_signals(handler)
    try:
        yield
    finally:
        for stop_signal, former in before.items():
            # One that was not set from Python cannot be put back.
            signal.signal(stop_signal, former if former is not None else signal.SIG_DFL)


def handle_stop_signals(handler: Handler) -> dict[signal.Signals, Any]:
    """Have `handler` handle them from here on, and return those that did. For the main thread only."""
    return {stop_signal: signal.signal(stop_signal, handler) for stop_signal in STOP_SIGNALS}


@contextmanager
def stop_signals_held_back() -> Iterator[None]:
    """Have them arrive at this thread, and at processes that it starts, once they are let through."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_stop_signals_through() -> None:
    """In a process that was started with them held back."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
