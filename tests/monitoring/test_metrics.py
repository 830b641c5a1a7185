"""Metrics: what Prometheus reads, by the official client's own parser, at a bounded price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from cairnq_django.clock import after
from cairnq_django.monitoring import metrics as module
from tests.factories import TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from django.test import Client

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.monitoring.urls")]

HOSTILE = 'ma"il\\ \n{le="1"} <b>'


def figures(machine: Client, **headers: str) -> dict[tuple[str, ...], float]:
    """Each figure by its name and its labels' values."""
    answer = machine.get("/queue/metrics/", headers=headers)
    assert answer.status_code == 200
    families: Any = parser if answer["Content-Type"].startswith("text/plain") else openmetrics
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_each_queue_s_live_tasks_are_counted(machine: Client) -> None:
    for state in ({}, {"run_at": after(-90)}, {"delayed": True}, {"running": True}, {"succeeded": True}):
        TaskFactory(queue="mail", **state)
    TaskFactory(queue="bulk", running=True)
    TaskFactory(queue="over", failed=True)

    found = figures(machine)

    assert found["cairnq_tasks", "mail", "queued"] == 3
    assert found["cairnq_tasks", "mail", "running"] == 1
    assert found["cairnq_due_tasks", "mail"] == 2
    assert 90 <= found["cairnq_oldest_wait_seconds", "mail"] < 150
    assert found["cairnq_tasks", "bulk", "running"] == 1
    assert found["cairnq_oldest_wait_seconds", "bulk"] == 0
    assert found["cairnq_queue_paused", "mail"] == 0
    assert not [name for name in found if "over" in name]


def test_workers_are_counted_with_what_they_are_at(machine: Client) -> None:
    WorkerProcessFactory(id="a", concurrency=8, busy=3, bytes_in_flight=1_000, abandoned=1)
    WorkerProcessFactory(id="b", concurrency=2, busy=2, draining=True)
    WorkerProcessFactory(id="c", concurrency=100, busy=100, silent=True)

    found = {name: value for (name, *_), value in figures(machine).items()}

    assert found == {
        "cairnq_workers": 2,
        "cairnq_draining_workers": 1,
        "cairnq_concurrency": 10,
        "cairnq_busy_calls": 5,
        "cairnq_abandoned_calls": 1,
        "cairnq_in_flight_bytes": 1_000,
    }


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"])
def test_a_queue_may_have_any_name(machine: Client, accept: str) -> None:
    TaskFactory(queue=HOSTILE)
    assert figures(machine, Accept=accept)["cairnq_tasks", HOSTILE, "queued"] == 1


@pytest.mark.parametrize("accept", ["text/plain;version=abc", "application/openmetrics-text;version=x", ";;,=", "*/*"])
def test_whatever_a_client_accepts_there_is_an_answer(machine: Client, accept: str) -> None:
    TaskFactory(queue="mail")
    assert figures(machine, Accept=accept)["cairnq_tasks", "mail", "queued"] == 1


def test_no_statement_counts_what_has_ended(machine: Client) -> None:
    for _ in range(20):
        TaskFactory(succeeded=True)
    with CaptureQueriesContext(connection) as captured:
        figures(machine)
    before = len(captured)
    for number in range(20):
        TaskFactory(succeeded=True, queue=f"q{number}")
    with CaptureQueriesContext(connection) as captured:
        figures(machine)
    assert len(captured) == before < 10


def test_without_the_client_it_says_what_to_install(machine: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", False)
    answer = machine.get("/queue/metrics/")
    assert answer.status_code == 501
    assert "pip install 'cairnq-django[metrics]'" in answer.content.decode()
    assert machine.get("/queue/health/").status_code == 503
