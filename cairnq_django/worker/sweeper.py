"""One thread that sweeps by the rules of `CAIRNQ["RETENTION"]`, so that claims do not wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from django.db import connections

from .. import retention
from ..conf import RetentionRule
from ..retention import Sweeps
from .connections import one_request

logger = logging.getLogger(__name__)


class Sweeper:
    def __init__(
        self,
        using: str,
        rules: Sequence[RetentionRule],
        *,
        worker_id: str,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._report = report
        self._stopped = threading.Event()
        self._sweeps = Sweeps(using, rules, worker_id=worker_id, pause=self._stopped.wait)
        self._thread = threading.Thread(target=self._run, name="cairnq-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> None:
        """Begin to stop: after the batch that is being deleted."""
        self._stopped.set()

    def stop(self) -> None:
        self.interrupt()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._try(self._sweep)
                self._stopped.wait(retention.SWEEP_INTERVAL)
            self._try(self._sweeps.give_back)
        finally:
            connections.close_all()

    def _sweep(self) -> None:
        deleted = self._sweeps.run()
        if deleted:
            logger.info("Deleted, as CAIRNQ['RETENTION'] says: %d tasks", deleted)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            with one_request():
                work()
        except Exception as error:
            self._report("sweep", error)
