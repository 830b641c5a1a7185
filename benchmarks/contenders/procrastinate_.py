"""procrastinate: asynchronous worker, one transaction to fetch a job and one to finish it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import procrastinate

from .contender import CONCURRENCY, POSTGRES, Body, Contender, payload, queue_names, task_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Procrastinate(Contender):
    packages = ("procrastinate", "psycopg")
    settings = {
        # A connection for each job that runs, one to fetch and one to listen.
        "sync": f"concurrency={CONCURRENCY}, pool of {CONCURRENCY + 2}",
        "async": f"concurrency={CONCURRENCY}, pool of {CONCURRENCY + 2}",
    }

    tables = ("procrastinate_jobs", "procrastinate_events", "procrastinate_workers")
    succeeded = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded' AND attempts < 99"
    ended = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('succeeded', 'failed') AND attempts < 99"
    copies = {POSTGRES: {"id": "nextval(pg_get_serial_sequence('procrastinate_jobs', 'id'))"}}
    kinds = {
        "finished": {"status": "'succeeded'", "attempts": "99"},
        "delayed": {"scheduled_at": "now() + interval '1 day'", "priority": "10"},
        "last attempt": {},
    }

    def install(self) -> None:
        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=self.url)).open() as app:
            app.schema_manager.apply_schema()

    def submit(self, numbers: Iterable[int]) -> None:
        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=self.url)).open() as app:
            task = app.configure_task("name-0", queue="default")
            for n in numbers:
                task.defer(**payload(n))

    def submit_many(self, batches: Iterable[Sequence[int]]) -> None:
        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=self.url)).open() as app:
            task = app.configure_task("name-0", queue="default")
            for batch in batches:
                task.batch_defer(*[payload(n) for n in batch])

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
        connector = procrastinate.PsycopgConnector(
            conninfo=self.url, min_size=concurrency + 2, max_size=concurrency + 2
        )
        app = procrastinate.App(connector=connector)

        def handle(n: int) -> None:
            body(n)

        async def handle_async(n: int) -> None:
            body(n)

        for name in task_names(names):
            app.task(name=name)(handle_async if kind == "async" else handle)

        async def run() -> None:
            async with app.open_async():
                go()
                await app.run_worker_async(queues=queue_names(queues), concurrency=concurrency)

        asyncio.run(run())
