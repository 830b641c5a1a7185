"""A task that no worker has started in time ends canceled; one that was started never expires."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from itertools import repeat
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import transaction

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    Task,
    TaskCanceled,
    TaskContext,
    call,
    cancel,
    get,
    retry,
    submit,
    submit_many,
    wait,
    waiting,
)
from cairnq_django.clock import after
from cairnq_django.models import TaskAttempt
from cairnq_django.notify import Channel
from cairnq_django.store.claim import Draw, claim
from tests.factories import TaskFactory, a_great_many, in_turn
from tests.helpers import eventually
from tests.notify.postgres import on_postgresql, subscribed
from tests.workers import PATIENCE, echo_and_wait, ended, expire, quick, run, running, runs_workers

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    return echo_and_wait(go)


def too_late(name: str, **fields: Any) -> Task:
    """A task that was submitted in time and has expired since."""
    return TaskFactory(name=name, too_late=True, **fields)


@pytest.mark.parametrize("name", ["echo", "nobody's"])
def test_a_task_that_has_expired_ends_canceled_and_never_runs(registry: Registry, name: str) -> None:
    task = too_late(name)
    run(registry)
    task.refresh()
    assert (task.status, task.error["code"], task.attempt, task.result) == ("canceled", "expired", 0, None)
    assert not TaskAttempt.objects.exists()


def test_a_task_that_has_time_left_runs(registry: Registry) -> None:
    task = submit("echo", 7, expires=PATIENCE)
    run(registry)
    task.refresh()
    assert (task.result, task.expires_at) == (7, None)


def test_what_has_expired_is_not_handed_out_before_it_is_found() -> None:
    late, due = too_late("echo"), TaskFactory(name="echo", expires_at=after(60))
    claimed = claim(DB, in_turn(Draw(("default",), ("echo",), 10)), worker_id="worker-1", lease=30)
    assert [each.lease.task_id for each in claimed] == [due.pk]
    assert get(late.pk).is_queued


def test_a_task_that_was_started_in_time_is_retried_however_late_that_is(registry: Registry) -> None:
    @registry.task
    def outlive(ctx: TaskContext, payload: Any) -> int:
        # Nobody would start it any more.
        assert get(ctx.task_id).expires_at is None
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    task = submit(outlive, expires=PATIENCE)
    run(registry)
    assert get(task.pk).result == 2


def test_a_task_that_was_started_and_given_back_does_not_expire(registry: Registry, go: threading.Event) -> None:
    task = submit("wait", expires=PATIENCE)
    with quick(registry, drain_timeout=0).background():
        running(task)
    task.refresh()
    assert (task.is_queued, task.attempt, task.expires_at) == (True, 0, None)
    go.set()


def test_a_task_whose_worker_died_does_not_expire(registry: Registry, go: threading.Event) -> None:
    task = submit("wait", expires=PATIENCE)
    (claimed,) = claim(DB, in_turn(Draw(("default",), ("wait",), 1)), worker_id="worker-1", lease=30)
    expire(task)
    go.set()
    run(registry)
    assert claimed.lease.task_id == task.pk
    assert get(task.pk).succeeded


@pytest.mark.parametrize("how", ["expired", "canceled"])
def test_a_retry_of_what_was_never_started_has_all_the_time_there_is(registry: Registry, how: str) -> None:
    task = too_late("nobody's") if how == "expired" else submit("nobody's", expires=PATIENCE)
    if how == "expired":
        run(registry)
    else:
        cancel(task.pk)
    again = retry(task.pk)
    assert (again.is_queued, again.expires_at, again.error) == (True, None, None)
    run(registry)
    assert get(task.pk).is_queued


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_s_children_may_expire(registry: Registry, kind: str) -> None:
    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> None:
        ctx.submit("child", expires=60)

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
        await ctx.submit("child", expires=60)

    submit(kind)
    run(registry)
    child = Task.objects.get(name="child")
    assert child.expires_at is not None
    assert (child.expires_at - child.created_at).total_seconds() == 60


def test_a_call_of_a_task_that_expires_says_so(registry: Registry) -> None:
    with quick(registry, lease=1).background(), pytest.raises(TaskCanceled, match="no worker had started it") as raised:
        call("nobody's", expires=0.05, timeout=PATIENCE)
    assert raised.value.error is not None
    assert raised.value.error["code"] == "expired"
    assert raised.value.error == raised.value.task.error


@on_postgresql
def test_a_task_that_expires_wakes_who_waits_for_it(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "poll_intervals", lambda: repeat(600))
    with subscribed("nobody", channel=Channel.ENDED), quick(registry, lease=1).background():
        assert wait(submit("nobody's", expires=0.5), timeout=60).canceled
        with pytest.raises(TaskCanceled):
            call("nobody's", expires=0.5, timeout=60)


@on_postgresql
def test_a_submit_that_ends_what_has_expired_wakes_who_waits_for_that() -> None:
    late = too_late("nobody's", key="k")
    with subscribed(str(late.pk), channel=Channel.ENDED) as hearing:
        submit("echo", key="k")
        hearing.wait()


@pytest.mark.parametrize("state", [{"attempt": 3}, {"cancel_requested_at": after(-2)}])
@on_postgresql
def test_a_task_that_recovery_ends_wakes_who_waits_for_it(registry: Registry, state: dict[str, Any]) -> None:
    task = TaskFactory(expired=True, **state)
    with subscribed(str(task.pk), channel=Channel.ENDED) as hearing:
        run(registry)
        hearing.wait()
    assert get(task.pk).is_terminal


@on_postgresql
def test_a_task_that_ends_as_it_is_given_back_wakes_who_waits_for_it(registry: Registry) -> None:
    task = submit("wait")
    with subscribed(str(task.pk), channel=Channel.ENDED) as hearing:
        with quick(registry, drain_timeout=0).background():
            running(task)
            cancel(task.pk)
        assert get(task.pk).canceled
        hearing.wait()


def test_a_great_many_that_expire_at_once_end_beside_the_work_of_a_busy_worker(registry: Registry) -> None:
    many = 10_000
    a_great_many(many, name="late", expires_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
    tasks = submit_many("echo", range(40))
    late = Task.objects.filter(name="late")
    with quick(registry, concurrency=2).background():
        eventually(lambda: not late.queued().exists(), 3 * PATIENCE)
        for task in tasks:
            assert ended(task).succeeded
    assert late.canceled().filter(error__code="expired", attempt=0).count() == many
    last = late.latest("completed_at").completed_at
    assert Task.objects.succeeded().filter(completed_at__lt=last).exists(), "work went on between the batches"


def test_a_submit_that_rolls_back_leaves_the_expired_holder_of_its_key() -> None:
    late = too_late("nobody's", key="k")
    with transaction.atomic():
        assert submit("echo", key="k") != late
        transaction.set_rollback(True)
    assert get(late.pk).is_queued
