"""`max_run` bounds an attempt: its time-out is recorded at once, its slot is free, and its handler is cut off."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from cairnq_django import AsyncTaskContext, LostLease, Registry, TaskContext, get, submit
from cairnq_django.worker import aio
from tests.helpers import eventually
from tests.store.sessions import row
from tests.workers import (
    PATIENCE,
    attempts,
    database_away,
    ended,
    handlers_wait_for,
    quick,
    reports,
    run,
    runs_workers,
    wait_for,
)

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def echo(ctx: TaskContext, payload: Any) -> Any:
        return payload

    return registry


def test_a_sync_handler_is_abandoned_and_its_slot_is_free(registry: Registry, go: threading.Event) -> None:
    threads = []

    @registry.task(max_run=0.2, max_attempts=1)
    def hang(ctx: TaskContext, payload: Any) -> str:
        threads.append(threading.current_thread())
        wait_for(go)
        return "late"

    @registry.task
    def occupy(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    hanging, occupying, waiting = submit(hang), submit(occupy), submit("echo", "mine")
    with quick(registry, concurrency=2).background() as worker:
        assert ended(waiting).result == "mine"
        assert get(occupying.pk).is_running
        assert ended(hanging).error["code"] == "handler_timeout"
        assert threads[0].is_alive()
        go.set()
        # Not used again: it ends with its handler, not with the worker.
        threads[0].join(PATIENCE)
        assert not threads[0].is_alive()
        assert ended(occupying).succeeded
    assert worker.hanging == 0


def test_a_time_out_is_retryable_and_says_how_long_the_handler_had(registry: Registry, go: threading.Event) -> None:
    @registry.task(max_run=0.2)
    def hang_at_first(ctx: TaskContext, payload: Any) -> int:
        if ctx.attempt == 1:
            wait_for(go)
        return ctx.attempt

    task = submit(hang_at_first)
    with quick(registry).background():
        assert ended(task).result == 2
        go.set()
    [attempt] = task.attempts.all()
    assert attempt.outcome == "retried"
    assert attempt.error["code"] == "handler_timeout"
    assert attempt.error["retryable"] is True
    assert attempt.error["details"] == {"max_run": 0.2}
    assert "0.2 s" in attempt.error["message"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_the_handler_does_later_changes_nothing(registry: Registry, go: threading.Event, kind: str) -> None:
    refused = []

    @registry.task("sync", max_run=0.2)
    def handler(ctx: TaskContext, payload: Any) -> str:
        wait_for(go)
        for write in (lambda: ctx.progress(0.5), ctx.heartbeat, ctx.canceled, ctx.succeed, lambda: ctx.submit("echo")):
            with pytest.raises(LostLease):
                write()
            refused.append(ctx.lost_lease and ctx.lease_lost.is_set() and not ctx.settled)
        return "late"

    @registry.task("async", max_run=0.2)
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
        await ignore_cancellation(go)
        for write in (lambda: ctx.progress(0.5), ctx.heartbeat, ctx.canceled, ctx.succeed, lambda: ctx.submit("echo")):
            with pytest.raises(LostLease):
                await write()
            refused.append(ctx.lost_lease and ctx.lease_lost.is_set() and not ctx.settled)
        return "late"

    task = submit(kind, max_attempts=1)
    with quick(registry).background():
        assert ended(task).failed
        before = row(type(task), pk=task.pk)
        go.set()
        eventually(lambda: len(refused) == 5, PATIENCE)
    assert refused == [True] * 5
    assert row(type(task), pk=task.pk) == before
    assert type(task).objects.count() == 1
    assert attempts(task) == [(1, "failed", "handler_timeout")]


def test_an_async_handler_is_cancelled(registry: Registry) -> None:
    cancelled = threading.Event()

    @registry.task(max_run=0.2, max_attempts=1)
    async def hang(ctx: AsyncTaskContext, payload: Any) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = submit(hang)
    after_it = submit("echo", "mine")
    worker = run(registry, concurrency=2)
    assert cancelled.is_set()
    assert get(task.pk).error["code"] == "handler_timeout"
    assert get(after_it.pk).succeeded
    assert worker.hanging == 0


def test_an_async_handler_that_swallows_its_cancellation_is_left_alone(registry: Registry, go: threading.Event) -> None:
    @registry.task(max_run=0.2, max_attempts=1)
    async def stay(ctx: AsyncTaskContext, payload: Any) -> str:
        await ignore_cancellation(go)
        return "late"

    @registry.task
    async def beside_it(ctx: AsyncTaskContext, payload: Any) -> str:
        return "fine"

    task = submit(stay)
    with quick(registry, concurrency=2).background() as worker:
        assert ended(task).error["code"] == "handler_timeout"
        assert ended(submit(beside_it)).result == "fine"
        go.set()
    assert worker.hanging == 0
    assert attempts(task) == [(1, "failed", "handler_timeout")]


def test_a_cancelled_async_handler_hangs_as_long_as_the_thread_of_its_sync_calls(
    registry: Registry, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "CLOSE_TIMEOUT", 0.4)

    @registry.task(max_run=0.2, max_attempts=1)
    async def hang(ctx: AsyncTaskContext, payload: Any) -> None:
        await sync_to_async(wait_for)(go)

    task = submit(hang)
    worker = quick(registry, concurrency=2)
    with worker.background():
        assert ended(task).error["code"] == "handler_timeout"
    assert worker.hanging == 1


def test_an_async_handler_has_not_ended_before_its_sync_calls_have(registry: Registry, go: threading.Event) -> None:
    @registry.task(max_run=0.3, max_attempts=1)
    async def leave_it_behind(ctx: AsyncTaskContext, payload: Any) -> str:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sync_to_async(wait_for)(go), 0.01)
        return "done"

    task = submit(leave_it_behind)
    with quick(registry, concurrency=2).background() as worker:
        assert ended(task).error["code"] == "handler_timeout"
        go.set()
    assert worker.hanging == 0


def test_calls_that_a_blocked_event_loop_never_started_are_not_left_hanging(
    registry: Registry, go: threading.Event
) -> None:
    @registry.task(max_run=0.3, max_attempts=1)
    async def block(ctx: AsyncTaskContext, payload: Any) -> None:
        wait_for(go)

    tasks = [submit(block) for _ in range(3)]
    with quick(registry, concurrency=4).background() as worker:
        assert [ended(task).error["code"] for task in tasks] == ["handler_timeout"] * 3
        go.set()
    assert worker.hanging == 0


@pytest.mark.parametrize(("workers_limit", "own_limit"), [(0.2, 3600), (None, None)])
def test_a_tasks_own_limit_counts_more_than_the_workers(
    registry: Registry, go: threading.Event, workers_limit: float | None, own_limit: float | None
) -> None:
    @registry.task(max_run=own_limit)
    def patient(ctx: TaskContext, payload: Any) -> str:
        wait_for(go)
        return "in the end"

    @registry.task(max_run=0.2 if workers_limit is None else None, max_attempts=1)
    def impatient(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    # Claimed first, so its time would be up first.
    kept, timed_out = submit(patient, priority=1), submit(impatient)
    with quick(registry, max_run=workers_limit).background():
        assert ended(timed_out).error["code"] == "handler_timeout"
        assert get(kept.pk).is_running
        go.set()
        assert ended(kept).result == "in the end"


def test_enough_hanging_handlers_make_the_worker_drain_and_ask_to_be_replaced(
    registry: Registry, go: threading.Event
) -> None:
    @registry.task(max_run=0.2, max_attempts=1)
    def hang(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    tasks = [submit(hang) for _ in range(2)]
    worker = quick(registry, concurrency=2)
    worker.run()
    left = submit("echo")

    assert worker.worn_out
    assert worker.hanging == 2
    assert [get(task.pk).error["code"] for task in tasks] == ["handler_timeout"] * 2
    go.set()
    worker.run(burst=True)
    assert get(left.pk).succeeded
    assert not worker.worn_out
    assert worker.hanging == 0


def test_a_time_out_is_recorded_when_the_database_is_back(registry: Registry, go: threading.Event) -> None:
    @registry.task(max_run=0.5, max_attempts=1)
    def hang(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    task = submit(hang)
    with reports() as reported, quick(registry).background():
        handlers_wait_for(go)
        with database_away():
            eventually(lambda: "settle" in reported.phases, PATIENCE)
        assert ended(task).error["code"] == "handler_timeout"
        go.set()
    assert attempts(task) == [(1, "failed", "handler_timeout")]


async def ignore_cancellation(go: threading.Event) -> None:
    while not go.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
