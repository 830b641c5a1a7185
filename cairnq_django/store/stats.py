"""The read model: what people and machines ask about the whole of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from django.db import connections
from django.db.models import Count, Min, Q

from ..clock import Now
from ..models import PausedQueue, Task
from ..statuses import TERMINAL, TaskStatus
from .activity import read_clock
from .engine import in_batches, is_postgresql

COUNTED: Final = 10_000  # tasks, of each queue; running ones, of all together
COUNTED_IN_ALL: Final = 50_000  # tasks that wait, if that leaves `COUNTED_AT_LEAST` to each queue
COUNTED_AT_LEAST: Final = 1_000
QUEUES: Final = 1_000  # that have tasks waiting
LEVELS: Final = 500  # of a queue, names with their priorities, in which the one that waits longest is looked for
LEVELS_IN_ALL: Final = 20_000  # of all queues, in equal parts
LOOKS: Final = 100  # in one statement


@dataclass(frozen=True)
class QueueStats:
    """How one queue stands: tasks in each status, how many of the queued are due, how long the oldest has waited."""

    queued: int = 0
    due: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    oldest_wait: float | None = None  # seconds since the longest waiting due task became due


def queue_stats(using: str) -> dict[str, QueueStats]:
    """Each queue that has rows, by name. Counts every row: for people, not for hot paths."""
    tasks = Task.objects.using(using)
    counts: dict[str, dict[str, int]] = {}
    for queue, status, count in tasks.values_list("queue", "status").annotate(count=Count("pk")).order_by():
        counts.setdefault(queue, {})[status] = count
    due = {
        queue: {"due": count, "oldest_wait": max(0.0, (now - oldest).total_seconds())}
        for queue, count, oldest, now in tasks.due()
        .values_list("queue")
        .annotate(count=Count("pk"), oldest=Min("run_at"), now=Now())
        .order_by()
    }
    return {queue: QueueStats(**counts[queue], **due.get(queue, {})) for queue in sorted(counts)}


@dataclass(frozen=True)
class QueueFigures:
    """How one queue stands, as far as that can be said without reading all of it."""

    queue: str
    depth: int = 0  # queued tasks, delayed ones included, as far as they were counted
    is_deeper: bool = False  # whether there are more
    due: int = 0  # of those counted, whether or not the queue is paused
    running: int = 0
    runs_more: bool = False  # whether so many run, in all queues, that not all were counted
    waits: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds since each name's longest waiting task became due
    pause: PausedQueue | None = None  # who paused it, when and until when

    @property
    def oldest_wait(self) -> float | None:
        """Seconds since the longest waiting due task became due."""
        return max(self.waits.values(), default=None)


def queue_figures(using: str, also: Iterable[str] = ()) -> list[QueueFigures]:
    """Each queue with live tasks, each that is paused and those in `also`, in the order of their names.

    Bounded: finds the queues by skipping through the claim index, one look for each, no more than `QUEUES`, and counts
    up to `COUNTED` in each, less if they are many. The waits are those of `LEVELS` names with their
    priorities, less if the queues are many: where there are more, some are left out.
    """
    waiting = _waiting_on_postgresql(using) if is_postgresql(using) else _waiting(using)
    # Ordered by what the index holds, so that no database takes a table of many for the shorter way.
    running = Task.objects.using(using).filter(lease_until__isnull=False).order_by("lease_until")
    running_in = list(running.values_list("queue", flat=True)[: COUNTED + 1])
    runs_more = len(running_in) > COUNTED
    runs = Counter(running_in[:COUNTED])
    pauses = {pause.queue: pause for pause in PausedQueue.objects.using(using).in_force()}
    return [
        QueueFigures(
            queue,
            running=runs[queue],
            runs_more=runs_more,
            pause=pauses.get(queue),
            **waiting.get(queue, {}),
        )
        for queue in sorted({*waiting, *runs, *pauses, *also})
    ]


def queued_up_to(using: str, queue: str, limit: int) -> int:
    """How many tasks wait in `queue`, delayed ones included; counting stops at `limit`."""
    return Task.objects.using(using).queued().filter(queue=queue)[:limit].count()


def ended_up_to(using: str, limit: int) -> dict[TaskStatus, int]:
    """How many tasks ended in each way; counting stops at `limit` for each."""
    # Ordered by what the index holds, so that it alone is read.
    ended = Task.objects.using(using).filter(completed_at__isnull=False).order_by("completed_at")
    return {status: ended.filter(status=status).values("completed_at")[:limit].count() for status in TERMINAL}


@dataclass(frozen=True)
class QueuedName:
    """Tasks of one name that wait in one queue, delayed ones included, as far as they were counted."""

    queue: str
    name: str
    count: int
    is_more: bool  # than were counted


def queued_names(using: str, queues: Sequence[str], *, without: Container[str]) -> list[QueuedName]:
    """What waits in each of the queues, in the order of their names, less the names in `without`.

    Bounded: finds up to `LEVELS` names of each queue by one look for each into the claim index, and counts up to
    `COUNTED_AT_LEAST` of each.
    """
    found = sorted(name for name in _names(using, queues, LEVELS) if name[1] not in without)
    queued = Task.objects.using(using).queued()
    counts = [queued.filter(queue=queue, name=name)[: COUNTED_AT_LEAST + 1].count() for queue, name in found]
    return [
        QueuedName(queue, name, min(count, COUNTED_AT_LEAST), count > COUNTED_AT_LEAST)
        for (queue, name), count in zip(found, counts, strict=True)
    ]


def runnable(using: str, queues: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a task of these handlers is due, or waits for its retry, in a queue that is not paused."""
    given_out = set(queues).difference(PausedQueue.objects.using(using).in_force().values_list("pk", flat=True))
    waiting = Task.objects.using(using).queued().in_time().filter(queue__in=sorted(given_out)).for_handlers(names)
    return waiting.filter(Q(run_at__lte=Now()) | Q(attempt__gt=0)).exists()


def _counted_in_each(queues: Sequence[str]) -> int:
    return max(COUNTED_AT_LEAST, min(COUNTED, COUNTED_IN_ALL // max(len(queues), 1)))


def _levels_of_each(queues: Sequence[str]) -> int:
    return max(1, min(LEVELS, LEVELS_IN_ALL // max(len(queues), 1)))


def _waiting(using: str) -> dict[str, dict[str, Any]]:
    """What waits in each queue: a short look to find each, then many looks in each statement."""
    queues = list(islice(_queues(using), QUEUES))
    most = _counted_in_each(queues)
    now = read_clock(using)
    until = connections[using].ops.adapt_datetimefield_value(now)
    counts = _looks(using, _COUNT, [(until, queue, most + 1) for queue in queues])
    waits: dict[str, dict[str, float]] = {queue: {} for queue in queues}
    levels = _levels(using, queues, _levels_of_each(queues))
    for (queue, name, _priority), (run_at,) in zip(levels, _looks(using, _FIRST, levels), strict=True):
        when = _as_time(using, run_at)
        if when is not None and when <= now:
            waits[queue][name] = max((now - when).total_seconds(), waits[queue].get(name, 0.0))
    return {
        queue: _as_counted(depth, int(due or 0), most=most, waits=waits[queue])
        for queue, (depth, due) in zip(queues, counts, strict=True)
    }


# Each is answered by one seek in the claim index. MySQL and MariaDB seek for constants alone: where a row of another
# table, as of a recursive one, says what to look for, they read all of the index that comes before it.
_NEXT_QUEUE = "SELECT MIN(queue) FROM {table} WHERE status = 'queued' AND queue > %s"
_NEXT_NAME = "MIN(name) FROM {table} WHERE status = 'queued' AND queue = %s AND name > %s"
# PostgreSQL up to 15, as long as it has not analysed what was just submitted, takes a minimum for one of a handful of
# rows, and reads all there are.
_NEXT_NAME_ON_POSTGRESQL = """
(SELECT name FROM {table} WHERE status = 'queued' AND queue = %s AND name > %s
ORDER BY name, priority DESC, run_at, id LIMIT 1)
"""
_HIGHEST = "MAX(priority) FROM {table} WHERE status = 'queued' AND queue = %s AND name = %s"
_NEXT_PRIORITY = f"{_HIGHEST} AND priority < %s"
_FIRST = "MIN(run_at) FROM {table} WHERE status = 'queued' AND queue = %s AND name = %s AND priority = %s"

_COUNT = """
COUNT(*), SUM(run_at <= %s) FROM (
    SELECT run_at FROM {table} WHERE status = 'queued' AND queue = %s LIMIT %s
) AS counted
"""


def _queues(using: str) -> Iterator[str]:
    connection = connections[using]
    look = _NEXT_QUEUE.format(table=connection.ops.quote_name(Task._meta.db_table))
    queue: str | None = ""
    with connection.cursor() as cursor:
        while queue is not None:
            cursor.execute(look, [queue])
            (queue,) = cursor.fetchone()
            if queue is not None:
                yield queue


def _levels(using: str, queues: Sequence[str], most: int) -> list[tuple[str, str, int]]:
    """Up to so many of each queue: a name and one of its priorities, the highest of each name first."""
    names = _names(using, queues, most)
    levels: list[tuple[str, str, int]] = []
    room = dict.fromkeys(queues, most)
    look, asked = _HIGHEST, list[tuple[Any, ...]](names)
    while asked:
        reached = []
        for (queue, name, *_), (priority,) in zip(asked, _looks(using, look, asked), strict=True):
            if priority is not None and room[queue]:
                room[queue] -= 1
                reached.append((queue, name, priority))
        levels += reached
        look, asked = _NEXT_PRIORITY, [level for level in reached if room[level[0]]]
    return levels


def _names(using: str, queues: Sequence[str], most: int) -> list[tuple[str, str]]:
    """Up to so many of each queue: the queue, and a name that waits in it."""
    look = _NEXT_NAME_ON_POSTGRESQL if is_postgresql(using) else _NEXT_NAME
    names: list[tuple[str, str]] = []
    found = [(queue, "") for queue in queues]
    for _ in range(most):
        nexts = _looks(using, look, found)
        found = [(queue, name) for (queue, _), (name,) in zip(found, nexts, strict=True) if name is not None]
        if not found:
            break
        names += found
    return names


def _looks(using: str, look: str, asked: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What a look finds for each that is asked, in that order."""
    connection = connections[using]
    select = look.format(table=connection.ops.quote_name(Task._meta.db_table))
    found: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for batch in in_batches(asked, LOOKS):
            # Nothing says in which order the parts of a union come.
            cursor.execute(
                " UNION ALL ".join(f"SELECT {place}, {select}" for place in range(len(batch))),
                [value for values in batch for value in values],
            )
            found += [tuple(values) for _, *values in sorted(cursor.fetchall(), key=itemgetter(0))]
    return found


def _as_time(using: str, value: Any) -> datetime | None:
    """What a statement that was written by hand found in a column of times."""
    column: Any = Task._meta.get_field("run_at")
    compiler = Task.objects.using(using).query.get_compiler(using)
    ((when,),) = compiler.apply_converters([(value,)], compiler.get_converters([column.cached_col]))
    return when  # type: ignore[no-any-return]


_QUEUES = """
WITH RECURSIVE queue (name) AS (
    (SELECT task.queue FROM {table} AS task WHERE task.status = 'queued' ORDER BY task.queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT task.queue FROM {table} AS task WHERE task.status = 'queued' AND task.queue > queue.name
        ORDER BY task.queue LIMIT 1
    ) FROM queue WHERE queue.name IS NOT NULL
)
SELECT name FROM queue WHERE name IS NOT NULL LIMIT %s
"""

# Ordered as the index is, since the planner might else read the table until it has found enough, which the newest rows
# are last in.
_WAITING = """
SELECT queue.name, counted.depth, counted.due, waiting.names, waiting.waits
FROM unnest(%s::varchar[]) AS queue (name)
CROSS JOIN LATERAL (
    SELECT count(*) AS depth, count(*) FILTER (WHERE task.run_at <= STATEMENT_TIMESTAMP()) AS due FROM (
        SELECT task.run_at FROM {table} AS task WHERE task.status = 'queued' AND task.queue = queue.name
        ORDER BY task.name, task.priority DESC, task.run_at, task.id LIMIT %s
    ) AS task
) AS counted
CROSS JOIN LATERAL (
    WITH RECURSIVE level (name, priority, run_at) AS (
        (
            SELECT task.name, task.priority, task.run_at FROM {table} AS task
            WHERE task.status = 'queued' AND task.queue = queue.name
            ORDER BY task.name, task.priority DESC, task.run_at LIMIT 1
        )
        UNION ALL
        SELECT next.name, next.priority, next.run_at FROM level CROSS JOIN LATERAL (
            (
                SELECT task.name, task.priority, task.run_at FROM {table} AS task
                WHERE task.status = 'queued' AND task.queue = queue.name AND task.name = level.name
                AND task.priority < level.priority ORDER BY task.priority DESC, task.run_at LIMIT 1
            )
            UNION ALL
            (
                SELECT task.name, task.priority, task.run_at FROM {table} AS task
                WHERE task.status = 'queued' AND task.queue = queue.name AND task.name > level.name
                ORDER BY task.name, task.priority DESC, task.run_at LIMIT 1
            )
            LIMIT 1
        ) AS next
    )
    SELECT array_agg(each.name) AS names, array_agg(each.waits::float8) AS waits FROM (
        SELECT level.name, EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP() - min(level.run_at)) AS waits
        FROM (SELECT name, run_at FROM level LIMIT %s) AS level
        WHERE level.run_at <= STATEMENT_TIMESTAMP() GROUP BY level.name
    ) AS each
) AS waiting
"""


def _waiting_on_postgresql(using: str) -> dict[str, dict[str, Any]]:
    """As `_waiting()`, in two statements."""
    connection = connections[using]
    table = connection.ops.quote_name(Task._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(_QUEUES.format(table=table), [QUEUES])
        queues = [queue for (queue,) in cursor.fetchall()]
        most = _counted_in_each(queues)
        cursor.execute(_WAITING.format(table=table), [queues, most + 1, _levels_of_each(queues)])
        return {
            queue: _as_counted(depth, due, most=most, waits=dict(zip(names or [], waits or [], strict=True)))
            for queue, depth, due, names, waits in cursor.fetchall()
        }


def _as_counted(depth: int, due: int, *, most: int, waits: Mapping[str, float]) -> dict[str, Any]:
    """One more than `most` says that there are more."""
    return {"depth": min(depth, most), "is_deeper": depth > most, "due": min(due, most), "waits": waits}
