"""Keep worker processes up: start them, replace those that end, have all of them end together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final

from django.conf import ENVIRONMENT_VARIABLE
from django.core.management.base import CommandError
from django.utils import autoreload

from ..worker.shutdown import stop_signals_handled, stop_signals_held_back
from .lifeline import PROCESS_NUMBER, RECYCLE

logger = logging.getLogger(__name__)

# Seconds after its start within which the end of a process speaks against what is started. Several that start at once
# on few processors take long to load a large project, or to fail to.
EARLY: Final = 30.0
MAX_EARLY_ENDS: Final = 5  # in a row, of each process, before the supervisor gives up
FIRST_PAUSE: Final = 0.5  # seconds from an early end to the next start, doubling
MAX_PAUSE: Final = 30.0  # seconds
KILL_TIMEOUT: Final = 5.0  # seconds that killed processes have to be gone in
HEARING: Final = 1.0  # seconds; signals end a wait by themselves, but not on every platform


def same_command() -> list[str]:
    """The command line that started this process, for another one."""
    return [str(argument) for argument in autoreload.get_child_arguments()]


def equal_command(options: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """A command line with these options of `runworker`, and the environment that it needs to find the same project.

    Raises `CommandError` where there is no settings module to name.
    """
    if not os.environ.get(ENVIRONMENT_VARIABLE):
        raise CommandError(
            f"--processes needs {ENVIRONMENT_VARIABLE} in the environment: new processes cannot be told of settings "
            f"that were configured in this one"
        )
    names = {"queues": "queue", "resources": "resource"}
    arguments = []
    for name, value in options.items():
        option = f"--{names.get(name, name).replace('_', '-')}"
        if isinstance(value, Mapping):
            arguments += [f"{option}={key}={calls}" for key, calls in value.items()]
        elif isinstance(value, timedelta):
            arguments.append(f"{option}={value.total_seconds()}")
        elif isinstance(value, (list, tuple)):
            arguments += [f"{option}={item}" for item in value]
        elif value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    return [sys.executable, "-m", "django", "cairnq_worker", *arguments], {"PYTHONPATH": os.pathsep.join(sys.path)}


class Supervisor:
    """Keeps `processes` processes of `command` up, from the main thread of its own.

    A process is tied to it by its standard input: it drains when that is closed, because all are to stop or because the
    supervisor is no more. So whoever signals all processes at once, as service managers do, signals each only once.
    """

    def __init__(self, command: Sequence[str], *, processes: int, env: Mapping[str, str], burst: bool = False) -> None:
        self._news: SimpleQueue[int | Place] = SimpleQueue()  # signals, and places whose process has ended
        self._places = [Place(number, command, env, self._news.put) for number in range(1, processes + 1)]
        self._burst = burst
        self._is_stopping = False
        self._status = 0
        self._defeat: CommandError | None = None

    def run(self, on_stop: Callable[[], None]) -> int:
        """Return, after SIGINT or SIGTERM, the exit status: 0 if all processes ended well.

        The first signal lets their running tasks end, and `on_stop()` is called; a second one kills. With `burst`,
        processes that end well are not replaced. Raises `CommandError` if they cannot be kept up.
        """
        if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            # Perhaps by inheritance; who ignores it is not told how processes end.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with stop_signals_handled(lambda number, frame: self._news.put(number)):
            self._start_what_is_due()
            while any(place.is_needed for place in self._places):
                self._take_in(self._next_news(), on_stop)
                self._start_what_is_due()
        if self._defeat is not None:
            raise self._defeat
        return self._status

    def _start_what_is_due(self) -> None:
        for place in self._places:
            if place.due is not None and place.due <= time.monotonic():
                try:
                    place.start()
                except OSError as error:
                    self._ended_by_itself(place, f"could not be started: {error}")

    def _next_news(self) -> int | Place | None:
        due = [place.due for place in self._places if place.due is not None]
        patience = min([HEARING, *(moment - time.monotonic() for moment in due)])
        with suppress(Empty):
            return self._news.get(timeout=max(0.0, patience))
        return None

    def _take_in(self, news: int | Place | None, on_stop: Callable[[], None]) -> None:
        if isinstance(news, Place):
            self._ended(news, news.take_leave())
        elif news is not None:
            if self._is_stopping:
                self._kill(news)
            else:
                self._stop()
                on_stop()

    def _ended(self, place: Place, status: int) -> None:
        if self._is_stopping:
            if status not in (0, RECYCLE):
                self._status = 1
                logger.error("%s %s while it was to end", place, _ending(status))
        elif status == RECYCLE:
            logger.info("%s is replaced", place)
            place.start_again()
        elif status != 0 or not self._burst:
            self._ended_by_itself(place, _ending(status))

    def _ended_by_itself(self, place: Place, how: str) -> None:
        pause = place.start_again_after_a_pause()
        is_defeat = all(place.cannot_be_kept_up for place in self._places if place.is_needed)
        when = f"in {pause:g} s" if pause else "now"
        logger.warning("%s %s; %s", place, how, "no other one starts" if is_defeat else f"another one starts {when}")
        if is_defeat:
            self._defeat = CommandError(
                f"The worker processes cannot be kept up. Each has ended within {EARLY:g} s of its start, "
                f"{MAX_EARLY_ENDS} times in a row; the latest {how}. What they wrote before that says why."
            )
            self._stop()

    def _stop(self) -> None:
        self._is_stopping = True
        for place in self._places:
            place.let_go()

    def _kill(self, number: int) -> None:
        for place in self._places:
            place.kill()
        for place in self._places:
            place.wait(KILL_TIMEOUT)
        # As a worker without a supervisor ends.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # The first process of a container does not mind.
        os._exit(128 + number)


class Place:
    """One of the processes to keep up, whichever that is at a time. For the supervisor's thread alone."""

    def __init__(
        self, number: int, command: Sequence[str], env: Mapping[str, str], on_end: Callable[[Place], None]
    ) -> None:
        self.due: float | None = time.monotonic()  # when to start, on the monotonic clock; None: runs, or is not to
        self._number = number
        self._command = command
        self._env = {**os.environ, **env, PROCESS_NUMBER: str(number)}
        self._on_end = on_end  # called in a thread that waits for it
        self._process: subprocess.Popen[bytes] | None = None  # None: not started, or known to have ended
        self._latest_pid: int | None = None
        self._started = 0.0
        self._early_ends = 0  # in a row

    def __str__(self) -> str:
        pid = f" (pid {self._latest_pid})" if self._latest_pid is not None else ""
        return f"Worker process {self._number}{pid}"

    @property
    def is_needed(self) -> bool:
        """Whether there is a process, or is to be one."""
        return self._process is not None or self.due is not None

    @property
    def cannot_be_kept_up(self) -> bool:
        return self._early_ends >= MAX_EARLY_ENDS and (self._process is None or self._is_early())

    def start(self) -> None:
        """Raises `OSError` if the system has no process to spare."""
        self._started = time.monotonic()
        # Signals would kill it while it starts. In a session of its own, it does not hear a terminal's Ctrl-C.
        with stop_signals_held_back():
            process = subprocess.Popen(self._command, env=self._env, stdin=subprocess.PIPE, start_new_session=True)
        self.due, self._process, self._latest_pid = None, process, process.pid

        def wait() -> None:
            process.wait()
            self._on_end(self)

        threading.Thread(target=wait, name=f"cairnq-process-{self._number}", daemon=True).start()

    def take_leave(self) -> int:
        """The exit status of the process that has ended."""
        assert self._process is not None
        status = self._process.wait()
        self.let_go()
        self._process = None
        return status

    def start_again(self) -> None:
        self.due, self._early_ends = time.monotonic(), 0

    def start_again_after_a_pause(self) -> float:
        """Return its seconds: 0 after a process that ran for a while."""
        if not self._is_early():
            self.start_again()
            return 0.0
        self._early_ends += 1
        pause: float = min(FIRST_PAUSE * 2 ** (self._early_ends - 1), MAX_PAUSE)
        self.due = time.monotonic() + pause
        return pause

    def let_go(self) -> None:
        """Have the process end when its tasks have, and start no other."""
        self.due = None
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def wait(self, timeout: float) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)

    def _is_early(self) -> bool:
        return time.monotonic() - self._started < EARLY


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
