"""One thread that keeps `Activity`: what a worker did is added up in memory, and written every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from django.db import connections

from ..models import Task
from ..store import activity
from ..store.activity import Work
from ..store.claim import Claim
from .attempt import Attempt
from .connections import refresh

INTERVAL = 10.0  # seconds


class Bookkeeper:
    """The worker's loop tells it what happens, which costs next to nothing; a worker that is idle writes nothing."""

    def __init__(self, using: str, *, report: Callable[[str, BaseException], None]) -> None:
        self._using = using
        self._report = report
        self._lock = threading.Lock()  # guards _work
        self._work: dict[str, Work] = {}  # by queue, not written yet
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cairnq-bookkeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and write what is left, here and now."""
        self._stopped.set()
        self._thread.join()
        self._try_to_write()

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
        try:
            while not self._stopped.wait(INTERVAL):
                self._try_to_write()
        finally:
            connections.close_all()

    def _try_to_write(self) -> None:
        with self._lock:
            work, self._work = self._work, {}
        if not work:
            return
        try:
            refresh(self._using)
            activity.add(self._using, work)
        except Exception as error:
            # If it was the answer that got lost, this counts twice.
            with self._lock:
                for queue, unwritten in work.items():
                    self._work_for(queue).add(unwritten)
            self._report("activity", error)
