"""Signals of the functions that callers use: sent where they are called, in their transaction."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from cairnq_django import Task, asubmit, cancel, cancel_by_key, get, retry, run_now, submit, submit_many
from cairnq_django.bulk import cancel_all, retry_all
from cairnq_django.signals import task_submitted
from tests.factories import TaskFactory
from tests.hearing import hearing, receiving

if TYPE_CHECKING:
    from collections.abc import Callable

here = threading.current_thread().name


@pytest.mark.django_db(transaction=True)
def test_a_submit_is_told_where_it_is_made_once_it_is_committed() -> None:
    with hearing() as ears:
        task = submit("work", {"n": 1}, key="k")
    told = ears.only("task_submitted")
    assert (told.sender, told.facts) == (Task, {"task": task})
    assert (told.task.payload, told.task.status, told.thread) == ({"n": 1}, "queued", here)
    assert not told.in_transaction


@pytest.mark.django_db(transaction=True)
def test_a_submit_in_a_transaction_is_told_in_it_also_if_that_is_rolled_back() -> None:
    with hearing() as ears, transaction.atomic():
        task = submit("work")
        assert ears.only("task_submitted").in_transaction
        assert get(task.pk) == task
        transaction.set_rollback(True)
    assert ears.names() == ["submitted"]
    assert not Task.objects.exists()


@pytest.mark.django_db
def test_each_of_many_is_told_in_order_and_one_that_a_key_handed_back_is_not() -> None:
    held = submit("work", "a", key="a")
    with hearing() as ears:
        tasks = submit_many("work", ["a", "b", "b", "c"], key=lambda payload: str(payload))
    assert tasks[0] == held
    assert ears.names() == ["submitted"] * 2
    assert [heard.task.pk for heard in ears] == [tasks[1].pk, tasks[3].pk]


@pytest.mark.django_db
def test_what_gives_way_is_told_to_be_canceled_before_its_successor_is_submitted() -> None:
    queued = submit("work", key="k")
    running = TaskFactory(running=True, key="r")
    late = TaskFactory(too_late=True, key="l")
    with hearing() as ears:
        submit("work", key="k", conflict="replace")
        submit("work", key="r", conflict="replace")
        submit("work", key="l")
    # The running one is only asked to stop, and told when it has.
    assert ears.names() == ["canceled", "submitted", "submitted", "canceled", "submitted"]
    assert ears.names(running) == []
    assert [(heard.task.pk, heard.task.status, heard.code) for heard in ears if heard.name == "task_canceled"] == [
        (queued.pk, "canceled", None),
        (late.pk, "canceled", "expired"),
    ]


@pytest.mark.django_db(transaction=True)
def test_async_submits_are_told_to_async_receivers_too() -> None:
    heard = []

    async def hear(task: Task, **kwargs: Any) -> None:
        heard.append(task.pk)

    with receiving(task_submitted, hear):
        task = async_to_sync(asubmit)("work")
    assert heard == [task.pk]


CANCELS: dict[str, Callable[[list[Task]], object]] = {
    "one by one": lambda tasks: [cancel(task.pk) for task in tasks],
    "by key": lambda tasks: [cancel_by_key(task.key or "") for task in tasks],
    "with the family": lambda tasks: cancel(tasks[0].pk, family=True),
    "in bulk": lambda tasks: cancel_all([task.pk for task in tasks]),
}


@pytest.mark.django_db
@pytest.mark.parametrize("how", CANCELS)
def test_a_cancel_is_told_of_each_queued_task_and_not_of_one_that_runs_or_has_ended(how: str) -> None:
    parent = submit("work", key="parent")
    child = submit("work", key="child", parent=parent)
    running = TaskFactory(running=True, key="running", parent_id=parent.pk, root_id=parent.pk)
    over = TaskFactory(succeeded=True, key="over", parent_id=parent.pk, root_id=parent.pk)
    with hearing() as ears:
        CANCELS[how]([parent, child, running, over])
    assert ears.names() == ["canceled", "canceled"]
    assert {heard.task.pk for heard in ears} == {parent.pk, child.pk}
    for heard in ears:
        assert heard.facts == {"task": heard.task, "error": None, "exception": None, "duration": None}
        assert heard.task.status == "canceled"


@pytest.mark.django_db
@pytest.mark.parametrize("how", [lambda task: retry(task.pk), lambda task: retry_all([task.pk])], ids=["one", "bulk"])
def test_a_persons_retry_is_told_and_making_a_task_due_is_not(how: Callable[[Task], object]) -> None:
    failed, delayed = TaskFactory(failed=True), TaskFactory(delayed=True)
    with hearing() as ears:
        how(failed)
        run_now(delayed.pk)
    told = ears.only("task_retried")
    assert (told.task.pk, told.task.status) == (failed.pk, "queued")
    assert (told.facts["error"], told.facts["delay"], told.facts["duration"]) == (None, 0.0, None)
    assert len(ears) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("raised", ["an error of its own", "an error of the database", "a broken transaction"])
def test_a_receiver_that_raises_spoils_neither_the_submit_nor_the_callers_transaction(raised: str) -> None:
    def spoil(task: Task, **kwargs: Any) -> None:
        if raised == "an error of its own":
            raise ValueError("no")
        if raised == "a broken transaction":
            transaction.set_rollback(True)
            raise ValueError("no")
        Task(pk=task.pk, root_id=task.pk, name="the same again").save(force_insert=True)

    with receiving(task_submitted, spoil), hearing() as ears:
        with transaction.atomic():
            first, second = submit("work"), submit("work")
        third = submit("work")
    assert [get(task.pk).name for task in (first, second, third)] == ["work"] * 3
    assert ears.names() == ["submitted"] * 3


@pytest.mark.django_db
def test_rows_are_read_once_for_all_receivers_and_not_at_all_without_any() -> None:
    def statements(cancel_them: Callable[[], object]) -> int:
        with CaptureQueriesContext(connection) as captured:
            cancel_them()
        return sum("SAVEPOINT" not in query["sql"] for query in captured)

    ids = [submit("work").pk for _ in range(20)]
    without = statements(lambda: cancel_all(ids[:10]))
    with hearing("task_canceled") as ears:
        assert statements(lambda: cancel_all(ids[10:])) == without + 1
    assert ears.names() == ["canceled"] * 10
