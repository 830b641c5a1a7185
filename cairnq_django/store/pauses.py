"""Pause queues and resume them; say which are paused."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from django.db.models import BooleanField, Exists, OuterRef
from django.db.models.expressions import RawSQL

from ..clock import Now
from ..expressions import Slot
from ..models import PausedQueue, Task
from ..querysets import TaskQuerySet
from .engine import filled, in_transaction


class Paused(NamedTuple):
    """How the queue is paused, or was until now, and whether that was changed."""

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


def resume(using: str, queue: str, *, since: datetime | None = None) -> Paused | None:
    """Let a queue give out tasks again; None if it was not paused.

    With `since`, only if it is paused since then: a later pause is left as it is.
    """
    row = PausedQueue.objects.using(using).filter(pk=queue)

    def work() -> Paused | None:
        found = row.in_force().select_for_update().first()
        if found is not None and since is not None and found.paused_at != since:
            return Paused(found, False)
        row._raw_delete(using)
        return None if found is None else Paused(found, True)

    return in_transaction(using, work)


def end_those_over(using: str) -> list[str]:
    """Delete the pauses whose time has come, and return their queues; waits for nobody who holds one."""
    over = PausedQueue.objects.using(using).over()

    def work() -> list[str]:
        # Whoever holds one is about to pause it anew, or to resume it, and may take long to commit.
        queues = list(over.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True))
        if queues:
            PausedQueue.objects.using(using).filter(pk__in=queues)._raw_delete(using)
        return queues

    return in_transaction(using, work)


def unless_paused(tasks: TaskQuerySet, queue: str | Slot | None = None) -> TaskQuerySet:
    """Those of `tasks` whose queue is not paused. If they are all of one `queue`, it is looked up once."""
    sql, params = _not_paused(tasks.db, of_one_queue=queue is not None)
    return tasks.filter(RawSQL(sql, filled(params, {"queue": queue}), BooleanField()))


@lru_cache
def _not_paused(using: str, *, of_one_queue: bool) -> tuple[str, list[Any]]:
    """The condition as SQL, since to compile it anew for each claim takes a tenth of the claim."""
    pauses = PausedQueue.objects.using(using).in_force()
    tasks = Task.objects.using(using).filter(
        ~Exists(pauses.filter(pk=Slot("queue") if of_one_queue else OuterRef("queue")))
    )
    sql, params = tasks.query.get_compiler(using).compile(tasks.query.where)
    return sql, list(params)


class _TooLate(Exception):
    """Rolls back a pause that would be over already."""
