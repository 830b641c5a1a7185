"""Rows of workers say what is so now, come back where they are missing, and go when nobody keeps them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.clock import after
from cairnq_django.models import PausedQueue, WorkerProcess
from cairnq_django.store.stats import queue_figures
from cairnq_django.store.workers import (
    FORGOTTEN_AFTER,
    WorkerState,
    forget,
    handled_names,
    leave,
    live_workers,
    lost_workers,
    say,
    unhandled,
)
from tests.factories import TaskFactory, WorkerProcessFactory
from tests.store.sessions import statements

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.django_db

STATE = WorkerState(
    host="hod",
    pid=7,
    version="1.0",
    queues=("default", "mail"),
    names=("echo", "<b>"),
    concurrency=8,
    busy=2,
    bytes_in_flight=None,
    abandoned=1,
    draining=False,
)


def tell(state: WorkerState = STATE, said: WorkerState | None = None, worker_id: str = "w", age: float = 0) -> None:
    say(DB, worker_id, state, said=said, age=age)


def test_a_worker_says_what_it_does() -> None:
    tell(replace(STATE, bytes_in_flight=5_000_000_000, draining=True))
    worker = WorkerProcess.objects.get()
    assert (worker.pk, worker.host, worker.pid, worker.version) == ("w", "hod", 7, "1.0")
    assert (worker.queues, worker.names) == (["default", "mail"], ["echo", "<b>"])
    assert (worker.concurrency, worker.busy, worker.abandoned) == (8, 2, 1)
    assert (worker.bytes_in_flight, worker.draining) == (5_000_000_000, True)


def test_it_is_as_old_as_it_says_by_the_database_s_clock() -> None:
    tell(age=600)
    worker = WorkerProcess.objects.get()
    assert timedelta(seconds=599) < worker.seen_at - worker.started_at < timedelta(seconds=602)


def test_what_has_changed_is_written_in_one_statement_and_nothing_else() -> None:
    tell()
    WorkerProcess.objects.update(version="by hand", seen_at=after(-60))
    (sql,) = statements(lambda: tell(replace(STATE, busy=3, names=("echo",)), said=STATE))
    assert "pid" not in sql
    worker = WorkerProcess.objects.heard_of().get()
    assert (worker.busy, worker.names, worker.version) == (3, ["echo"], "by hand")
    assert WorkerProcess.objects.silent_for(30).count() == 0


def test_a_row_that_is_missing_comes_back_whole() -> None:
    tell()
    WorkerProcess.objects.all().delete()
    tell(replace(STATE, busy=3), said=STATE, age=100)
    worker = WorkerProcess.objects.get()
    assert (worker.busy, worker.names) == (3, ["echo", "<b>"])


def test_one_worker_says_nothing_of_another() -> None:
    tell(worker_id="a")
    tell(worker_id="A")
    tell(replace(STATE, busy=0), worker_id="a")
    leave(DB, "a")
    assert [(worker.pk, worker.busy) for worker in WorkerProcess.objects.all()] == [("A", 2)]


def test_those_that_have_long_said_nothing_are_forgotten() -> None:
    WorkerProcessFactory(id="silent", silent=True)
    WorkerProcessFactory(id="gone", seen_at=after(-FORGOTTEN_AFTER - 1))
    WorkerProcessFactory(id="here")
    assert forget(DB) == ["gone"]
    assert set(WorkerProcess.objects.values_list("pk", flat=True)) == {"silent", "here"}
    assert len(statements(lambda: forget(DB))) == 1, "nobody is gone: one query"


@pytest.mark.parametrize(
    ("fields", "is_heard_of"), [({}, True), ({"draining": True}, True), ({"silent": True}, False)], ids=str
)
def test_live_are_those_that_were_heard_of_lately(fields: dict[str, Any], is_heard_of: bool) -> None:
    WorkerProcessFactory(**fields)
    assert [worker.pk for worker in live_workers(DB)] == ["host-1"][: int(is_heard_of)]
    row = WorkerProcess.objects.heard_of_or_not().get()
    assert row.is_heard_of is is_heard_of
    assert (row.asked_at - row.seen_at).total_seconds() < 90 or not is_heard_of


def test_live_workers_come_by_host_in_one_statement_without_their_names() -> None:
    for number, host in enumerate(["b", "a", "b"]):
        WorkerProcessFactory(id=f"w{number}", host=host, started_at=after(-number))
    (sql,) = statements(lambda: [worker.queues for worker in live_workers(DB)])
    assert "names" not in sql
    assert [worker.pk for worker in live_workers(DB)] == ["w1", "w2", "w0"]


def test_names_are_handled_where_a_live_worker_claims_them() -> None:
    for number in range(3):
        WorkerProcessFactory(id=f"a-{number}", queues=["default", "mail"], names=["work"])
    WorkerProcessFactory(id="b", queues=["mail"], names=["send"])
    WorkerProcessFactory(id="draining", queues=["mail"], names=["old"], draining=True)
    WorkerProcessFactory(id="silent", queues=["mail"], names=["old"], silent=True)
    WorkerProcessFactory(id="odd", queues={"mail": 1}, names={"old": 1})
    assert handled_names(DB) == {"default": {"work"}, "mail": {"send", "work"}}


def test_unhandled_is_what_waits_in_a_served_queue_and_nobody_runs() -> None:
    WorkerProcessFactory(queues=["mail", "paused"], names=["send"])
    PausedQueue.objects.create(queue="paused")
    for queue in ("mail", "paused", "unserved"):
        for name in ("renamed", "send"):
            TaskFactory(queue=queue, name=name, run_at=after(-40))
    TaskFactory(queue="mail", name="planned", delayed=True)
    found = unhandled(DB, queue_figures(DB))
    assert [*found] == ["mail"]
    assert [*found["mail"]] == ["renamed"]
    assert 40 <= found["mail"]["renamed"] < 100


def test_names_are_read_only_where_something_waits() -> None:
    WorkerProcessFactory()
    TaskFactory(delayed=True)
    figures = queue_figures(DB)
    assert statements(lambda: unhandled(DB, figures)) == []


def test_the_lost_are_those_not_heard_of_the_latest_first() -> None:
    WorkerProcessFactory()
    WorkerProcessFactory(id="first", silent=True, seen_at=after(-300))
    WorkerProcessFactory(id="last", silent=True)
    assert [worker.pk for worker in lost_workers(DB)] == ["last", "first"]
