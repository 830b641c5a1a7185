"""What a submit does while `immediate()` lasts."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import TestCase

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    SerializationError,
    Snooze,
    Task,
    TaskContext,
    TaskFailed,
    TaskStatus,
    acall,
    asubmit,
    call,
    get,
    pause_queue,
    submit,
    submit_many,
)
from cairnq_django.testing import immediate, run_pending
from tests.app.models import Counter

pytestmark = pytest.mark.django_db

registry = Registry()


@registry.task
def echo(ctx: TaskContext, payload: Any) -> Any:
    return payload


@registry.task(max_attempts=2)
def fail(ctx: TaskContext, payload: Any) -> None:
    raise ValueError("no")


@registry.task
def family(ctx: TaskContext, payload: Any) -> Any:
    return ctx.submit(registry.get(payload)).status


@registry.task
async def async_family(ctx: AsyncTaskContext, payload: Any) -> Any:
    child = await ctx.submit(registry.get(payload or "count"))
    return child.status


@registry.task
async def count(ctx: AsyncTaskContext, payload: Any) -> int:
    return await Counter.objects.acount()


@registry.task
def snooze(ctx: TaskContext, payload: Any) -> None:
    raise Snooze(60)


@registry.task(batch=2)
def sizes(items: list[TaskContext]) -> Any:
    return {item.task_id: len(items) for item in items}


def test_submit_returns_the_task_as_it_ended() -> None:
    with immediate(registry=registry):
        task = submit(echo, (1, 2))
    assert (task.status, task.result, task.attempt) == (TaskStatus.SUCCEEDED, [1, 2], 1)
    assert task.completed_at is not None
    assert submit(echo).status == TaskStatus.QUEUED


def test_the_payload_is_serialised() -> None:
    with immediate(registry=registry), pytest.raises(SerializationError):
        submit(echo, {1, 2})


def test_what_is_submitted_together_is_batched() -> None:
    with immediate(registry=registry):
        assert [task.result for task in submit_many(sizes, [1, 2, 3])] == [2, 2, 1]


def test_call_and_wait_find_the_task_ended() -> None:
    with immediate(registry=registry):
        assert call(echo, "now") == "now"
        with pytest.raises(TaskFailed):
            call(fail)


def test_what_handlers_submit_runs_at_once_too() -> None:
    with immediate(registry=registry):
        assert submit(family, "echo").result == TaskStatus.SUCCEEDED
        assert submit(async_family, "count").result == TaskStatus.SUCCEEDED
        assert submit(family, "async_family").result == TaskStatus.SUCCEEDED


def test_a_failure_raises_out_of_the_outermost_submit() -> None:
    with immediate(registry=registry), pytest.raises(TaskFailed, match=r"\(fail\) failed in attempt 2 of 2") as caught:
        submit(family, "fail")
    assert isinstance(caught.value.__cause__, ValueError)
    # A handler does not hear of it, as from a worker.
    assert Task.objects.get(name="family").result == TaskStatus.FAILED


def test_a_failure_can_be_looked_at_instead() -> None:
    with immediate(registry=registry, fail_silently=True):
        task = submit(fail)
    assert task.failed
    assert [attempt.outcome for attempt in task.attempts.all()] == ["retried", "failed"]


def test_what_cannot_run_now_is_left_in_its_queue() -> None:
    before = submit(echo, "before")
    pause_queue("paused")
    with immediate(registry=registry):
        left = [
            submit(echo, delay=60),
            submit(echo, queue="paused"),
            submit("nobody_here"),
            submit(snooze),
            get(before.pk),
        ]
    assert [task.status for task in left] == [TaskStatus.QUEUED] * 5


def test_what_is_delayed_can_run_too() -> None:
    with immediate(registry=registry, delayed=True):
        assert submit(echo, delay=60).succeeded


def test_a_key_gives_back_what_was_there() -> None:
    with immediate(registry=registry):
        waiting = submit(echo, 1, key="k", delay=60)
        assert submit(echo, 2, key="k") == waiting
        assert submit(echo, 3, key="k", conflict="replace").result == 3
    assert get(waiting.pk).canceled


def test_it_decorates_functions_and_nests() -> None:
    @immediate(registry=registry)
    def outer() -> Task:
        with immediate(registry=Registry()):
            assert submit(echo).is_queued
        return submit(echo)

    assert outer().succeeded
    assert submit(echo).is_queued


def test_it_does_not_decorate_classes() -> None:
    with pytest.raises(TypeError, match=r"Mine is a class; in its setUp\(\), call self.enterContext\(immediate\(\)\)"):

        @immediate()
        class Mine(TestCase):
            pass


def test_what_run_pending_runs_submits_at_once() -> None:
    submit(family, "fail")
    with immediate(registry=registry), pytest.raises(TaskFailed, match=r"\(fail\)"):
        run_pending(registry=registry)


class AsyncTests(TestCase):
    @immediate(registry=registry)
    async def test_it_decorates_async_functions(self) -> None:
        await Counter.objects.acreate(name="one")
        assert (await asubmit(count)).result == 1
        assert (await asubmit(async_family, "count")).result == TaskStatus.SUCCEEDED
        assert (await asubmit(family, "count")).result == TaskStatus.SUCCEEDED
        assert await acall(echo, "now") == "now"
        assert (await sync_to_async(submit)(count)).result == 1
