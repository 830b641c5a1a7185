"""Measures the claims of the package on the path, on the database at `DATABASE_URL`; `benchmarks.claims` runs it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import django

django.setup()

from django.db import DEFAULT_DB_ALIAS as DB  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402

from cairnq_django.clock import after  # noqa: E402
from cairnq_django.ids import new_task_id  # noqa: E402
from cairnq_django.models import Task  # noqa: E402
from cairnq_django.store.claim import Claim, Draw, claim  # noqa: E402

LIMIT = 8
PATIENCE = 2  # seconds for the claims of one scenario
CROWDS = {
    "": [],
    "behind 20,000 blocked": [("blocked", 20_000, 10)],
    "and 80,000 unknown": [(f"unknown-{n}", 1600, 5) for n in range(50)],
}


def main(repeat: int) -> None:
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    measured = []
    try:
        for crowd, names in CROWDS.items():
            for name, count, priority in names:
                queue_up(count, names=[name], priority=priority)
            for scenario, draw, due in SCENARIOS:
                queue_up(due, names=draw.names, queues=draw.queues)
                measured.append({"scenario": scenario, "crowd": crowd, **measure(draw, repeat)})
                Task.objects.filter(name__in=draw.names)._raw_delete(DB)
    finally:
        connection.creation.destroy_test_db(connection.settings_dict["NAME"], verbosity=0)
    json.dump(measured, sys.stdout)


def draw_of(names: int, queues: int) -> Draw:
    return Draw(("default", *(f"queue-{n}" for n in range(1, queues))), tuple(f"name-{n}" for n in range(names)), LIMIT)


SCENARIOS = [
    ("1 name, 1,000 due", draw_of(1, 1), 1000),
    ("1 name, 50 due", draw_of(1, 1), 50),
    ("10 names, 50 due", draw_of(10, 1), 50),
    *(
        (f"30 names in {queues} queue(s), {due or 'none'} due", draw_of(30, queues), due)
        for queues in (1, 3, 10)
        for due in (0, 2000)
    ),
]


def queue_up(count: int, *, names: Sequence[str], queues: Sequence[str] = ("default",), priority: int = 0) -> None:
    ids = [new_task_id() for _ in range(count)]
    Task.objects.bulk_create(
        [
            Task(
                id=task_id,
                root_id=task_id,
                name=names[n % len(names)],
                queue=queues[n // len(names) % len(queues)],
                priority=priority,
                run_at=after(-3600),
            )
            for n, task_id in enumerate(ids)
        ],
        batch_size=2000,
    )


def measure(draw: Draw, repeat: int) -> dict[str, Any]:
    settle_statistics()
    rolled_back(draw)
    seconds: list[float] = []
    while len(seconds) < repeat and sum(seconds) < PATIENCE:
        started = time.perf_counter()
        claimed = rolled_back(draw)
        seconds.append(time.perf_counter() - started)
    with CaptureQueriesContext(connection) as queries:
        rolled_back(draw)
    sent = [query["sql"] for query in queries if query["sql"].lstrip("(\n").startswith(("SELECT", "UPDATE"))]
    return {
        "claimed": len(claimed),
        "ms": 1000 * min(seconds),
        "statements": len(sent),
        "pages": sum(map(pages, sent)) if connection.vendor == "postgresql" else None,
    }


def rolled_back(draw: Draw) -> list[Claim]:
    with transaction.atomic():
        claimed = claim(DB, [draw], worker_id="benchmark", lease=30)
        transaction.set_rollback(True)
    return claimed


def settle_statistics() -> None:
    table = connection.ops.quote_name(Task._meta.db_table)
    command = {"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE"}.get(connection.vendor, "ANALYZE")
    with connection.cursor() as cursor:
        cursor.execute(f"{command} {table}")


def pages(sql: str) -> int:
    """How many pages a statement reads."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (found,) = cursor.fetchone()
        transaction.set_rollback(True)
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


if __name__ == "__main__":
    main(int(sys.argv[1]))
