"""`cairnq_stats` shows queues and workers to people, and to machines as JSON."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from cairnq_django import Task, pause_queue
from cairnq_django.clock import after
from cairnq_django.models import WorkerProcess
from tests.factories import TaskFactory, WorkerProcessFactory
from tests.workers import database_away

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db(databases=["default", "dedicated"])


def stats(*arguments: str) -> str:
    out = StringIO()
    call_command("cairnq_stats", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def _some_work(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {"QUEUES": ["default"]}
    TaskFactory(queue="mail", run_at=after(-7_300))
    TaskFactory(queue="mail", run_at=after(-10))
    TaskFactory(queue="mail", delayed=True)
    TaskFactory(queue="mail", running=True)
    pause_queue("mail", by="ada")
    WorkerProcessFactory(id="host-7", queues=["default", "mail"], concurrency=8, busy=3, abandoned=1, draining=True)


@pytest.mark.usefixtures("_some_work")
def test_the_table_is_aligned() -> None:
    assert stats().splitlines() == [
        "queue    queued  due  delayed  running  oldest wait  paused",
        "default       0    0        0        0",
        "mail          3    2        1        1          2 h  by ada",
        "",
        "worker  queues         busy  state",
        "host-7  default, mail   3/8  draining, 1 given up",
    ]


@pytest.mark.usefixtures("_some_work")
def test_json_says_the_same() -> None:
    said = json.loads(stats("--json"))
    assert said["database"] == "default"
    empty, mail = said["queues"]
    assert empty["queue"] == "default"
    assert 7_300 <= mail.pop("oldest_wait") < 7_400
    assert mail.pop("paused")["by"] == "ada"
    assert mail == {
        "queue": "mail",
        "queued": 3,
        "more_queued": False,
        "due": 2,
        "delayed": 1,
        "running": 1,
        "more_running": False,
    }
    (worker,) = said["workers"]
    assert (worker["id"], worker["busy"], worker["abandoned"], worker["draining"]) == ("host-7", 3, 1, True)


def test_without_workers_it_says_so() -> None:
    assert stats().endswith("\nNo worker was heard of lately.\n")


def test_names_cannot_break_the_table() -> None:
    TaskFactory(queue="a\nb\x1b[31m")
    assert r"a\nb\x1b[31m  " in stats()


def test_a_database_may_be_named() -> None:
    TaskFactory(queue="mail")
    assert "mail" in stats("--database=default")
    assert "mail" not in stats("--database=dedicated")
    assert json.loads(stats("--json", "--database=dedicated"))["database"] == "dedicated"


def test_settings_that_are_wrong_are_told_in_a_line(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {"CONCURENCY": 8}
    with pytest.raises(CommandError, match=r"^CAIRNQ has an unknown key, 'CONCURENCY'\. Did you mean 'CONCURRENCY'\?$"):
        stats()


@pytest.mark.parametrize(
    ("database", "remedy"), [("default", "migrate$"), ("dedicated", "migrate cairnq_django --dat")]
)
def test_a_database_without_tables_is_told_how_to_get_them(
    database: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task._meta, "db_table", "tasks_of_nobody")
    with pytest.raises(CommandError, match=rf"^Database '{database}' has no table 'tasks_of_nobody'.*{remedy}"):
        stats(f"--database={database}")


def test_tables_of_another_version_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerProcess._meta, "db_table", "workers_of_a_later_version")
    with pytest.raises(CommandError, match=r"^Database 'default': .*workers_of_a_later_version") as raised:
        stats()
    assert "\n" not in str(raised.value)


@pytest.mark.django_db(transaction=True, available_apps=["cairnq_django", "tests.app"])
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server to lose")
def test_a_database_that_is_away_is_told_in_a_line() -> None:
    with database_away():
        connection.close()
        with pytest.raises(CommandError, match=r"^Database 'default': ") as raised:
            stats()
    assert "\n" not in str(raised.value)
