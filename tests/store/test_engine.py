from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, connections, transaction

from cairnq_django.models import Task
from cairnq_django.store.engine import (
    can_see_the_end,
    in_open_transaction,
    in_transaction,
    is_conflict,
    may_hold_locks,
    task_database,
    update_returning,
)
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, new_task
from tests.helpers import in_threads
from tests.store.sessions import in_another_session, locks_rows

pytestmark = pytest.mark.django_db(transaction=True)

on_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's own way to be in the way")


def test_tasks_live_in_the_default_database_unless_routed_elsewhere() -> None:
    assert task_database() == DB


def test_work_runs_in_a_transaction() -> None:
    def work() -> bool:
        TaskFactory()
        return in_open_transaction(DB)

    assert not in_open_transaction(DB)
    assert in_transaction(DB, work)
    assert not in_open_transaction(DB)
    assert Task.objects.count() == 1


def test_who_has_a_transaction_open_may_hold_locks() -> None:
    connection.close()
    assert not may_hold_locks(DB)
    assert Task.objects.count() == 0
    assert not may_hold_locks(DB)
    with transaction.atomic():
        assert may_hold_locks(DB)
    transaction.set_autocommit(False)
    try:
        assert may_hold_locks(DB)
    finally:
        transaction.set_autocommit(True)
    assert not may_hold_locks(DB)


def test_work_that_raises_writes_nothing_and_runs_once() -> None:
    runs = []

    def work() -> None:
        runs.append(TaskFactory())
        Task.objects.create(pk=runs[0].pk, root_id=runs[0].pk)

    with pytest.raises(IntegrityError) as raised:
        in_transaction(DB, work)
    assert not is_conflict(raised.value)
    assert len(runs) == 1
    assert not Task.objects.exists()


class OppositeOrder:
    """Two sessions that lock two rows in opposite order, which one of them cannot be allowed to do."""

    def __init__(self) -> None:
        self.rows = [TaskFactory().pk, TaskFactory().pk]
        self.runs = [0, 0]
        self.each_has_one = threading.Barrier(2)

    def lock_both(self, n: int) -> None:
        self.runs[n] += 1
        Task.objects.filter(pk=self.rows[n]).update(message=f"first by {n}")
        if self.runs[n] == 1:
            self.each_has_one.wait(20)
        Task.objects.filter(pk=self.rows[1 - n]).update(message=f"last by {n}")


@locks_rows
def test_work_runs_again_after_a_deadlock() -> None:
    order = OppositeOrder()
    in_threads(2, lambda n: in_transaction(DB, lambda: order.lock_both(n)))
    assert sum(order.runs) > 2
    assert {message[-1] for message in Task.objects.values_list("message", flat=True)} in ({"0"}, {"1"})


@locks_rows
def test_inside_a_caller_s_transaction_a_deadlock_is_the_caller_s_to_repeat() -> None:
    order = OppositeOrder()

    def call(n: int) -> DatabaseError | None:
        try:
            with transaction.atomic():
                in_transaction(DB, lambda: order.lock_both(n))
        except DatabaseError as error:
            return error
        return None

    (error,) = filter(None, in_threads(2, call))
    assert is_conflict(error)
    assert order.runs == [1, 1]


@on_sqlite
def test_work_runs_again_when_another_session_wrote_between_its_read_and_its_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = TaskFactory()
    runs = []
    # As without the recommended "IMMEDIATE": the lock is taken by the first write.
    monkeypatch.setattr(connections[DB], "transaction_mode", None)

    def work() -> int:
        runs.append(Task.objects.count())
        if len(runs) == 1:
            in_another_session(TaskFactory)
        return Task.objects.filter(pk=task.pk).update(message="written")

    assert in_transaction(DB, work) == 1
    assert runs == [1, 2]


def test_other_errors_are_no_conflicts() -> None:
    with pytest.raises(ProgrammingError if connection.vendor != "sqlite" else DatabaseError) as raised:
        connection.cursor().execute("SELECT no_such_column FROM no_such_table")
    assert not is_conflict(raised.value)


def test_outside_a_transaction_every_end_can_be_seen() -> None:
    task = submit(DB, [new_task()], Conflict.REUSE).tasks[0]
    assert can_see_the_end(DB, task.pk)


def test_a_transaction_sees_the_end_of_an_earlier_task_where_it_reads_what_is_committed() -> None:
    task = submit(DB, [new_task()], Conflict.REUSE).tasks[0]
    with transaction.atomic():
        assert can_see_the_end(DB, task.pk) == (connection.vendor != "sqlite")


@locks_rows
def test_a_transaction_that_reads_one_state_of_affairs_never_sees_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    task = submit(DB, [new_task()], Conflict.REUSE).tasks[0]
    monkeypatch.setattr(connections[DB], "isolation_level", repeatable_read())
    with transaction.atomic():
        assert not can_see_the_end(DB, task.pk)


@pytest.mark.parametrize("key", [None, "order:7"])
def test_a_transaction_never_sees_the_end_of_what_it_submits_itself(key: str | None) -> None:
    with transaction.atomic():
        task = submit(DB, [new_task(key=key)], Conflict.REUSE).tasks[0]
        assert not can_see_the_end(DB, task.pk)
        with transaction.atomic():
            assert not can_see_the_end(DB, task.pk)
    assert can_see_the_end(DB, task.pk)
    with transaction.atomic():
        assert can_see_the_end(DB, task.pk) == (connection.vendor != "sqlite")


@locks_rows
def test_what_was_rolled_back_is_forgotten() -> None:
    with transaction.atomic():
        rolled_back = submit(DB, [new_task()], Conflict.REUSE).tasks[0]
        transaction.set_rollback(True)
    with transaction.atomic():
        submit(DB, [new_task()], Conflict.REUSE)
        assert can_see_the_end(DB, rolled_back.pk)


def test_an_update_returns_the_rows_it_updated() -> None:
    tasks = [TaskFactory(attempt=n, payload={"n": n}) for n in range(3)]
    rows = Task.objects.filter(attempt__gt=0)
    with transaction.atomic():
        returned = update_returning(rows, {"message": "seen"}, ["id", "attempt", "run_at", "payload"])
    assert sorted(returned) == [(task.pk, task.attempt, task.run_at, task.payload) for task in tasks[1:]]
    assert list(Task.objects.order_by("attempt").values_list("message", flat=True)) == ["", "seen", "seen"]


def test_an_update_of_no_rows_returns_none() -> None:
    TaskFactory()
    with transaction.atomic():
        assert update_returning(Task.objects.failed(), {"message": "seen"}, ["id"]) == []
    assert Task.objects.get().message == ""


def repeatable_read() -> Any:
    if connection.vendor == "mysql":
        return "repeatable read"
    from psycopg import IsolationLevel

    return IsolationLevel.REPEATABLE_READ
