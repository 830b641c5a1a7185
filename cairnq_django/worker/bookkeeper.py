"""One thread that writes what others see of a worker: its row, and `Activity`, which it adds up in memory.

Nothing depends on it, so it may be held up without harm: leases are renewed by another thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from django.db import connections

from ..models import Task
from ..store import activity
from ..store.activity import Work
from ..store.claim import Claim
from .attempt import Attempt
from .connections import refresh
from .presence import Presence

logger = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds
STOP_TIMEOUT = 5.0  # seconds that a stop waits for what the thread is about to write
LAST_TRIES = 10  # at what others hold, at the end
LAST_PAUSE = 0.05  # seconds between two of them


class Bookkeeper:
    """The worker's loop tells it what happens, which costs next to nothing; a worker that is idle writes nothing."""

    def __init__(self, using: str, presence: Presence, *, report: Callable[[str, BaseException], None]) -> None:
        self._using = using
        self._presence = presence
        self._report = report
        self._lock = threading.Lock()  # guards _work
        self._work: dict[str, Work] = {}  # by queue, not written yet
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cairnq-bookkeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and write what is left, here and now; no longer than a moment, whatever holds that up."""
        self._stopped.set()
        self._thread.join(STOP_TIMEOUT)
        if self._thread.is_alive():
            logger.warning("The database holds up what is recorded of this worker, which ends without it")
            return
        for _ in range(LAST_TRIES):
            self._try_to_write()
            if not self._work:
                break
            time.sleep(LAST_PAUSE)

    def started(self, claims: Iterable[Claim]) -> None:
        # By this host's clock: what it is off is the same for all, and put right when they are written.
        now = datetime.now(timezone.utc)
        with self._lock:
            for claim in claims:
                work = self._work_for(claim.queue)
                waited = (now - claim.run_at).total_seconds()
                work.waits(waited)
                work.waited += waited
                work.started += 1

    def ended(self, attempts: Iterable[Attempt]) -> None:
        """These attempts are done with, each of them told once."""
        with self._lock:
            for attempt in attempts:
                if attempt.settled and attempt.counts_as:
                    vars(self._work_for(attempt.claim.queue))[attempt.counts_as] += 1

    def recovered(self, queued: Iterable[Task], ended: Iterable[Task]) -> None:
        """Tasks of workers that are gone were queued again, or ended."""
        with self._lock:
            for task in queued:
                self._work_for(task.queue).retried += 1
            for task in ended:
                work = self._work_for(task.queue)
                if task.cancel_requested:
                    work.canceled += 1
                else:
                    work.failed += 1

    def _work_for(self, queue: str) -> Work:
        work = self._work.get(queue)
        if work is None:
            work = self._work[queue] = Work()
        return work

    def _run(self) -> None:
        next_write = time.monotonic() + INTERVAL
        try:
            while not self._stopped.wait(max(0.0, min(next_write, self._presence.due) - time.monotonic())):
                if time.monotonic() >= next_write:
                    self._try_to_write()
                    next_write = time.monotonic() + INTERVAL
                if time.monotonic() >= self._presence.due:
                    self._presence.look()
            self._presence.end()
        finally:
            connections.close_all()

    def _try_to_write(self) -> None:
        with self._lock:
            work, self._work = self._work, {}
        if not work:
            return
        try:
            refresh(self._using)
            unwritten = activity.add(self._using, work)
        except Exception as error:
            # If it was the answer that got lost, this counts twice.
            unwritten = work
            self._report("activity", error)
        with self._lock:
            for queue, left in unwritten.items():
                self._work_for(queue).add(left)
