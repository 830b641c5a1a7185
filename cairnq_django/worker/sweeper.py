"""One thread that sweeps by the rules of `CAIRNQ["RETENTION"]`, so that claims do not wait for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import connections

from .. import retention
from ..conf import RetentionRule
from ..retention import Sweeps
from .connections import one_request
from .threads import Chore

logger = logging.getLogger(__name__)


class Sweeper(Chore):
    def __init__(
        self,
        using: str,
        rules: Sequence[RetentionRule],
        *,
        worker_id: str,
        report: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__("cairnq-sweeper")
        self._report = report
        self._sweeps = Sweeps(using, rules, worker_id=worker_id, pause=self._stopped.wait)

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
