"""What a sweep costs a busy worker: its throughput without one and while old tasks are deleted beside it."""

from __future__ import annotations

import argparse
import logging
import time
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from django.db import connection
from django.test.utils import override_settings

import cairnq_django
from cairnq_django.clock import after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

RETENTION = 3600  # seconds
QUIET = 20.0  # seconds of work without a sweep, before it and after it
BACKLOG = 2000  # tasks that are kept waiting, so that the worker is never idle

# One old task in four has a key, one in ten has failed and has two attempts.
OLD_TASKS = """
    INSERT INTO cairnq_django_task (id, root_id, key, status, completed_at, {columns})
    SELECT uuid, uuid, CASE WHEN n % 4 = 0 THEN 'old:' || n END,
           CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'succeeded' END,
           template.completed_at + n * interval '1 millisecond', {values}
    FROM cairnq_django_task template, generate_series(1, %s) n, CAST(lpad(to_hex(n), 32, '0') AS uuid) uuid
"""
KEYS = """
    INSERT INTO cairnq_django_taskkey (key, task_id, updated_at) SELECT key, id, now() FROM cairnq_django_task
    WHERE key IS NOT NULL
"""
ATTEMPTS = """
    INSERT INTO cairnq_django_taskattempt (task_id, number, worker_id, started_at, ended_at, outcome, error)
    SELECT id, number, 'gone', now(), now(), 'retried', '{}'
    FROM cairnq_django_task, generate_series(1, 2) number WHERE status = 'failed'
"""


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="old tasks to delete (%(default)s)")
    rows = parser.parse_args().rows
    leave_behind(rows)
    measure(rows)


def measure(rows: int) -> None:
    before = throughput_without_a_sweep()
    with override_settings(CAIRNQ={"RETENTION": RETENTION}), a_busy_worker() as worker:
        began = time.monotonic()
        during = worker.throughput_while(there_is_something_old)
        took = time.monotonic() - began
    after_it = throughput_without_a_sweep()
    # The machine may have become busier or idler meanwhile.
    usual = (before + after_it) / 2
    logger.info("without a sweep  %6.0f tasks/s (before it %.0f, after it %.0f)", usual, before, after_it)
    logger.info("during a sweep   %6.0f tasks/s, %.0f%% of that", during, 100 * during / usual)
    logger.info("the sweep        %6.0f s for %d tasks, %.0f tasks/s", took, rows, rows / took)


def throughput_without_a_sweep() -> float:
    with a_busy_worker() as worker:
        over = time.monotonic() + QUIET
        return worker.throughput_while(lambda: time.monotonic() < over)


class BusyWorker:
    """A worker that always has something to do: tasks that do nothing."""

    def __init__(self) -> None:
        self.registry = cairnq_django.Registry()
        self._handler = self.registry.task("nothing")(self._nothing)
        self._counter = count(1)
        self._ran = 0

    def throughput_while(self, goes_on: Callable[[], bool]) -> float:
        """Tasks that it ran in a second."""
        began, ran = time.monotonic(), self._ran
        while goes_on():
            self.feed()
            time.sleep(0.05)
        return (self._ran - ran) / (time.monotonic() - began)

    def feed(self) -> None:
        if cairnq_django.queue_depth("default", BACKLOG) >= BACKLOG / 2:
            cairnq_django.submit_many(self._handler, range(BACKLOG // 2))

    def _nothing(self, ctx: Any, payload: Any) -> None:
        self._ran = next(self._counter)


@contextmanager
def a_busy_worker() -> Iterator[BusyWorker]:
    busy = BusyWorker()
    busy.feed()
    with cairnq_django.Worker(registry=busy.registry).background():
        yield busy


def there_is_something_old() -> bool:
    return cairnq_django.Task.objects.terminal().filter(completed_at__lte=after(-RETENTION)).exists()


def leave_behind(rows: int) -> None:
    """Make tasks that ended longer ago than they are kept."""
    made = {"id", "root_id", "key", "status", "completed_at"}
    columns = [field.column for field in cairnq_django.Task._meta.concrete_fields if field.column not in made]
    template = cairnq_django.Task(name="old", payload={"order": 7}, status="succeeded", completed_at=after(-86_400))
    template.root_id = template.id
    cairnq_django.Task.objects.bulk_create([template])
    values = ", ".join(f"template.{column}" for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(OLD_TASKS.replace("% ", "%% ").format(columns=", ".join(columns), values=values), [rows])
        cursor.execute(KEYS)
        cursor.execute(ATTEMPTS)
        cursor.execute("ANALYZE")
    logger.info("%d old tasks are there", rows)
