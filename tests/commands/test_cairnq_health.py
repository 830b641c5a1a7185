"""`cairnq_health` says in one line, and by its exit status, whether the queue is well."""

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections

from cairnq_django.clock import after
from tests.factories import TaskFactory, WorkerProcessFactory
from tests.workers import database_away

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django.fixtures import SettingsWrapper

# Another thread asks, and sees what is committed.
pytestmark = pytest.mark.django_db(
    transaction=True, databases=["default", "dedicated"], available_apps=["cairnq_django", "tests.app"]
)


def health(*arguments: str) -> str:
    out = StringIO()
    call_command("cairnq_health", *arguments, stdout=out)
    return out.getvalue()


def unhealthy(*arguments: str) -> str:
    with pytest.raises(CommandError) as raised:
        health(*arguments)
    assert raised.value.returncode == 1
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_well_is_said_in_a_line() -> None:
    WorkerProcessFactory()
    assert health() == "Well: 1 worker, nothing waits.\n"
    WorkerProcessFactory(id="worker-2")
    TaskFactory(queue="mail", run_at=after(-100))
    assert health() in {f"Well: 2 workers, the longest wait is {n} s, in queue 'mail'.\n" for n in range(100, 120)}
    assert health("-v0") == ""


def test_what_is_not_well_is_said_in_a_line() -> None:
    TaskFactory(queue="mail", run_at=after(-500))
    said = unhealthy("-v0")
    assert said.startswith("Not well: No worker was heard of lately; In queue 'mail' a task has been due for 5")


def test_it_says_the_same_as_the_page_as_json(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {"HEALTH_MAX_WAIT": 5}
    WorkerProcessFactory()
    said = json.loads(health("--json"))
    assert said == {
        "ok": True,
        "checks": {
            "database": {"ok": True},
            "workers": {"ok": True, "live": 1},
            "waiting": {"ok": True, "longest_wait": None, "queue": None, "limit": 5},
        },
    }


def test_json_of_what_is_not_well_comes_with_an_exit_status() -> None:
    out = StringIO()
    with pytest.raises(SystemExit) as raised:
        call_command("cairnq_health", "--json", stdout=out)
    assert raised.value.code == 1
    assert not json.loads(out.getvalue())["ok"]


def test_a_database_may_be_named() -> None:
    WorkerProcessFactory()
    assert health("--database=default").startswith("Well")
    assert unhealthy("--database=dedicated") == "Not well: No worker was heard of lately"
    with pytest.raises(CommandError, match="argument --database: invalid choice: 'queue'"):
        health("--database=queue")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server to lose")
def test_a_database_that_is_away_is_told_in_a_line() -> None:
    with database_away():
        said = unhealthy()
    assert said.startswith("Not well: OperationalError: ")


@contextmanager
def mute_server() -> Iterator[int]:
    """The port of a server that takes connections and says nothing until it ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server to wait for")
def test_a_database_that_does_not_answer_is_not_waited_for() -> None:
    original: Any = connections.settings["dedicated"]
    with mute_server() as port:
        connections.settings["dedicated"] = {**original, "HOST": "127.0.0.1", "PORT": str(port)}
        try:
            began = time.monotonic()
            said = unhealthy("--database=dedicated", "--timeout=0.3")
        finally:
            connections.settings["dedicated"] = original
    assert said == "Not well: The database did not answer within 0.3 s"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("timeout", ["0", "soon", "nan", "-1"])
def test_a_timeout_that_cannot_be_one_is_refused(timeout: str) -> None:
    with pytest.raises(CommandError, match=f"argument --timeout: .*{timeout}"):
        health(f"--timeout={timeout}")
