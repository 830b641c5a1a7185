"""This project."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

import cairnq_django

from .contender import BATCH, CONCURRENCY, POSTGRES, SQLITE, Body, Contender, payload, queue_names, task_names
from .django_project import migrate, set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class CairnQDjango(Contender):
    packages = ("cairnq-django", "Django", "psycopg")
    databases = (POSTGRES, SQLITE)
    settings = {
        "sync": f"concurrency={CONCURRENCY}",
        "async": f"concurrency={CONCURRENCY}",
        "batch": f"batch={BATCH}, concurrency={CONCURRENCY}",
    }
    callable = True

    tables = ("cairnq_django_task", "cairnq_django_taskkey", "cairnq_django_taskattempt")
    succeeded = "SELECT count(*) FROM cairnq_django_task WHERE status = 'succeeded' AND worker_id <> 'before'"
    ended = (
        "SELECT count(*) FROM cairnq_django_task WHERE status IN ('succeeded', 'failed', 'canceled') "
        "AND worker_id <> 'before'"
    )
    copies = {
        POSTGRES: {
            "id": "CAST(lpad(to_hex(n), 32, '0') AS uuid)",
            "root_id": "CAST(lpad(to_hex(n), 32, '0') AS uuid)",
            "run_at": "run_at + n * interval '1 microsecond' - interval '1 hour'",
        },
        SQLITE: {"id": "printf('%032x', n)", "root_id": "printf('%032x', n)"},
    }
    kinds = {
        "finished": {"status": "'succeeded'", "completed_at": "now()", "attempt": "1", "worker_id": "'before'"},
        "delayed": {"run_at": "now() + interval '1 day'", "priority": "10"},
        "foreign": {"name": "'foreign-' || n % 50", "priority": "10"},
        "queues": {"queue": "CASE n % 10 WHEN 0 THEN 'default' ELSE 'queue-' || n % 10 END"},
        "three queues": {"queue": "CASE n % 3 WHEN 0 THEN 'default' ELSE 'queue-' || n % 3 END"},
        "names": {"name": "'name-' || n % 30"},
        "last attempt": {"max_attempts": "1"},
    }

    def __init__(self, url: str) -> None:
        super().__init__(url)
        set_up(url, "cairnq_django")
        notify: Any = import_module("cairnq_django.notify")
        self._announcing = {name: getattr(notify, name) for name in ("announce", "announcement_of_submit")}

    def install(self) -> None:
        migrate()

    def submit(self, numbers: Iterable[int]) -> None:
        cairnq_django.stats()
        for n in numbers:
            cairnq_django.submit("name-0", payload(n))

    def submit_many(self, batches: Iterable[Sequence[int]]) -> None:
        cairnq_django.stats()
        for batch in batches:
            cairnq_django.submit_many("name-0", [payload(n) for n in batch])

    def call(self, numbers: Iterable[int]) -> None:
        cairnq_django.stats()
        for n in numbers:
            cairnq_django.call("name-0", payload(n), timeout=30)

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        registry = cairnq_django.Registry()
        for name in task_names(names):
            register(registry, name, kind, body)
        worker = cairnq_django.Worker(queue_names(queues), registry=registry, concurrency=concurrency)
        go()
        worker.serve()

    def switch_announcements(self, on: bool) -> None:
        notify: Any = import_module("cairnq_django.notify")
        for name, switched_on in self._announcing.items():
            setattr(notify, name, switched_on if on else lambda *args, **options: None)

    def claims(self, count: int, names: int, queues: int) -> Iterator[float]:
        """Claim for as many as `CONCURRENCY` calls and roll it back, again and again: how many seconds each took."""
        # Its models can be imported only now.
        benchmark = import_module("benchmarks.claims")
        draw = benchmark.draw_of(names, queues)
        benchmark.rolled_back(draw)
        for _ in range(count):
            began = time.perf_counter()
            benchmark.rolled_back(draw)
            yield time.perf_counter() - began


def register(registry: cairnq_django.Registry, name: str, kind: str, body: Body) -> None:
    def handle(ctx: Any, payload: Any) -> None:
        body(payload["n"])

    async def handle_async(ctx: Any, payload: Any) -> None:
        body(payload["n"])

    def handle_batch(items: Any) -> None:
        for item in items:
            body(item.payload["n"])

    if kind == "batch":
        registry.task(name, batch=BATCH)(handle_batch)
    else:
        registry.task(name)(handle_async if kind == "async" else handle)
