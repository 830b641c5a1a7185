"""cairnq: asynchronous worker on asyncpg or aiosqlite; a claim for what is free, one statement to settle each task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import cairnq

from .contender import BATCH, CONCURRENCY, POSTGRES, SQLITE, Body, Contender, payload, queue_names, task_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class CairnQ(Contender):
    packages = ("cairnq", "asyncpg", "aiosqlite")
    databases = (POSTGRES, SQLITE)
    settings = {
        "sync": f"concurrency={CONCURRENCY}, pool of {CONCURRENCY + 2}",
        "async": f"concurrency={CONCURRENCY}, pool of {CONCURRENCY + 2}",
        "batch": f"batch={BATCH}, concurrency={CONCURRENCY}, pool of {CONCURRENCY + 2}",
    }
    bulk = False
    callable = True

    tables = ("cairnq_tasks", "cairnq_task_keys")
    succeeded = "SELECT count(*) FROM cairnq_tasks WHERE status = 'succeeded' AND attempt < 99"
    ended = "SELECT count(*) FROM cairnq_tasks WHERE status IN ('succeeded', 'failed', 'canceled') AND attempt < 99"
    copies = {
        POSTGRES: {"id": "lpad(to_hex(n), 32, '0')", "root_id": "lpad(to_hex(n), 32, '0')"},
        SQLITE: {"id": "printf('%032x', n)", "root_id": "printf('%032x', n)"},
    }
    kinds = {
        "finished": {"status": "'succeeded'", "attempt": "99", "completed_at_ms": "created_at_ms"},
        "delayed": {"run_at_ms": "run_at_ms + 86400000", "priority": "10"},
        "foreign": {"name": "'foreign-' || n % 50", "priority": "10"},
        "last attempt": {"max_attempts": "1"},
    }

    def install(self) -> None:
        async def install(client: cairnq.CairnQ) -> None:
            pass

        self._run(install)

    def submit(self, numbers: Iterable[int]) -> None:
        async def submit(client: cairnq.CairnQ) -> None:
            for n in numbers:
                await client.submit("name-0", payload(n))

        self._run(submit)

    def call(self, numbers: Iterable[int]) -> None:
        async def call(client: cairnq.CairnQ) -> None:
            for n in numbers:
                await client.call("name-0", payload(n))

        self._run(call)

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        options: dict[str, Any] = {"queues": queue_names(queues), "concurrency": concurrency}
        if self.vendor == POSTGRES:
            worker = cairnq.Worker.postgres(self.url, max_size=concurrency + 2, **options)
        else:
            worker = cairnq.Worker.sqlite(self.path, **options)

        def handle(ctx: Any, payload: Any) -> None:
            body(payload["n"])

        async def handle_async(ctx: Any, payload: Any) -> None:
            body(payload["n"])

        async def handle_batch(items: Any) -> None:
            for item in items:
                body(item.payload["n"])

        for name in task_names(names):
            if kind == "batch":
                worker.task(name, batch=BATCH)(handle_batch)
            else:
                worker.task(name)(handle_async if kind == "async" else handle)
        go()
        worker.serve()

    def _run(self, work: Callable) -> None:
        async def connected() -> None:
            client = cairnq.CairnQ.postgres(self.url) if self.vendor == POSTGRES else cairnq.CairnQ.sqlite(self.path)
            async with client:
                await work(client)

        asyncio.run(connected())
