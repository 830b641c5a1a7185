from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction

from cairnq_django.errors import AlreadyExists, CairnQError
from cairnq_django.models import Task, TaskKey
from cairnq_django.statuses import TaskStatus
from cairnq_django.store import control, settle
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, lease_of, new_task
from tests.helpers import eventually, in_threads
from tests.store.sessions import (
    another_transaction,
    locks_rows,
    someone_waits_for_a_lock,
    started_in_another_session,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

R = TypeVar("R")

pytestmark = pytest.mark.django_db

THREADS = 20

HOLDERS: dict[str, dict[str, Any]] = {
    "queued": {},
    "delayed": {"delayed": True},
    "running": {"running": True},
    "canceling": {"cancel_requested": True},
    "succeeded": {"succeeded": True},
    "failed": {"failed": True},
    "canceled": {"canceled": True},
}
LIVE = ["queued", "delayed", "running", "canceling"]
ENDED = ["succeeded", "failed", "canceled"]


def submit_keyed(key: str, conflict: Conflict = Conflict.REUSE, **fields: Any) -> Task:
    return submit(DB, [new_task(key=key, **fields)], conflict).tasks[0]


def current(key: str) -> Task:
    return Task.objects.by_key(key).get()


@pytest.mark.parametrize("conflict", Conflict)
def test_a_free_key_points_to_what_was_submitted(conflict: Conflict) -> None:
    task = submit_keyed("order:7", conflict)
    assert current("order:7") == task
    assert Task.objects.get() == task


@pytest.mark.parametrize("holder", LIVE)
def test_reuse_hands_back_the_live_task(holder: str) -> None:
    task = TaskFactory(key="order:7", **HOLDERS[holder])
    for conflict in (Conflict.REUSE, Conflict.REUSE_SUCCEEDED):
        assert submit_keyed("order:7", conflict) == task
    assert Task.objects.values().get() == {
        field.attname: getattr(task, field.attname) for field in Task._meta.concrete_fields
    }


@pytest.mark.parametrize(
    ("conflict", "holder"),
    [
        (conflict, holder)
        for conflict in Conflict
        for holder in ENDED
        if (conflict, holder) != (Conflict.REUSE_SUCCEEDED, "succeeded")
    ],
)
def test_a_task_that_ended_frees_its_key(conflict: Conflict, holder: str) -> None:
    ended = TaskFactory(key="order:7", **HOLDERS[holder])
    task = submit_keyed("order:7", conflict)
    assert task != ended
    assert current("order:7") == task
    assert Task.objects.get(pk=ended.pk).status == ended.status


def test_reuse_succeeded_hands_back_a_task_that_succeeded() -> None:
    done = TaskFactory(key="order:7", succeeded=True, result="a receipt")
    task = submit_keyed("order:7", Conflict.REUSE_SUCCEEDED)
    assert (task, task.result) == (done, "a receipt")
    assert Task.objects.count() == 1


@pytest.mark.parametrize("holder", LIVE)
def test_reject_raises_and_leaves_the_caller_s_transaction_usable(holder: str) -> None:
    task = TaskFactory(key="order:7", **HOLDERS[holder])
    before = TaskKey.objects.values().get()
    with transaction.atomic():
        with pytest.raises(AlreadyExists) as raised:
            submit_keyed("order:7", Conflict.REJECT)
        other = submit_keyed("order:8", Conflict.REJECT)
    assert (raised.value.key, raised.value.task) == ("order:7", task)
    assert TaskKey.objects.values().get(key="order:7") == before
    assert set(Task.objects.all()) == {task, other}


@pytest.mark.parametrize("holder", ["queued", "delayed"])
def test_replace_cancels_a_queued_task(holder: str) -> None:
    old = TaskFactory(key="order:7", **HOLDERS[holder])
    new = submit_keyed("order:7", Conflict.REPLACE)
    old.refresh()
    assert (old.status, current("order:7")) == (TaskStatus.CANCELED, new)


@pytest.mark.parametrize("holder", ["running", "canceling"])
def test_replace_asks_a_running_task_to_stop(holder: str) -> None:
    old = TaskFactory(key="order:7", **HOLDERS[holder])
    new = submit_keyed("order:7", Conflict.REPLACE)
    old.refresh()
    assert old.is_running
    assert old.cancel_requested
    assert current("order:7") == new
    assert settle.complete(DB, lease_of(old), "too late") == TaskStatus.CANCELED
    assert current("order:7") == new


@pytest.mark.parametrize("conflict", Conflict)
def test_a_caller_s_transaction_goes_on_after_any_strategy(conflict: Conflict) -> None:
    TaskFactory(key="order:7")
    with transaction.atomic():
        try:
            submit_keyed("order:7", conflict)
        except AlreadyExists:
            assert conflict is Conflict.REJECT
        unkeyed = submit(DB, [new_task()], conflict).tasks[0]
    assert Task.objects.filter(pk=unkeyed.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_rejected_batch_writes_nothing() -> None:
    task = TaskFactory(key="order:7")
    batch = [new_task(key=key) for key in ("order:6", "order:7", None, "order:8")]
    with pytest.raises(AlreadyExists):
        submit(DB, batch, Conflict.REJECT)
    assert Task.objects.get() == task
    assert TaskKey.objects.get().task == task


def test_a_batch_keeps_its_order_with_held_free_and_no_keys() -> None:
    held = TaskFactory(key="held")
    batch = [new_task(key=key) for key in ("free", None, "held", None)]
    assert submit(DB, batch, Conflict.REUSE).tasks == [batch[0], batch[1], held, batch[3]]
    assert Task.objects.count() == 4


def test_a_key_that_stands_twice_in_a_batch_meets_itself() -> None:
    batch = [new_task(key="order:7", payload=n) for n in range(2)]
    first, second = submit(DB, batch, Conflict.REUSE).tasks
    assert first is second is batch[0]
    assert Task.objects.get().payload == 0
    with pytest.raises(AlreadyExists):
        submit(DB, [new_task(key="order:8") for _ in range(2)], Conflict.REJECT)


def test_a_batch_of_keys_takes_a_few_statements_however_many_they_are() -> None:
    TaskFactory(key="order:1")
    few = len(statements(lambda: submit(DB, [new_task(key=f"a{n}") for n in range(3)], Conflict.REUSE).tasks))
    many = len(statements(lambda: submit(DB, [new_task(key=f"b{n}") for n in range(30)], Conflict.REUSE).tasks))
    assert few == many


@pytest.fixture
def _few_values_in_a_statement(db: None) -> Iterator[None]:
    """As many as the smallest build of SQLite takes; other databases take more than there is a use for."""
    if connection.vendor != "sqlite" or sys.version_info < (3, 11):
        yield
        return
    connection.ensure_connection()
    usual = connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
    yield
    connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, usual)


@pytest.mark.usefixtures("_few_values_in_a_statement")
def test_more_keys_than_a_statement_takes_values_are_submitted_at_once() -> None:
    keys = [f"order:{n}" for n in range(1_200)]
    first = submit(DB, [new_task(key=key) for key in keys], Conflict.REUSE).tasks
    again = submit(DB, [new_task(key=key) for key in keys], Conflict.REUSE).tasks
    assert again == first
    assert [task.key for task in again] == keys


DIFFERENT = ["Order", "order", "order ", " order", "ordér", "ordèr", "orde\u0301r", "straße", "strasse", "\U0001f600"]


def test_keys_that_look_alike_are_different() -> None:
    tasks = {key: submit_keyed(key) for key in [*DIFFERENT, "x" * 255, "\U0001f600" * 255]}
    assert Task.objects.count() == len(tasks)
    assert {key: current(key) for key in tasks} == tasks


def test_keys_that_look_alike_are_different_within_a_batch() -> None:
    tasks = submit(DB, [new_task(key=key) for key in DIFFERENT], Conflict.REUSE).tasks
    assert [current(key) for key in DIFFERENT] == tasks
    assert Task.objects.count() == len(DIFFERENT)


def test_a_retry_is_refused_while_the_key_has_another_live_task() -> None:
    old = TaskFactory(key="order:7", failed=True)
    new = submit_keyed("order:7")
    before = Task.objects.values().get(pk=old.pk)
    with transaction.atomic(), pytest.raises(AlreadyExists) as raised:
        control.retry(DB, old.pk)
    assert raised.value.task == new
    assert Task.objects.values().get(pk=old.pk) == before
    assert current("order:7") == new


@pytest.mark.parametrize("newer", ENDED)
def test_a_retry_takes_the_key_back_from_a_newer_task_that_ended(newer: str) -> None:
    old = TaskFactory(key="order:7", failed=True)
    TaskFactory(key="order:7", **HOLDERS[newer])
    control.retry(DB, old.pk)
    assert current("order:7") == old
    assert submit_keyed("order:7") == old


def test_a_retry_takes_back_a_key_that_was_deleted_with_a_newer_task() -> None:
    old = TaskFactory(key="order:7", canceled=True)
    TaskFactory(key="order:7", succeeded=True).delete()
    assert not TaskKey.objects.exists()
    control.retry(DB, old.pk)
    assert current("order:7") == old


def test_a_refused_retry_leaves_no_key_behind() -> None:
    task = TaskFactory(key="order:7", succeeded=True)
    TaskKey.objects.all().delete()
    with transaction.atomic(), pytest.raises(CairnQError):
        control.retry(DB, task.pk)
    assert not TaskKey.objects.exists()


def test_a_key_is_deleted_with_its_task() -> None:
    TaskFactory(key="order:7").delete()
    assert not TaskKey.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("conflict", [Conflict.REUSE, Conflict.REUSE_SUCCEEDED])
def test_of_many_submits_at_once_one_makes_the_task_and_the_others_get_it(conflict: Conflict) -> None:
    tasks = in_threads(THREADS, lambda n: submit_keyed("order:7", conflict, payload=n))
    assert Task.objects.get() == current("order:7")
    assert {task.pk for task in tasks} == {current("order:7").pk}
    assert {task.payload for task in tasks} == {current("order:7").payload}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("conflict", [Conflict.REUSE, Conflict.REUSE_SUCCEEDED])
def test_many_submits_at_once_after_a_failure_make_one_task(conflict: Conflict) -> None:
    failed = TaskFactory(key="order:7", failed=True)
    tasks = in_threads(THREADS, lambda n: submit_keyed("order:7", conflict))
    assert {task.pk for task in tasks} == {current("order:7").pk}
    assert Task.objects.exclude(pk=failed.pk).get() == current("order:7")


@pytest.mark.django_db(transaction=True)
def test_of_many_submits_at_once_one_is_taken_and_the_others_are_rejected() -> None:
    def try_to_submit(n: int) -> Task | AlreadyExists:
        try:
            return submit_keyed("order:7", Conflict.REJECT)
        except AlreadyExists as error:
            return error

    outcomes = in_threads(THREADS, try_to_submit)
    (task,) = [outcome for outcome in outcomes if isinstance(outcome, Task)]
    rejections = [outcome.task for outcome in outcomes if isinstance(outcome, AlreadyExists)]
    assert Task.objects.get() == current("order:7") == task
    assert rejections == [task] * (THREADS - 1)


@pytest.mark.django_db(transaction=True)
def test_of_many_replacements_at_once_one_stays_live() -> None:
    tasks = in_threads(THREADS, lambda n: submit_keyed("order:7", Conflict.REPLACE))
    assert len({task.pk for task in tasks}) == THREADS
    assert Counter(Task.objects.values_list("status", flat=True)) == {
        TaskStatus.QUEUED: 1,
        TaskStatus.CANCELED: THREADS - 1,
    }
    assert current("order:7").is_queued


@pytest.mark.django_db(transaction=True)
def test_of_submits_and_a_retry_at_once_one_makes_the_live_task() -> None:
    old = TaskFactory(key="order:7", failed=True)

    def submit_or_retry(n: int) -> Task | None:
        try:
            return submit_keyed("order:7") if n % 2 else control.retry(DB, old.pk).task
        except CairnQError:
            return None

    outcomes = in_threads(8, submit_or_retry)
    live = Task.objects.live().get()
    assert current("order:7") == live
    assert {task.pk for task in outcomes if task is not None} == {live.pk}
    assert all(outcomes[1::2]), "no submit is refused"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("conflict", [Conflict.REUSE, Conflict.REPLACE])
def test_batches_that_name_their_keys_in_opposite_order_both_get_through(conflict: Conflict) -> None:
    keys = [f"order:{n}" for n in range(10)]

    def submit_batches(n: int) -> None:
        for _ in range(5):
            batch = [new_task(key=key) for key in (keys if n % 2 else reversed(keys))]
            with transaction.atomic():  # in which nothing is tried again
                submitted = submit(DB, batch, conflict).tasks
            assert [task.key for task in submitted] == [task.key for task in batch]

    in_threads(6, submit_batches)
    assert Counter(Task.objects.live().values_list("key", flat=True)) == dict.fromkeys(keys, 1)
    assert all(current(key).is_queued for key in keys)


def at_isolation(level: str, work: Callable[[], R]) -> R:
    scope = "SESSION" if connection.vendor == "mysql" else "SESSION CHARACTERISTICS AS"
    with connection.cursor() as cursor:
        cursor.execute(f"SET {scope} TRANSACTION ISOLATION LEVEL {level}")
    return work()


@locks_rows
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_submit_waits_for_a_transaction_that_has_its_key(level: str) -> None:
    with another_transaction(lambda: submit_keyed("order:7")):
        later = started_in_another_session(lambda: at_isolation(level, lambda: submit_keyed("order:7")))
        eventually(someone_waits_for_a_lock)
    assert later.result() == Task.objects.get() == current("order:7")


@locks_rows
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_retry_waits_for_a_transaction_that_has_its_key(level: str) -> None:
    old = TaskFactory(key="order:7", failed=True)
    with another_transaction(lambda: submit_keyed("order:7")):
        later = started_in_another_session(lambda: at_isolation(level, lambda: control.retry(DB, old.pk)))
        eventually(someone_waits_for_a_lock)
    with pytest.raises(AlreadyExists):
        later.result()
    assert Task.objects.live().get() == current("order:7") != old


def test_a_key_costs_no_query_of_a_submit_without_one() -> None:
    with_key = statements(lambda: submit_keyed("order:7"))
    without = statements(lambda: submit(DB, [new_task()], Conflict.REUSE).tasks)
    table = connection.ops.quote_name(TaskKey._meta.db_table)
    assert any(table in sql for sql in with_key)
    assert not any(table in sql for sql in without)
