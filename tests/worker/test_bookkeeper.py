"""Workers add up what they do in memory, and write it now and then and at their end."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection

from cairnq_django import Registry, Snooze, TaskContext, TaskError, cancel, submit
from cairnq_django.clock import after
from cairnq_django.models import Activity
from cairnq_django.store.activity import HOUR, Work, by_queue, read_clock
from cairnq_django.worker import bookkeeper
from tests.factories import TaskFactory
from tests.helpers import eventually
from tests.store.sessions import another_transaction, locks_rows
from tests.workers import PATIENCE, echo_and_wait, ended, quick, reports, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers


def told() -> dict[str, Work]:
    """What the rows say was done for each queue, in hours; a test may go over the end of one."""
    return by_queue(DB, seconds=HOUR, since=read_clock(DB) - timedelta(hours=2))


def counts(queue: str = "default") -> tuple[int, int, int, int, int]:
    work = told().get(queue, Work())
    return work.started, work.succeeded, work.failed, work.retried, work.canceled


@contextmanager
def activity_away() -> Iterator[None]:
    table = Activity._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


def test_each_way_to_end_is_counted_once() -> None:
    registry = Registry()

    @registry.task
    def succeed(ctx: TaskContext, payload: Any) -> None: ...

    @registry.task(max_attempts=3)
    def fail(ctx: TaskContext, payload: Any) -> None:
        raise RuntimeError("boom")

    @registry.task
    def fail_for_good(ctx: TaskContext, payload: Any) -> None:
        raise TaskError("no", retryable=False)

    @registry.task
    def be_canceled(ctx: TaskContext, payload: Any) -> None:
        cancel(ctx.task_id)

    @registry.task(atomic=True)
    def succeed_with_writes(ctx: TaskContext, payload: Any) -> None: ...

    @registry.task(batch=10)
    def settle_some(items: list[TaskContext]) -> None:
        items[0].fail("bad", retryable=False)

    for _ in range(2):
        submit("succeed")
    submit("fail")
    submit("fail_for_good")
    submit("be_canceled")
    submit("succeed_with_writes", queue="reports")
    for _ in range(3):
        submit("settle_some", queue="batches")
    run(registry, queues=["default", "reports", "batches"])

    assert counts() == (7, 2, 2, 2, 1)
    assert counts("reports") == (1, 1, 0, 0, 0)
    assert counts("batches") == (3, 2, 1, 0, 0)


def test_what_is_snoozed_is_started_and_neither_fails_nor_ends() -> None:
    registry = Registry()
    snoozed = threading.Event()

    @registry.task
    def later(ctx: TaskContext, payload: Any) -> None:
        if not snoozed.is_set():
            snoozed.set()
            raise Snooze(0.1)

    task = submit("later")
    with quick(registry).background():
        ended(task)
    assert counts() == (2, 1, 0, 0, 0)


def test_tasks_of_workers_that_are_gone_are_counted_by_who_recovers_them(go: threading.Event) -> None:
    TaskFactory(expired=True, name="of_another_kind", attempt=3)
    TaskFactory(expired=True, name="of_another_kind", attempt=1)
    TaskFactory(expired=True, name="of_another_kind", cancel_requested_at=after(-1))
    with quick(echo_and_wait(go)).background():
        ended(submit("echo"))
    assert counts() == (1, 1, 1, 1, 1)


def test_the_wait_of_a_task_is_from_when_it_was_due(go: threading.Event) -> None:
    TaskFactory(name="echo", run_at=after(-100))
    TaskFactory(name="echo", run_at=after(-20))
    run(echo_and_wait(go))

    work = told()["default"]
    assert work.started == 2
    assert 120 <= work.waited < 120 + 2 * PATIENCE
    assert 100 <= work.longest_wait < 100 + PATIENCE


def test_it_is_written_while_the_worker_works(go: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeper, "INTERVAL", 0.05)
    with quick(echo_and_wait(go)).background():
        running(submit("wait"))
        submit("echo")
        eventually(lambda: counts() == (2, 1, 0, 0, 0), PATIENCE, "what was done so far is told")
        go.set()
    assert counts() == (2, 2, 0, 0, 0)


def test_a_worker_that_has_nothing_to_do_writes_nothing(go: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeper, "INTERVAL", 0.01)
    with activity_away(), reports() as reported:
        run(echo_and_wait(go))
    assert reported == []


def test_what_cannot_be_written_is_reported_and_written_later(
    go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper, "INTERVAL", 0.05)
    with reports() as reported, quick(echo_and_wait(go)).background():
        with activity_away():
            assert ended(submit("echo")).succeeded
            eventually(lambda: "activity" in reported.phases, PATIENCE)
            assert ended(submit("echo")).succeeded
        eventually(lambda: counts() == (2, 2, 0, 0, 0), PATIENCE, "nothing is lost")
    assert reported.phases == {"activity"}


def test_a_worker_ends_though_it_cannot_write_what_it_did(go: threading.Event) -> None:
    with activity_away(), reports() as reported:
        task = submit("echo")
        run(echo_and_wait(go))
        assert ended(task).succeeded
    assert reported.phases == {"activity"}
    assert counts() == (0, 0, 0, 0, 0)


def test_what_a_handler_settled_before_the_drain_was_over_is_counted(go: threading.Event) -> None:
    registry = Registry()

    @registry.task(batch=2)
    def half(items: list[TaskContext]) -> None:
        items[0].succeed()
        wait_for(go)

    tasks = [submit("half"), submit("half")]
    with quick(registry, drain_timeout=0.01).background() as worker:
        ended(tasks[0])
        worker.stop()
    go.set()
    assert counts() == (2, 1, 0, 0, 0)


@locks_rows
def test_a_worker_ends_though_others_hold_what_it_adds_to(go: threading.Event) -> None:
    registry = echo_and_wait(go)
    submit("echo")
    run(registry)
    submit("echo")
    with another_transaction(lambda: list(Activity.objects.select_for_update())):
        run(registry)
        assert counts()[:2] == (1, 1)
