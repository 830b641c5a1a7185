"""What ties a worker process to its supervisor: its number, its standard input, its exit status."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Final

from ..worker.shutdown import handle_stop_signals, let_stop_signals_through

PROCESS_NUMBER: Final = "CAIRNQ_PROCESS_NUMBER"  # in the environment of a supervised process
RECYCLE: Final = 3  # the exit status with which it asks for another one in its place


def is_supervised() -> bool:
    return PROCESS_NUMBER in os.environ


def take_up(stop: Callable[[], None]) -> None:
    """Call `stop()` when the supervisor closes this process's standard input, or is no more; on SIGINT and SIGTERM too.

    From here on log records say which process it is (`%(processName)s`), and what it starts itself has nothing of its
    supervisor's: neither standard input nor environment. In the main thread only.
    """
    multiprocessing.current_process().name = f"worker-{os.environ.pop(PROCESS_NUMBER)}"
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        os.read(lifeline, 1)
        stop()

    threading.Thread(target=wait, name="cairnq-lifeline", daemon=True).start()
    # Before the worker has handlers of its own, and after it.
    handle_stop_signals(lambda number, frame: stop())
    let_stop_signals_through()
