"""The worker that runs beside a test, and the fixtures that pytest finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.db import OperationalError, connection

import cairnq_django
from cairnq_django import Registry, Task, TaskContext, Worker, call, submit
from cairnq_django.signals import worker_error
from cairnq_django.testing import live_worker
from tests.app.models import Counter
from tests.app.tasks import increment_counter
from tests.workers import PATIENCE, runs_workers

ROOT = Path(cairnq_django.__file__).resolve().parent.parent

registry = Registry()


@registry.task(queue="counting")
def count(ctx: TaskContext, payload: str) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return Counter.objects.filter(name=payload).count()


class TestFixtures:
    @pytest.fixture
    def cairnq_worker_options(self) -> dict[str, Any]:
        return {"registry": registry, "concurrency": 1}

    def test_cairnq_worker_runs_beside_the_test(self, cairnq_worker: Worker) -> None:
        Counter.objects.create(name="committed")
        assert call(count, "committed", timeout=PATIENCE) == 1
        assert Task.objects.get().worker_id == cairnq_worker.id
        assert cairnq_worker.options.concurrency == 1
        assert set(cairnq_worker.options.queues) == {"default", "counting"}

    def test_cairnq_inline_runs_each_submit(self, cairnq_inline: None) -> None:
        Counter.objects.create(name="inline")
        assert submit(increment_counter, {"name": "inline"}).succeeded
        assert Counter.objects.get().value == 1


@runs_workers
def test_errors_that_the_worker_meets_fail_the_test() -> None:
    error = OSError("the disk is full")

    def meets(error: Exception) -> None:
        with live_worker(registry=registry) as worker:
            for each in (OperationalError("database is locked"), error):
                worker_error.send(Worker, worker=worker, phase="claim", error=each, task_id=None)

    message = "The worker met errors:\n  claim: OSError"
    with live_worker(registry=registry), pytest.raises(AssertionError, match=message) as caught:
        meets(error)
    assert caught.value.__cause__ is error


@pytest.mark.django_db
def test_it_is_refused_in_the_transaction_of_a_test() -> None:
    with pytest.raises(RuntimeError, match="Use TransactionTestCase, or pytest's transactional_db"):
        start_a_live_worker()


@runs_workers
@pytest.mark.skipif(connection.vendor != "sqlite", reason="others have no databases in memory")
def test_it_is_refused_on_a_database_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "is_in_memory_db", lambda: True)
    with pytest.raises(RuntimeError, match=r"which is in memory\. Give it a file"):
        start_a_live_worker()


def start_a_live_worker() -> None:
    with live_worker(registry=registry):
        pass


def test_the_plugin_leaves_projects_without_settings_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        dedent(
            """
            import sys

            def test_nothing_of_django_is_loaded():
                assert "cairnq_django.pytest_plugin" in sys.modules
                assert not [name for name in sys.modules if name.split(".")[0] == "django"]
                assert "cairnq_django.testing" not in sys.modules
            """
        )
    )
    out = run_pytest(tmp_path, "-p", "no:django")
    assert "1 passed" in out
    assert "cairnq_worker" in run_pytest(tmp_path, "--fixtures")


def run_pytest(folder: Path, *options: str) -> str:
    command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "cairnq_django.pytest_plugin", *options]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
