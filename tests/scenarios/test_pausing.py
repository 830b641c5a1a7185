"""A paused queue gives out nothing from the commit on, and what waits in it starts once it is resumed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from cairnq_django import PausedQueue, Registry, Task, Worker, pause_queue, resume_queue, submit, submit_many
from cairnq_django.clock import Now, after
from cairnq_django.notify.listener import listener_of_this_process
from tests.helpers import eventually
from tests.notify.postgres import on_postgresql
from tests.store.sessions import another_transaction, locks_rows
from tests.workers import PATIENCE, echo_and_wait, ended, handlers_wait_for, quick, run, runs_workers

if TYPE_CHECKING:
    from datetime import datetime

pytestmark = runs_workers

NEVER = 600.0  # seconds: a poll that no test waits for


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.task("work")(lambda ctx, payload: payload)
    registry.task("batch", batch=4)(lambda contexts: None)
    return registry


def moment() -> datetime:
    """The database's time."""
    PausedQueue.objects.bulk_create([PausedQueue(queue="clock", until=Now())])
    until = PausedQueue.objects.get(queue="clock").until
    PausedQueue.objects.filter(queue="clock").delete()
    assert until is not None
    return until


def workers_have_looked_at(queue: str, *, times: int) -> None:
    """Whoever claims a task of one queue has looked at all that it serves."""
    for _ in range(times):
        ended(submit("work", queue=queue))


def test_no_claim_begins_after_the_pause_and_resuming_lets_all_go_on(registry: Registry) -> None:
    """While two workers drain the queue, in calls of one and in batches."""
    paused_at: list[datetime] = []

    @registry.task
    def pause(ctx: Any, payload: Any) -> None:
        pause_queue("default")
        paused_at.append(moment())

    submit_many("batch", range(200))
    submit_many("work", range(200))
    submit("pause")
    submit_many("work", range(1200))
    queues = ["default", "other"]
    with quick(registry, queues=queues).background(), quick(registry, queues=queues).background():
        eventually(lambda: paused_at, PATIENCE, "a handler pauses the queue")
        later = submit("work", priority=9)
        eventually(lambda: not Task.objects.running().exists(), PATIENCE, "what was claimed before has ended")
        left = Task.objects.queued().count()
        assert left > 500
        workers_have_looked_at("other", times=5)
        # On MySQL and MariaDB a claim takes several statements, of which the last says when it was.
        slack = 1.0 if connection.vendor == "mysql" else 0.0
        started = [task for task in Task.objects.filter(queue="default") if task.started_at is not None]
        assert not [task for task in started if _late(task, paused_at[0], slack)]
        assert Task.objects.queued().count() == left
        assert later.refresh().is_queued
        resume_queue("default")
        eventually(lambda: not Task.objects.live().exists(), PATIENCE * 3, "all have ended")
    assert Task.objects.filter(queue="default").succeeded().count() == 1602


def _late(task: Task, paused_at: datetime, slack: float) -> bool:
    assert task.started_at is not None
    return (task.started_at - paused_at).total_seconds() > slack


def test_running_tasks_end_and_retry_after_the_pause(go: threading.Event) -> None:
    registry = echo_and_wait(go)
    running = submit("wait", "done")
    with quick(registry).background():
        handlers_wait_for(go)
        pause_queue("default")
        waiting = submit("echo")
        go.set()
        assert ended(running).result == "done"
        assert Task.objects.get(pk=waiting.pk).is_queued


def test_a_burst_ends_when_all_that_is_left_is_paused(registry: Registry) -> None:
    pause_queue("mail")
    paused = submit("work", queue="mail")
    open_ = submit("work")
    run(registry, queues=["mail", "default"])
    assert open_.refresh().succeeded
    assert paused.refresh().is_queued


def test_a_pause_ends_by_itself_and_a_worker_tidies_it_up(registry: Registry) -> None:
    pause_queue("default", until=0.5)
    task = submit("work")
    with quick(registry, lease=0.9).background():
        assert ended(task).succeeded
        eventually(lambda: not PausedQueue.objects.exists(), PATIENCE, "nobody is left to be paused")
    started_at = task.refresh().started_at
    assert started_at is not None
    assert (started_at - task.created_at).total_seconds() > 0.3


def test_a_worker_that_would_not_poll_finds_a_pause_over_when_it_tidies_up(registry: Registry) -> None:
    pause_queue("default", until=0.3)
    task = submit("work")
    with Worker(registry=registry, poll_interval=NEVER, lease=1).background():
        assert ended(task).succeeded


@on_postgresql
def test_resuming_starts_what_waits_at_once(registry: Registry) -> None:
    with Worker(["default", "other"], registry=registry, poll_interval=NEVER).background():
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        assert ended(submit("work")).succeeded
        pause_queue("default")
        # Announced, looked for in vain, and left untouched: the others keep quiet.
        waiting: list[Any] = [submit("work") for _ in range(5)]
        workers_have_looked_at("other", times=1)
        assert all(task.refresh().is_queued for task in waiting)
        resume_queue("default")
        assert all(ended(task).succeeded for task in waiting)
        assert ended(submit("work")).succeeded


@locks_rows
def test_no_worker_waits_for_who_is_about_to_change_a_pause_that_is_over(go: threading.Event) -> None:
    PausedQueue.objects.create(queue="mail", until=after(-1))
    with another_transaction(lambda: PausedQueue.objects.select_for_update().get(pk="mail")):
        with quick(echo_and_wait(go)).background():
            task = submit("echo", "meanwhile")
            eventually(lambda: task.refresh().result == "meanwhile", PATIENCE / 2)
        assert PausedQueue.objects.filter(pk="mail").exists()
