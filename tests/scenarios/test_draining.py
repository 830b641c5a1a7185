"""A worker that is stopped claims no more, lets what runs end or gives it back, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, TaskContext, get, submit
from cairnq_django.models import Task
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
    running,
    runs_workers,
    wait_for,
)

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    registry = Registry()

    @registry.task
    def wait(ctx: TaskContext, payload: Any) -> str:
        wait_for(go)
        return f"attempt {ctx.attempt} of {ctx.worker_id}"

    @registry.task
    async def wait_async(ctx: AsyncTaskContext, payload: Any) -> str:
        while not go.is_set():  # noqa: ASYNC110 - on the loop, where a cancellation reaches it
            await asyncio.sleep(0.01)
        return f"attempt {ctx.attempt} of {ctx.worker_id}"

    @registry.task
    def echo(ctx: TaskContext, payload: Any) -> Any:
        return payload

    return registry


def test_what_runs_ends_and_nothing_more_is_claimed(
    registry: Registry, go: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="cairnq_django")
    tasks = [submit("wait"), submit("wait_async")]
    worker = quick(registry)
    with worker.background():
        for task in tasks:
            running(task)
        worker.stop()
        # It may be claiming at this very moment.
        eventually(lambda: "stops claiming" in caplog.text, PATIENCE)
        late = submit("echo")
        go.set()
    assert [get(task.pk).result for task in tasks] == [f"attempt 1 of {worker.id}"] * 2
    assert get(late.pk).is_queued
    assert get(late.pk).attempt == 0


def test_after_drain_timeout_what_still_runs_is_given_back_and_its_attempt_is_not_counted(
    registry: Registry, go: threading.Event
) -> None:
    tasks = [submit("wait"), submit("wait_async")]
    worker = quick(registry, drain_timeout=0.2)
    with worker.background():
        for task in tasks:
            running(task)
        assert Task.objects.filter(name="wait").update(progress=0.5, message="half")

    for task in tasks:
        task.refresh()
        assert task.is_queued
        assert task.attempt == 0
        assert (task.progress, task.message, task.lease_until, task.error) == (None, "", None, None)
        assert attempts(task) == []
    # The async handler took its cancellation for an answer.
    assert worker.hanging == 1

    go.set()
    another = run(registry)
    assert [get(task.pk).result for task in tasks] == [f"attempt 1 of {another.id}"] * 2


def test_what_a_handler_does_after_its_task_was_given_back_changes_nothing(
    registry: Registry, go: threading.Event
) -> None:
    threads = []

    @registry.task
    def succeed_late(ctx: TaskContext, payload: Any) -> str:
        threads.append(threading.current_thread())
        wait_for(go)
        return "late"

    task = submit(succeed_late)
    with quick(registry, drain_timeout=0).background():
        eventually(lambda: threads, PATIENCE)
    before = row(Task, pk=task.pk)
    go.set()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    assert row(Task, pk=task.pk) == before


def test_nothing_outlives_a_run(registry: Registry, go: threading.Event) -> None:
    before = set(threading.enumerate())
    go.set()
    tasks = [submit(name) for name in ("wait", "wait_async", "echo") * 5]
    run(registry)
    left = set(threading.enumerate()) - before
    # The listener is the process's, and ends by itself when nobody listens.
    assert {thread.name for thread in left if not thread.name.startswith("cairnq-listener")} == set()
    assert all(get(task.pk).succeeded for task in tasks)


def test_a_second_run_starts_afresh(registry: Registry) -> None:
    worker = quick(registry)
    first = submit("echo", 1)
    worker.run(burst=True)
    id_of_the_first = worker.id
    second = submit("echo", 2)
    with worker.background():
        assert ended(second).worker_id == worker.id
    assert get(first.pk).worker_id == id_of_the_first != worker.id


def test_an_end_that_cannot_be_recorded_does_not_hold_up_a_bounded_drain(
    registry: Registry, go: threading.Event
) -> None:
    task = submit("wait")
    worker = quick(registry, drain_timeout=0.5)
    with reports() as reported, worker.background():
        handlers_wait_for(go)
        with database_away():
            go.set()
            eventually(lambda: "settle" in reported.phases, PATIENCE)
            worker.stop()
            eventually(lambda: not any(thread.name == "cairnq-worker" for thread in threading.enumerate()), PATIENCE)
    assert get(task.pk).is_running
