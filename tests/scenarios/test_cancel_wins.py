"""Cancel outranks every other outcome: however its attempt ends, the task ends canceled and is not delivered again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cairnq_django import Registry, Task, TaskContext, TaskError, cancel, get, submit
from tests.factories import TaskFactory
from tests.workers import attempts, ended, expire, quick, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers


class Deliveries(list[int]):
    """The attempts that were delivered of a handler that waits for `go` and ends as its payload says."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.go = threading.Event()
        registry.task("work", max_attempts=5)(self.handle)

    def handle(self, ctx: TaskContext, payload: str) -> str:
        self.append(ctx.attempt)
        if payload == "cancel myself":
            cancel(ctx.task_id)
        wait_for(self.go)
        if payload == "raise":
            raise ValueError("boom")
        if payload == "fail for good":
            raise TaskError("no", code="for_good", retryable=False)
        if payload == "succeed early":
            ctx.succeed("early")
        return "late"


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def deliveries(registry: Registry) -> Iterator[Deliveries]:
    deliveries = Deliveries(registry)
    yield deliveries
    deliveries.go.set()


def assert_canceled_for_good(task: Task, registry: Registry, deliveries: Deliveries, code: str = "canceled") -> None:
    task.refresh()
    assert task.canceled
    assert task.result is None
    assert task.error is None
    assert task.lease_until is None
    assert attempts(task) == [(1, "canceled", code)]
    run(registry)
    assert deliveries == [1]
    assert get(task.pk).canceled


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ("return", "canceled"),
        ("succeed early", "canceled"),
        ("raise", "unexpected_exception"),
        ("fail for good", "for_good"),
    ],
)
def test_cancel_wins_over_however_the_handler_ends(
    registry: Registry, deliveries: Deliveries, payload: str, code: str
) -> None:
    task = submit("work", payload, max_attempts=5)
    with quick(registry).background():
        running(task)
        assert cancel(task.pk).is_running
        deliveries.go.set()
        ended(task)
    assert_canceled_for_good(task, registry, deliveries, code)


def test_cancel_wins_over_a_timeout(registry: Registry, deliveries: Deliveries) -> None:
    task = submit("work", "cancel myself", max_attempts=5)
    with quick(registry, max_run=1, concurrency=2).background():
        ended(task)
        deliveries.go.set()
    assert_canceled_for_good(task, registry, deliveries, "handler_timeout")


def test_cancel_wins_over_the_recovery_of_a_lost_lease(registry: Registry, deliveries: Deliveries) -> None:
    task = submit("work", "return", max_attempts=5)
    with quick(registry, lease=60).background():
        running(task)
        cancel(task.pk)
        expire(task)
        run(registry)
        assert get(task.pk).canceled
        deliveries.go.set()
    assert_canceled_for_good(task, registry, deliveries, "lease_expired")


def test_cancel_wins_over_being_given_back(registry: Registry, deliveries: Deliveries) -> None:
    task = submit("work", "return", max_attempts=5)
    worker = quick(registry, drain_timeout=0)
    with worker.background():
        running(task)
        cancel(task.pk)
    assert worker.hanging == 1
    assert_canceled_for_good(task, registry, deliveries)


def test_a_task_that_was_canceled_while_it_was_queued_is_never_delivered(
    registry: Registry, deliveries: Deliveries
) -> None:
    task = submit("work")
    cancel(task.pk)
    deliveries.go.set()
    run(registry)
    assert deliveries == []
    assert get(task.pk).canceled
    assert attempts(task) == []


def test_a_crashed_workers_task_that_was_canceled_is_not_run_again(registry: Registry, deliveries: Deliveries) -> None:
    task = TaskFactory(name="work", cancel_requested=True)
    expire(task)
    deliveries.go.set()
    run(registry)
    assert deliveries == []
    assert get(task.pk).canceled
    assert attempts(task) == [(1, "canceled", "lease_expired")]
