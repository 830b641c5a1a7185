"""How long the admin's pages take on a large table, and how the database finds their rows."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from cairnq_django.ids import first_id_at
from cairnq_django.models import Task, TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 3
DAYS = 30
NAMES = [f"shop.job_{n:02}" for n in range(20)]
QUEUES = ["default", "mail", "media", "reports", "import"]
ERRORS = [
    ("ConnectionError", "unexpected_error", "Connection refused by payment provider"),
    ("TimeoutError", "handler_timeout", "The handler ran longer than 30 s"),
    ("ValueError", "unexpected_error", "could not convert string to float: 'n/a'"),
    ("TaskError", "card_declined", "The card was declined"),
]
#: What a table holds: of a thousand tasks, how many are in each state.
SHARES = {"succeeded": 930, "failed": 30, "canceled": 10, "retried": 20, "queued": 8, "delayed": 1, "running": 1}
TRACEBACK = (
    "Traceback (most recent call last):\n" + '  File "shop/jobs.py", line 42, in charge\n    charge(order)\n' * 8
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Fill an empty database with tasks of the last month and time each page of the admin: the median "
        f"of {ROUNDS} requests, each by a session of its own."
    )
    parser.add_argument("--rows", type=int, default=3_000_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="append a table and the plans to it, as Markdown")
    options = parser.parse_args()
    began = time.monotonic()
    sample = fill(options.rows)
    say(f"{options.rows:,} tasks written in {time.monotonic() - began:.0f} s")
    lines = list(table(options.rows, sample))
    if options.results:
        with options.results.open("a") as file:
            file.write("\n".join(lines) + "\n")


def fill(rows: int) -> dict[str, Any]:
    """Write tasks and the attempts that failed, and return what pages are to be looked up by."""
    chance = random.Random(20)
    now = datetime.now(timezone.utc)
    start = now - timedelta(days=DAYS)
    attempts: list[tuple[Any, ...]] = []
    sample: dict[str, Any] = {}
    copy(Task, (row for n in range(rows) for row in [new_task(n, rows, start, now, chance, attempts, sample)]))
    copy(TaskAttempt, iter(attempts))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM" if connection.vendor == "sqlite" else "VACUUM ANALYZE")
        cursor.execute("ANALYZE")
    return sample


def new_task(
    n: int,
    rows: int,
    start: datetime,
    now: datetime,
    chance: random.Random,
    attempts: list[tuple[Any, ...]],
    sample: dict[str, Any],
) -> tuple[Any, ...]:
    """A row, as its columns take it. Times go up with its number."""
    # The last day is not the month's quietest: a tenth of the rows are of the last hours.
    share = n / rows
    created = start + (now - start) * (share if share < 0.9 else 0.9 + (share - 0.9))
    task_id = uuid.UUID(int=first_id_at(created).int | chance.getrandbits(62))
    (state,) = chance.choices(list(SHARES), list(SHARES.values()))
    if state in ("running", "queued", "delayed") and share < 0.9:
        state = "succeeded"
    name, queue = chance.choice(NAMES), chance.choice(QUEUES)
    payload = {"order": n, "customer": f"customer-{n % 5000}", "lines": [{"sku": "A-1", "quantity": n % 7}] * 3}
    started = created + timedelta(seconds=chance.expovariate(0.5))
    ended = started + timedelta(seconds=chance.expovariate(2))
    error, attempt = None, 1
    if state in ("failed", "retried"):
        type_, code, message = chance.choice(ERRORS)
        error = {"type": type_, "code": code, "message": f"{message} ({n})", "retryable": True}
        error["details"] = {"traceback": TRACEBACK + f"{type_}: {message}"}
        failures = 3 if state == "failed" else 1
        for number in range(1, failures + 1):
            outcome = "failed" if state == "failed" and number == failures else "retried"
            record = (task_id, number, "worker-1", started, ended, outcome, json.dumps(error), name, queue, code, type_)
            attempts.append(record)
        attempt = failures if state == "failed" else 2
    status = {"retried": "succeeded", "delayed": "queued"}.get(state, state)
    is_over = status in ("succeeded", "failed", "canceled")
    key, correlation = f"order:{n}" if n % 4 == 0 else None, f"request-{n}" if n % 10 == 0 else None
    if n == rows // 2:
        sample.update(id=task_id, key=f"order:{n // 4 * 4}", correlation=f"request-{n // 10 * 10}", name=name)
    if status == "failed":
        sample["failed"] = task_id
        sample["kind"] = {"name": name, "code": code, "type": type_}
    # As the model declares them.
    return (
        task_id,
        name,
        queue,
        status,
        json.dumps(payload),
        json.dumps({"ok": True}) if status == "succeeded" else None,
        json.dumps(error) if error is not None and status == "failed" else None,
        "{}",
        0.4 if status == "running" else None,
        "",
        0 if status == "queued" else attempt,
        3,
        chance.choice([0, 0, 0, 5]),
        key,
        "worker-1" if status != "queued" else "",
        now + timedelta(hours=1) if status == "running" else None,
        now + timedelta(days=1) if state == "delayed" else created,
        None,
        None,
        None,
        task_id,
        correlation,
        created,
        ended,
        started if status != "queued" else None,
        ended if is_over else None,
    )


COLUMNS: dict[Any, list[str]] = {
    Task: [field.column for field in Task._meta.concrete_fields],
    # All but its own id, in the model's order.
    TaskAttempt: [field.column for field in TaskAttempt._meta.concrete_fields if not field.primary_key],
}


def copy(model: Any, rows: Iterator[tuple[Any, ...]]) -> None:
    names, table = ", ".join(COLUMNS[model]), model._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as out:
                for row in rows:
                    out.write_row(row)
            return
        marks = ", ".join(["%s"] * len(COLUMNS[model]))
        plain = ([each.hex if isinstance(each, uuid.UUID) else each for each in row] for row in rows)
        moments = (
            tuple(each.replace(tzinfo=None) if isinstance(each, datetime) else each for each in r) for r in plain
        )
        cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", moments)


def table(rows: int, sample: dict[str, Any]) -> Iterator[str]:
    vendor = connection.vendor if connection.vendor == "sqlite" else "PostgreSQL"
    version = ".".join(map(str, connection.get_database_version()))
    head = [f"## {rows:,} tasks on {vendor} {version}", "", "| page | ms | statements | of them | the slowest, ms |"]
    yield from told([*head, "| --- | ---: | ---: | ---: | ---: |"])
    plans = []
    user = get_user_model().objects.create_superuser("ada", password="ada")
    for page, url in pages(sample):
        took, status, sent = visit(user, url)
        if status != 200:
            page += f" (status {status})"
        slowest = max(sent, key=lambda query: query["seconds"])
        in_all = sum(query["seconds"] for query in sent)
        facts = f"{1000 * took:.0f} | {len(sent)} | {1000 * in_all:.0f} | {1000 * slowest['seconds']:.0f}"
        yield from told([f"| {page} | {facts} |"])
        plans.append((page, slowest["sql"]))
    yield from told(["", "### The slowest statement of each page", ""])
    for page, sql in plans:
        yield from told(
            [f"<details><summary>{page}</summary>", "", "```", sql, "", *plan(sql), "```", "</details>", ""]
        )


def pages(sample: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The admin's pages and their addresses."""
    tasks = reverse("admin:cairnq_django_task_changelist")
    yield "overview", reverse("admin:app_list", args=["cairnq_django"])
    yield "tasks", tasks
    yield "tasks, page 2", f"{tasks}?p=2"
    yield "tasks, last page", f"{tasks}?p=100"
    for name, value in [
        *(("status", each) for each in ("queued", "running", "succeeded", "failed", "canceled")),
        ("queue", "media"),
        ("name", sample["name"]),
        ("error", "card_declined"),
        *(("age", each) for each in ("1h", "1d", "7d", "older")),
        ("retries", "yes"),
    ]:
        yield f"tasks, {name} {value}", f"{tasks}?{name}={value}"
    yield "tasks, failed in mail within a week", f"{tasks}?status=failed&queue=mail&age=7d"
    yield "tasks, failed, last page", f"{tasks}?status=failed&p=100"
    for what in ("id", "key", "correlation", "name"):
        yield f"search by {what}", f"{tasks}?q={sample[what]}"
    yield "search in payloads", f"{tasks}?q=payload:customer-77"
    yield "search for what is not there", f"{tasks}?q=nothing"
    yield "task", reverse("admin:cairnq_django_task_change", args=[sample["id"]])
    yield "failed task", reverse("admin:cairnq_django_task_change", args=[sample["failed"]])
    failures = reverse("admin:cairnq_django_taskattempt_changelist")
    for within in ("1h", "1d", "7d"):
        yield f"failures, {within}", f"{failures}?within={within}"
    group = reverse("admin:cairnq_django_taskattempt_group")
    yield "failures of one kind, 7d", f"{group}?{urlencode({**sample['kind'], 'within': '7d'})}"
    for page, name in (("workers", "workerprocess"), ("queues", "pausedqueue")):
        try:
            yield page, reverse(f"admin:cairnq_django_{name}_changelist")
        except NoReverseMatch:
            continue


def visit(user: Any, url: str) -> tuple[float, int, list[dict[str, Any]]]:
    """How long the page takes (seconds), how it answers, and its statements with what each took, of one request."""
    took: list[float] = []
    for _ in range(ROUNDS):
        client = Client()
        client.force_login(user)
        began = time.perf_counter()
        response = client.get(url)
        response.render() if hasattr(response, "render") else None
        took.append(time.perf_counter() - began)
    client = Client()
    client.force_login(user)
    with override_settings(DEBUG=False), CaptureQueriesContext(connection) as queries:
        client.get(url)
    sent = [{"sql": query["sql"], "seconds": float(query["time"])} for query in queries if "cairnq" in query["sql"]]
    return statistics.median(took), response.status_code, sent or [{"sql": "SELECT 1", "seconds": 0.0}]


def plan(sql: str) -> list[str]:
    if not sql.lstrip("( \n").startswith(("SELECT", "WITH")):
        return []
    with connection.cursor() as cursor:
        analyzed = (
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        )
        try:
            cursor.execute(f"{analyzed} {sql}")
        except Exception as error:  # as logged, a statement does not always have its parameters in a form to be sent
            return [f"(not explained: {error})"]
        return [str(row[-1]) for row in cursor.fetchall()]


def told(lines: list[str]) -> list[str]:
    for line in lines:
        say(line)
    return lines


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
