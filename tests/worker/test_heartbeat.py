"""The heartbeat keeps the leases of a worker alive, and brings back what it learns on the way."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, cancel, get, submit
from tests.app.models import Counter
from tests.helpers import eventually
from tests.store.sessions import another_transaction, locks_rows
from tests.workers import (
    PATIENCE,
    attempts,
    database_away,
    ended,
    expire,
    quick,
    reports,
    running,
    runs_workers,
    table_away,
    wait_for,
)

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    registry = Registry()

    @registry.task
    def wait(ctx: TaskContext, payload: Any) -> Any:
        wait_for(go)
        return payload

    @registry.task
    async def wait_async(ctx: AsyncTaskContext, payload: Any) -> Any:
        await sync_to_async(wait_for)(go)
        return payload

    return registry


def wait_for_beats(task: Task, number: int) -> None:
    """Wait until the task's lease was renewed so many times."""
    seen = running(task).lease_until
    for _ in range(number):
        seen = eventually(
            lambda seen=seen: (
                Task.objects.running().filter(pk=task.pk, lease_until__gt=seen).values_list("lease_until").first()
            ),
            PATIENCE,
            "a beat",
        )[0]


def test_a_handler_may_run_for_many_leases(registry: Registry, go: threading.Event) -> None:
    tasks = [submit("wait", "sync"), submit("wait_async", "async"), submit("wait", "another")]
    with quick(registry, lease=0.6).background():
        for task in tasks:
            running(task)
        # A beat each third of a lease: nine are three leases.
        wait_for_beats(tasks[0], 9)
        go.set()
        assert [ended(task).result for task in tasks] == ["sync", "async", "another"]
    assert [get(task.pk).attempt for task in tasks] == [1, 1, 1]


def test_it_leaves_alone_what_is_not_its_own(registry: Registry, go: threading.Event) -> None:
    task = submit("wait")
    with quick(registry, lease=60, heartbeat_interval=0.05).background():
        wait_for_beats(task, 1)
        Task.objects.filter(pk=task.pk).update(worker_id="someone else")
        taken_over = get(task.pk).lease_until
        go.set()
    assert get(task.pk).lease_until == taken_over
    assert get(task.pk).is_running


def test_beats_that_fail_are_reported_and_repeated(registry: Registry, go: threading.Event) -> None:
    task = submit("wait", "mine")
    with reports() as reported, quick(registry, lease=30, heartbeat_interval=0.1).background():
        wait_for_beats(task, 1)
        with database_away():
            eventually(lambda: [phase for phase, _ in reported].count("heartbeat") > 2, PATIENCE)
        wait_for_beats(task, 1)
        go.set()
        assert ended(task).result == "mine"
    assert attempts(task) == []


def test_a_lease_that_the_database_says_is_lost_is_flagged_by_the_next_beat(registry: Registry) -> None:
    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        expire(get(ctx.task_id))
        assert ctx.lease_lost.wait(PATIENCE)
        flagged.append(ctx.lost_lease)

    flagged: list[bool] = []
    submit(work, max_attempts=1)
    with quick(registry, lease=3600, heartbeat_interval=0.1).background():
        eventually(lambda: flagged, PATIENCE)
    assert flagged == [True]


def test_it_learns_of_cancel_requests_so_that_asking_costs_no_statement(
    registry: Registry, go: threading.Event
) -> None:
    answers = []

    @registry.task
    def ask(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)
        answers.append(ctx.canceled())
        asked.set()

    asked = threading.Event()
    task = submit(ask)
    with quick(registry, lease=30, heartbeat_interval=0.1).background():
        running(task)
        cancel(task.pk)
        wait_for_beats(task, 2)
        with table_away():
            go.set()
            wait_for(asked)
        ended(task)
    assert answers == [True]


@locks_rows
def test_a_row_that_someone_holds_locked_does_not_hold_up_the_others(registry: Registry, go: threading.Event) -> None:
    locked, free = submit("wait", "locked"), submit("wait", "free")
    with quick(registry, lease=30, heartbeat_interval=0.1).background():
        wait_for_beats(locked, 1)
        with another_transaction(lambda: Task.objects.select_for_update().get(pk=locked.pk)):
            before = get(locked.pk).lease_until
            wait_for_beats(free, 3)
            assert get(locked.pk).lease_until == before
        wait_for_beats(locked, 1)
        go.set()
        assert [ended(task).result for task in (locked, free)] == ["locked", "free"]


@locks_rows
def test_a_handler_that_settles_in_a_long_transaction_is_not_redelivered_meanwhile(
    registry: Registry, go: threading.Event
) -> None:
    settled = threading.Event()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        with transaction.atomic():
            Counter.objects.create(name=f"attempt {ctx.attempt}")
            ctx.succeed(ctx.attempt)
            settled.set()
            wait_for(go)

    task = submit(work)
    with quick(registry, lease=0.3).background():
        wait_for(settled)
        # The row is locked against every beat: on the clock the lease runs out, and stays this attempt's.
        eventually(lambda: Task.objects.expired().filter(pk=task.pk).exists(), PATIENCE)
        go.set()
        assert ended(task).result == 1
    assert list(Counter.objects.values_list("name", flat=True)) == ["attempt 1"]
