"""The limit: what the database's driver does in a plain loop, on this project's own table, with no queue around it."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import psycopg

from cairnq_django.ids import new_task_id
from tests.databases import SQLITE_OPTIONS

from .cairnq_django_ import CairnQDjango
from .contender import BATCH, CONCURRENCY, POSTGRES, SQLITE, Body, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

INSERT = """
    INSERT INTO cairnq_django_task (
        id, root_id, name, queue, status, payload, metadata, message, attempt, max_attempts, priority, worker_id
    )
"""
ROW = "'name-0', 'default', 'queued', {payload}, '{{}}', '', 0, 3, 0, ''"
DUE = """
    SELECT id FROM cairnq_django_task
    WHERE status = 'queued' AND queue = 'default' AND name = 'name-0' AND run_at <= {now}
    ORDER BY priority DESC, run_at, id LIMIT {limit}
"""
CLAIM = """
    UPDATE cairnq_django_task
    SET status = 'running', attempt = attempt + 1, worker_id = 'limit', lease_until = {lease}, started_at = {now},
        updated_at = {now}
    WHERE id IN ({due}) RETURNING id, payload
"""
COMPLETE = """
    UPDATE cairnq_django_task
    SET status = 'succeeded', result = 'null', lease_until = NULL, completed_at = {now}, updated_at = {now}
    WHERE {mine} AND status = 'running' AND worker_id = 'limit' AND lease_until > {now}
"""
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
SQLITE_LEASE = "strftime('%Y-%m-%d %H:%M:%f', 'now', '+30 seconds')"


class Raw(CairnQDjango):
    packages = ("psycopg",)
    settings = {
        "sync": f"claims {CONCURRENCY} with one UPDATE, completes {CONCURRENCY} with one",
        "batch": f"claims {BATCH} with one UPDATE, completes {BATCH} with one",
    }
    callable = False
    is_limit = True
    kinds = {}
    times = 5

    def submit(self, numbers: Iterable[int]) -> None:
        with self._connect() as connection:
            columns = "%s, %s," if self.vendor == POSTGRES else "?, ?,"
            mark = columns[: columns.index(",")]
            statement = f"{INSERT} VALUES ({columns} {ROW.format(payload=mark)})"
            for n in numbers:
                task_id = self._new_id()
                connection.execute(statement, (task_id, task_id, json.dumps(payload(n))))

    def submit_many(self, batches: Iterable[Sequence[int]]) -> None:
        with self._connect() as connection:
            for batch in batches:
                ids = [self._new_id() for _ in batch]
                payloads = [json.dumps(payload(n)) for n in batch]
                if self.vendor == POSTGRES:
                    row = ROW.format(payload="payload::jsonb")
                    statement = f"{INSERT} SELECT id, id, {row} FROM unnest(%s::uuid[], %s::text[]) t (id, payload)"
                    connection.execute(statement, (ids, payloads))
                else:
                    connection.execute("BEGIN IMMEDIATE")
                    statement = f"{INSERT} VALUES (?, ?, {ROW.format(payload='?')})"
                    connection.executemany(statement, zip(ids, ids, payloads, strict=True))
                    connection.execute("COMMIT")

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        size = BATCH if kind == "batch" else CONCURRENCY
        now, lease = "now()", "now() + interval '30 seconds'"
        due, mine = f"{DUE.format(now=now, limit=size)} FOR UPDATE SKIP LOCKED", "id = ANY(%s)"
        if self.vendor == SQLITE:
            now, lease = SQLITE_NOW, SQLITE_LEASE
            due, mine = DUE.format(now=now, limit=size), "id IN (SELECT value FROM json_each(?))"
        claim = CLAIM.format(now=now, lease=lease, due=due)
        complete = COMPLETE.format(now=now, mine=mine)
        with self._connect() as connection:
            go()
            while True:
                claimed = connection.execute(claim).fetchall()
                ids = [row[0] for row in claimed]
                if claimed:
                    connection.execute(complete, (ids if self.vendor == POSTGRES else json.dumps(ids),))
                else:
                    time.sleep(0.1)

    def _connect(self) -> Any:
        if self.vendor == POSTGRES:
            # Prepared at once: there are no other statements.
            return psycopg.connect(self.url, autocommit=True, prepare_threshold=0)
        connection = sqlite3.connect(self.path, timeout=SQLITE_OPTIONS["timeout"], isolation_level=None)
        connection.executescript(SQLITE_OPTIONS["init_command"])
        return connection

    def _new_id(self) -> Any:
        return new_task_id() if self.vendor == POSTGRES else new_task_id().hex
