"""One thread that submits what schedules have due, so that neither claims nor other schedules wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from django.db import InterfaceError, OperationalError, connections

from .. import schedules
from ..errors import CairnQError, QueueFull
from ..limits import MESSAGE_LENGTH
from ..registry import Registry
from ..serialization import clean_text
from ..statuses import Tick
from ..store import schedules as store
from ..store.schedules import Upcoming
from .connections import refresh
from .threads import Chore

logger = logging.getLogger(__name__)

FIRST_LOOK: Final = 0.5  # seconds after the start of a worker that declares none: short runs do without
LOOK_INTERVAL: Final = 5.0  # seconds after which it is seen that people have added, changed or resumed a schedule
IDLE_INTERVAL: Final = 60.0  # the same where there was none
RETRY_PAUSE: Final = 1.0  # seconds until the next try at what the database failed, or another worker is at
FULL_PAUSE: Final = 5.0  # seconds until a schedule asks again whether its queue has room
FAILED_PAUSE: Final = 60.0  # seconds until what this worker cannot submit is tried again, here
LOOKED_AT: Final = 100  # schedules at a time


class Scheduler(Chore):
    """Any number of workers may have one: what is due is submitted by the first who gets its row."""

    def __init__(
        self,
        using: str,
        registry: Registry,
        *,
        wake: Callable[[], None],
        report: Callable[[str, BaseException], None],
    ) -> None:
        """`wake` is called when a task has been submitted."""
        super().__init__("cairnq-scheduler")
        self._using = using
        self._registry = registry
        self._wake = wake
        self._report = report
        self._is_declared = False
        self._set_aside: dict[int, float] = {}  # schedules to leave alone, until when on the monotonic clock

    def _run(self) -> None:
        declares = any(definition.is_periodic for definition in self._registry)
        pause = 0.0 if declares else FIRST_LOOK
        try:
            while not self._stopped.wait(pause):
                pause = self._go()
                if pause >= IDLE_INTERVAL:
                    connections.close_all()
        finally:
            connections.close_all()

    def _go(self) -> float:
        """See to what is due, and return for how many seconds there is nothing to do."""
        try:
            refresh(self._using)
            if not self._is_declared:
                schedules.declare(self._using, self._registry)
                self._is_declared = True
            return self._see_to_what_is_due()
        except Exception as error:
            self._report("schedule", error)
            return RETRY_PAUSE

    def _see_to_what_is_due(self) -> float:
        now = time.monotonic()
        self._set_aside = {pk: until for pk, until in self._set_aside.items() if until > now}
        found = store.upcoming(self._using, limit=LOOKED_AT, leave_out=self._set_aside)
        pause = LOOK_INTERVAL if found or self._set_aside else IDLE_INTERVAL
        for upcoming in found:
            if self._stopped.is_set():
                break
            if upcoming.due_in <= 0:
                pause = min(pause, self._see_to(upcoming))
            elif self._knows(upcoming):
                pause = min(pause, upcoming.due_in)
        return pause

    def _see_to(self, upcoming: Upcoming) -> float:
        """Submit what is due, and return for how many seconds there is nothing else to do."""
        if not self._knows(upcoming):
            self._leave_to_others(upcoming)
            return 0.0
        try:
            ticked = schedules.tick(self._using, upcoming.schedule_id, self._registry)
        except QueueFull as full:
            self._held_back(upcoming, full)
            return 0.0
        except (OperationalError, InterfaceError):
            # The database is away, which is not the schedule's affair; should it be, the others come first now.
            self._aside(upcoming, 2 * RETRY_PAUSE)
            raise
        except Exception as error:
            self._failed(upcoming, error)
            return 0.0
        if ticked is None:
            return RETRY_PAUSE
        if ticked.submitted:
            self._wake()
        if ticked.tick is not Tick.SUBMITTED:
            logger.info("Schedule %r submits nothing this time: %s", upcoming.name, ticked.tick.value)
        return 0.0

    def _leave_to_others(self, upcoming: Upcoming) -> None:
        self._aside(upcoming, FAILED_PAUSE)
        # Who knows the task may have said already what else it waits for.
        if upcoming.due_in < -schedules.LATE and not upcoming.error:
            self._failed(upcoming, LookupError(f"no worker that runs has a handler named {upcoming.task_name!r}"))

    def _held_back(self, upcoming: Upcoming, full: QueueFull) -> None:
        self._aside(upcoming, FULL_PAUSE)
        if store.note(self._using, upcoming, Tick.HELD_BACK, f"Queue {full.queue!r} is full."):
            logger.warning("Schedule %r is held back, since queue %r is full", upcoming.name, full.queue)

    def _failed(self, upcoming: Upcoming, error: Exception) -> None:
        self._aside(upcoming, FAILED_PAUSE)
        reason = clean_text(f"{type(error).__name__}: {error}", MESSAGE_LENGTH)
        failure = CairnQError(f"Schedule {upcoming.name!r} cannot run: {reason}")
        failure.__cause__ = error
        self._report("schedule", failure)
        store.note(self._using, upcoming, Tick.FAILED, reason)

    def _knows(self, upcoming: Upcoming) -> bool:
        return self._registry.get(upcoming.task_name) is not None

    def _aside(self, upcoming: Upcoming, seconds: float) -> None:
        self._set_aside[upcoming.schedule_id] = time.monotonic() + seconds
