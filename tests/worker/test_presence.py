"""While a worker runs, a row tells of it; nothing that happens to the row is a worker's concern."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

import cairnq_django
from cairnq_django import Registry, TaskContext, submit, submit_many
from cairnq_django.clock import after
from cairnq_django.models import WorkerProcess
from cairnq_django.store.workers import FORGOTTEN_AFTER
from cairnq_django.worker import bookkeeper, presence
from tests.factories import WorkerProcessFactory
from tests.helpers import eventually
from tests.notify.postgres import on_postgresql
from tests.store.sessions import another_transaction
from tests.workers import (
    PATIENCE,
    echo_and_wait,
    ended,
    handlers_wait_for,
    quick,
    reports,
    run,
    running,
    runs_workers,
    table_away,
    wait_for,
)

if TYPE_CHECKING:
    from cairnq_django import Worker

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    return echo_and_wait(go)


@pytest.fixture
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "FIRST_LOOK", 0.0)
    monkeypatch.setattr(presence, "LOOK_INTERVAL", 0.05)
    monkeypatch.setattr(presence, "SILENCE", 0.1)


def seen(worker: Worker, **fields: Any) -> WorkerProcess:
    """The worker's row, once it says so."""
    return eventually(lambda: WorkerProcess.objects.filter(pk=worker.id, **fields).first(), PATIENCE, f"{fields}")


def test_a_worker_is_seen_from_its_start_to_its_end(registry: Registry) -> None:
    registry.task("none", resource="gpu")(lambda ctx, payload: None)
    worker = quick(registry, queues=["mail", "default"], concurrency=3, resources={"gpu": 0})
    with worker.background():
        row = seen(worker)
        assert (row.host, str(row.pid)) == tuple(worker.id.rsplit("-", 2)[:2])
        assert row.version == cairnq_django.__version__
        assert row.queues == ["mail", "default"]
        assert row.names == ["echo", "wait"], "not those whose resource it has none of"
        assert (row.concurrency, row.busy, row.abandoned, row.draining) == (3, 0, 0, False)
        assert row.bytes_in_flight is None, "without a limit they are not measured"
        assert row.started_at <= row.seen_at
    assert not WorkerProcess.objects.exists()


def test_a_short_burst_is_not_seen(registry: Registry) -> None:
    submit("echo")
    with table_away(WorkerProcess), reports() as reported:
        run(registry)
    assert reported == []


@pytest.mark.usefixtures("_quickly")
def test_it_is_seen_to_be_busy_and_to_drain(registry: Registry, go: threading.Event) -> None:
    worker = quick(registry, concurrency=2, max_in_flight_bytes=1_000)
    with worker.background():
        assert seen(worker, busy=0).bytes_in_flight == 0
        tasks = submit_many("wait", ["x" * 10] * 3)
        assert seen(worker, busy=2, bytes_in_flight=24).names == ["echo", "wait"]
        registry.task("later")(lambda ctx, payload: None)
        eventually(lambda: "later" in seen(worker).names, PATIENCE)
        worker.stop()
        seen(worker, draining=True, busy=2)
        go.set()
        ended(tasks[1])


@pytest.mark.usefixtures("_quickly")
def test_calls_that_it_gave_up_are_seen(registry: Registry, go: threading.Event) -> None:
    @registry.task(max_run=0.05, max_attempts=1)
    def hang(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    worker = quick(registry)
    with worker.background():
        submit(hang)
        seen(worker, abandoned=1, busy=0)
        go.set()
        seen(worker, abandoned=0)


@pytest.mark.usefixtures("_quickly")
def test_a_row_that_is_deleted_comes_back_as_old_as_it_was(registry: Registry) -> None:
    worker = quick(registry)
    with worker.background():
        first = seen(worker)
        WorkerProcess.objects.all().delete()
        again = seen(worker)
        assert abs((again.started_at - first.started_at).total_seconds()) < 1
        eventually(lambda: seen(worker).names == ["echo", "wait"], PATIENCE, "the whole row")


def test_an_idle_worker_says_so_no_more_often_than_it_must(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    look = presence.Presence.look

    def count(self: presence.Presence) -> None:
        look(self)
        looks.append(self._said_at)

    monkeypatch.setattr(presence, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(presence.Presence, "look", count)
    with quick(registry).background() as worker:
        ended(submit("echo"))
        seen(worker, busy=0)
        looks.clear()
        when_it_said_so = eventually(lambda: looks[20:] and looks[:20], PATIENCE)
    assert len(set(when_it_said_so)) == 1


@pytest.mark.usefixtures("_quickly")
def test_without_its_table_a_worker_works_all_the_same(registry: Registry) -> None:
    worker = quick(registry)
    with reports() as reported, worker.background():
        first = seen(worker)
        with table_away(WorkerProcess):
            eventually(lambda: "presence" in reported.phases, PATIENCE)
            assert ended(submit("echo", "meanwhile")).result == "meanwhile"
        seen(worker, seen_at__gt=first.seen_at)
    assert reported.phases == {"presence"}
    assert not WorkerProcess.objects.exists()


def test_nor_does_it_need_the_table_to_start_and_to_end(registry: Registry) -> None:
    with table_away(WorkerProcess), reports() as reported, quick(registry).background():
        eventually(lambda: reported, PATIENCE)
        assert ended(submit("echo", 7)).result == 7
    assert [phase for phase, _ in reported] == ["presence", "presence"], "once at the start and once at the end"


def test_the_rows_of_workers_that_were_killed_are_swept_by_others(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    WorkerProcessFactory(id="killed", seen_at=after(-FORGOTTEN_AFTER - 1))
    WorkerProcessFactory(id="silent", silent=True)
    worker = quick(registry)
    with worker.background():
        eventually(lambda: not WorkerProcess.objects.filter(pk="killed").exists(), PATIENCE)
        seen(worker)
    assert [row.pk for row in WorkerProcess.objects.all()] == ["silent"]
    assert "Not heard of for 900 s, and forgotten: killed" in caplog.messages


@pytest.mark.usefixtures("_quickly")
def test_leases_are_renewed_though_the_row_cannot_be_written(registry: Registry, go: threading.Event) -> None:
    worker = quick(registry, lease=0.6)
    with worker.background(), table_away(WorkerProcess):
        task = submit("wait", "mine")
        handlers_wait_for(go)
        leased_until = task.refresh().lease_until
        assert leased_until is not None
        eventually(lambda: (task.refresh().lease_until or leased_until) > leased_until, PATIENCE)
        go.set()
        assert ended(task).result == "mine"
    assert task.attempt == 1


@on_postgresql
@pytest.mark.usefixtures("_quickly")
def test_a_lock_on_its_table_holds_up_neither_leases_nor_the_end(
    registry: Registry, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper, "STOP_TIMEOUT", 0.1)
    with another_transaction(_lock_the_table):
        with quick(registry, lease=0.6).background():
            task = submit("wait", "mine")
            handlers_wait_for(go)
            first = running(task).lease_until
            eventually(lambda: (task.refresh().lease_until or first) > first + timedelta(seconds=1), PATIENCE / 2)
            go.set()
            assert ended(task).result == "mine"
        assert task.attempt == 1
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "cairnq-bookkeeper"])


def _lock_the_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {WorkerProcess._meta.db_table} IN ACCESS EXCLUSIVE MODE")
