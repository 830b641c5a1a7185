"""pgqueuer: asynchronous worker on asyncpg that dequeues and logs in batches; a job that ended is a row of its log."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import asyncpg
import uvloop
from pgqueuer import PgQueuer as Worker
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from .contender import BATCH, CONCURRENCY, POSTGRES, Body, Contender, payload, task_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class PgQueuer(Contender):
    packages = ("pgqueuer", "asyncpg", "uvloop")
    settings = {
        # Its batches are at most half of the tasks that it runs at the same time.
        "sync": f"batch_size={CONCURRENCY // 2}, max_concurrent_tasks={CONCURRENCY}, uvloop",
        "async": f"batch_size={CONCURRENCY // 2}, max_concurrent_tasks={CONCURRENCY}, uvloop",
        "batch": f"batch_size={BATCH}, any number of asynchronous handlers, uvloop",
    }

    tables = ("pgqueuer", "pgqueuer_log")
    succeeded = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
    ended = "SELECT count(*) FROM pgqueuer_log WHERE status IN ('successful', 'exception')"
    copies = {POSTGRES: {"id": "nextval(pg_get_serial_sequence('pgqueuer', 'id'))"}}
    kinds = {
        "delayed": {"execute_after": "now() + interval '1 day'", "priority": "10"},
        "foreign": {"entrypoint": "'foreign-' || n % 50", "priority": "10"},
        "last attempt": {},
    }

    def install(self) -> None:
        self._run(self._install)

    def submit(self, numbers: Iterable[int]) -> None:
        async def submit(queries: Queries) -> None:
            await queries.queue_size()
            for n in numbers:
                await queries.enqueue("name-0", encoded(n))

        self._run(submit)

    def submit_many(self, batches: Iterable[Sequence[int]]) -> None:
        async def submit(queries: Queries) -> None:
            await queries.queue_size()
            for batch in batches:
                await queries.enqueue(["name-0"] * len(batch), [encoded(n) for n in batch], [0] * len(batch))

        self._run(submit)

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)

        async def handle(job: Job) -> None:
            # All its handlers are asynchronous; it says to run others in this way.
            await asyncio.to_thread(body, json.loads(job.payload)["n"])

        async def handle_async(job: Job) -> None:
            body(json.loads(job.payload)["n"])

        async def work(queries: Queries) -> None:
            worker = Worker(queries.driver)
            for name in task_names(names):
                worker.entrypoint(name)(handle if kind == "sync" else handle_async)
            go()
            if kind == "batch":
                await worker.run(batch_size=BATCH)
            else:
                await worker.run(batch_size=concurrency // 2, max_concurrent_tasks=concurrency)

        self._run(work)

    async def _install(self, queries: Queries) -> None:
        await queries.install()

    def _run(self, work: Callable) -> None:
        async def connected() -> None:
            connection = await asyncpg.connect(self.url)
            await work(Queries(AsyncpgDriver(connection)))

        uvloop.run(connected())


def encoded(n: int) -> bytes:
    return json.dumps(payload(n)).encode()
