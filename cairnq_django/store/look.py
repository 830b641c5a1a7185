"""What there is to do for a worker: asked far more often than there is, so it costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import connections

from ..models import Task
from .lanes import ahead, first_due_sql, lanes_of


class Look(NamedTuple):
    """What is waiting for somebody; others may be about to see to it."""

    due: bool  # tasks of these queues and names
    orphaned: bool  # running tasks whose lease ran out
    too_late: bool  # tasks that expired before they were started


def look(using: str, queues: Sequence[str], names: Sequence[str]) -> Look:
    """See what there is to do, without a transaction: one statement on PostgreSQL, up to three elsewhere."""
    lanes = lanes_of(queues, names)
    orphaned = Task.objects.using(using).expired()
    too_late = Task.objects.using(using).too_late()
    if connections[using].vendor != "postgresql":
        return Look(bool(lanes and ahead(using, lanes, 1)), orphaned.exists(), too_late.exists())
    parts = [first_due_sql(using, lanes, 1, columns="task.id")] if lanes else [("SELECT 1 WHERE false", [])]
    parts += [rows.values("pk")[:1].query.get_compiler(using).as_sql() for rows in (orphaned, too_late)]
    sql = ", ".join(f"EXISTS ({part})" for part, _ in parts)
    params: list[Any] = [param for _, part_params in parts for param in part_params]
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        return Look(*cursor.fetchone())
