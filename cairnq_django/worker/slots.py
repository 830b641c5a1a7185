"""Who runs and who is next: so many calls at a time, and those that are claimed a little ahead of their turn."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from .call import Call

logger = logging.getLogger(__name__)


class Slots:
    """Starts calls while there is a free slot. Whoever ends a call starts the next, without the loop."""

    def __init__(self, size: int, start: Callable[[Call], None], *, max_tasks: int | None = None) -> None:
        self._start = start
        self._size = size
        self._max_tasks = max_tasks
        self._lock = threading.Lock()  # guards the fields below
        self._running: set[Call] = set()
        self._ready: deque[tuple[float, Call]] = deque()  # since when, on the monotonic clock
        self._started = 0  # tasks, counted where there is a maximum

    @property
    def busy(self) -> int:
        """How many calls run."""
        return len(self._running)

    @property
    def tasks(self) -> int:
        """How many tasks those calls have. For any thread, and for a signal handler: takes no lock."""
        return sum(len(call.attempts) for call in self._running.copy())

    @property
    def used_up(self) -> bool:
        """Whether `max_tasks` have been started, and no more will be."""
        return self._max_tasks is not None and self._started >= self._max_tasks

    @property
    def ready(self) -> int:
        """How many calls wait for a slot."""
        return len(self._ready)

    def waited(self) -> float:
        """Seconds that the next call has been waiting for."""
        with self._lock:
            return time.monotonic() - self._ready[0][0] if self._ready else 0.0

    def add(self, call: Call) -> None:
        """Start the call, or let it wait for its turn. Raises what keeps it from being started."""
        with self._lock:
            self._ready.append((time.monotonic(), call))
        self._fill()

    def leave(self, call: Call) -> None:
        """The call has ended, or is abandoned, and the next one may start. For any thread; never raises."""
        with self._lock:
            self._running.discard(call)
        try:
            self._fill()
        except Exception:
            # The loop finds it waiting for too long, and gives it back.
            logger.exception("The next call could not be started")

    def take_back(self) -> list[Call]:
        """The calls that have not been started; they will not be."""
        with self._lock:
            calls = [call for _, call in self._ready]
            self._ready.clear()
            return calls

    def _fill(self) -> None:
        while (call := self._next()) is not None:
            try:
                self._start(call)
            except BaseException:
                with self._lock:
                    self._running.discard(call)
                    self._count(call, -1)
                    self._ready.appendleft((time.monotonic(), call))
                raise

    def _next(self) -> Call | None:
        with self._lock:
            if not self._ready or len(self._running) >= self._size or self.used_up:
                return None
            _, call = self._ready.popleft()
            self._running.add(call)
            self._count(call, 1)
            return call

    def _count(self, call: Call, sign: int) -> None:
        if self._max_tasks is not None:
            self._started += sign * len(call.attempts)
