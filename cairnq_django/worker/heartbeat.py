"""One thread that renews every lease of a worker with one statement a beat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from django.db import connections

from ..store import control
from .attempt import Attempt
from .connections import refresh
from .threads import Chore

RETRY_INTERVAL = 1.0  # seconds to the next beat after one that failed, if the beats are further apart


class Heartbeat(Chore):
    def __init__(
        self, using: str, *, lease: float, interval: float, report: Callable[[str, BaseException], None]
    ) -> None:
        super().__init__("cairnq-heartbeat")
        self._using = using
        self._lease = lease
        self._interval = interval
        self._report = report
        self._lock = threading.Lock()  # guards _attempts
        self._attempts: set[Attempt] = set()

    def add(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            self._attempts.update(attempts)

    def remove(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            self._attempts.difference_update(attempts)

    def _run(self) -> None:
        interval = self._interval
        try:
            while not self._stopped.wait(interval):
                interval = self._interval if self._try_to_beat() else min(self._interval, RETRY_INTERVAL)
        finally:
            connections.close_all()

    def _try_to_beat(self) -> bool:
        with self._lock:
            attempts = list(self._attempts)
        # Asking flags those whose time is up.
        held = {attempt.claim.lease: attempt for attempt in attempts if attempt.needs_its_lease}
        try:
            refresh(self._using)
            sent_at = time.monotonic()
            beat = control.renew(self._using, list(held), lease=self._lease)
        except Exception as error:
            self._report("heartbeat", error)
            return False
        for lease, attempt in held.items():
            if lease in beat.lost:
                attempt.found_lost()
            elif lease in beat.renewed:
                attempt.renewed(sent_at)
            attempt.cancel_requested |= lease in beat.cancel_requested
        return True
