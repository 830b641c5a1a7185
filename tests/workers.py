"""Workers for tests, and what may befall them: lost leases, a database that is away or refuses what they write."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connection

from cairnq_django import Registry, Task, TaskContext, Worker, get, retention
from cairnq_django.clock import after
from cairnq_django.signals import worker_error
from tests.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from django.db.models import Model


#: For tests whose workers commit. Only these apps' tables are emptied afterwards, which takes half the time.
runs_workers = pytest.mark.django_db(transaction=True, available_apps=["cairnq_django", "tests.app"])

PATIENCE = 20.0  # seconds for what must happen; a machine under load may take long


def echo_and_wait(go: threading.Event) -> Registry:
    """Two handlers that return their payload, `wait` not before `go` is set."""
    registry = Registry()

    @registry.task
    def echo(ctx: TaskContext, payload: Any) -> Any:
        return payload

    @registry.task
    def wait(ctx: TaskContext, payload: Any) -> Any:
        wait_for(go)
        return payload

    return registry


def quick(registry: Registry, **options: Any) -> Worker:
    """A worker that looks for tasks often and retries them almost at once."""
    return Worker(registry=registry, **{"poll_interval": 0.05, "retry_backoff": 0.01, **options})


def run(registry: Registry, **options: Any) -> Worker:
    """Run all there is to run, in this thread."""
    worker = quick(registry, **options)
    worker.run(burst=True)
    return worker


def wait_for(event: threading.Event) -> None:
    """Wait for what must come."""
    _waits.append(event)
    if not event.wait(PATIENCE):
        raise AssertionError(f"did not come within {PATIENCE} s")


def handlers_wait_for(event: threading.Event, *, count: int = 1) -> None:
    """Wait until so many handlers are at work and wait for `event`.

    Of a task that is `running()`, the worker may not have heard yet that it has claimed it.
    """
    eventually(lambda: sum(each is event for each in _waits) >= count, PATIENCE, f"{count} handlers are at work")


_waits: list[threading.Event] = []  # the events that were ever waited for


def ended(task: Task) -> Task:
    """The row of a task that must end."""
    return eventually(lambda: _if(get(task.pk), "is_terminal"), PATIENCE, f"{task} has ended")


def running(task: Task) -> Task:
    """The row of a task that must be claimed."""
    return eventually(lambda: _if(get(task.pk), "is_running"), PATIENCE, f"{task} is running")


def _if(task: Task, predicate: str) -> Task | None:
    return task if getattr(task, predicate) else None


def attempts(task: Task) -> list[tuple[int, str, str]]:
    """Number, outcome and error code of each attempt that did not succeed."""
    return [(attempt.number, attempt.outcome, attempt.error["code"]) for attempt in task.attempts.all()]


class Reports(list[tuple[str, BaseException]]):
    """What was sent to `worker_error`: phases and errors, and which tasks they were about."""

    def __init__(self) -> None:
        self.task_ids: set[UUID | None] = set()

    @property
    def phases(self) -> set[str]:
        return {phase for phase, _ in self}


@contextmanager
def reports() -> Iterator[Reports]:
    """Collect what workers report while the context lasts."""
    received = Reports()

    def receive(phase: str, error: BaseException, task_id: UUID | None, **kwargs: Any) -> None:
        received.append((phase, error))
        received.task_ids.add(task_id)

    worker_error.connect(receive)
    try:
        yield received
    finally:
        worker_error.disconnect(receive)


def expire(task: Task) -> None:
    """Let a running task's lease run out now."""
    assert Task.objects.running().filter(pk=task.pk).update(lease_until=after(-0.001))


@contextmanager
def table_away(model: type[Model] = Task) -> Iterator[None]:
    """While the context lasts, every statement about tasks, or about another model's rows, fails at once."""
    table = model._meta.db_table
    _execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        yield
    finally:
        _execute(f"ALTER TABLE {table}_away RENAME TO {table}")


@contextmanager
def database_away() -> Iterator[None]:
    """While the context lasts, no thread but this one has a connection or gets one; on SQLite, the table is away."""
    if connection.vendor == "sqlite":
        with table_away():
            yield
        return
    connection.ensure_connection()
    settings = connection.settings_dict  # of all threads
    port = settings["PORT"]
    settings["PORT"] = "1"
    try:
        # One that was being made when the port changed can only be killed once it is there.
        clean = 0
        while clean < 4:
            clean = 0 if kill_other_connections(only_idle=True) else clean + 1
            time.sleep(0.03)
        yield
    finally:
        settings["PORT"] = port


def kill_other_connections(*, only_idle: bool = False) -> int:
    """Have the server end all connections to this database but this thread's; return how many others there were.

    One that is at a statement does not learn whether that was committed; `only_idle` leaves it be.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT CASE WHEN state LIKE %s THEN pg_terminate_backend(pid) END FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
                ["idle%" if only_idle else "%"],
            )
            return len(cursor.fetchall())
        # One that has not said yet which database it wants may be ours, and is killed when it has.
        cursor.execute(
            "SELECT id, db IS NOT NULL AND command LIKE %s FROM information_schema.processlist "
            "WHERE id <> connection_id() AND (db = database() OR user = 'unauthenticated user')",
            ["Sleep" if only_idle else "%"],
        )
        found = cursor.fetchall()
        for process in [process for process, to_kill in found if to_kill]:
            with suppress(OperationalError):  # it has ended by itself
                cursor.execute(f"KILL {process}")
        return len(found)


@contextmanager
def database_refusing(word: str, column: str) -> Iterator[None]:
    """While the context lasts, the database refuses to update a task whose `column` would hold `word`."""
    table = Task._meta.db_table
    for statement in _REFUSING[connection.vendor]:
        _execute(statement.format(table=table, column=column, word=word))
    try:
        yield
    finally:
        for statement in _REFUSING_NO_MORE[connection.vendor]:
            _execute(statement.format(table=table))


_REFUSING = {
    "sqlite": [
        "CREATE TRIGGER refuse BEFORE UPDATE ON {table} WHEN NEW.{column} LIKE '%{word}%' "
        "BEGIN SELECT RAISE(ABORT, 'not this'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not this''; END'",
        "CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW "
        "WHEN (NEW.{column}::text LIKE '%{word}%') EXECUTE FUNCTION refuse()",
    ],
    "mysql": [
        "CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW IF NEW.{column} LIKE '%{word}%' "
        "THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this'; END IF"
    ],
}
_REFUSING_NO_MORE = {
    "sqlite": ["DROP TRIGGER refuse"],
    "postgresql": ["DROP TRIGGER refuse ON {table}", "DROP FUNCTION refuse"],
    "mysql": ["DROP TRIGGER refuse"],
}


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def sweeps_in_batches_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_BATCH", size)
    monkeypatch.setattr(retention, "EXCLUSIVE_SWEEP_BATCH", size)
