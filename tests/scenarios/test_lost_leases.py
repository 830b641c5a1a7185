"""An attempt whose lease is lost learns of it, writes nothing more, and is not an outcome to record."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from cairnq_django import AsyncTaskContext, LostLease, Registry, Task, TaskContext, get, submit
from cairnq_django.clock import after
from tests.helpers import eventually
from tests.store.sessions import another_transaction, locks_rows
from tests.workers import (
    PATIENCE,
    attempts,
    database_away,
    ended,
    expire,
    quick,
    reports,
    run,
    running,
    runs_workers,
    wait_for,
)

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_late_success_is_not_recorded_when_another_worker_has_the_task(
    registry: Registry, go: threading.Event, kind: str
) -> None:
    lost = []

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            wait_for(go)
            assert ctx.lease_lost.wait(PATIENCE)
            lost.append(ctx.lost_lease)
            return "late"
        return f"attempt {ctx.attempt}"

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            await sync_to_async(wait_for)(go)
            await asyncio.wait_for(ctx.lease_lost.wait(), PATIENCE)
            lost.append(ctx.lost_lease)
            return "late"
        return f"attempt {ctx.attempt}"

    task = submit(kind)
    with quick(registry, concurrency=1, lease=60, heartbeat_interval=0.1).background():
        running(task)
        expire(task)
        # A beat that looks at the row keeps others off it for a moment, on MariaDB.
        eventually(lambda: run(registry) and get(task.pk).result == "attempt 2")
        go.set()
    assert lost == [True]
    assert get(task.pk).result == "attempt 2"
    assert attempts(task) == [(1, "retried", "lease_expired")]


def test_a_late_failure_is_not_recorded_either(registry: Registry, go: threading.Event) -> None:
    @registry.task
    def work(ctx: TaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            wait_for(go)
            raise ValueError("late")
        return "second"

    task = submit(work)
    # Without a beat: the end of the call meets the lost lease first.
    with quick(registry, concurrency=1, lease=60, heartbeat_interval=50).background():
        running(task)
        expire(task)
        run(registry)
        go.set()
    assert get(task.pk).result == "second"
    assert attempts(task) == [(1, "retried", "lease_expired")]


def test_every_write_of_a_lost_attempt_raises(registry: Registry) -> None:
    raised = []

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> None:
        expire(get(ctx.task_id))
        for write in (
            lambda: ctx.progress(0.5),
            ctx.heartbeat,
            ctx.canceled,
            lambda: ctx.succeed("late"),
            lambda: ctx.fail("late"),
            lambda: ctx.submit("child"),
        ):
            with pytest.raises(LostLease, match=str(ctx.task_id)):
                write()
            raised.append(ctx.lost_lease)
        ctx.progress(0.9)

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
        await sync_to_async(lambda: expire(get(ctx.task_id)))()
        for write in (
            lambda: ctx.progress(0.5),
            ctx.heartbeat,
            ctx.canceled,
            lambda: ctx.succeed("late"),
            lambda: ctx.fail("late"),
            lambda: ctx.submit("child"),
        ):
            with pytest.raises(LostLease, match=str(ctx.task_id)):
                await write()
            raised.append(ctx.lost_lease)
        await ctx.progress(0.9)

    tasks = [submit(kind, max_attempts=1) for kind in ("sync", "async")]
    run(registry, lease=60, heartbeat_interval=50)
    assert raised == [True] * 12
    assert [get(task.pk).is_running for task in tasks] == [True, True]

    # What the handlers raised is no outcome; that they lost their lease is.
    run(registry)
    assert [attempts(task) for task in tasks] == [[(1, "failed", "lease_expired")]] * 2
    assert Task.objects.count() == 2


@pytest.mark.parametrize("write", ["progress", "heartbeat", "canceled", "succeed", "fail"])
def test_the_database_has_the_last_word_in_each_write(registry: Registry, write: str) -> None:
    raised = []

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        writes = {
            "progress": lambda: ctx.progress(0.5),
            "heartbeat": ctx.heartbeat,
            "canceled": lambda: eventually(ctx.canceled, PATIENCE),  # the first half second's answer is an old one
            "succeed": lambda: ctx.succeed("late"),
            "fail": lambda: ctx.fail("late"),
        }
        expire(get(ctx.task_id))
        assert not ctx.lost_lease
        with pytest.raises(LostLease):
            writes[write]()
        raised.append(ctx.lost_lease)

    submit(work)
    run(registry, lease=60, heartbeat_interval=50)
    assert raised == [True]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_worker_that_cannot_reach_the_database_knows_by_its_own_clock(
    registry: Registry, go: threading.Event, kind: str
) -> None:
    started, flagged = threading.Event(), threading.Event()
    lost = []

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            started.set()
            assert ctx.lease_lost.wait(PATIENCE)
            lost.append(ctx.lost_lease)
            flagged.set()
            wait_for(go)
        return f"attempt {ctx.attempt}"

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            started.set()
            await asyncio.wait_for(ctx.lease_lost.wait(), PATIENCE)
            lost.append(ctx.lost_lease)
            flagged.set()
            await sync_to_async(wait_for)(go)
        return f"attempt {ctx.attempt}"

    task = submit(kind)
    with reports() as reported, quick(registry, lease=0.6).background():
        wait_for(started)
        with database_away():
            wait_for(flagged)
        go.set()
        assert ended(task).result == "attempt 2"
    assert lost == [True]
    assert "heartbeat" in reported.phases
    assert attempts(task) == [(1, "retried", "lease_expired")]


@locks_rows
def test_a_handler_that_stops_because_its_lease_is_lost_has_not_succeeded(
    registry: Registry, go: threading.Event
) -> None:
    started, flagged, returned = threading.Event(), threading.Event(), threading.Event()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> str | None:
        if ctx.attempt == 1:
            started.set()
            assert ctx.lease_lost.wait(PATIENCE)
            flagged.set()
            wait_for(go)
            returned.set()
            return None
        return "all of it"

    task = submit(work)
    with quick(registry, lease=0.6).background():
        wait_for(started)
        # No beat gets through to the row, and in the end the lease still holds on the database's clock.
        with another_transaction(lambda: Task.objects.filter(pk=task.pk).update(lease_until=after(3600))):
            wait_for(flagged)
        go.set()
        wait_for(returned)
        expire(task)
        assert ended(task).result == "all of it"
    assert attempts(task) == [(1, "retried", "lease_expired")]


def test_so_does_one_whose_statements_get_no_answer(registry: Registry) -> None:
    started, flagged = threading.Event(), threading.Event()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            started.set()
            eventually(lambda: ctx.lost_lease, PATIENCE)
            assert ctx.lease_lost.is_set()
            flagged.set()
        return f"attempt {ctx.attempt}"

    task = submit(work)
    with quick(registry, lease=0.6).background():
        wait_for(started)
        with another_transaction(lock_all_tasks):
            wait_for(flagged)
        assert ended(task).result == "attempt 2"


def lock_all_tasks() -> None:
    """Let every statement of others about tasks wait, on SQLite those that write, until this transaction ends."""
    table = Task._meta.db_table
    statement = {
        "postgresql": f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
        "mysql": f"LOCK TABLES {table} WRITE",  # which ends with the session
        "sqlite": f"DELETE FROM {table} WHERE 1 = 0",
    }
    with connection.cursor() as cursor:
        cursor.execute(statement[connection.vendor])
