"""What a caller sees of a task that it enqueues: its result, before any worker had to do with it."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from cairnq_django import QueueFull, SerializationError, Task, get, submit
from cairnq_django.tasks_backend.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from cairnq_django.testing import immediate
from tests.factories import TaskFactory
from tests.hearing import receiving
from tests.tasks_backend import tasks
from tests.tasks_backend.conftest import BACKEND, awaited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cairnq_django.tasks_backend import CairnQBackend

pytestmark = pytest.mark.django_db

Sent = list[tuple[Any, Any]]


@pytest.fixture
def sent() -> Iterator[Sent]:
    """Senders and results of `task_enqueued`."""
    received: Sent = []

    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        received.append((sender, task_result))

    task_enqueued.connect(receive)
    yield received
    task_enqueued.disconnect(receive)


def test_every_promise_of_a_backend_is_kept(backend: CairnQBackend) -> None:
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
@pytest.mark.parametrize("way", ["enqueue", "aenqueue"])
def test_an_enqueued_task_is_ready(task: Any, way: str, sent: Sent, backend: CairnQBackend) -> None:
    result = task.enqueue(1, b=2) if way == "enqueue" else awaited(task.aenqueue, 1, b=2)

    assert UUID(result.id)
    assert result.status == TaskResultStatus.READY
    assert result.task == task
    assert (result.args, result.kwargs, result.backend) == ([1], {"b": 2}, "default")
    assert result.enqueued_at is not None
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.attempts, result.worker_ids, result.errors) == (0, [], [])
    assert not result.is_finished
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    assert sent == [(type(backend), result)]


def test_it_is_one_statement(django_assert_num_queries: Any) -> None:
    tasks.add.enqueue(1)
    with django_assert_num_queries(1):
        result = tasks.add.enqueue(1)
    with django_assert_num_queries(1):
        result.refresh()


def test_the_row_says_what_was_enqueued() -> None:
    due = timezone.now() + timedelta(hours=2)
    result = tasks.echo.using(priority=-100, queue_name="mail", run_after=due).enqueue("a", key=[1, None, {"b": 2.5}])

    row = get(result.id)
    assert (row.name, row.queue, row.priority, row.run_at) == ("tests.tasks_backend.tasks.echo", "mail", -100, due)
    assert row.payload == {"args": ["a"], "kwargs": {"key": [1, None, {"b": 2.5}]}}
    assert row.max_attempts == 3


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"priority": 100, "queue_name": "mail"},
        {"run_after": timezone.now() + timedelta(hours=1)},
        {"backend": "other"},
    ],
)
def test_its_result_is_found_by_its_id(chosen: dict[str, Any], backend: CairnQBackend) -> None:
    task = tasks.echo.using(**chosen)
    result = task.enqueue(1, two=(3, 4))

    assert backend.get_result(result.id) == result
    assert awaited(backend.aget_result, result.id) == result
    assert task.get_result(result.id).task == task


def test_refreshing_a_result_that_has_not_changed_changes_nothing() -> None:
    result = tasks.echo.enqueue(1)
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before
    awaited(result.arefresh)
    assert dataclasses.asdict(result) == before


def test_a_result_can_be_read_when_the_settings_have_changed(settings: Any) -> None:
    result = tasks.add.using(queue_name="mail").enqueue(1)
    elsewhere = tasks.add.using(backend="other").enqueue(1)
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}

    assert task_backends["default"].get_result(result.id).task.queue_name == "mail"
    assert task_backends["default"].get_result(elsewhere.id).backend == "other"


@pytest.mark.parametrize("result_id", ["123", "", 123, None, "0198a3c0-7000-7000-8000-000000000000", uuid4()])
def test_there_is_no_result_of_what_is_no_id(result_id: Any, backend: CairnQBackend) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        awaited(backend.aget_result, result_id)


@pytest.mark.parametrize(
    "name", ["send_receipt", "subprocess.check_output", "missing.module.task", "tests.workers.run", "..send"]
)
def test_there_is_no_result_of_a_task_that_is_not_of_the_framework(name: str, backend: CairnQBackend) -> None:
    task = submit(name, {"args": [], "kwargs": {}})
    with pytest.raises(TaskResultDoesNotExist, match=f"is '{name}'"):
        backend.get_result(str(task.pk))


def test_there_is_no_result_of_another_task() -> None:
    result = tasks.add.enqueue(1)
    with pytest.raises(Exception, match="Task does not match") as caught:
        tasks.echo.get_result(result.id)
    assert type(caught.value).__name__ == "TaskResultMismatch"


def test_there_is_no_result_once_it_is_purged() -> None:
    result = tasks.add.enqueue(1)
    Task.objects.filter(pk=result.id).delete()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_what_json_cannot_represent_is_refused_before_anything_is_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for argument, message in [
        (datetime.now(), r"payload\.args\[0\]: .*datetime"),  # noqa: DTZ005
        ([{"prices": {1, 2}}], r"payload\.args\[0\]\[0\]\.prices: .*set"),
        (b"\xff", r"payload\.args\[0\]: .*bytes"),
        (tasks.add, r"payload\.args\[0\]: .*Task"),
        (endless, r"payload\.args\[0\]\[0\].*"),
        ({"a": {1: 2}}, r"payload\.args\[0\]\.a: its key 1 \(int\) is not a string"),
        (float("nan"), r"payload\.args\[0\]: nan is not a JSON number"),
    ]:
        with pytest.raises(TypeError, match=message):
            tasks.echo.enqueue(argument)
        with pytest.raises(TypeError, match=message):
            awaited(tasks.echo.aenqueue, argument)
    with pytest.raises(SerializationError, match=r"payload\.kwargs\.name"):
        tasks.echo.enqueue(name="\x00")
    assert not Task.objects.exists()


def test_it_joins_the_callers_transaction(backend: CairnQBackend) -> None:
    with transaction.atomic():
        result = tasks.add.enqueue(1)
        assert result.enqueued_at is not None
        assert backend.get_result(result.id).status == TaskResultStatus.READY
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result.id)


def test_a_receiver_that_raises_does_not_undo_what_was_enqueued(caplog: pytest.LogCaptureFixture) -> None:
    def receive(**kwargs: Any) -> None:
        raise OSError("no route")

    task_enqueued.connect(receive)
    try:
        results = [tasks.add.enqueue(1), awaited(tasks.add.aenqueue, 1)]
    finally:
        task_enqueued.disconnect(receive)
    assert all(get(result.id).is_queued for result in results)
    assert caplog.text.count("OSError: no route") == 2
    caplog.clear()


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_breaks_the_transaction_spoils_nothing_of_it() -> None:
    def spoil(task_result: Any, **kwargs: Any) -> None:
        row = get(task_result.id)
        Task(pk=row.pk, root_id=row.pk, name="the same again").save(force_insert=True)

    with receiving(task_enqueued, spoil), transaction.atomic():
        results = [tasks.add.enqueue(1), tasks.add.enqueue(2)]
    assert [get(result.id).name for result in results] == [tasks.add.module_path] * 2


def test_where_submits_run_at_once_the_result_tells_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    with immediate(fail_silently=True):
        added, added_async = tasks.add.enqueue(1, b=2), awaited(tasks.add.aenqueue, 1, b=2)
        refused, refused_async = tasks.refuse.enqueue("no"), awaited(tasks.refuse.aenqueue, "no")
        later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    for result in (added, added_async):
        assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    for result in (refused, refused_async):
        assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 3, 3)
    assert (later.status, later.attempts) == (TaskResultStatus.READY, 0)
    for result in (added, refused, later):
        before = dataclasses.asdict(result)
        result.refresh()
        assert dataclasses.asdict(result) == before
    caplog.clear()


def test_a_full_queue_refuses_it(settings: Any) -> None:
    settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 1, "MAX_QUEUE_WAIT": 0}
    tasks.add.using(queue_name="full").enqueue(1)
    with pytest.raises(QueueFull):
        tasks.add.using(queue_name="full").enqueue(2)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"priority": 101}, "priority must be a whole number between -100 and 100"),
        ({"priority": -101}, "priority must be a whole number"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime"),  # noqa: DTZ001
        ({"backend": "other", "queue_name": "mail"}, "Queue 'mail' is not valid for backend"),
        ({"queue_name": "q" * 101}, "queue_name must have at most 100 characters"),
        ({"queue_name": "a\x00"}, "queue_name must not hold a NUL character"),
    ],
)
def test_what_the_backend_cannot_do_is_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        tasks.add.using(**chosen)


def test_a_task_is_validated_again_when_it_is_enqueued(settings: Any) -> None:
    task = tasks.add.using(queue_name="mail")
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid"):
        task.enqueue(1)
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid"):
        awaited(task.aenqueue, 1)


def test_nothing_is_enqueued_with_options_that_are_wrong(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 0}}}
    with pytest.raises(ImproperlyConfigured, match="max_attempts must be at least 1, got 0"):
        tasks.add.enqueue(1)


STATES = {
    "queued": ({}, TaskResultStatus.READY, 0),
    "running": ({"running": True}, TaskResultStatus.RUNNING, 1),
    "succeeded": ({"succeeded": True, "result": {"a": 1}}, TaskResultStatus.SUCCESSFUL, 1),
    "failed": ({"failed": True}, TaskResultStatus.FAILED, 3),
    "canceled": ({"canceled": True}, TaskResultStatus.FAILED, 0),
}


@pytest.mark.parametrize("state", STATES)
def test_a_result_tells_each_state_in_the_frameworks_words(state: str, backend: CairnQBackend) -> None:
    fields, status, attempts = STATES[state]
    tasks.add.using()  # it is known
    row = TaskFactory(name=tasks.add.module_path, payload={"args": [1], "kwargs": {}}, **fields)

    result = backend.get_result(str(row.pk))

    assert (result.id, result.status, result.attempts) == (str(row.pk), status, attempts)
    assert (result.enqueued_at, result.last_attempted_at, result.finished_at) == (
        row.created_at,
        row.started_at,
        row.completed_at,
    )
    assert result.is_finished == row.is_terminal
    if state == "succeeded":
        assert result.return_value == {"a": 1}
    else:
        with pytest.raises(ValueError, match="Task failed" if result.is_finished else "Task has not finished yet"):
            _ = result.return_value
