"""While handlers are short, a worker claims a little ahead of its slots; what waits too long for one is given back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, get, submit_many
from cairnq_django.models import TaskAttempt
from tests.helpers import eventually
from tests.workers import ended, quick, run, runs_workers, wait_for

pytestmark = runs_workers


def test_many_short_tasks_run_once_each_in_few_claims() -> None:
    registry = Registry()
    ran: list[int] = []

    @registry.task
    def work(ctx: TaskContext, payload: int) -> int:
        ran.append(payload)
        return payload

    @registry.task
    async def work_async(ctx: AsyncTaskContext, payload: int) -> int:
        ran.append(payload)
        return payload

    tasks = submit_many("work", range(300)) + submit_many("work_async", range(300, 600))
    run(registry, concurrency=4)

    assert sorted(ran) == list(range(600))
    assert [get(task.pk).result for task in tasks] == list(range(600))
    assert not TaskAttempt.objects.exists()


def test_no_more_run_at_the_same_time_than_there_are_slots() -> None:
    registry = Registry()
    lock = threading.Lock()
    inside, most = 0, 0

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        with lock:
            inside -= 1

    submit_many("work", range(500))
    run(registry, concurrency=3)

    assert Task.objects.succeeded().count() == 500
    assert most <= 3


@pytest.mark.parametrize("then", ["goes on", "is stopped"])
def test_what_is_claimed_behind_handlers_that_become_slow_is_given_back(then: str, go: threading.Event) -> None:
    registry = Registry()
    reached = threading.Event()

    @registry.task
    def work(ctx: TaskContext, payload: int) -> int:
        if payload >= 200:
            reached.set()
            wait_for(go)
        return ctx.attempt

    tasks = submit_many("work", range(400))
    worker = quick(registry, concurrency=2)
    with worker.background():
        wait_for(reached)
        # The two that hang are all that is left running; the others wait for whoever comes.
        eventually(lambda: Task.objects.running().count() <= 2, 20)
        assert set(Task.objects.queued().values_list("attempt", flat=True)) == {0}
        if then == "goes on":
            go.set()
            assert all(ended(task).result == 1 for task in tasks)
        else:
            worker.stop()
            go.set()
    if then == "is stopped":
        assert Task.objects.running().count() == 0
        assert Task.objects.queued().exists()
        assert set(Task.objects.queued().values_list("attempt", flat=True)) == {0}
    assert not TaskAttempt.objects.exists()


def test_names_with_a_ceiling_are_not_claimed_ahead(go: threading.Event) -> None:
    registry = Registry()
    quickly = threading.Event()

    @registry.task(concurrency=2)
    def limited(ctx: TaskContext, payload: int) -> None:
        if payload >= 50:
            quickly.set()
            wait_for(go)

    submit_many("limited", range(80))
    with quick(registry, concurrency=4).background():
        wait_for(quickly)
        eventually(lambda: Task.objects.running().count() == 2, 20)
        assert Task.objects.queued().count() >= 27
        go.set()
        eventually(lambda: not Task.objects.live().exists(), 20)
