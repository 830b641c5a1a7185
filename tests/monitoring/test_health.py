"""Health: the database answers, a worker was heard of lately, nothing that is due has waited for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from cairnq_django.clock import after
from cairnq_django.models import WorkerProcess
from tests.factories import TaskFactory, WorkerProcessFactory
from tests.workers import database_away, table_away

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django.fixtures import SettingsWrapper

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.monitoring.urls")]


def health(machine: Client) -> tuple[int, dict[str, Any]]:
    """The status, and what each check found."""
    answer = machine.get("/queue/health/")
    body = answer.json()
    assert body["ok"] == (answer.status_code == 200) == all(found["ok"] for found in body["checks"].values())
    return answer.status_code, body["checks"]


def test_all_is_well(machine: Client) -> None:
    WorkerProcessFactory()
    TaskFactory(run_at=after(-20), queue="mail")
    TaskFactory(run_at=after(-10))
    status, checks = health(machine)
    assert status == 200
    assert checks["database"] == {"ok": True}
    assert checks["workers"] == {"ok": True, "live": 1}
    assert 20 <= checks["waiting"].pop("longest_wait") < 60
    assert checks["waiting"] == {"ok": True, "queue": "mail", "limit": 300}


def test_an_idle_queue_is_well(machine: Client) -> None:
    WorkerProcessFactory()
    TaskFactory(delayed=True)
    status, checks = health(machine)
    assert (status, checks["waiting"]) == (200, {"ok": True, "longest_wait": None, "queue": None, "limit": 300})


def test_without_a_worker_it_is_not_well(machine: Client) -> None:
    WorkerProcessFactory(silent=True)
    status, checks = health(machine)
    assert status == 503
    assert checks["workers"] == {"ok": False, "live": 0, "reason": "No worker was heard of lately"}
    assert checks["waiting"]["ok"]


@pytest.mark.parametrize(("limit", "is_well"), [(None, True), (600, True), (300, False), (0, False)])
def test_what_waits_for_too_long_is_not_well(
    machine: Client, settings: SettingsWrapper, limit: float | None, is_well: bool
) -> None:
    settings.CAIRNQ = {**settings.CAIRNQ, "HEALTH_MAX_WAIT": limit}
    WorkerProcessFactory()
    TaskFactory(run_at=after(-500), queue="<mail>")
    status, checks = health(machine)
    assert status == (200 if is_well else 503)
    waiting = checks["waiting"]
    assert (waiting["queue"], waiting["limit"]) == ("<mail>", limit)
    assert waiting.get("reason", "").startswith("" if is_well else "In queue '<mail>' a task has been due for 5")


def test_names_that_no_worker_runs_are_told_once_they_have_waited_for_too_long(machine: Client) -> None:
    WorkerProcessFactory(names=["work"], queues=["default"])
    TaskFactory(name="renamed", run_at=after(-400))
    TaskFactory(name="work", run_at=after(-310))
    TaskFactory(name="new", run_at=after(-30))
    TaskFactory(name="elsewhere", queue="unserved", run_at=after(-500))
    status, checks = health(machine)
    assert status == 503
    assert checks["waiting"]["names_without_worker"] == ["renamed"]
    assert checks["waiting"]["reason"].endswith("longer than 300 s; no live worker runs tasks named 'renamed'")


@pytest.mark.django_db(transaction=True, available_apps=["cairnq_django", "tests.app"])
def test_a_check_that_cannot_be_made_says_why(machine: Client) -> None:
    with table_away(WorkerProcess):
        status, checks = health(machine)
    assert status == 503
    assert checks["database"]["ok"]
    assert checks["waiting"]["ok"]
    assert "Error" in checks["workers"]["reason"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server to lose")
def test_a_database_that_is_away_is_told_of_and_asked_once(machine: Client, admin_client: Client) -> None:
    with database_away():
        connection.close()
        status, checks = health(machine)
        of_staff = admin_client.get("/queue/health/")
        metrics = machine.get("/queue/metrics/")
    assert status == 503
    assert list(checks) == ["database"]
    assert checks["database"]["reason"]
    assert of_staff.status_code == 403, "who it is cannot be found out"
    assert (metrics.status_code, metrics.content) == (503, b"The database does not answer.\n")
