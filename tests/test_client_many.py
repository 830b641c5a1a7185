"""`submit_many()`: many tasks in one go, all or none."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from cairnq_django import AlreadyExists, Registry, SerializationError, Task, get, get_by_key, submit, submit_many
from cairnq_django.models import TaskKey
from tests.factories import TaskFactory
from tests.helpers import in_threads
from tests.store.sessions import in_another_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cairnq_django import TaskContext

pytestmark = pytest.mark.django_db

registry = Registry()


@registry.task(queue="mail", priority=2)
def send_receipt(ctx: TaskContext, payload: int) -> None: ...


def numbers() -> Iterator[int]:
    yield from range(5)


def test_rows_come_back_in_the_order_of_their_payloads() -> None:
    tasks = submit_many(send_receipt, range(1_005))
    assert [task.payload for task in tasks] == list(range(1_005))
    assert [task.payload for task in Task.objects.order_by("pk")] == list(range(1_005))
    assert {(task.queue, task.priority) for task in tasks} == {("mail", 2)}
    assert all(task.root_id == task.id and task.created_at == task.run_at for task in tasks)


def test_options_hold_for_every_task() -> None:
    parent = submit("work", correlation_id="request-1")
    children = submit_many(
        "work", ["a", "c"], queue="bulk", delay=60, expires=90, metadata={"by": "hand"}, parent=parent
    )
    assert [get(child.id).payload for child in children] == ["a", "c"]
    for child in children:
        assert (child.queue, child.metadata, child.correlation_id) == ("bulk", {"by": "hand"}, "request-1")
        assert (child.root_id, (child.run_at - child.created_at).total_seconds()) == (parent.id, 60)
        assert child.expires_at is not None
        assert (child.expires_at - child.created_at).total_seconds() == 90


def test_payloads_may_come_from_a_generator() -> None:
    assert [task.payload for task in submit_many(send_receipt, numbers())] == [0, 1, 2, 3, 4]


def test_no_payloads_are_no_tasks_and_no_statement() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert submit_many(send_receipt, []) == []
        assert submit_many(send_receipt, islice(numbers(), 0), key=str, conflict="reject") == []
    assert len(queries) == 0


def test_each_payload_has_the_key_that_the_function_makes_of_it() -> None:
    tasks = submit_many(send_receipt, [1, 2, 3], key=lambda order: f"receipt:{order}" if order != 2 else None)
    assert [task.key for task in tasks] == ["receipt:1", None, "receipt:3"]
    assert [get_by_key(f"receipt:{order}") for order in (1, 3)] == [tasks[0], tasks[2]]


def test_one_bad_payload_keeps_all_of_them_out() -> None:
    payloads: list[Any] = [1, 2, {3}]
    with pytest.raises(SerializationError, match=r"payloads\[2\]: set"):
        submit_many("work", payloads)
    assert not Task.objects.exists()


def test_a_taken_key_that_is_rejected_keeps_all_of_them_out() -> None:
    live = submit("work", key="2")
    with pytest.raises(AlreadyExists) as raised:
        submit_many("work", [1, 2, 3], key=str, conflict="reject")
    assert (raised.value.key, raised.value.task) == ("2", live)
    assert list(Task.objects.all()) == [live]
    assert list(TaskKey.objects.all()) == [live.current_key]


@pytest.mark.parametrize("conflict", ["reuse", "reuse-succeeded"])
def test_payloads_that_share_a_key_share_the_task_of_the_first(conflict: Any) -> None:
    first, other, again = submit_many(
        "work", [["a", 1], ["b", 2], ["a", 3]], key=lambda item: item[0], conflict=conflict
    )
    assert again == first != other
    assert [task.payload for task in Task.objects.order_by("pk")] == [["a", 1], ["b", 2]]


@pytest.mark.parametrize(
    ("conflict", "reused"), [("reuse", {"live"}), ("reuse-succeeded", {"live", "done"}), ("replace", set())]
)
def test_each_key_is_decided_by_itself(conflict: Any, reused: set[str]) -> None:
    present = {
        "live": TaskFactory(key="live"),
        "done": TaskFactory(key="done", succeeded=True),
        "lost": TaskFactory(key="lost", failed=True),
    }
    chosen = dict(
        zip([*present, "new"], submit_many("work", [*present, "new"], key=str, conflict=conflict), strict=True)
    )
    assert {key for key, task in present.items() if chosen[key] == task} == reused
    assert all(get_by_key(key) == task for key, task in chosen.items())
    assert present["live"].refresh().canceled is (conflict == "replace")


@pytest.mark.django_db(transaction=True)
def test_many_tasks_join_the_caller_s_transaction() -> None:
    with transaction.atomic():
        submit_many("work", range(10))
        assert in_another_session(Task.objects.count) == 0
    assert in_another_session(Task.objects.count) == 10


@pytest.mark.django_db(transaction=True)
def test_many_callers_with_the_same_keys_in_different_orders_agree() -> None:
    keys = [f"k{n}" for n in range(20)]

    def submit_all(caller: int) -> list[Task]:
        shuffled = keys[caller:] + keys[:caller]
        return sorted(submit_many("work", shuffled, key=str), key=lambda task: str(task.key))

    answers = in_threads(8, submit_all)
    assert Task.objects.count() == len(keys)
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite limits the values of one statement")
@pytest.mark.parametrize(("key", "most"), [(None, 4), (str, 7)])
def test_a_thousand_tasks_take_a_handful_of_statements(key: Any, most: int) -> None:
    with CaptureQueriesContext(connection) as queries:
        submit_many("work", range(1_000), key=key)
    assert len(queries) <= most, [query["sql"][:80] for query in queries]
