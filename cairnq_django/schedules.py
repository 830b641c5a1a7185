"""Periodic tasks: what schedules submit when they are due, what code declares of them, what people ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any, Final

from django.conf import settings

from . import notify, sending
from .backpressure import admission
from .instrumentation import around_submit
from .models import Schedule, Task
from .notify import Channel
from .registry import Registry, TaskDef
from .statuses import Missed, Tick
from .store import schedules as store
from .store.engine import task_database
from .store.schedules import Step, Ticked
from .submission import definition_of, new_row, shared_fields
from .timing import Timing, timing

#: Seconds after which nobody says any more that a time was kept, only a little late.
LATE: Final = 90.0

CATCH_UP_BATCH: Final = 100  # missed times that one transaction submits tasks for


def declare(using: str, registry: Registry) -> None:
    """Make the rows of schedules what the handlers of this process declare, as far as they are not.

    A task that is known here and does not declare its schedule any more has it retired. What is not known here is left
    alone: it may be another program's. Several versions of the code may differ; the one that said so last has its way.
    """
    declared = {definition.name: _declaration(definition) for definition in registry if definition.is_periodic}
    store.declare(using, declared, lambda name: name not in declared and registry.get(name) is not None, first_time)


def tick(using: str, schedule_id: int, registry: Registry) -> Ticked | None:
    """Submit what a schedule of a task in `registry` has to submit now, and advance it, in one transaction.

    None if it is not due, or another worker is at it. Raises `QueueFull` if its queue has no room, and whatever
    submitting it raises: then nothing has happened.
    """
    with ExitStack() as around:
        ticked = store.tick(using, schedule_id, partial(_step, using, registry, around))
    if ticked is not None:
        _tell(using, ticked.submitted)
    return ticked


def timing_of(schedule: Schedule) -> Timing:
    """Raises `ValueError` for a row that no version of this code has written."""
    zone = schedule.timezone if schedule.cron else None
    return timing(cron=schedule.cron or None, every=schedule.every, zone=zone)


def first_time(schedule: Schedule, now: datetime) -> datetime | None:
    """The first time of a schedule that is made now, changed or resumed."""
    # An interval is counted from here, and people read whole seconds.
    return timing_of(schedule).after(now.replace(microsecond=0))


def coming(schedule: Schedule, count: int) -> list[datetime]:
    """The next times of a schedule, as far as there are any."""
    if schedule.next_run_at is None:
        return []
    return list(islice(_times(timing_of(schedule), schedule.next_run_at), count))


def request_run_now(schedule: Schedule) -> Task | None:
    """Submit a task of this schedule beside its times; None if it would overlap with the latest and must not.

    Raises `QueueFull`, and `TypeError` or `ValueError` for what cannot be submitted.
    """
    using = task_database()

    def task_of(schedule: Any) -> Task:
        task = _task(using, definition_of(schedule.task_name), schedule, schedule.asked_at, key=None)
        _admit(using, task.queue)
        around.enter_context(around_submit([task]))
        return task

    with ExitStack() as around:
        task = store.run_now(using, schedule.pk, task_of)
    _tell(using, [] if task is None else [task])
    return task


def check(schedule: Schedule) -> None:
    """Raise what submitting its task would raise: `TypeError` or `ValueError`, naming what is wrong."""
    _task(task_database(), definition_of(schedule.task_name), schedule, datetime.now(timezone.utc), key=None)


def _declaration(definition: TaskDef[Any, Any]) -> dict[str, Any]:
    zone = definition.timezone or settings.TIME_ZONE or "UTC"
    return {
        "task_name": definition.name,
        "cron": definition.cron or "",
        "timezone": zone if definition.cron else "",
        "every": definition.every,
        "missed": definition.missed,
        "overlap": definition.overlap,
    }


def _step(
    using: str, registry: Registry, around: ExitStack, schedule: Schedule, now: datetime, must_skip: bool
) -> Step:
    definition = registry.get(schedule.task_name)
    assert definition is not None
    assert schedule.next_run_at is not None
    times, due = timing_of(schedule), schedule.next_run_at
    latest = times.latest(due, now)
    if must_skip:
        return Step(Tick.SKIPPED, [], times.after(latest))
    if schedule.missed == Missed.NONE and now - latest > timedelta(seconds=LATE):
        return Step(Tick.MISSED, [], times.after(latest))
    queue = schedule.queue or definition.queue
    is_limited = _admit(using, queue)
    kept = [latest]
    if schedule.missed == Missed.ALL:
        # Each that is let in by itself, if the queue has a limit.
        kept = list(islice(_times(times, due, until=latest), 1 if is_limited else CATCH_UP_BATCH))
    tasks = [_task(using, definition, schedule, time, key=_key(schedule, time)) for time in kept]
    for task in tasks:
        # One by one, since each has metadata of its own.
        around.enter_context(around_submit([task]))
    return Step(Tick.SUBMITTED, tasks, times.after(kept[-1]))


def _task(using: str, definition: TaskDef[Any, Any], schedule: Schedule, due: datetime, *, key: str | None) -> Task:
    fields = shared_fields(
        using,
        definition,
        queue=schedule.queue or None,
        priority=schedule.priority,
        metadata={"schedule": schedule.name, "due_at": due.isoformat()},
    )
    return new_row(using, fields, schedule.payload, key)


def _key(schedule: Schedule, due: datetime) -> str:
    return f"schedule:{schedule.pk}:{due.isoformat()}"


def _admit(using: str, queue: str) -> bool:
    """Return whether the queue has a limit. Raises `QueueFull` if that leaves no room: nobody waits for it here."""
    admitted = admission(using, queue, 1, max_depth=None, max_wait=0)
    if admitted is None:
        return False
    with admitted.granted():
        return True


def _times(times: Timing, due: datetime, until: datetime | None = None) -> Iterator[datetime]:
    """`due`, which is one, and those that come after it."""
    time: datetime | None = due
    while time is not None and (until is None or time <= until):
        yield time
        time = times.after(time)


def _tell(using: str, tasks: list[Task]) -> None:
    notify.announce(using, Channel.QUEUED, {task.queue for task in tasks})
    sending.tell_submitted(using, tasks)
