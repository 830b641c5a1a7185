"""What there is to do for a worker: asked far more often than there is, so it costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import QuerySet

from ..models import PausedQueue, Task
from .engine import filled, is_postgresql
from .lanes import ahead, first_due_template, lane_slots, lanes_of


class Look(NamedTuple):
    """What is waiting for somebody; others may be about to see to it."""

    due: bool  # tasks of these queues, unless they are paused, and names
    orphaned: bool  # running tasks whose lease ran out
    too_late: bool  # tasks that expired before they were started
    pauses_over: bool  # queues whose pause has come to its end


def look(using: str, queues: Sequence[str], names: Sequence[str]) -> Look:
    """See what there is to do, without a transaction: one statement on PostgreSQL, a few elsewhere."""
    lanes = lanes_of(queues, names)
    if not is_postgresql(using):
        return Look(bool(lanes and ahead(using, lanes, 1)), *(rows.exists() for rows in _left_behind(using)))
    sql, params = _statement(using, one_lane=len(lanes) == 1)
    with connections[using].cursor() as cursor:
        cursor.execute(sql, filled(params, {**lane_slots(lanes), "limit": 1}))
        return Look(*cursor.fetchone())


def _left_behind(using: str) -> tuple[QuerySet[Any], ...]:
    tasks = Task.objects.using(using)
    return tasks.expired(), tasks.too_late(), PausedQueue.objects.using(using).over()


@lru_cache
def _statement(using: str, *, one_lane: bool) -> tuple[str, list[Any]]:
    parts: list[tuple[str, Any]] = [first_due_template(using, one_lane=one_lane)]
    parts += [rows.values("pk")[:1].query.get_compiler(using).as_sql() for rows in _left_behind(using)]
    sql = ", ".join(f"EXISTS ({part})" for part, _ in parts)
    return f"SELECT {sql}", [param for _, params in parts for param in params]
