"""A database that is away or in trouble costs reported errors, never the worker."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connection

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, cancel, get, submit
from cairnq_django.notify import Channel, announce
from cairnq_django.signals import worker_error
from tests.helpers import eventually
from tests.store.sessions import another_transaction
from tests.workers import (
    PATIENCE,
    Reports,
    database_away,
    echo_and_wait,
    ended,
    kill_other_connections,
    quick,
    reports,
    running,
    runs_workers,
    table_away,
    wait_for,
)

pytestmark = runs_workers

needs_a_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server to lose")


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    registry = echo_and_wait(go)

    @registry.task
    async def echo_async(ctx: AsyncTaskContext, payload: Any) -> Any:
        return payload

    @registry.task
    def fail(ctx: TaskContext, payload: str) -> None:
        raise ValueError(payload)

    return registry


def claim_errors(reported: Reports, at_least: int) -> list[BaseException]:
    return eventually(
        lambda: (found := [error for phase, error in reported if phase == "claim"])[at_least - 1 :] and found,
        PATIENCE,
        "the worker reports failed claims",
    )


@pytest.mark.parametrize("trouble", [table_away, database_away])
def test_failed_claims_are_reported_and_repeated(
    registry: Registry, caplog: pytest.LogCaptureFixture, trouble: Any
) -> None:
    with reports() as reported, quick(registry).background():
        assert ended(submit("echo", "before")).succeeded
        with trouble():
            [error, *_] = claim_errors(reported, at_least=3)
        assert ended(submit("echo", "after")).succeeded
        assert ended(submit("echo_async", "after")).succeeded
    assert type(error).__module__ == "django.db.utils"
    logged = [record.getMessage() for record in caplog.records if record.name == "cairnq_django.worker.loop"]
    assert logged.count(f"claim failed, the worker goes on trying: {error}") == 1, "one line, not one for each try"
    assert "claim works again" in logged


@pytest.mark.parametrize("trouble", [table_away, database_away])
def test_they_are_not_repeated_in_a_spin(registry: Registry, trouble: Any) -> None:
    with reports() as reported, quick(registry, lease=0.3).background():
        # It has connected, so that there is something to lose.
        ended(submit("echo"))
        with trouble():
            claim_errors(reported, at_least=1)
            began, seen = time.monotonic(), len(reported)
            # More than one recovery falls due meanwhile.
            eventually(lambda: time.monotonic() - began > 1, PATIENCE)
            of_the_loop = [phase for phase, _ in reported[seen:] if phase in ("claim", "recover", "loop")]
    assert len(of_the_loop) <= 12


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only PostgreSQL wakes workers")
def test_nor_when_a_wake_up_comes_meanwhile(registry: Registry) -> None:
    with reports() as reported, quick(registry).background(), table_away():
        claim_errors(reported, at_least=1)
        announce("default", Channel.QUEUED, ["default"])
        began, seen = time.monotonic(), len(reported)
        eventually(lambda: time.monotonic() - began > 1, PATIENCE)
        assert len(reported) - seen <= 12


@needs_a_server
def test_killed_connections_are_replaced(registry: Registry, go: threading.Event) -> None:
    with reports() as reported, quick(registry, lease=2).background():
        tasks = [submit("wait", "sync"), submit("echo", "before")]
        ended(tasks[1])
        running(tasks[0])
        kill_other_connections()
        claim_errors(reported, at_least=1)
        go.set()
        assert ended(tasks[0]).result == "sync"
        assert ended(submit("echo", "after")).result == "after"
        assert ended(submit("echo_async", "after")).result == "after"
    assert get(tasks[0].pk).attempt == 1


def test_a_receiver_that_raises_does_no_harm(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    called = []

    def faulty(phase: str, **kwargs: Any) -> None:
        called.append(phase)
        raise ValueError("a faulty receiver")

    worker_error.connect(faulty)
    try:
        with reports() as reported, quick(registry).background():
            with table_away():
                claim_errors(reported, at_least=2)
            assert ended(submit("echo", "after")).succeeded
    finally:
        worker_error.disconnect(faulty)
    assert "claim" in called
    assert "A receiver of worker_error raised" in [record.getMessage() for record in caplog.records]


def test_receivers_are_told_which_worker_it_was(registry: Registry) -> None:
    told = []

    def receive(**kwargs: Any) -> None:
        told.append(kwargs)

    worker = quick(registry)
    worker_error.connect(receive, sender=type(worker))
    try:
        with worker.background(), table_away():
            eventually(lambda: told, PATIENCE)
    finally:
        worker_error.disconnect(receive, sender=type(worker))
    assert told[0]["sender"] is type(worker)
    assert told[0]["worker"] is worker
    assert told[0]["phase"] in ("claim", "recover")
    assert isinstance(told[0]["error"], Exception)


def test_a_locked_database_holds_the_worker_up_no_longer_than_it_is_locked(
    registry: Registry, go: threading.Event
) -> None:
    task = submit("wait", "mine")
    with quick(registry).background():
        running(task)
        with another_transaction(lambda: Task.objects.select_for_update().filter(pk=task.pk).update(message="held")):
            go.set()
        assert ended(task).result == "mine"


@needs_a_server
def test_a_handler_goes_on_where_its_connection_has_broken(registry: Registry) -> None:
    broke = threading.Event()
    asked = threading.Event()

    @registry.task
    def long(ctx: TaskContext, payload: object) -> None:
        ctx.progress(0.1)
        asked.set()
        wait_for(broke)
        ctx.progress(0.5, "half")
        ctx.heartbeat()
        while not ctx.canceled():
            ctx.lease_lost.wait(0.05)

    with quick(registry).background():
        task = submit("long", max_attempts=1)
        wait_for(asked)
        kill_other_connections()
        broke.set()
        assert eventually(lambda: get(task.pk).message == "half", PATIENCE)
        cancel(task.pk)
        assert ended(task).canceled
