"""The names that users import, and when they can."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import cairnq_django
from tests.public_api import modules, pinned, surface

TWINS = {
    "submit": "asubmit",
    "submit_many": "asubmit_many",
    "submit_on_commit": "asubmit_on_commit",
    "get": "aget",
    "get_by_key": "aget_by_key",
    "wait": "await_",
    "wait_by_key": "await_by_key",
    "call": "acall",
    "cancel": "acancel",
    "cancel_by_key": "acancel_by_key",
    "retry": "aretry",
    "retry_by_key": "aretry_by_key",
    "run_now": "arun_now",
    "run_now_by_key": "arun_now_by_key",
    "stats": "astats",
    "queue_depth": "aqueue_depth",
    "purge": "apurge",
    "pause_queue": "apause_queue",
    "resume_queue": "aresume_queue",
    "paused_queues": "apaused_queues",
}
PUBLIC = [
    *TWINS,
    *TWINS.values(),
    *("Task", "PausedQueue", "TaskStatus", "task", "TaskDef", "Registry", "TaskContext", "AsyncTaskContext", "Worker"),
    *("current_task", "current_tasks"),
    *("CairnQError", "TaskError", "Snooze", "TaskFailed", "TaskCanceled", "TaskTimeout"),
    *("AlreadyExists", "QueueFull", "LostLease", "SerializationError"),
]


def run_in_a_new_process(source: str, *, cwd: Path | None = None) -> str:
    """Run Python without any Django settings; return what it printed."""
    root = Path(cairnq_django.__file__).resolve().parent.parent
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{dedent(source)}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_these_names_are_public() -> None:
    assert sorted(cairnq_django.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("module", modules())
def test_what_users_rely_on_changes_on_purpose_only(module: str) -> None:
    try:
        found = surface(module)
    except ImportError as error:
        pytest.skip(f"{module} needs what is not installed: {error}")
    assert found == pinned().get(module), "if that is meant, run `python -m tests.public_api`"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_what_its_module_calls_by_that_name(name: str) -> None:
    value = getattr(cairnq_django, name)
    assert getattr(value, "__name__", name) == name
    assert value.__module__.startswith("cairnq_django.") or name == "task"


@pytest.mark.parametrize(("name", "twin"), TWINS.items())
def test_a_function_has_an_async_twin_that_takes_the_same(name: str, twin: str) -> None:
    function, of_async = getattr(cairnq_django, name), getattr(cairnq_django, twin)
    assert inspect.iscoroutinefunction(of_async)
    assert of_async.__name__ == of_async.__qualname__ == twin
    assert of_async.__doc__.startswith(f"As `{name}()`, for async callers")
    assert inspect.signature(of_async).parameters == inspect.signature(function).parameters
    assert pickle.loads(pickle.dumps(of_async)) is of_async


def test_the_names_are_listed() -> None:
    assert set(PUBLIC) <= set(dir(cairnq_django))
    assert {"__version__", "__doc__", "__all__"} <= set(dir(cairnq_django))


def test_an_unknown_name_is_missed_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match=r"^module 'cairnq_django' has no attribute 'sumbit'$"):
        cairnq_django.sumbit  # type: ignore[attr-defined] # noqa: B018
    assert not hasattr(cairnq_django, "_private")


def test_tasks_can_be_defined_without_settings() -> None:
    source = """
        from cairnq_django import CairnQError, Registry, SerializationError, TaskDef, TaskError, TaskStatus, task
        import cairnq_django

        @task(queue="mail", max_attempts=5)
        def send_receipt(ctx, payload):
            return payload

        @task(TaskDef("shop.ship"))
        async def ship(ctx, payload): ...

        assert send_receipt(None, 7) == 7 and ship.is_async
        assert "submit" in dir(cairnq_django)
        from django.conf import settings
        assert not settings.configured
        assert "cairnq_django.models" not in sys.modules
        print(send_receipt)
    """
    assert run_in_a_new_process(source).startswith("TaskDef(name='send_receipt', queue='mail', max_attempts=5")


def test_the_module_of_a_model_may_import_everything(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text("from cairnq_django import *\nfrom cairnq_django import submit, Task")
    (tmp_path / "shop" / "tasks.py").write_text(
        "from cairnq_django import task, wait\n@task\ndef work(ctx, payload): ..."
    )
    for apps in (["shop", "cairnq_django"], ["cairnq_django", "shop"]):
        source = f"""
            import django
            from django.conf import settings
            settings.configure(INSTALLED_APPS={apps}, USE_TZ=True)
            django.setup()
            from cairnq_django.registry import default_registry
            print(*default_registry.names)
        """
        assert run_in_a_new_process(source, cwd=tmp_path) == "work\n"


def test_a_project_without_the_admin_has_templates() -> None:
    source = """
        import django
        from django.conf import settings
        templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
        settings.configure(INSTALLED_APPS=["cairnq_django"], USE_TZ=True, TEMPLATES=templates)
        django.setup()
        from django.template import engines
        print(engines["django"].from_string("{% load cairnq_overview %}shown").render())
    """
    assert run_in_a_new_process(source) == "shown\n"


def test_what_is_not_installed_says_so() -> None:
    source = """
        import django
        from django.conf import settings
        settings.configure()
        django.setup()
        try:
            from cairnq_django import submit
        except RuntimeError as error:
            print(error)
    """
    assert "isn't in an application in INSTALLED_APPS" in run_in_a_new_process(source)
