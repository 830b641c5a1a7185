"""What a claim costs, with much or little in front of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cairnq_django.ids import new_task_id
from cairnq_django.models import Task
from cairnq_django.store.claim import Claim, Draw, claim
from tests.factories import in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT = 8
PATIENCE = 2  # seconds for the claims of one scenario
DUE_SINCE = -3600  # seconds from now
CROWDS: dict[str, list[tuple[str, int, int, float]]] = {  # what waits in front: name, tasks, priority, when it is due
    "": [],
    "behind 20,000 delayed": [("name-0", 20_000, 1, 86_400)],
    "and 20,000 blocked": [("blocked", 20_000, 10, DUE_SINCE)],
    "and 80,000 unknown": [(f"unknown-{n}", 1600, 5, DUE_SINCE) for n in range(50)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios are to the same claim with nothing in front of it.")
    parser.add_argument("--repeat", type=int, default=25, help="claims to take the best of (default: %(default)s)")
    repeat = parser.parse_args().repeat
    report("", "claimed", "ms", "to usual", "statements", "pages")
    usual: dict[str, float] = {}
    for crowd, names in CROWDS.items():
        for name, count, priority, due_in in names:
            queue_up(count, names=[name], priority=priority, due_in=due_in)
        for scenario, draw, due in SCENARIOS:
            queue_up(due, names=draw.names, queues=draw.queues)
            found = measure(draw, repeat)
            Task.objects.due().filter(name__in=draw.names)._raw_delete(DB)
            ratio = found["ms"] / usual.setdefault(scenario, found["ms"])
            numbers = (found["claimed"], f"{found['ms']:.2f}", f"{ratio:.2f}", found["statements"], found["pages"])
            report(f"{scenario} {crowd}", *numbers)


def report(*columns: object) -> None:
    sys.stdout.write("{:<58}{:>8}{:>8}{:>10}{:>12}{:>8}\n".format(*columns))
    sys.stdout.flush()


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


def queue_up(
    count: int,
    *,
    names: Sequence[str],
    queues: Sequence[str] = ("default",),
    priority: int = 0,
    due_in: float = DUE_SINCE,
) -> None:
    ids = [new_task_id() for _ in range(count)]
    run_at = timezone.now() + timedelta(seconds=due_in)
    Task.objects.bulk_create(
        [
            Task(
                id=task_id,
                root_id=task_id,
                name=names[n % len(names)],
                queue=queues[n // len(names) % len(queues)],
                priority=priority,
                run_at=run_at,
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
        "pages": sum(map(pages, sent)),
    }


def rolled_back(draw: Draw) -> list[Claim]:
    with transaction.atomic():
        claimed = claim(DB, in_turn(draw), worker_id="benchmark", lease=30)
        transaction.set_rollback(True)
    return claimed


def settle_statistics() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM ANALYZE {Task._meta.db_table}")


def pages(sql: str) -> int:
    """How many pages a statement reads."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")
        (found,) = cursor.fetchone()
        transaction.set_rollback(True)
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
