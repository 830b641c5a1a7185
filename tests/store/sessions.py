"""Other sessions of the database under test, and what this one asks of it."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R")

PATIENCE = 20  # seconds after which another session lets go, so that who waits for it fails instead of hanging

locks_rows = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="SQLite has one lock for all rows: who writes waits for who writes"
)


def in_another_session(work: Callable[[], R]) -> R:
    """What `work()` returns in a session of its own."""
    return started_in_another_session(work).result()


def started_in_another_session(work: Callable[[], R]) -> Future[R]:
    """What `work()` will return in a session of its own."""

    def run() -> R:
        try:
            return work()
        finally:
            connections.close_all()

    pool = ThreadPoolExecutor(1)
    future = pool.submit(run)
    pool.shutdown(wait=False)
    return future


@contextmanager
def another_transaction(work: Callable[[], object]) -> Iterator[None]:
    """While the context lasts, another session has a transaction open in which it ran `work()`; then it commits."""
    worked, over = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with transaction.atomic():
                work()
                worked.set()
                over.wait(PATIENCE)
        finally:
            worked.set()

    session = started_in_another_session(run)
    try:
        assert worked.wait(PATIENCE)
        yield
    finally:
        over.set()
        session.result()


def someone_waits_for_a_lock() -> bool:
    """Whether a session on this database is held up by another one's lock."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SELECT SLEEP(0.11)")  # InnoDB tells news to those alone who have not just asked
            cursor.execute(
                "SELECT 1 FROM information_schema.innodb_trx"
                " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
                " WHERE db = database() AND trx_state = 'LOCK WAIT'"
            )
        else:
            cursor.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        return cursor.fetchone() is not None


def statements(work: Callable[[], object]) -> list[str]:
    """The SQL that `work()` sends, what begins and ends transactions included."""
    with CaptureQueriesContext(connection) as queries:
        work()
    return [query["sql"] for query in queries]


def only_data(sent: list[str]) -> list[str]:
    """Without what begins and ends transactions."""
    return [sql for sql in sent if sql.lstrip("(").split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")]


def row(model: Any, **lookup: Any) -> dict[str, Any]:
    """Everything that the database has of one row."""
    values: dict[str, Any] = model.objects.values().get(**lookup)
    return values
