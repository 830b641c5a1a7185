"""A worker beside the test, on connections of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connections

from ..conf import get_settings
from ..registry import Registry, default_registry
from ..signals import worker_error
from ..store.engine import is_conflict, task_database
from ..worker.worker import Worker

# What makes waiting short, and lets no test hang.
_OPTIONS: dict[str, Any] = {"poll_interval": 0.05, "retry_backoff": 0, "drain_timeout": 10}


@contextmanager
def live_worker(*, registry: Registry | None = None, **options: Any) -> Iterator[Worker]:
    """Run a worker in threads of its own while the context lasts, for tests whose writes are committed.

    That is, for `TransactionTestCase` and tests with pytest's `transactional_db`. It serves the queues of all handlers
    in `registry`, by default that of `@task`, and those in `CAIRNQ["QUEUES"]`. It looks for tasks every 50 ms, does not
    wait before retries, and on leaving has what runs end for up to 10 seconds; `options` are those of `Worker`, and
    outrank that.

    Raises `AssertionError` on leaving if the worker met errors, such as a database that refused it; those of handlers
    are not among them, nor conflicts, after which it tries again. `RuntimeError` where it could not see the test's
    tasks: in the transaction of a `TestCase`, and on a SQLite database in memory.
    """
    using = task_database()
    _refuse_what_it_could_not_see(using)
    registry = registry if registry is not None else default_registry
    queues = dict.fromkeys([*get_settings().queues, *(definition.queue for definition in registry)])
    worker = Worker(**{"queues": list(queues), **_OPTIONS, **options}, registry=registry)
    with _without_errors(worker), worker.background():
        yield worker


def _refuse_what_it_could_not_see(using: str) -> None:
    connection = connections[using]
    if connection.in_atomic_block:
        raise RuntimeError(
            f"A live worker cannot see what this test writes: it is in a transaction on database {using!r} that is "
            "never committed. Use TransactionTestCase, or pytest's transactional_db, or run_pending() instead"
        )
    if connection.vendor == "sqlite" and connection.is_in_memory_db():  # type: ignore[attr-defined]
        raise RuntimeError(
            f"A live worker cannot share database {using!r}, which is in memory. Give it a file: in its entry in "
            'DATABASES, "TEST": {"NAME": BASE_DIR / "test.sqlite3"}'
        )


@contextmanager
def _without_errors(worker: Worker) -> Iterator[None]:
    """Raises `AssertionError` on leaving, unless something else is raised, if the worker reported errors."""
    reported: list[tuple[str, BaseException, UUID | None]] = []

    def receive(sender: object, **report: Any) -> None:
        # That the test was in the way for a moment, with SQLite's only lock for example, is no news.
        if report["worker"] is worker and not is_conflict(report["error"]):
            reported.append((report["phase"], report["error"], report["task_id"]))

    worker_error.connect(receive)
    try:
        yield
    finally:
        worker_error.disconnect(receive)
    if reported:
        lines = [f"{phase}{f' of task {task_id}' if task_id else ''}: {error!r}" for phase, error, task_id in reported]
        raise AssertionError("\n  ".join(["The worker met errors:", *lines])) from reported[0][1]
