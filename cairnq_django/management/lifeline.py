"""What ties a worker process to its supervisor: its number, its standard input, its exit status."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ..worker.shutdown import handle_stop_signals, let_stop_signals_through

logger = logging.getLogger(__name__)

PROCESS_NUMBER: Final = "CAIRNQ_PROCESS_NUMBER"  # in the environment of a supervised process
RECYCLE: Final = (
    75  # the exit status with which it asks for another one in its place; EX_TEMPFAIL, which few others use
)
EXIT_TIMEOUT: Final = 60.0  # seconds that a process has to end in once its worker has


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


def end_in_time(status: int) -> None:
    """Have this process, whose worker has ended, end with this exit status even if something holds it.

    Python waits for threads that are not daemons, such as one that a handler has left behind, and for exit handlers.
    Nothing would take the process's place meanwhile.
    """

    def end() -> None:
        time.sleep(EXIT_TIMEOUT)
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        held_by = ", ".join(thread.name for thread in others if not thread.daemon) or "none"
        logger.error("The worker ended %g s ago, its process did not: given up (threads: %s)", EXIT_TIMEOUT, held_by)
        end_at_once(status)

    threading.Thread(target=end, name="cairnq-exit", daemon=True).start()


def end_at_once(status: int) -> None:
    """Without waiting for any thread."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):
            stream.flush()
    os._exit(status)
