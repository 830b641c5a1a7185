"""The end of every call is recorded, whatever the database makes of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_save

from cairnq_django import Registry, TaskContext, get, submit
from cairnq_django.models import TaskAttempt
from tests.helpers import eventually
from tests.workers import (
    PATIENCE,
    attempts,
    database_away,
    database_refusing,
    echo_and_wait,
    ended,
    handlers_wait_for,
    quick,
    reports,
    run,
    runs_workers,
)

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    registry = echo_and_wait(go)

    @registry.task
    def fail(ctx: TaskContext, payload: str) -> None:
        raise ValueError(payload)

    return registry


def test_the_end_of_a_call_is_recorded_when_the_database_is_back(registry: Registry, go: threading.Event) -> None:
    tasks = [submit("wait", "sync"), submit("wait", "another")]
    with reports() as reported, quick(registry).background():
        handlers_wait_for(go, count=2)
        with database_away():
            go.set()
            eventually(lambda: "settle" in reported.phases, PATIENCE)
        assert [ended(task).result for task in tasks] == ["sync", "another"]
    assert [attempts(task) for task in tasks] == [[], []]


def test_a_slot_is_taken_until_its_calls_end_is_recorded(registry: Registry, go: threading.Event) -> None:
    task = submit("wait")
    with reports() as reported, quick(registry, concurrency=1).background() as worker:
        handlers_wait_for(go)
        with database_away():
            go.set()
            eventually(lambda: "settle" in reported.phases, PATIENCE)
            worker.stop()
    assert get(task.pk).succeeded


def test_a_success_that_the_database_refuses_becomes_a_failure_for_good(registry: Registry) -> None:
    with database_refusing("unwelcome", "result"), reports() as reported:
        task, another = submit("echo", {"word": "unwelcome"}), submit("echo", "welcome")
        run(registry)
    task.refresh()
    assert task.failed
    assert task.error["code"] == "unserializable_result"
    assert task.error["retryable"] is False
    assert "not this" in task.error["message"]
    assert reported.phases == {"settle"}
    assert get(another.pk).succeeded


def test_an_error_that_the_database_refuses_is_recorded_without_its_text(registry: Registry) -> None:
    with database_refusing("unwelcome", "error"):
        task = submit("fail", "unwelcome", max_attempts=1)
        run(registry)
    task.refresh()
    assert task.failed
    assert task.error["type"] == "ValueError"
    assert task.error["code"] == "unexpected_exception"
    assert task.error["details"] is None
    assert "not this" in task.error["message"]


def test_what_the_database_refuses_altogether_is_left_for_the_recovery(registry: Registry) -> None:
    with database_refusing("e", "error"), reports() as reported:
        task, another = submit("fail", "boom", max_attempts=1), submit("echo", "welcome")
        run(registry)
    assert get(task.pk).is_running
    assert get(another.pk).succeeded
    assert "settle" in reported.phases


@pytest.mark.skipif(connection.vendor != "mysql", reason="The other databases take a packet of any size")
def test_so_does_a_success_over_which_the_server_breaks_the_connection(registry: Registry) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        [limit] = cursor.fetchone()

    @registry.task
    def too_much(ctx: TaskContext, payload: Any) -> str:
        return "x" * (limit + 1)

    task, another = submit(too_much), submit("echo", "welcome")
    run(registry)
    assert get(task.pk).error["code"] == "unserializable_result"
    assert get(another.pk).succeeded


def test_a_projects_own_code_that_fails_in_recording_costs_one_task_and_not_the_worker(registry: Registry) -> None:
    def audit(**kwargs: Any) -> None:
        raise TypeError("a faulty audit log")

    post_save.connect(audit, sender=TaskAttempt)
    try:
        with reports() as reported:
            task, another = submit("fail", "boom", max_attempts=1), submit("echo", "welcome")
            run(registry)
    finally:
        post_save.disconnect(audit, sender=TaskAttempt)
    assert get(task.pk).is_running
    assert get(another.pk).succeeded
    assert reported.phases == {"settle"}
    assert "faulty audit log" in str(reported[0][1])
