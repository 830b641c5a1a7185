"""Delete what `CAIRNQ["RETENTION"]` no longer wants kept, a little at a time, one worker for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from .conf import RetentionRule
from .statuses import TERMINAL
from .store import duties, maintenance
from .store.engine import has_one_write_lock
from .store.maintenance import Ended, Step

SWEEP_INTERVAL = 60.0  # seconds from the end of a sweep to the next
SWEEP_BATCH = 1000  # tasks in one transaction
REST = 1.0  # seconds of rest for each second of work
#: The same where a transaction keeps all others from writing.
EXCLUSIVE_SWEEP_BATCH = 200
EXCLUSIVE_REST = 3.0
MAX_PASSED = 100_000  # tasks that a rule by queue or name leaves behind in one sweep
NEW_PASS_INTERVAL = 3600.0  # seconds before such a rule begins again with the longest ended

DUTY = "sweep"
DUTY_LEASE = 30.0  # seconds that the duty outlives a sweeper


@dataclass
class _Pass:
    """How far a rule has come."""

    begun_at: float  # on the monotonic clock
    since: datetime | None = None  # what ended up to then is done with


class Sweeps:
    """The sweeps of one worker. They rest at least as long as they work, so that claims come between."""

    def __init__(
        self, using: str, rules: Sequence[RetentionRule], *, worker_id: str, pause: Callable[[float], bool]
    ) -> None:
        """`pause` sleeps for so many seconds, and returns whether to break off."""
        self._using = using
        self._rules = rules
        self._worker_id = worker_id
        self._pause = pause
        exclusive = has_one_write_lock(using)
        self._size, self._rest = (EXCLUSIVE_SWEEP_BATCH, EXCLUSIVE_REST) if exclusive else (SWEEP_BATCH, REST)
        self._passes: dict[RetentionRule, _Pass] = {}
        self._held_until = 0.0  # the duty, on the monotonic clock

    def run(self) -> int:
        """Delete what the rules match, unless another worker sees to it, and return how many.

        Afterwards the duty stays with this worker, which knows how far it has come; others take it when it is late.
        """
        if not self._hold(DUTY_LEASE):
            return 0
        deleted = 0
        began = time.monotonic()
        for step in self._steps():
            deleted += step.deleted
            if self._pause(self._rest * (time.monotonic() - began)) or not self._keep():
                return deleted
            began = time.monotonic()
        self._hold(SWEEP_INTERVAL + DUTY_LEASE)
        return deleted

    def give_back(self) -> None:
        """Leave it to the other workers, at once."""
        if self._held_until > time.monotonic():
            duties.give_back(self._using, DUTY, worker_id=self._worker_id)

    def _steps(self) -> Iterator[Step]:
        for rule in self._rules:
            current = self._passes.setdefault(rule, _Pass(begun_at=time.monotonic()))
            passed = 0
            for step in maintenance.purge_steps(self._using, _ended(rule), size=self._size, since=current.since):
                current.since = step.since
                passed += step.passed
                yield step
                if passed >= MAX_PASSED:
                    break
            else:
                if time.monotonic() - current.begun_at >= NEW_PASS_INTERVAL:
                    # Rows that were locked, or committed long after they ended, were passed over.
                    del self._passes[rule]

    def _keep(self) -> bool:
        """Renew the duty in time; return whether it is still this worker's."""
        return self._held_until - time.monotonic() > DUTY_LEASE * 2 / 3 or self._hold(DUTY_LEASE)

    def _hold(self, seconds: float) -> bool:
        now = time.monotonic()
        held = duties.hold(self._using, DUTY, worker_id=self._worker_id, seconds=seconds)
        self._held_until = now + seconds if held else 0.0
        return held


def _ended(rule: RetentionRule) -> Ended:
    statuses = TERMINAL if rule.status is None else (rule.status,)
    return Ended(rule.older_than, statuses, queue=rule.queue, name=rule.name)
