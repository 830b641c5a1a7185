"""A snooze gives a task back for later, and the attempt that it was in does not count."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, Snooze, Task, TaskContext, cancel, get, submit
from cairnq_django.models import TaskAttempt
from tests.helpers import eventually
from tests.workers import attempts, ended, quick, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    import threading

pytestmark = runs_workers

HOW = pytest.mark.parametrize("how", ["raised", "called", "raised, async", "called, async"])


def snoozing(how: str, times: int, delay: Any = 0) -> Registry:
    """A registry whose handler `work` snoozes so many times and returns the attempts that it saw."""
    registry = Registry()
    seen: list[int] = []

    if how.endswith("async"):

        @registry.task("work")
        async def work_async(ctx: AsyncTaskContext, payload: Any) -> list[int]:
            seen.append(ctx.attempt)
            if len(seen) <= times:
                if how.startswith("raised"):
                    raise Snooze(delay)
                await ctx.progress(0.5, "not yet")
                await ctx.snooze(delay)
                assert ctx.settled
            return seen

    else:

        @registry.task("work")
        def work(ctx: TaskContext, payload: Any) -> list[int]:
            seen.append(ctx.attempt)
            if len(seen) <= times:
                if how == "raised":
                    raise Snooze(delay)
                ctx.progress(0.5, "not yet")
                ctx.snooze(delay)
                assert ctx.settled
            return seen

    return registry


@HOW
def test_a_task_that_is_snoozed_five_times_succeeds_in_its_first_attempt(how: str) -> None:
    task = submit("work", max_attempts=1)
    with quick(snoozing(how, 5)).background():
        task = ended(task)

    assert task.succeeded
    assert task.result == [1] * 6
    assert task.attempt == 1
    assert not TaskAttempt.objects.exists()


@HOW
def test_a_snoozed_task_is_queued_until_it_is_due(how: str) -> None:
    task = submit("work")
    with quick(snoozing(how, 1, timedelta(hours=1))).background():
        eventually(lambda: get(task.pk).run_at > task.run_at + timedelta(minutes=59), 20)

    task.refresh()
    assert task.is_queued
    assert (task.attempt, task.progress, task.message, task.lease_until) == (0, None, "", None)


def test_it_runs_again_soon_after_it_is_due_however_rarely_the_worker_polls() -> None:
    task = submit("work")
    with quick(snoozing("raised", 2, 0.05), poll_interval=60).background():
        assert ended(task).succeeded


@HOW
def test_a_snooze_after_a_failure_does_not_count_either(how: str) -> None:
    registry = Registry()
    snoozes = iter([True, False])

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        if next(snoozes):
            raise Snooze(0)
        return ctx.attempt

    task = submit(work)
    with quick(registry).background():
        assert ended(task).result == 2
    assert attempts(task) == [(1, "retried", "unexpected_exception")]


def test_a_task_that_is_snoozed_over_and_over_leaves_the_others_their_turn() -> None:
    registry = Registry()

    @registry.task
    def restless(ctx: TaskContext, payload: Any) -> None:
        raise Snooze(0)

    @registry.task
    def other(ctx: TaskContext, payload: Any) -> None: ...

    task = submit("restless")
    with quick(registry, concurrency=1).background():
        eventually(lambda: get(task.pk).run_at > task.run_at, 20)
        assert ended(submit("other")).succeeded
        eventually(lambda: get(task.pk).is_queued, 20)
    # The shortest snooze is a tenth of a second.
    assert get(task.pk).run_at - get(task.pk).updated_at >= timedelta(seconds=0.09)


def test_a_cancel_that_was_asked_for_wins_over_a_snooze(go: threading.Event) -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)
        raise Snooze(0)

    task = submit(work)
    with quick(registry).background():
        running(task)
        cancel(task)
        go.set()
        assert ended(task).canceled


@pytest.mark.parametrize("delay", [-1, "soon", None, float("nan"), float("inf")])
def test_a_delay_that_is_none_fails_the_attempt_and_says_why(delay: Any) -> None:
    registry = Registry()

    @registry.task(max_attempts=1)
    def raised(ctx: TaskContext, payload: Any) -> None:
        raise Snooze(delay)

    @registry.task(max_attempts=1)
    def called(ctx: TaskContext, payload: Any) -> None:
        ctx.snooze(delay)

    tasks = [submit(raised), submit(called)]
    run(registry)

    for task in tasks:
        task.refresh()
        assert task.failed
        assert task.error["type"] in ("ValueError", "TypeError")
        assert task.error["message"].startswith("delay must")
    assert Task.objects.live().count() == 0
