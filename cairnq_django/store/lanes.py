"""The lanes that a claim draws from: one queue and one name each, whose tasks the claim index holds in claim order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import Model

from ..expressions import Slot
from ..limits import MAX_PRIORITY
from ..models import PausedQueue, Task
from ..querysets import TaskQuerySet
from .engine import filled, in_batches
from .pauses import unless_paused

SKIPS_SINCE = 18_00_00  # the version of PostgreSQL that goes from one priority in an index to the next by itself

_LANES_IN_A_STATEMENT = 100  # where each adds to the text

_QUEUED = "task.status = 'queued' AND task.queue = lane.queue AND task.name = lane.name"
# Asked once for all lanes, in the statement that claims: what is committed before that counts.
_NOT_PAUSED = """NOT IN (
    SELECT pause.queue FROM {pauses} AS pause WHERE pause.until IS NULL OR pause.until > {now}
)"""
_DUE = f"{_QUEUED} AND task.run_at <= {{now}} AND (task.expires_at IS NULL OR task.expires_at > {{now}})"

# A lane's priorities, each found by one look into the index, so that the delayed tasks of none are read past. They come
# from the highest on, as far as they are asked for: who has found enough due tasks looks for no further one.
_LEVELS = f"""
WITH RECURSIVE level (priority) AS (
    SELECT {MAX_PRIORITY + 1}
    UNION ALL
    SELECT (
        SELECT task.priority FROM {{table}} AS task WHERE {_QUEUED} AND task.priority < level.priority
        ORDER BY task.priority DESC LIMIT 1
    ) FROM level WHERE level.priority IS NOT NULL
)
"""

_POSTGRES_BY_LEVEL = f"""
SELECT {{columns}} FROM {{lanes}} AS lane (queue, name) CROSS JOIN LATERAL (
    {_LEVELS}
    SELECT level.priority, due.run_at, due.id FROM level CROSS JOIN LATERAL (
        SELECT task.run_at, task.id FROM {{table}} AS task WHERE {_DUE} AND task.priority = level.priority
        ORDER BY task.run_at, task.id LIMIT %s {{lock}}
    ) AS due LIMIT %s
) AS task WHERE lane.queue {_NOT_PAUSED} ORDER BY task.priority DESC, task.run_at, task.id LIMIT %s
"""

_POSTGRES = f"""
SELECT {{columns}} FROM {{lanes}} AS lane (queue, name) CROSS JOIN LATERAL (
    SELECT task.priority, task.run_at, task.id FROM {{table}} AS task WHERE {_DUE}
    ORDER BY task.priority DESC, task.run_at, task.id LIMIT %s {{lock}}
) AS task WHERE lane.queue {_NOT_PAUSED} ORDER BY task.priority DESC, task.run_at, task.id LIMIT %s
"""

# A query that refers to the lane is possible on the right of IN alone. An ORDER BY in it would sort all that is due:
# the outer loop is over the levels as they come, the inner one follows the index.
_SQLITE = f"""
SELECT {{columns}} FROM (
    SELECT json_extract(value, '$[0]') AS queue, json_extract(value, '$[1]') AS name FROM json_each(%s)
    WHERE json_extract(value, '$[0]') {_NOT_PAUSED}
) AS lane CROSS JOIN {{table}} AS task WHERE task.rowid IN (
    {_LEVELS}
    SELECT task.rowid FROM level CROSS JOIN {{table}} AS task INDEXED BY cairnq_task_claim
    WHERE {_DUE} AND task.priority = level.priority LIMIT %s
) ORDER BY task.priority DESC, task.run_at, task.id LIMIT %s
"""


class Lane(NamedTuple):
    queue: str
    name: str

    def due(self, using: str) -> TaskQuerySet:
        """The lane's due tasks, in claim order; none while its queue is paused."""
        return _due(using, *self).in_claim_order()


class Place(NamedTuple):
    """A due task, where a list of them stands in claim order."""

    lane: Lane
    task_id: UUID


def lanes_of(queues: Sequence[str], names: Sequence[str]) -> list[Lane]:
    return [Lane(queue, name) for queue in dict.fromkeys(queues) for name in dict.fromkeys(names)]


def ahead(using: str, lanes: Sequence[Lane], limit: int) -> list[Place]:
    """The first `limit` due tasks of all `lanes` whose queues are not paused, in claim order. Locks nothing.

    Each lane is read by itself, from its first task on: what waits in other lanes is never read past. Nor is what is
    delayed in the same lane, except on MySQL and MariaDB what has a higher priority.
    """
    if connections[using].vendor not in ("postgresql", "sqlite"):
        return _ahead_by_union(using, lanes, limit)
    with connections[using].cursor() as cursor:
        cursor.execute(*first_due_sql(using, lanes, limit, columns="lane.queue, lane.name, task.id"))
        return [Place(Lane(queue, name), UUID(str(task_id))) for queue, name, task_id in cursor.fetchall()]


def first_due_sql(using: str, lanes: Sequence[Lane], limit: int, *, columns: str = "task.id") -> tuple[str, list[Any]]:
    """A query for what `ahead()` finds, in claim order, and its parameters; on PostgreSQL and SQLite."""
    if connections[using].vendor == "sqlite":
        now = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'NOW')"  # in the form that times are stored in
        sql = _SQLITE.format(now=now, columns=columns, table=_table(using, Task), pauses=_table(using, PausedQueue))
        return sql, [json.dumps(lanes), limit, limit]
    sql, params = first_due_template(using, one_lane=len(lanes) == 1, columns=columns)
    return sql, filled(params, {**lane_slots(lanes), "limit": limit})


def first_due_template(
    using: str, *, one_lane: bool, columns: str = "task.id", lock: bool = False
) -> tuple[str, list[Slot]]:
    """`first_due_sql()` on PostgreSQL with slots: the "limit", and what `lane_slots()` gives.

    With `lock`, for one lane, it locks what it finds, and passes over what others have locked.
    """
    connection: Any = connections[using]
    skips = connection.pg_version >= SKIPS_SINCE
    sql = (_POSTGRES if skips else _POSTGRES_BY_LEVEL).format(
        columns=columns,
        table=_table(using, Task),
        pauses=_table(using, PausedQueue),
        lanes="(VALUES (%s, %s))" if one_lane else "unnest(%s::varchar[], %s::varchar[])",
        lock=connection.ops.for_update_sql(skip_locked=True) if lock else "",
        now="STATEMENT_TIMESTAMP()",
    )
    return sql, [Slot("queues"), Slot("names"), *[Slot("limit")] * (2 if skips else 3)]


def lane_slots(lanes: Sequence[Lane]) -> dict[str, Any]:
    queues, names = ([lane.queue for lane in lanes], [lane.name for lane in lanes])
    return {"queues": queues, "names": names} if len(lanes) != 1 else {"queues": queues[0], "names": names[0]}


def _table(using: str, model: type[Model]) -> str:
    return connections[using].ops.quote_name(model._meta.db_table)


def _due(using: str, queue: str | Slot, name: str | Slot) -> TaskQuerySet:
    return unless_paused(Task.objects.using(using).due().filter(queue=queue, name=name), queue)


def _ahead_by_union(using: str, lanes: Sequence[Lane], limit: int) -> list[Place]:
    """A part for each lane, put together as text, since the ORM takes long for many."""
    connection = connections[using]
    first = (
        _due(using, Slot("queue"), Slot("name"))
        .in_claim_order()
        .values_list("priority", "run_at", "id", "queue", "name")[:limit]
    )
    sql, params = first.query.get_compiler(using).as_sql()
    rows: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for part in in_batches(lanes, _LANES_IN_A_STATEMENT):
            values = [value for lane in part for value in filled(params, lane._asdict())]
            cursor.execute(" UNION ALL ".join([f"({sql})"] * len(part)), values)
            rows += cursor.fetchall()
    rows.sort(key=lambda row: (-row[0], *row[1:3]))
    return [Place(Lane(queue, name), UUID(str(task_id))) for _, _, task_id, queue, name in rows[:limit]]
