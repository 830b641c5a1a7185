"""The signals that ask a worker's process to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop()`, which must be safe in a signal handler, at the first SIGINT or SIGTERM; let a second one kill.

    The handlers that were there before are back when the context ends. For the main thread only.
    """

    def stand_down(number: int, frame: FrameType | None) -> None:
        for stop_signal in STOP_SIGNALS:
            signal.signal(stop_signal, signal.SIG_DFL)
        stop()

    before = {stop_signal: signal.signal(stop_signal, stand_down) for stop_signal in STOP_SIGNALS}
    try:
        yield
    finally:
        for stop_signal, handler in before.items():
            # One that was not set from Python cannot be put back.
            signal.signal(stop_signal, handler if handler is not None else signal.SIG_DFL)
