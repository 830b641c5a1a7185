"""The read model: what people and machines ask about the whole of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from django.db import connections
from django.db.models import Count, Max, Min, Q

from ..clock import Now
from ..models import PausedQueue, Task
from ..querysets import TaskQuerySet
from ..statuses import TERMINAL, TaskStatus
from .engine import is_postgresql

COUNTED: Final = 10_000  # tasks, of each queue; running ones, of all together
COUNTED_IN_ALL: Final = 50_000  # tasks that wait, if that leaves `COUNTED_AT_LEAST` to each queue
COUNTED_AT_LEAST: Final = 1_000
QUEUES: Final = 1_000  # that have tasks waiting
LEVELS: Final = 500  # of a queue, names with their priorities, in which the one that waits longest is looked for


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
    oldest_wait: float | None = None  # seconds since the longest waiting due task became due
    pause: PausedQueue | None = None  # who paused it, when and until when


def queue_figures(using: str, also: Iterable[str] = ()) -> list[QueueFigures]:
    """Each queue with live tasks, each that is paused and those in `also`, in the order of their names.

    Bounded: finds the queues by skipping through the claim index, one look for each, no more than `QUEUES`, and counts
    up to `COUNTED` in each, less if they are many. The longest wait is that of the first `LEVELS` names with their
    priorities.
    """
    if is_postgresql(using):
        waiting = _waiting_on_postgresql(using)
    else:
        queued = Task.objects.using(using).queued()
        waiting = _waiting(queued, list(islice(_each(queued, "queue"), QUEUES)))
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


def runnable(using: str, queues: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a task of these handlers is due, or waits for its retry, in a queue that is not paused."""
    given_out = set(queues).difference(PausedQueue.objects.using(using).in_force().values_list("pk", flat=True))
    waiting = Task.objects.using(using).queued().in_time().filter(queue__in=sorted(given_out)).for_handlers(names)
    return waiting.filter(Q(run_at__lte=Now()) | Q(attempt__gt=0)).exists()


def _counted_in_each(queues: Sequence[str]) -> int:
    return max(COUNTED_AT_LEAST, min(COUNTED, COUNTED_IN_ALL // max(len(queues), 1)))


def _waiting(queued: TaskQuerySet, queues: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What waits in each queue, in one step for each name and two for each of its priorities."""
    most = _counted_in_each(queues)
    waiting: dict[str, dict[str, Any]] = {}
    for queue in queues:
        in_queue = queued.filter(queue=queue)
        counted = in_queue.values("pk", "run_at")[: most + 1].aggregate(
            depth=Count("pk"), due=Count("pk", filter=Q(run_at__lte=Now()))
        )
        firsts = [
            level.order_by("run_at").values_list("run_at", Now()).first() for level in islice(_levels(in_queue), LEVELS)
        ]
        waits = [(now - run_at).total_seconds() for run_at, now in filter(None, firsts) if run_at <= now]
        waiting[queue] = _as_counted(**counted, most=most, oldest_wait=max(waits, default=None))
    return waiting


def _levels(queued: TaskQuerySet) -> Iterator[TaskQuerySet]:
    """Those of each name and priority."""
    for name in _each(queued, "name"):
        of_name = queued.filter(name=name)
        priority = of_name.aggregate(highest=Max("priority"))["highest"]
        while priority is not None:
            yield of_name.filter(priority=priority)
            priority = of_name.filter(priority__lt=priority).aggregate(highest=Max("priority"))["highest"]


def _each(queued: TaskQuerySet, column: str) -> Iterator[str]:
    """Each value of a column that the index begins with, as far as it is not given."""
    value = queued.aggregate(first=Min(column))["first"]
    while value is not None:
        yield value
        value = queued.filter(**{f"{column}__gt": value}).aggregate(first=Min(column))["first"]


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
SELECT queue.name, counted.depth, counted.due, EXTRACT(EPOCH FROM STATEMENT_TIMESTAMP() - oldest.run_at)
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
    SELECT min(level.run_at) AS run_at FROM (SELECT run_at FROM level LIMIT %s) AS level
    WHERE level.run_at <= STATEMENT_TIMESTAMP()
) AS oldest
"""


def _waiting_on_postgresql(using: str) -> dict[str, dict[str, Any]]:
    """As `_waiting()`, in two statements."""
    connection = connections[using]
    table = connection.ops.quote_name(Task._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(_QUEUES.format(table=table), [QUEUES])
        queues = [queue for (queue,) in cursor.fetchall()]
        most = _counted_in_each(queues)
        cursor.execute(_WAITING.format(table=table), [queues, most + 1, LEVELS])
        return {
            queue: _as_counted(depth, due, most=most, oldest_wait=None if waited is None else float(waited))
            for queue, depth, due, waited in cursor.fetchall()
        }


def _as_counted(depth: int, due: int, *, most: int, oldest_wait: float | None) -> dict[str, Any]:
    """One more than `most` says that there are more."""
    return {"depth": min(depth, most), "is_deeper": depth > most, "due": min(due, most), "oldest_wait": oldest_wait}
