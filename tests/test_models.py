from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.utils.functional import Promise

from cairnq_django.clock import Now, after
from cairnq_django.errors import AlreadyExists, CairnQError
from cairnq_django.models import Task, TaskAttempt, TaskKey, WorkerProcess
from cairnq_django.statuses import TaskStatus
from tests.factories import TaskAttemptFactory, TaskFactory, WorkerProcessFactory

pytestmark = pytest.mark.django_db

RUNNING: dict[str, Any] = {"running": True}
BAD_TASKS: dict[str, dict[str, Any]] = {
    "unknown status": {"status": "paused"},
    "no status": {"status": ""},
    "running without a lease": {**RUNNING, "lease_until": None},
    "a lease while queued": {"lease_until": after(30)},
    "a lease after success": {"succeeded": True, "lease_until": after(30)},
    "a lease after cancellation": {"canceled": True, "lease_until": after(30)},
    "succeeded without an end": {"succeeded": True, "completed_at": None},
    "failed without an end": {"failed": True, "completed_at": None},
    "canceled without an end": {"canceled": True, "completed_at": None},
    "an end while queued": {"completed_at": Now()},
    "an end while running": {**RUNNING, "completed_at": Now()},
    "progress below zero": {**RUNNING, "progress": -0.01},
    "progress above one": {**RUNNING, "progress": 1.01},
    "a negative attempt": {"attempt": -1},
    "no attempts allowed": {"max_attempts": 0},
}


@pytest.mark.parametrize("fields", BAD_TASKS.values(), ids=BAD_TASKS.keys())
def test_the_database_refuses_a_task_that_cannot_be(fields: dict[str, Any]) -> None:
    with transaction.atomic(), pytest.raises(IntegrityError):
        TaskFactory(**fields)
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "paused"},
        {"status": TaskStatus.QUEUED},
        {"status": TaskStatus.SUCCEEDED, "completed_at": Now()},
        {"lease_until": None},
        {"completed_at": Now()},
        {"progress": 2},
        {"attempt": -1},
        {"max_attempts": 0},
    ],
)
def test_the_database_refuses_to_make_a_task_what_it_cannot_be(changes: dict[str, Any]) -> None:
    task = TaskFactory(running=True)
    with transaction.atomic(), pytest.raises(IntegrityError):
        Task.objects.update(**changes)
    assert task.refresh().is_running


@pytest.mark.parametrize("fields", [{"progress": 0}, {"progress": 1}, {"progress": 0.5}, {"attempt": 0}])
def test_the_database_takes_what_is_at_a_limit(fields: dict[str, Any]) -> None:
    TaskFactory(**fields)


@pytest.mark.parametrize("fields", [{"outcome": "succeeded"}, {"outcome": ""}, {"number": 0}, {"number": -1}])
def test_the_database_refuses_an_attempt_that_cannot_be(fields: dict[str, Any]) -> None:
    task = TaskFactory(running=True)
    with transaction.atomic(), pytest.raises(IntegrityError):
        TaskAttemptFactory(task=task, **fields)
    assert not TaskAttempt.objects.exists()


def test_a_task_has_one_key_at_the_most() -> None:
    task = TaskFactory(key="order:7")
    with transaction.atomic(), pytest.raises(IntegrityError):
        TaskKey.objects.create(key="order:8", task=task)


PREDICATES = {
    "queued": {"is_queued"},
    "delayed": {"is_queued"},
    "running": {"is_running"},
    "cancel_requested": {"is_running", "cancel_requested"},
    "succeeded": {"is_terminal", "succeeded"},
    "failed": {"is_terminal", "failed"},
    "canceled": {"is_terminal", "canceled"},
}


@pytest.mark.parametrize("state", PREDICATES)
def test_a_task_says_what_state_it_is_in(state: str) -> None:
    task = TaskFactory(**({state: True} if state != "queued" else {}))
    predicates = {"is_terminal", "is_queued", "is_running", "succeeded", "failed", "canceled", "cancel_requested"}
    assert {name for name in predicates if getattr(task, name)} == PREDICATES[state]


def test_a_task_has_its_name_and_id_as_text() -> None:
    task = TaskFactory(name="receipt", key="order:7")
    assert str(task) == f"receipt {task.pk}"
    assert str(task.current_key) == "order:7"
    assert str(TaskAttemptFactory(task=task, number=2)) == f"{task.pk} #2"
    assert str(WorkerProcessFactory(id="host-7")) == "host-7"


def test_a_task_cancels_itself_and_knows_it() -> None:
    task = TaskFactory()
    Task.objects.update(message="changed meanwhile")
    assert task.cancel() is task
    assert (task.status, task.message) == (TaskStatus.CANCELED, "changed meanwhile")
    assert Task.objects.get().canceled


def test_a_task_cancels_its_family() -> None:
    task = TaskFactory()
    child = TaskFactory(parent_id=task.pk, root_id=task.pk)
    assert task.cancel().canceled
    assert child.refresh().is_queued
    assert task.cancel(family=True) is task
    assert child.refresh().canceled


def test_a_running_task_asks_itself_to_stop() -> None:
    task = TaskFactory(running=True)
    assert task.cancel().cancel_requested
    assert task.is_running


def test_a_task_retries_itself_and_knows_it() -> None:
    task = TaskFactory(failed=True)
    assert task.retry() is task
    assert (task.status, task.error, task.max_attempts) == (TaskStatus.QUEUED, None, 4)
    assert Task.objects.get().is_queued


def test_a_task_that_cannot_be_retried_says_so_and_stays_as_it_was() -> None:
    task = TaskFactory(succeeded=True)
    with transaction.atomic(), pytest.raises(CairnQError, match="only a failed or a canceled task can be retried"):
        task.retry()
    old = TaskFactory(key="order:7", failed=True)
    TaskFactory(key="order:7")
    with transaction.atomic(), pytest.raises(AlreadyExists):
        old.retry()
    assert (task.status, old.status) == (TaskStatus.SUCCEEDED, TaskStatus.FAILED)


def test_refresh_reads_the_row_again() -> None:
    task = TaskFactory()
    Task.objects.update(message="changed", status=TaskStatus.CANCELED, completed_at=Now())
    assert task.refresh() is task
    assert (task.message, task.is_terminal) == ("changed", True)
    Task.objects.all().delete()
    with pytest.raises(Task.DoesNotExist):
        task.refresh()


def test_a_task_acts_in_async_code_too() -> None:
    task = TaskFactory()
    assert async_to_sync(task.acancel)() is task
    assert task.canceled
    assert async_to_sync(task.aretry)() is task
    assert task.is_queued
    child = TaskFactory(parent_id=task.pk, root_id=task.pk)
    assert async_to_sync(task.acancel)(family=True) is task
    assert child.refresh().canceled
    Task.objects.update(message="changed")
    assert async_to_sync(task.arefresh)() is task
    assert task.message == "changed"


def test_a_task_is_told_apart_by_the_row_not_by_what_is_known_of_it() -> None:
    task = TaskFactory()
    assert Task.objects.get() == task
    assert task.cancel() == Task.objects.get()


def test_attempts_come_in_order() -> None:
    task = TaskFactory(running=True, attempt=3)
    for number in (2, 3, 1):
        TaskAttemptFactory(task=task, number=number)
    assert list(task.attempts.values_list("number", flat=True)) == [1, 2, 3]


def test_an_attempt_ends_when_it_is_recorded() -> None:
    attempt = TaskAttemptFactory(started_at=after(-5))
    assert timedelta(seconds=5) <= attempt.ended_at - attempt.started_at < timedelta(seconds=60)


def test_what_belongs_to_a_task_goes_with_it() -> None:
    TaskFactory(failed=True, key="order:7").delete()
    assert not TaskAttempt.objects.exists()
    assert not TaskKey.objects.exists()


def test_people_may_view_and_mend_tasks_and_nothing_else() -> None:
    permissions = {
        codename
        for model in (Task, TaskKey, TaskAttempt, WorkerProcess)
        for codename in (
            *(f"{action}_{model._meta.model_name}" for action in model._meta.default_permissions),
            *(codename for codename, _ in model._meta.permissions),
        )
    }
    mending = {"cancel_task", "cancel_family_task", "retry_task", "reset_task", "run_now_task"}
    assert permissions == {"view_task", "view_workerprocess", *mending}


def test_the_migrations_are_complete() -> None:
    call_command("makemigrations", "cairnq_django", check=True, dry_run=True, verbosity=0)


def test_every_column_has_a_name_that_can_be_translated() -> None:
    for model in (Task, TaskKey, TaskAttempt, WorkerProcess):
        for field in model._meta.concrete_fields:
            assert field.auto_created or isinstance(field.verbose_name, Promise), field
