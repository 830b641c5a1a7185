"""A failure is tried again while attempts are left: later each time, and with every attempt on record."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import Registry, Task, TaskContext, TaskError, get, retry, run_now, submit
from tests.factories import TaskFactory
from tests.helpers import eventually
from tests.workers import PATIENCE, attempts, ended, quick, run, runs_workers

if TYPE_CHECKING:
    from cairnq_django.models import TaskAttempt

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def fail(ctx: TaskContext, payload: Any) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    @registry.task
    def fail_twice(ctx: TaskContext, payload: Any) -> int:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return ctx.attempt

    return registry


def test_a_task_fails_when_its_attempts_are_used_up(registry: Registry) -> None:
    task = submit("fail", max_attempts=3)
    worker = run(registry)

    task.refresh()
    assert task.failed
    assert (task.attempt, task.max_attempts) == (3, 3)
    assert task.error["message"] == "attempt 3"
    records: list[TaskAttempt] = list(task.attempts.all())
    assert [(record.number, record.outcome) for record in records] == [(1, "retried"), (2, "retried"), (3, "failed")]
    assert [record.error["message"] for record in records] == ["attempt 1", "attempt 2", "attempt 3"]
    assert {record.worker_id for record in records} == {worker.id}
    for record in records:
        assert record.started_at <= record.ended_at
    for earlier, later in pairwise(records):
        assert earlier.ended_at <= later.started_at


def test_a_task_that_succeeds_in_the_end_shows_no_error(registry: Registry) -> None:
    task = submit("fail_twice")
    run(registry)
    assert get(task.pk).result == 3
    assert get(task.pk).error is None
    assert attempts(task) == [(1, "retried", "unexpected_exception"), (2, "retried", "unexpected_exception")]


def test_one_attempt_is_one_attempt(registry: Registry) -> None:
    task = submit("fail", max_attempts=1)
    run(registry)
    assert get(task.pk).failed
    assert attempts(task) == [(1, "failed", "unexpected_exception")]


def test_while_it_waits_for_its_retry_the_row_shows_the_error(registry: Registry) -> None:
    task = submit("fail", max_attempts=2)
    with quick(registry, retry_backoff=3600, retry_backoff_max=3600).background():
        waiting = after_attempt(task, 1)
    assert waiting.is_queued
    assert waiting.error["message"] == "attempt 1"
    assert waiting.lease_until is None


@pytest.mark.parametrize(
    ("earlier_attempts", "shortest", "longest"),
    [(0, 50, 100), (1, 100, 200), (2, 150, 300), (900, 150, 300)],
    ids=["first", "doubled", "capped", "far beyond the cap"],
)
def test_the_delay_doubles_up_to_a_cap_and_is_drawn_from_its_upper_half(
    registry: Registry, earlier_attempts: int, shortest: int, longest: int
) -> None:
    task = TaskFactory(name="fail", attempt=earlier_attempts, max_attempts=1000)
    with quick(registry, retry_backoff=100, retry_backoff_max=300).background():
        waiting = after_attempt(task, earlier_attempts + 1)
    delay = waiting.run_at - waiting.attempts.get().ended_at
    assert timedelta(seconds=shortest) <= delay + timedelta(seconds=1)
    assert delay <= timedelta(seconds=longest)


@pytest.mark.parametrize("options", [{"retry_backoff": 0}, {"retry_backoff": 3600, "retry_backoff_max": 0}])
def test_without_backoff_the_retry_is_due_at_once(registry: Registry, options: dict[str, float]) -> None:
    task = submit("fail_twice")
    quick(registry, poll_interval=3600, **options).run(burst=True)
    assert get(task.pk).result == 3


@pytest.mark.parametrize(
    ("options", "shortest", "longest"),
    [
        ({"retry_backoff": 100}, 50, 100),
        ({"retry_backoff": timedelta(minutes=2), "retry_backoff_max": 60}, 30, 60),
        ({"retry_backoff_max": 15}, 7.5, 15),
    ],
    ids=["longer than the worker's longest", "up to its own longest", "as the worker's up to its own longest"],
)
def test_a_task_may_have_a_delay_of_its_own(options: dict[str, Any], shortest: float, longest: float) -> None:
    registry = Registry()

    @registry.task(**options)
    def work(ctx: TaskContext, payload: None) -> None:
        raise ValueError("failed")

    task = submit(work, max_attempts=2)
    with quick(registry, retry_backoff=20, retry_backoff_max=30).background():
        waiting = after_attempt(task, 1)
    delay = waiting.run_at - waiting.attempts.get().ended_at
    assert timedelta(seconds=shortest) <= delay + timedelta(seconds=1)
    assert delay <= timedelta(seconds=longest)


def test_a_retry_does_not_wait_for_the_next_poll(registry: Registry) -> None:
    task = submit("fail_twice")
    began = time.monotonic()
    quick(registry, poll_interval=60, retry_backoff=0.2).run(burst=True)
    assert get(task.pk).result == 3
    assert time.monotonic() - began < 30


def test_nor_do_several_that_fall_due_one_after_the_other(registry: Registry) -> None:
    tasks = [submit("fail_twice", max_attempts=3) for _ in range(10)]
    began = time.monotonic()
    quick(registry, poll_interval=60, retry_backoff=0.2, concurrency=2).run(burst=True)
    assert [get(task.pk).result for task in tasks] == [3] * 10
    assert time.monotonic() - began < 30


def test_a_failed_task_can_be_retried_by_hand_and_goes_on_counting(registry: Registry) -> None:
    task = submit("fail_twice", max_attempts=1)
    with quick(registry).background():
        assert ended(task).failed
        retry(task.pk)
        assert ended(task).failed
        retry(task.pk)
        assert ended(task).result == 3
    assert [number for number, *_ in attempts(task)] == [1, 2]


def test_a_retry_by_hand_can_leave_all_attempts_again(registry: Registry) -> None:
    task = submit("fail", max_attempts=2)
    with quick(registry).background():
        assert ended(task).failed
        retry(task.pk, reset_attempts=True)
        assert ended(task).failed
    assert [number for number, *_ in attempts(task)] == [1, 1, 2, 2]
    assert [attempt.number for attempt in get(task.pk).attempts.order_by("id")] == [1, 2, 1, 2]


def test_a_delayed_task_runs_once_somebody_says_so(registry: Registry) -> None:
    task = submit("fail_twice", delay=3600, max_attempts=3)
    with quick(registry).background():
        run_now(task.pk)
        assert ended(task).succeeded


def after_attempt(task: Task, number: int) -> Task:
    """The row once this attempt has failed."""
    return eventually(lambda: Task.objects.queued().filter(pk=task.pk, attempts__number=number).first(), PATIENCE)


def test_each_failed_attempt_is_told_in_the_log(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    @registry.task(max_attempts=2)
    def charge(ctx: TaskContext, payload: dict[str, str]) -> None:
        raise TaskError("The bank is closed", code="bank_closed")

    task = submit("charge", {"card": "4111"}, max_attempts=2)
    run(registry)

    told = [(record.levelname, record.getMessage()) for record in caplog.records if str(task.pk) in record.getMessage()]
    assert [level for level, _ in told] == ["WARNING", "ERROR"]
    assert re.search(
        r"Attempt 1 of 2 .*\(charge\) failed, to be retried in 0.\d s: .*bank_closed.*is closed", told[0][1]
    )
    assert re.search(r"Attempt 2 of 2 .*\(charge\) failed for good: .*bank_closed", told[1][1])
    assert "4111" not in caplog.text
