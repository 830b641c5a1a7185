"""What callers find on the row of a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cairnq_django import CairnQError, Task, cancel, get, purge, submit
from tests.factories import TaskFactory

pytestmark = pytest.mark.django_db

PREDICATES = ("is_terminal", "is_queued", "is_running", "succeeded", "failed", "canceled", "cancel_requested")

uses_two_threads = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("state", "true"),
    [
        (None, {"is_queued"}),
        ("delayed", {"is_queued"}),
        ("running", {"is_running"}),
        ("cancel_requested", {"is_running", "cancel_requested"}),
        ("succeeded", {"is_terminal", "succeeded"}),
        ("failed", {"is_terminal", "failed"}),
        ("canceled", {"is_terminal", "canceled"}),
    ],
)
def test_a_row_tells_its_state(state: str | None, true: set[str]) -> None:
    task = TaskFactory(**{state: True} if state else {})
    assert {predicate for predicate in PREDICATES if getattr(task, predicate)} == true


def test_a_row_shows_its_name_and_id() -> None:
    task = submit("send_receipt")
    assert str(task) == f"send_receipt {task.id}"


def test_cancel_on_a_row_cancels_the_task_and_takes_over_what_it_is_then() -> None:
    task = submit("work")
    assert task.cancel() is task
    assert task.canceled
    assert task.completed_at == get(task.id).completed_at is not None


def test_a_stale_row_learns_by_cancelling_how_its_task_ended() -> None:
    stale = submit("work", {"order": 7})
    cancel(stale.id)
    assert stale.is_queued
    assert stale.cancel().canceled
    assert stale.payload == {"order": 7}


def test_retry_on_a_row_queues_the_task_again_and_takes_over_what_it_is_then() -> None:
    task = TaskFactory(failed=True)
    assert task.retry() is task
    assert (task.is_queued, task.error, task.max_attempts) == (True, None, task.attempt + 1)
    with pytest.raises(CairnQError, match="is queued"):
        task.retry()


def test_a_row_that_was_read_in_part_can_be_cancelled() -> None:
    partial = Task.objects.only("name").get(pk=submit("work", {"order": 7}).pk)
    assert partial.cancel().canceled
    assert partial.payload == {"order": 7}


def test_refresh_reads_the_row_again() -> None:
    task = submit("work")
    cancel(task.id)
    assert task.is_queued
    assert task.refresh() is task
    assert task.canceled


@pytest.mark.parametrize("action", ["cancel", "retry", "refresh"])
def test_the_row_of_a_task_that_was_purged_says_so(action: str) -> None:
    task = TaskFactory(failed=True)
    purge(0)
    with pytest.raises(Task.DoesNotExist):
        getattr(task, action)()


@uses_two_threads
@pytest.mark.parametrize(("action", "state", "then"), [("acancel", None, "canceled"), ("aretry", "failed", "queued")])
def test_the_async_forms_do_the_same(action: str, state: str | None, then: str) -> None:
    task = TaskFactory(**{state: True} if state else {})

    async def act() -> Any:
        return await getattr(task, action)()

    assert asyncio.run(act()) is task
    assert task.status == then == get(task.id).status


@uses_two_threads
def test_the_async_refresh_reads_the_row_again() -> None:
    task = submit("work")
    cancel(task.id)

    assert asyncio.run(task.arefresh()) is task
    assert task.canceled
