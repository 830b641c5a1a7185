"""`call()`: submit a task, wait for its end, return its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    SerializationError,
    Task,
    TaskCanceled,
    TaskContext,
    TaskError,
    TaskFailed,
    TaskTimeout,
    Worker,
    call,
    cancel,
    submit,
)
from tests.factories import TaskFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()


@registry.task
def double(ctx: TaskContext, payload: int) -> int:
    return payload * 2


@registry.task
async def double_async(ctx: AsyncTaskContext, payload: int) -> int:
    return payload * 2


@registry.task
def describe(ctx: TaskContext, payload: None) -> dict[str, Any]:
    return {"queue": ctx.queue, "metadata": ctx.metadata, "key": ctx.key, "attempts": ctx.max_attempts}


@registry.task
def decline(ctx: TaskContext, payload: None) -> None:
    raise TaskError("The bank declined", code="card_declined", retryable=False, details={"card": "0002"})


@registry.task(max_attempts=1)
def crash(ctx: TaskContext, payload: None) -> float:
    return 1 / 0


@registry.task
def cancel_itself(ctx: TaskContext, payload: None) -> str:
    cancel(ctx.task_id)
    return "too late"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(["default", "bulk"], registry=registry, poll_interval=0.05).background() as worker:
        yield worker


def test_a_call_returns_the_result(worker: Worker) -> None:
    assert call(double, 21, timeout=20) == 42
    assert call(double_async, 21, timeout=20) == 42
    assert call("double", 4, timeout=20) == 8
    assert Task.objects.succeeded().count() == 3


def test_a_call_takes_the_options_of_submit(worker: Worker) -> None:
    options: Any = {"queue": "bulk", "metadata": {"by": "hand"}, "key": "k", "max_attempts": 7}
    told = call(describe, timeout=20, **options)
    assert told == {"queue": "bulk", "metadata": {"by": "hand"}, "key": "k", "attempts": 7}


def test_a_call_whose_key_has_a_result_already_returns_that() -> None:
    TaskFactory(key="k", succeeded=True, result=42)
    assert call(double, 1, key="k", conflict="reuse-succeeded") == 42


def test_a_call_of_a_task_that_fails_raises_its_envelope(worker: Worker) -> None:
    with pytest.raises(TaskFailed, match=r"\(decline\) failed in attempt 1 of 3: .*The bank declined") as raised:
        call(decline, timeout=20)
    error = raised.value
    assert (error.code, error.message, error.retryable) == ("card_declined", "The bank declined", False)
    assert error.details == {"card": "0002"}
    assert error.task.failed
    assert error.task_id == error.task.id == Task.objects.get().id


def test_a_call_of_a_task_that_crashes_raises_its_traceback(worker: Worker) -> None:
    with pytest.raises(TaskFailed) as raised:
        call(crash, timeout=20)
    assert (raised.value.type, raised.value.error) == ("ZeroDivisionError", raised.value.task.error)
    assert "in crash" in raised.value.details["traceback"]


def test_a_call_of_a_task_that_is_canceled_says_so(worker: Worker) -> None:
    with pytest.raises(TaskCanceled, match=r"\(cancel_itself\) was canceled") as raised:
        call(cancel_itself, timeout=20)
    assert raised.value.task.canceled
    assert raised.value.task_id == raised.value.task.id


def test_a_call_that_takes_too_long_leaves_the_task_to_go_on() -> None:
    with pytest.raises(TaskTimeout, match="no worker claimed it") as raised:
        call(double, 21, timeout=0.05)
    task = Task.objects.get()
    assert (raised.value.task_id, raised.value.timeout) == (task.id, 0.05)
    assert task.is_queued
    assert not task.cancel_requested


def test_a_call_in_a_transaction_is_refused_and_nothing_submitted() -> None:
    with transaction.atomic():
        with pytest.raises(TransactionManagementError, match=r"^call\(\) would never end.*non_atomic_requests"):
            call(double, 21)
        kept = submit("kept")
    assert list(Task.objects.all()) == [kept]


def test_a_call_with_a_bad_payload_raises_what_submit_raises() -> None:
    with pytest.raises(SerializationError, match=r"^payload\.x: set is not a JSON type"):
        call("work", {"x": {1}})
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        call("work", retries=3)  # type: ignore[call-overload]
    assert not Task.objects.exists()
