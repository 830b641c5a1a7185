"""Connections of a worker's threads, treated as Django treats a request's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, get, submit, submit_many
from cairnq_django.signals import worker_error
from tests.app.models import Counter
from tests.helpers import eventually
from tests.workers import PATIENCE, ended, quick, run, running, runs_workers, table_away, wait_for

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    return Registry()


def drivers_connections(registry: Registry, kind: str) -> list[Any]:
    """The driver's connections that three handlers, one after the other, made their queries with."""
    used = []

    def query() -> None:
        Counter.objects.count()
        used.append(connection.connection)

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> None:
        query()

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
        await sync_to_async(query)()

    for _ in range(3):
        submit(kind)
    run(registry, concurrency=1)
    return used


def is_open(drivers_connection: Any) -> bool:
    if connection.vendor == "postgresql":
        return not drivers_connection.closed
    if connection.vendor == "mysql":
        return bool(drivers_connection.open)
    try:
        drivers_connection.execute("SELECT 1")
    except connection.Database.ProgrammingError:
        return False
    return True


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handlers_connection_is_closed_after_the_call(registry: Registry, kind: str) -> None:
    used = drivers_connections(registry, kind)
    assert len({id(each) for each in used}) == 3
    assert [is_open(each) for each in used] == [False] * 3


def test_with_conn_max_age_it_is_kept_for_the_next_one_on_the_thread(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    used = drivers_connections(registry, "sync")
    assert len({id(each) for each in used}) == 1
    # The thread has ended, and its connection with it.
    assert not is_open(used[0])


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server that could break a connection")
def test_a_connection_that_broke_in_a_handler_is_replaced(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)

    @registry.task
    def count(ctx: TaskContext, payload: Any) -> int:
        connection.ensure_connection()
        if payload == "break it":
            connection.connection.close()
        return Counter.objects.count()

    first, second = submit(count, "break it", max_attempts=1), submit(count, "go on")
    run(registry, concurrency=1)
    assert get(first.pk).failed
    assert get(second.pk).succeeded


@pytest.mark.parametrize("max_age", [0, None])
def test_a_transaction_that_a_handler_leaves_open_is_rolled_back(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, max_age: int | None
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", max_age)

    @registry.task
    def leave_open(ctx: TaskContext, payload: Any) -> str:
        transaction.atomic().__enter__()
        Counter.objects.create(name="in the transaction")
        return "done"

    @registry.task
    def write(ctx: TaskContext, payload: Any) -> bool:
        Counter.objects.create(name="after it")
        return connection.in_atomic_block

    first, second = submit(leave_open), submit(write)
    run(registry, concurrency=1)
    assert get(first.pk).result == "done"
    assert get(second.pk).result is False
    assert [counter.name for counter in Counter.objects.all()] == ["after it"]
    assert "A handler left a transaction open on database 'default'; it is rolled back" in caplog.messages


def test_settled_in_a_transaction_that_it_leaves_open_the_end_of_the_call_settles(registry: Registry) -> None:
    @registry.task
    def leave_open(ctx: TaskContext, payload: Any) -> str:
        transaction.atomic().__enter__()
        ctx.succeed("rolled back")
        return "returned"

    task = submit(leave_open)
    run(registry)
    assert get(task.pk).result == "returned"


@pytest.mark.parametrize("max_age", [0, None])
def test_autocommit_that_a_handler_leaves_off_is_on_for_the_next_one(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, max_age: int | None
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", max_age)

    @registry.task
    def leave_off(ctx: TaskContext, payload: Any) -> None:
        transaction.set_autocommit(False)
        Counter.objects.create(name="never committed")

    @registry.task
    def write(ctx: TaskContext, payload: Any) -> bool:
        Counter.objects.create(name="after it")
        return transaction.get_autocommit()

    submit(leave_off)
    task = submit(write)
    run(registry, concurrency=1)
    assert get(task.pk).result is True
    assert [counter.name for counter in Counter.objects.all()] == ["after it"]


def test_an_async_handlers_open_transaction_is_rolled_back_too(registry: Registry) -> None:
    def leave_open() -> None:
        transaction.atomic().__enter__()
        Counter.objects.create(name="in the transaction")

    @registry.task
    async def work(ctx: AsyncTaskContext, payload: Any) -> str:
        await sync_to_async(leave_open)()
        return "done"

    task = submit(work)
    run(registry)
    assert get(task.pk).result == "done"
    assert not Counter.objects.exists()


class TestDebug:
    """Django keeps every statement while `DEBUG` is on, for a request; a worker runs for ever."""

    def test_the_loop_does_not_pile_up_statements(self, registry: Registry, settings: SettingsWrapper) -> None:
        @registry.task
        def echo(ctx: TaskContext, payload: Any) -> Any:
            return payload

        tasks = submit_many(echo, range(20))
        settings.DEBUG = True
        run(registry, concurrency=1)
        kept = len(connection.queries_log)
        settings.DEBUG = False
        assert all(get(task.pk).succeeded for task in tasks)
        assert kept < 20

    def test_nor_do_handlers(self, registry: Registry, settings: SettingsWrapper) -> None:
        @registry.task
        def count(ctx: TaskContext, payload: Any) -> int:
            Counter.objects.count()
            return len(connection.queries_log)

        tasks = submit_many(count, range(20))
        settings.DEBUG = True
        run(registry, concurrency=1)
        assert 0 < max(get(task.pk).result for task in tasks) < 20

    def test_nor_does_the_heartbeat(self, registry: Registry, settings: SettingsWrapper) -> None:
        go, kept = threading.Event(), []

        @registry.task
        def wait(ctx: TaskContext, payload: Any) -> None:
            wait_for(go)

        def look(phase: str, **kwargs: Any) -> None:
            if phase == "heartbeat":
                kept.append(len(connection.queries_log))

        settings.DEBUG = True
        task = submit(wait)
        worker_error.connect(look)
        try:
            with quick(registry, lease=60, heartbeat_interval=0.05).background():
                seen = running(task).lease_until
                for _ in range(10):
                    seen = eventually(
                        lambda seen=seen: Task.objects.filter(pk=task.pk, lease_until__gt=seen).first(), PATIENCE
                    ).lease_until
                with table_away():
                    eventually(lambda: kept, PATIENCE)
                go.set()
                ended(task)
        finally:
            worker_error.disconnect(look)
        assert 0 < kept[0] < 10
