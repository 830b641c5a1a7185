"""What every test may ask for: the database under test, its URL for other processes, and a check for stray threads."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from asgiref.sync import SyncToAsync
from django.conf import settings
from django.db import connection, connections

from cairnq_django.notify.listener import listener_of_this_process
from tests.databases import database_url as url_of
from tests.databases import server_version

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where the package is on the path and not installed, nothing else names it.
pytest_plugins = ["cairnq_django.pytest_plugin"]


def pytest_report_header() -> str:
    return f"database: {server_version(url_of(settings.DATABASES['default']))}"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Give each database a name that a second process can open: a file on SQLite, the second named after the first."""
    default, dedicated = settings.DATABASES["default"], settings.DATABASES["dedicated"]
    if default["ENGINE"].endswith("sqlite3"):
        default["TEST"]["NAME"] = str(tmp_path_factory.mktemp("database") / "default.sqlite3")
    name = default["TEST"].get("NAME") or f"test_{default['NAME']}"
    dedicated["TEST"]["NAME"] = f"{name}_dedicated"


@pytest.fixture
def database_url(django_db_setup: None) -> str:
    """The URL of the database under test; another process with `tests.settings` opens it as `DATABASE_URL`."""
    return url_of(connection.settings_dict)


@pytest.fixture
def subprocess_env(database_url: str) -> dict[str, str]:
    """The environment for a process that shares the database under test."""
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    """Fail a test that leaves a thread running: nothing the package starts outlives what started it."""
    before = set(threading.enumerate())
    yield
    end_unused_threads()
    deadline = time.monotonic() + 5
    while (strays := _strays(before)) and time.monotonic() < deadline:
        strays[0].join(0.05)
    if strays:
        pytest.fail(f"threads still running after the test: {', '.join(thread.name for thread in strays)}")


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """What handlers wait for; set in the end, so that none is left behind by a test that fails."""
    event = threading.Event()
    yield event
    event.set()


def end_unused_threads() -> None:
    """End at once what would end by itself a little later, and close what threads that stay hold open."""
    for thread in threading.enumerate():
        if thread.name.startswith("cairnq-listener-"):
            listener_of_this_process(thread.name.removeprefix("cairnq-listener-")).close_if_unused()
    # asgiref keeps the thread of asynchronous ORM calls, and Django its connections, for as long as the process lives.
    executor = SyncToAsync.single_thread_executor
    if executor._threads:
        executor.submit(connections.close_all).result()


def _strays(before: set[threading.Thread]) -> list[threading.Thread]:
    expected = before | SyncToAsync.single_thread_executor._threads
    return [
        thread
        for thread in threading.enumerate()
        if thread not in expected and (not thread.daemon or thread.name.startswith("cairnq"))
    ]
