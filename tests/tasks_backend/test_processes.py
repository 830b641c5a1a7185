"""The backend across processes: a worker that knows the tasks from its own settings, and what importing it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import django
import pytest

from cairnq_django.tasks_backend.framework import TaskResultStatus
from tests.tasks_backend import tasks
from tests.tasks_backend.conftest import BACKEND, IMMEDIATE
from tests.workers import runs_workers

ROOT = Path(__file__).resolve().parent.parent.parent


@runs_workers
def test_a_worker_process_runs_what_others_enqueued(settings: Any, subprocess_env: dict[str, str]) -> None:
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}, "queue": {"BACKEND": BACKEND}}
    results = [task.using(backend="queue").enqueue(1, 2) for task in (tasks.add, tasks.add_async, tasks.divide)]
    results.append(tasks.tell_context.using(backend="queue").enqueue("more"))

    command = [sys.executable, "-m", "django", "runworker", "--burst"]
    env = {**subprocess_env, "DJANGO_SETTINGS_MODULE": "tests.tasks_backend.settings"}
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=60)

    for result in results:
        result.refresh()
        assert (result.status, result.backend) == (TaskResultStatus.SUCCESSFUL, "queue")
    told = {"attempt": 1, "status": "RUNNING", "args": ["more"], "workers": 1, "errors": [], "backend": "queue"}
    assert [result.return_value for result in results] == [3, 3, 0.5, told]


def test_tasks_can_be_declared_before_there_are_any_models() -> None:
    script = f"""
        import sys
        from django.conf import settings
        settings.configure(TASKS={{"default": {{"BACKEND": "{BACKEND}"}}}})

        from cairnq_django.tasks_backend import task_options
        from cairnq_django.tasks_backend.framework import task_backends

        @task_options(max_attempts=5)
        def work(): ...

        made = task_backends["default"].task_class(func=work, priority=0, queue_name="default", backend="default",
                                                   run_after=None, takes_context=False)
        from cairnq_django.registry import default_registry
        assert default_registry.get("__main__.work").max_attempts == 5
        assert "cairnq_django.models" not in sys.modules, "models are imported"

        import django
        django.setup()
        (error,) = task_backends["default"].check()
        assert error.id == "cairnq_django.E101", error
    """
    subprocess.run([sys.executable, "-c", dedent(script)], cwd=ROOT, check=True, timeout=60)


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has the framework")
def test_without_the_framework_the_way_out_is_told() -> None:
    script = """
        import sys
        sys.modules["django_tasks"] = None  # not installed
        try:
            import cairnq_django.tasks_backend
        except ModuleNotFoundError as error:
            assert "pip install django-tasks" in str(error), error
        else:
            raise AssertionError("it is imported")
    """
    subprocess.run([sys.executable, "-c", dedent(script)], cwd=ROOT, check=True, timeout=60)
