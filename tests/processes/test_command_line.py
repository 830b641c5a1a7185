"""What a person sees of `manage.py runworker`: what it says, what it refuses, how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.db import connection

import cairnq_django
from cairnq_django import submit
from tests.app.tasks import write_line, write_line_and_block, write_line_async
from tests.processes.running import ROOT, lines, settings_module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import StartWorker


def test_a_burst_runs_what_is_due_and_ends(start_worker: StartWorker, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "lines")}
    tasks = [submit(write_line, payload), submit(write_line_async, payload)]
    later = submit(write_line, payload, delay=600)

    assert start_worker("--burst").wait() == 0

    assert sorted(lines(tmp_path / "lines")) == sorted(str(task.pk) for task in tasks)
    assert all(task.refresh().succeeded for task in tasks)
    assert later.refresh().is_queued


def test_a_burst_called_from_code_runs_in_processes_of_the_same_project(
    transactional_db: None, subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    tasks = [submit(write_line, {"file": str(tmp_path / "lines")}, queue="mail") for _ in range(2)]
    (tmp_path / "settings_with_pool.py").write_text(
        "from tests.settings import *\n"
        "if 'postgresql' in DATABASES['default']['ENGINE']:\n"
        "    DATABASES['default'].setdefault('OPTIONS', {})['pool'] = {'min_size': 1, 'max_size': 20}\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import django, threading\ndjango.setup()\n"
        "from django.core.management import call_command\n"
        "call_command('runworker', processes=2, burst=True, queues=['mail'], resources={'gpu': 1})\n"
        "print('Threads:', [thread.name for thread in threading.enumerate() if thread.name.startswith('pool')])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**subprocess_env, "DJANGO_SETTINGS_MODULE": "settings_with_pool", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.count("Stop with Ctrl-C")) == (0, 1), done.stderr
    assert all(task.refresh().succeeded for task in tasks)
    # A pool of the supervisor's would keep connections.
    assert done.stdout.splitlines()[-1] == "Threads: []"


def test_the_banner_comes_at_once_into_a_pipe_too(start_worker: StartWorker) -> None:
    worker = start_worker("--poll-interval=60", PYTHONUNBUFFERED="")
    worker.until_it_says("Stop with Ctrl-C")
    assert f"cairnq-django {cairnq_django.__version__} on Django" in worker.output
    assert f"process {worker.pid}" in worker.output


def test_a_worker_whose_handlers_hang_asks_to_be_replaced(start_worker: StartWorker, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "lines"), "until": str(tmp_path / "never")}
    task = submit(write_line_and_block, payload, max_attempts=1)
    worker = start_worker("--concurrency=1", "--max-run=0.2")
    assert worker.wait() == 1
    assert "this worker is to be replaced" in worker.output
    assert task.refresh().error["code"] == "handler_timeout"


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--concurrency=0", "CommandError: concurrency must be at least 1, got 0"),
        ("--speed=9", "error: unrecognized arguments: --speed=9"),
    ],
)
def test_a_wrong_option_is_refused_in_one_readable_line(
    start_worker: StartWorker, argument: str, complaint: str
) -> None:
    worker = start_worker(argument)
    assert worker.wait() != 0
    assert complaint in worker.output
    assert "Traceback" not in worker.output


def test_without_handlers_it_refuses_and_says_where_it_looked(start_worker: StartWorker, tmp_path: Path) -> None:
    apps = [app for app in settings.INSTALLED_APPS if app != "tests.app"]
    worker = start_worker(**settings_module(tmp_path, "settings_without_handlers", INSTALLED_APPS=apps))
    assert worker.wait() == 1
    assert "CommandError: There is nothing to run: no handler is registered." in worker.output
    assert "Looked in: django.contrib.admin.tasks, " in worker.output
    assert "Traceback" not in worker.output


def test_on_a_database_without_tables_it_says_to_migrate(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(DATABASE_URL=f"sqlite:///{tmp_path}/empty.sqlite3")
    assert worker.wait() == 1
    assert re.search(r"CommandError: Database 'default' has no table .*manage\.py migrate", worker.output)
    assert "Traceback" not in worker.output


def test_a_mistake_in_the_settings_is_shown_before_it_starts(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(**settings_module(tmp_path, "settings_with_a_mistake", CAIRNQ={"LEASE": "long"}))
    assert worker.wait() == 1
    assert "cairnq_django.E001" in worker.output
    assert "CAIRNQ['LEASE']" in worker.output


def test_another_database_that_is_away_does_not_keep_it_from_starting(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    present = {key: value for key, value in connection.settings_dict.items() if key != "TEST"}
    where = {"NAME": "/nowhere/at/all"} if connection.vendor == "sqlite" else {"HOST": "127.0.0.1", "PORT": "1"}
    databases = {"default": present, "reporting": {**present, **where}}
    worker = start_worker("--burst", **settings_module(tmp_path, "settings_with_two_databases", DATABASES=databases))
    assert worker.wait() == 0
