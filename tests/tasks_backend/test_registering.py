"""How the functions of tasks become handlers of a worker, and which options they run with."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import cairnq_django
from cairnq_django import TaskDef
from cairnq_django.registry import default_registry
from cairnq_django.tasks_backend import discovery, task_options
from cairnq_django.tasks_backend.framework import InvalidTask, Task, task_backends
from tests.tasks_backend import tasks
from tests.tasks_backend.conftest import BACKEND, IMMEDIATE
from tests.tasks_backend.tasks import task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cairnq_django.tasks_backend import CairnQBackend

PATH = f"{__name__}.work"


def work(value: int) -> int:
    return value


async def work_async(value: int) -> int:
    return value


def definition(path: str = PATH) -> TaskDef[Any, Any]:
    found = default_registry.get(path)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _no_options() -> Any:
    yield
    for function in (work, work_async):
        vars(function).clear()


def test_a_task_is_a_handler_under_its_module_path() -> None:
    task(work)
    task(work_async)

    assert definition() == TaskDef(PATH)
    assert not definition().is_async
    assert definition(f"{PATH}_async").is_async


def test_its_copies_are_the_same_handler() -> None:
    made = task(priority=5, queue_name="mail")(work)
    first = definition()
    made.using(priority=7, queue_name="other").using(backend="other", queue_name="default")
    task(work)

    assert definition() is first
    assert first == TaskDef(PATH, priority=5, queue="mail")


def test_a_function_that_is_not_of_a_module_is_refused() -> None:
    def local() -> None: ...

    for function in (local, any):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            task(function)
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(work)
    assert default_registry.get(f"{__name__}.local") is None


def test_a_name_that_a_native_handler_has_is_refused() -> None:
    @cairnq_django.task(PATH)
    def native(ctx: Any, payload: Any) -> None: ...

    with pytest.raises(InvalidTask, match=f"The task '{PATH}' cannot be run: a handler of cairnq_django.task has"):
        task(work)
    default_registry._tasks.pop(PATH)
    task(work)
    with pytest.raises(ValueError, match=f"Two handlers are named '{PATH}': {PATH} and"):
        cairnq_django.task(PATH)(native.handler)


def test_a_path_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "__qualname__", "w" * 200)
    with pytest.raises(InvalidTask, match="must have at most 200 characters"):
        task(work)


def test_of_two_functions_of_one_path_the_latter_runs_and_a_check_warns(backend: CairnQBackend) -> None:
    task(work)

    @task
    @functools.wraps(work)
    def other(value: int) -> int:
        return value + 1

    (warning,) = backend.check()
    assert (warning.id, warning.obj) == ("cairnq_django.W101", PATH)
    assert f"Two functions are tasks under the path '{PATH}'" in warning.msg
    handler: Any = definition().handler
    assert handler.task is other
    assert not task_backends["other"].check()


def test_a_module_that_is_loaded_again_takes_the_place_of_its_former_self(
    backend: CairnQBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reloaded_tasks.py").write_text(
        "from tests.tasks_backend.tasks import task\n@task\ndef work():\n    return 1\n"
    )
    module = importlib.import_module("reloaded_tasks")
    first = module.work
    importlib.reload(module)

    handler: Any = definition("reloaded_tasks.work").handler
    assert handler.task is module.work is not first
    assert not backend.check()


def test_options_of_the_backend_hold_for_its_tasks(settings: Any) -> None:
    settings.TASKS = {
        "default": {
            "BACKEND": BACKEND,
            "OPTIONS": {
                "max_attempts": 7,
                "retry_backoff": timedelta(minutes=1),
                "retry_backoff_max": 90,
                "max_run": 5,
            },
        }
    }
    task(work)
    assert definition() == TaskDef(PATH, max_attempts=7, retry_backoff=60, retry_backoff_max=90, max_run=5)


def below(function: Callable[..., Any], **options: Any) -> Any:
    return task(task_options(**options)(function))


def above(function: Callable[..., Any], **options: Any) -> Any:
    return task_options(**options)(task(function))


@pytest.mark.parametrize("stacked", [below, above])
def test_a_task_may_have_options_of_its_own(settings: Any, stacked: Callable[..., Any]) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 7, "max_run": 5}}}
    made = stacked(work, max_attempts=2, retry_backoff=10, concurrency=1, resource="gpu", atomic=True)

    assert isinstance(made, Task)
    assert definition() == TaskDef(
        PATH, max_attempts=2, max_run=5, retry_backoff=10, concurrency=1, resource="gpu", atomic=True
    )


@pytest.mark.django_db
def test_attempts_are_those_of_the_backend_that_it_is_enqueued_with(settings: Any) -> None:
    settings.CAIRNQ = {"MAX_ATTEMPTS": 4}
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 7}},
        "other": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 1}},
        "plain": {"BACKEND": BACKEND},
    }
    made = task(work)

    def attempts(alias: str) -> int:
        return cairnq_django.get(made.using(backend=alias).enqueue(1).id).max_attempts

    assert [attempts(alias) for alias in settings.TASKS] == [7, 1, 4]
    task_options(max_attempts=2)(made)
    assert [attempts(alias) for alias in settings.TASKS] == [2, 2, 2]


def test_other_backends_take_no_notice_of_options(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}}
    made = above(work, max_attempts=2)
    assert made.enqueue(3).return_value == 3
    assert PATH not in default_registry


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be at least 1, got 0"),
        ({"retry_backoff": "10"}, TypeError, "retry_backoff must be a number of seconds, a timedelta or None"),
        ({"max_run": 0}, ValueError, "max_run must be at least 0.001 seconds"),
        ({"retries": 3}, TypeError, "unexpected keyword argument 'retries'"),
    ],
)
def test_options_that_are_wrong_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        task_options(**options)


def test_options_are_for_functions() -> None:
    decorator: Any = task_options(max_attempts=1)
    with pytest.raises(TypeError, match="@task_options is for a function or for what @task made of it, got 5"):
        decorator(5)
    with pytest.raises(ValueError, match="cannot be atomic: its handler is async"):
        above(work_async, atomic=True)


def test_tasks_that_are_declared_for_another_backend_are_found(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}, "queue": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 2}}}
    made = task(work)
    assert PATH not in default_registry

    monkeypatch.setitem(sys.modules, "tests.app.tasks", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], "found", made, raising=False)
    discovery.register_tasks()
    assert definition() == TaskDef(PATH, max_attempts=2)

    settings.TASKS = {"default": {"BACKEND": IMMEDIATE}, "missing": {"BACKEND": "does.not.exist"}}
    default_registry._tasks = {}
    discovery.register_tasks()
    assert PATH not in default_registry


def test_a_backend_that_is_used_as_it_should_be_has_nothing_to_report(backend: CairnQBackend) -> None:
    tasks.add.using()
    assert not backend.check()


@pytest.mark.parametrize(
    ("params", "id", "message"),
    [
        (
            {"OPTIONS": {"max_atempts": 3}},
            "E102",
            r"TASKS\['default'\]\['OPTIONS'\] has an unknown option, 'max_atempts'. Did "
            "you mean 'max_attempts'?",
        ),
        (
            {"OPTIONS": {"id_function": "x"}},
            "E102",
            "an unknown option, 'id_function'. Its options are max_attempts, retry_backoff, retry_backoff_max, max_run",
        ),
        ({"OPTIONS": {"max_run": -1}}, "E102", r"TASKS\['default'\]\['OPTIONS'\]: max_run must be at least 0.001"),
        ({"OPTIONS": ["max_run"]}, "E102", r"TASKS\['default'\]\['OPTIONS'\] must be a dict, got list"),
        (
            {"QUEUES": "mail"},
            "E103",
            r"TASKS\['default'\]\['QUEUES'\] must be a list of queue names, got a string; write "
            r"\['mail'\]",
        ),
        ({"QUEUES": ["default", "q" * 101]}, "E103", "must have at most 100 characters"),
        ({"QUEUES": [5]}, "E103", "must be a string, got int"),
    ],
)
def test_mistakes_in_the_settings_are_found(settings: Any, params: dict[str, Any], id: str, message: str) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, **params}}
    (found,) = task_backends["default"].check()
    assert found.id == f"cairnq_django.{id}"
    assert re.search(message, found.msg)


def test_an_app_that_is_not_installed_is_found(settings: Any, backend: CairnQBackend) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "cairnq_django"]
    (found,) = backend.check()
    assert (found.id, found.hint) == ("cairnq_django.E101", "Add 'cairnq_django' to INSTALLED_APPS and run migrate.")
