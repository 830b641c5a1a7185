"""The lanes that a claim draws from: one queue and one name each, whose tasks the claim index holds in claim order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models.expressions import Combinable, RawSQL

from ..models import Task
from ..querysets import TaskQuerySet
from .engine import in_batches, is_postgresql

_AHEAD = """
SELECT {columns}
FROM unnest(%s::varchar[], %s::varchar[]) AS lane (queue, name) CROSS JOIN LATERAL ({first_of_lane}) AS task
ORDER BY task.priority DESC, task.run_at, task.id
LIMIT %s
"""


_ANY = 987_654_321  # a limit, where the ORM takes a number alone
_LANES_IN_A_STATEMENT = 100  # SQLite takes 500 parts


class Lane(NamedTuple):
    queue: str
    name: str

    def due(self, using: str) -> TaskQuerySet:
        """The lane's due tasks, in claim order."""
        return _due(using, self.queue, self.name)


class Place(NamedTuple):
    """A due task, where a list of them stands in claim order."""

    lane: Lane
    task_id: UUID


def lanes_of(queues: Sequence[str], names: Sequence[str]) -> list[Lane]:
    return [Lane(queue, name) for queue in dict.fromkeys(queues) for name in dict.fromkeys(names)]


def ahead(using: str, lanes: Sequence[Lane], limit: int) -> list[Place]:
    """The first `limit` due tasks of all `lanes` together, in claim order. Locks nothing.

    Each lane is read by itself, from its first task on: what waits in other lanes is never read past.
    """
    if is_postgresql(using):
        return ahead_by_lateral_join(using, lanes, limit)
    return ahead_by_union(using, lanes, limit)


def ahead_by_lateral_join(using: str, lanes: Sequence[Lane], limit: int) -> list[Place]:
    """`ahead()` where the database has LATERAL and arrays: one statement of the same length for any number of lanes."""
    queues, names = zip(*lanes, strict=True)
    sql, params = first_due_sql(using, list(queues), list(names), limit, columns="lane.queue, lane.name, task.id")
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return [Place(Lane(queue, name), task_id) for queue, name, task_id in cursor.fetchall()]


def first_due_sql(
    using: str, queues: Any, names: Any, limit: Any, *, columns: str = "task.id"
) -> tuple[str, list[Any]]:
    """What selects the first `limit` due tasks of all lanes together on PostgreSQL.

    `queues` and `names` are those of each lane, two lists of the same length. All three may be slots.
    """
    sql, params = _first_of_lane(using)
    return _AHEAD.format(columns=columns, first_of_lane=sql), [queues, names, *params, limit, limit]


@lru_cache
def _first_of_lane(using: str) -> tuple[str, tuple[Any, ...]]:
    first = _first(_due(using, RawSQL("lane.queue", ()), RawSQL("lane.name", ())), _ANY)
    sql, params = first.query.get_compiler(using).as_sql()
    return sql.replace(f"LIMIT {_ANY}", "LIMIT %s"), params


def ahead_by_union(using: str, lanes: Sequence[Lane], limit: int) -> list[Place]:
    """`ahead()` on any database: a part for each lane, put together as text, since the ORM takes long for many."""
    connection = connections[using]
    queue, name = object(), object()
    first = _first(_due(using, RawSQL("%s", [queue]), RawSQL("%s", [name])), limit)
    sql, params = first.query.get_compiler(using).as_sql()
    # SQLite takes an order and a limit inside a query of its own only.
    one_lane = f"({sql})" if connection.features.supports_slicing_ordering_in_compound else f"SELECT * FROM ({sql})"
    rows: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for part in in_batches(lanes, _LANES_IN_A_STATEMENT):
            values = [
                lane.queue if param is queue else lane.name if param is name else param
                for lane in part
                for param in params
            ]
            cursor.execute(" UNION ALL ".join([one_lane] * len(part)), values)
            rows += cursor.fetchall()
    rows.sort(key=lambda row: (-row[0], *row[1:3]))
    return [Place(Lane(queue, name), UUID(str(task_id))) for _, _, task_id, queue, name in rows[:limit]]


def _first(due: TaskQuerySet, limit: int) -> Any:
    return due.values_list("priority", "run_at", "id", "queue", "name")[:limit]


def _due(using: str, queue: str | Combinable, name: str | Combinable) -> TaskQuerySet:
    return Task.objects.using(using).due().filter(queue=queue, name=name).in_claim_order()
