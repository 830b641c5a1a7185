"""A worker's row, by which others see it: written soon after the start, when it has changed, and now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from ..querysets import WORKER_SILENCE
from ..store import workers
from ..store.workers import WorkerState
from .connections import refresh

logger = logging.getLogger(__name__)

FIRST_LOOK: Final = 0.5  # seconds after the start: by then the worker knows its handlers, and a short burst is over
LOOK_INTERVAL: Final = 10.0  # seconds from one look at what has changed to the next
SILENCE: Final = WORKER_SILENCE / 3  # seconds after which it is written though nothing has changed


class Presence:
    """For the bookkeeper's thread alone. What goes wrong is reported, and tried again at the next look."""

    def __init__(
        self,
        using: str,
        worker_id: str,
        state: Callable[[], WorkerState],
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._using = using
        self._worker_id = worker_id
        self._state = state  # as it is when it is asked
        self._report = report
        self._began = time.monotonic()
        self._may_be_there = False  # the row
        self._said: WorkerState | None = None  # None: the row may hold anything, or be missing
        self._said_at = 0.0
        self._forgot_at: float | None = None
        self.due = self._began + FIRST_LOOK  # when to look, on the monotonic clock

    def look(self) -> None:
        """Write what has changed."""
        now = time.monotonic()
        self.due = now + LOOK_INTERVAL
        try:
            state = self._state()
            if state != self._said or now - self._said_at >= SILENCE:
                self._say(state, now)
            if self._forgot_at is None or now - self._forgot_at >= workers.FORGOTTEN_AFTER:
                self._forgot_at = now
                self._forget()
        except Exception as error:
            self._report("presence", error)

    def end(self) -> None:
        if not self._may_be_there:
            return
        try:
            refresh(self._using)
            workers.leave(self._using, self._worker_id)
        except Exception as error:
            self._report("presence", error)

    def _say(self, state: WorkerState, now: float) -> None:
        said, self._said = self._said, None
        self._may_be_there = True
        refresh(self._using)
        workers.say(self._using, self._worker_id, state, said=said, age=now - self._began)
        self._said, self._said_at = state, now

    def _forget(self) -> None:
        gone = workers.forget(self._using)
        if gone:
            logger.warning("Not heard of for %g s, and forgotten: %s", workers.FORGOTTEN_AFTER, ", ".join(gone))
