"""Pause queues and resume them; say which are paused."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef

from ..clock import Now
from ..expressions import Slot
from ..models import PausedQueue
from ..querysets import TaskQuerySet
from .engine import in_transaction


class Paused(NamedTuple):
    """The queue as it is paused now, and whether that was changed."""

    pause: PausedQueue
    changed: bool


def pause(using: str, queue: str, *, until: Any, by: str, anew: bool) -> Paused | None:
    """Pause a queue until a moment, or until it is resumed if that is None.

    One that is paused already is paused anew, or else left as it is. None if the moment has passed: nothing is changed.
    """
    rows = PausedQueue.objects.using(using)
    row = rows.filter(pk=queue)

    def work() -> Paused:
        # Whoever makes the row, or finds it, decides one by one for the queue. It is over before it begins.
        rows.bulk_create([PausedQueue(queue=queue, until=Now())], ignore_conflicts=True)
        to_change = row if anew else row.over()
        changed = bool(to_change.update(paused_at=Now(), paused_by=by, until=until))
        found = row.in_force().first()
        if found is None:
            raise _TooLate
        return Paused(found, changed)

    try:
        return in_transaction(using, work)
    except _TooLate:
        return None


def resume(using: str, queue: str) -> bool:
    """Let a queue give out tasks again; return whether it was paused."""
    row = PausedQueue.objects.using(using).filter(pk=queue)

    def work() -> bool:
        was_paused = bool(row.in_force()._raw_delete(using))
        row._raw_delete(using)
        return was_paused

    return in_transaction(using, work)


def end_those_over(using: str) -> list[str]:
    """Delete the pauses whose time has come, and return their queues."""
    over = PausedQueue.objects.using(using).over()

    def work() -> list[str]:
        # One by one: another may pause one of them anew at this moment.
        return [queue for queue in list(over.values_list("pk", flat=True)) if over.filter(pk=queue)._raw_delete(using)]

    return in_transaction(using, work)


def unless_paused(tasks: TaskQuerySet, queue: str | Slot | None = None) -> TaskQuerySet:
    """Those of `tasks` whose queue is not paused. If they are all of one `queue`, it is looked up once."""
    pauses = PausedQueue.objects.using(tasks.db).in_force()
    return tasks.filter(~Exists(pauses.filter(pk=OuterRef("queue") if queue is None else queue)))


class _TooLate(Exception):
    """Rolls back a pause that would be over already."""
