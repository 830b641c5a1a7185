"""Many tasks at once: each is treated as it would be alone."""

from __future__ import annotations

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.ids import new_task_id
from cairnq_django.models import Task, TaskKey
from cairnq_django.statuses import TaskStatus
from cairnq_django.store import control, together
from tests.factories import TaskFactory
from tests.helpers import eventually
from tests.store.sessions import (
    PATIENCE,
    another_transaction,
    locks_rows,
    row,
    someone_waits_for_a_lock,
    started_in_another_session,
)

pytestmark = pytest.mark.django_db

STATES = ("delayed", "running", "cancel_requested", "succeeded", "failed", "canceled")


def one_of_each() -> list[Task]:
    tasks = [TaskFactory(), *(TaskFactory(**{state: True}) for state in STATES)]
    return sorted(tasks, key=lambda task: task.pk)


def comparable(task: Task) -> dict[str, object]:
    """What a row says, but for what differs from task to task and from moment to moment."""
    values = row(Task, pk=task.pk)
    for column in ("id", "root_id", "created_at", "updated_at"):
        del values[column]
    return {name: bool(value) if name.endswith("_at") else value for name, value in values.items()} | {
        "due": Task.objects.due().filter(pk=task.pk).exists(),
        "lease_until": bool(values["lease_until"]),
    }


def test_canceling_together_does_to_each_what_canceling_does() -> None:
    alone, many = one_of_each(), one_of_each()
    changed = [control.cancel(DB, task.pk).changed for task in alone]

    handled = together.cancel_all(DB, [task.pk for task in many])

    assert [comparable(task) for task in many] == [comparable(task) for task in alone]
    assert [task.task_id for task in handled] == [task.pk for task in many]
    assert [task.changed for task in handled] == changed
    assert [task.status for task in handled] == [task.status for task in many]


@pytest.mark.parametrize("reset", [False, True])
def test_retrying_together_does_to_each_what_retrying_does(reset: bool) -> None:
    alone, many = one_of_each(), one_of_each()
    for task in alone:
        if task.failed or task.canceled:
            control.retry(DB, task.pk, reset_attempts=reset)

    handled = together.retry_all(DB, [task.pk for task in many], reset_attempts=reset)

    assert [comparable(task) for task in many] == [comparable(task) for task in alone]
    assert [task.changed for task in handled] == [task.failed or task.canceled for task in many]


def test_making_many_due_does_to_each_what_making_one_due_does() -> None:
    alone, many = one_of_each(), one_of_each()
    changed = [task.is_queued and control.run_now(DB, task.pk).changed for task in alone]

    handled = together.run_all_now(DB, [task.pk for task in many])

    assert [comparable(task) for task in many] == [comparable(task) for task in alone]
    assert [task.changed for task in handled] == changed


def test_those_that_are_gone_are_left_out() -> None:
    task, gone = TaskFactory(failed=True), new_task_id()

    for work in (together.retry_all, together.cancel_all, together.run_all_now):
        assert [handled.task_id for handled in work(DB, [task.pk, gone])] == [task.pk]
        assert work(DB, []) == []


def test_a_key_is_handed_to_what_is_retried_unless_it_has_another_task_by_now() -> None:
    free = TaskFactory(failed=True, key="free")
    busy = TaskFactory(failed=True, key="busy")
    holder = TaskFactory(key="busy")
    replaced, newer = TaskFactory(canceled=True, key="twice"), TaskFactory(failed=True, key="twice")
    again, done = TaskFactory(failed=True, key="done"), TaskFactory(succeeded=True, key="done")
    older, latest = TaskFactory(failed=True, key="lost"), TaskFactory(failed=True, key="lost")
    plain = TaskFactory(failed=True)
    TaskKey.objects.filter(key__in=["free", "lost"]).delete()

    tasks = (free, busy, replaced, newer, again, older, latest, plain)
    handled = together.retry_all(DB, [task.pk for task in tasks])

    assert {task.task_id for task in handled if task.changed} == {free.pk, newer.pk, latest.pk, plain.pk}
    assert dict(TaskKey.objects.values_list("key", "task_id")) == {
        "free": free.pk,
        "busy": holder.pk,
        "twice": newer.pk,
        "done": done.pk,
        "lost": latest.pk,
    }


def test_no_key_is_left_that_points_to_nothing() -> None:
    done = TaskFactory(succeeded=True, key="done")
    TaskKey.objects.all().delete()

    (handled,) = together.retry_all(DB, [done.pk])

    assert (handled.status, handled.changed) == (TaskStatus.SUCCEEDED, False)
    assert not TaskKey.objects.exists()


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_a_task_that_moves_on_meanwhile_is_seen_as_it_is_then() -> None:
    task, other = TaskFactory(failed=True), TaskFactory(failed=True)
    with another_transaction(lambda: control.retry(DB, task.pk)):
        session = started_in_another_session(lambda: together.retry_all(DB, [task.pk, other.pk]))
        eventually(someone_waits_for_a_lock, timeout=PATIENCE)
    by_id = {handled.task_id: handled for handled in session.result()}

    assert (by_id[task.pk].status, by_id[task.pk].changed) == (TaskStatus.QUEUED, False)
    assert by_id[other.pk].changed
