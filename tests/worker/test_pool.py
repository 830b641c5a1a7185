"""A worker and a psycopg pool that holds just what the worker is said to need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections

from cairnq_django import Registry, Task, TaskContext, submit
from cairnq_django.models import WorkerProcess
from cairnq_django.worker.connections import connections_needed
from tests.factories import ScheduleFactory
from tests.helpers import eventually
from tests.workers import PATIENCE, ended, handlers_wait_for, quick, reports, wait_for

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from pytest_django.fixtures import SettingsWrapper

pytestmark = [
    pytest.mark.skipif(connection.vendor != "postgresql", reason="a pool is psycopg's"),
    pytest.mark.django_db(
        transaction=True, databases=["default", "dedicated"], available_apps=["cairnq_django", "tests.app"]
    ),
]

CONCURRENCY = 3


@pytest.fixture
def pool(settings: SettingsWrapper) -> Iterator[Any]:
    """The pool of the database that tasks live in, of which this thread has one connection for itself."""
    pytest.importorskip("psycopg_pool")
    settings.CAIRNQ = {"DATABASE": "dedicated"}
    settings.DATABASE_ROUTERS = ["cairnq_django.routers.CairnQRouter"]
    needed = connections_needed(concurrency=CONCURRENCY, sweeps=False)
    unpooled: Any = connections["dedicated"]
    known = connections.settings["dedicated"]
    options = {**known["OPTIONS"], "pool": {"min_size": 1, "max_size": needed + 1, "timeout": 5}}
    connections.settings["dedicated"] = {**unpooled.settings_dict, "OPTIONS": options}
    del connections["dedicated"]
    pooled: Any = connections["dedicated"]
    pooled.ensure_connection()
    try:
        yield pooled.pool
    finally:
        pooled.close()
        pooled.close_pool()
        connections.settings["dedicated"] = known
        connections["dedicated"] = unpooled


def test_a_worker_has_enough_of_what_it_is_said_to_need(pool: Any, go: threading.Event) -> None:
    in_all = connections_needed(concurrency=CONCURRENCY, sweeps=False) + 1
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        ctx.progress(0.5)
        wait_for(go)

    ScheduleFactory()  # which the worker keeps an eye on
    tasks = [submit(work) for _ in range(CONCURRENCY)]
    with reports() as reported, quick(registry, concurrency=CONCURRENCY, lease=2, heartbeat_interval=0.1).background():
        handlers_wait_for(go, count=CONCURRENCY)
        first = _leases()
        eventually(lambda: all(until > first[pk] for pk, until in _leases().items()), PATIENCE, "all are renewed")
        eventually(WorkerProcess.objects.exists, PATIENCE, "the worker has said that it runs")
        eventually(lambda: pool.get_stats()["connections_num"] == in_all, PATIENCE, "it has all connections")
        go.set()
        assert all(ended(task).succeeded for task in tasks)
    assert reported == []
    assert pool.get_stats()["connections_num"] == in_all


def _leases() -> dict[Any, Any]:
    return dict(Task.objects.running().values_list("pk", "lease_until"))
